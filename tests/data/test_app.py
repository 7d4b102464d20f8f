"""The tables of the test app exist on every database, and its odd names work."""

from __future__ import annotations

import pytest
from django.apps import apps


@pytest.mark.parametrize("alias", ["default", "postgres", "mariadb"])
def test_every_model_has_a_table(databases: None, alias: str) -> None:
    for model in apps.get_app_config("dataapp").get_models(include_auto_created=True):
        if model.__name__ == "QuotedLedger" and alias == "mariadb":
            continue
        if not model.__module__.startswith("tests.data."):  # a test elsewhere has put it here, for its values alone
            continue
        list(model._default_manager.using(alias).all())  # raises if there is no table
