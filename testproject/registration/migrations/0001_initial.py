from django.db import migrations, models


def make_door(apps, schema_editor):
    apps.get_model("registration", "Door").objects.using(schema_editor.connection.alias).create(
        pk=1, name="registration"
    )


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Account",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("email", models.CharField(max_length=254)),
                ("password", models.CharField(max_length=128)),
                ("created", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ("-pk",)},
        ),
        migrations.CreateModel(
            name="Door",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=50)),
            ],
        ),
        migrations.RunPython(make_door, migrations.RunPython.noop),
    ]
