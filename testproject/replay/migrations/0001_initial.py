from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Run",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("scene", models.CharField(max_length=20)),
                ("created", models.DateTimeField(auto_now_add=True)),
                ("engine", models.CharField(max_length=20)),
                ("result", models.JSONField()),
            ],
            options={"ordering": ("-pk",)},
        ),
    ]
