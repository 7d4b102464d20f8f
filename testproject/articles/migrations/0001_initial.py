from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import migrations, models

if TYPE_CHECKING:
    from django.apps.registry import Apps
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor

TEXT = "The bridge over the river opens on Saturday. The mayor will cut the ribbon at ten."


def write_articles(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    articles = apps.get_model("articles", "Article").objects.using(schema_editor.connection.alias)
    articles.create(title="A bridge opens", body=TEXT)
    articles.create(title="The match of the year", body="Nil-nil after ninety minutes.", section="sport")


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Article",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("title", models.CharField(max_length=100)),
                ("body", models.TextField()),
                (
                    "section",
                    models.CharField(
                        choices=[("news", "News"), ("sport", "Sport"), ("culture", "Culture")],
                        default="news",
                        max_length=10,
                    ),
                ),
                ("published", models.BooleanField(default=False)),
            ],
            options={"ordering": ("pk",)},
        ),
        migrations.CreateModel(
            name="Source",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=100)),
                (
                    "article",
                    models.ForeignKey(on_delete=models.deletion.CASCADE, related_name="sources", to="articles.article"),
                ),
            ],
            options={"ordering": ("pk",)},
        ),
        migrations.RunPython(write_articles, migrations.RunPython.noop),
    ]
