from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("way", models.CharField(max_length=20)),
                ("item", models.CharField(max_length=20)),
                ("quantity", models.PositiveSmallIntegerField()),
                ("note", models.CharField(blank=True, max_length=200)),
                ("sheet", models.UUIDField(db_index=True)),
                ("payment", models.CharField(max_length=40)),
                ("created", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ("-pk",),
            },
        ),
    ]
