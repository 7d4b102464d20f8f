from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Piece",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=20, unique=True)),
                ("sign", models.CharField(max_length=2)),
                ("column", models.PositiveSmallIntegerField()),
                ("row", models.PositiveSmallIntegerField()),
            ],
            options={
                "ordering": ("pk",),
            },
        ),
        migrations.CreateModel(
            name="Entry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(auto_now_add=True)),
                ("tab", models.CharField(max_length=8)),
                ("asked", models.CharField(max_length=40)),
                ("fence", models.BigIntegerField(null=True)),
                ("status", models.PositiveSmallIntegerField()),
                (
                    "user",
                    models.ForeignKey(on_delete=models.deletion.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL),
                ),
            ],
            options={
                "ordering": ("-pk",),
            },
        ),
    ]
