"""Without requests: resources, grants, versions, settings, checks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.admin import ModelAdmin
from django.db import models
from django.views.generic import UpdateView
from rest_framework.viewsets import ModelViewSet

from django_distlock.editing import EditLockAdmin, EditLockMixin
from django_distlock.editing.conf import EditingConfig
from django_distlock.editing.drf import EditLockViewSetMixin
from django_distlock.editing.records import Owner
from django_distlock.editing.resources import matched, model_of, objects_of, pk_of, resource_of
from django_distlock.editing.versions import Inline, version_field_of, version_of
from django_distlock.idempotency import IdempotentAdmin
from django_distlock.idempotency.drf import IdempotentMixin
from django_distlock.leases import rows
from django_distlock.leases.records import Resource
from testproject.articles.models import Article
from tests.data.app.models import Account, AccountProxy, Currency, Place, Restaurant


def model(name: str, /, **attributes: Any) -> Any:
    """A model without a table."""
    meta = type("Meta", (), {"managed": False, "app_label": "dataapp"})
    return type(name, (models.Model,), {**attributes, "Meta": meta, "__module__": __name__})


Pair = model(
    "Pair",
    pk=models.CompositePrimaryKey("shelf", "name"),
    shelf=models.IntegerField(),
    name=models.CharField(max_length=10),
)
Profile = model(
    "Profile", user=models.OneToOneField("auth.User", models.DO_NOTHING, primary_key=True, related_name="+")
)
Thing = model(
    "Thing",
    price=models.DecimalField(max_digits=8, decimal_places=2),
    data=models.JSONField(default=dict),
    name=models.CharField(max_length=20),
    at=models.DateTimeField(),
)
Versioned = model("Versioned", edit_version_field="revision", revision=models.IntegerField(default=1))
Shop = model("Shop", code=models.CharField(max_length=9, unique=True))
Till = model("Till", shop=models.ForeignKey(Shop, models.CASCADE, to_field="code"))


# resources


def test_e1_a_resource_is_the_topmost_concrete_model() -> None:
    for of, topmost in ((Restaurant, Place), (AccountProxy, Account)):
        assert resource_of(of, 3).model == resource_of(topmost, 3).model == topmost._meta.label_lower
        assert resource_of(of, 3).digest == resource_of(topmost, 3).digest
        assert model_of(resource_of(of, 3)) is of


def test_the_text_of_a_key_is_exact() -> None:
    for of, key, text, pk in (
        (Article, "007", "7", 7),
        (Currency, "Abc ", "Abc ", "Abc "),
        (Pair, (7, "a,b"), '["7", "a,b"]', (7, "a,b")),
        (Profile, "05", "5", 5),
    ):
        found = resource_of(of, key)
        assert (found.pk, pk_of(found)) == (text, pk)
    assert len({resource_of(Currency, key).digest for key in ("Abc", "abc", "Abc ", "ABC", "Äbc", "a\u0308bc")}) == 6


WRONG = {
    "not saved yet": lambda: resource_of(Article(title="new")),
    "primary key of articles": lambda: resource_of(Article, "1; DROP TABLE"),
    "'7' is no primary key of": lambda: resource_of(Pair, "7"),
    "no primary key": lambda: pk_of(Resource("default", "articles.article", "")),
    "primary key": lambda: pk_of(Resource("default", "dataapp.pair", "7")),
    "principal": lambda: rows.take("claim", resource_of(Article, 7), Owner("p" * 256, "Ada"), "12345678", 5),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_key_and_no_id(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        WRONG[text]()


def test_a_key_that_only_the_collation_calls_equal_is_another_object(databases: None) -> None:
    """MariaDB finds ``EUR`` for ``eur``."""
    present = Currency.objects.using("mariadb")
    present.create(code="EUR")
    try:
        assert present.filter(pk="eur").exists()
        assert objects_of([resource_of(Currency, "eur", "mariadb")]) == {}
        assert matched([resource_of(Currency, "EUR", "mariadb")], present.filter(pk="eur"))
    finally:
        present.all().delete()


# versions


def version(*names: str, **values: Any) -> str:
    facts = {"pk": 1, "price": Decimal("1.00"), "data": {"a": 1, "b": 2}, "name": "x", **values}
    return version_of(Thing(**facts), list(names)) if names else version_of(Thing(**facts))


def test_e6_a_version_is_that_of_the_named_fields() -> None:
    assert version("name") == version("name", price=2) != version("name", name="y")
    assert version("name", "price") == version("price", "name", "no_such_field")
    assert version() != version(price=Decimal("1.01"))
    assert version("data") == version("data", data={"b": 2, "a": 1})
    assert version_field_of(Versioned) == "revision"
    assert version_field_of(Article) is None
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    there = noon.astimezone(timezone(timedelta(hours=2)))
    assert version("at", at=noon) == version("at", at=there) != version("at", at=noon.replace(hour=13))
    pairs = [("", None), ("null", None), ("1", 1), (1, True), (0, False), ("a", b"a"), ([], {}), (1, 1.5)]
    for one, other in pairs:
        assert version("data", data=one) != version("data", data=other), (one, other)
    assert version(name="a", data="b") != version(name="ab", data="")
    found = Inline(model="dataapp.till", fk="shop").rows(Shop(pk=5, code="north"), "default")
    assert "= north" in str(found.query), "another key than the primary one"


# settings and checks


def test_a_hidden_tab_keeps_its_lock() -> None:
    """Browsers run its timers once a minute, so a beat may come a minute late, and the next one may be lost."""
    assert EditingConfig().ttl > 2 * 60 + EditingConfig().beat


def test_a_mixin_behind_the_class_whose_methods_it_extends_is_refused() -> None:
    """It would lock nothing, and nobody would notice."""
    for mixin, base in (
        (EditLockAdmin, ModelAdmin),
        (EditLockMixin, UpdateView),
        (EditLockViewSetMixin, ModelViewSet),
        (IdempotentMixin, ModelViewSet),
        (IdempotentAdmin, ModelAdmin),
    ):
        child = type("Child", (base,), {})
        for wrong in (base, child):
            text = f"Put {mixin.__name__} before {wrong.__name__} among the bases of Wrong"
            with pytest.raises(TypeError, match=text):
                type("Wrong", (wrong, mixin), {})
        right = type("Right", (mixin, child), {})
        assert issubclass(type("Child", (right,), {}), mixin)
