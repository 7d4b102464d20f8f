"""Resources, grants, versions and settings: values that need no server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin import ModelAdmin
from django.core import signing
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, models
from django.template import engines
from django.views.generic import UpdateView
from rest_framework.viewsets import ModelViewSet

from django_distlock.editing import EditLockAdmin, EditLockMixin
from django_distlock.editing.checks import check_editing
from django_distlock.editing.conf import config
from django_distlock.editing.drf import EditLockViewSetMixin
from django_distlock.editing.grants import SALT, EditGrant, GrantError, read_grant, sign
from django_distlock.editing.http.template_checks import check_templates
from django_distlock.editing.records import Owner, Resource
from django_distlock.editing.resources import matched, model_of, objects_of, pk_of, resource_of
from django_distlock.editing.versions import Inline, version_field_of, version_of
from django_distlock.idempotency.drf import IdempotentMixin
from testproject.articles.models import Article
from tests.data.app.models import AccountProxy, Currency, Place, Restaurant

if TYPE_CHECKING:
    from pathlib import Path

GRANT = EditGrant(
    resources=(Resource("default", "articles.article", "1", "articles.article"),),
    principal="user:1",
    fields=("title", "body"),
    inlines=(Inline(model="articles.source", fk="article", fields=("name",)),),
    version="1.abc",
    writes=(7,),
    permission="change",
    until=4e9,
)


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
)
Versioned = model("Versioned", edit_version_field="revision", revision=models.IntegerField(default=1))
Shop = model("Shop", code=models.CharField(max_length=9, unique=True))
Till = model("Till", shop=models.ForeignKey(Shop, models.CASCADE, to_field="code"))


# resources


def test_a_resource_is_the_topmost_concrete_model() -> None:
    assert resource_of(Restaurant, 3).model == resource_of(Place, 3).model == "dataapp.place"
    assert resource_of(Restaurant, 3).digest == resource_of(Place, 3).digest
    assert resource_of(AccountProxy, 1).model == "dataapp.account"
    assert model_of(resource_of(Restaurant, 3)) is Restaurant
    assert model_of(resource_of(AccountProxy, 1)) is AccountProxy


def test_the_text_of_a_key_is_exact() -> None:
    assert resource_of(Article, "007").pk == "7"
    assert resource_of(Currency, "Abc ").pk == "Abc "
    assert len({resource_of(Currency, key).digest for key in ("Abc", "abc", "Abc ", "ABC", "Äbc", "a\u0308bc")}) == 6
    assert pk_of(resource_of(Article, 7)) == 7
    found = resource_of(Pair, (7, "a,b"))
    assert found.pk == '["7", "a,b"]'
    assert pk_of(found) == (7, "a,b")
    assert resource_of(Profile, "05").pk == "5"
    assert pk_of(resource_of(Profile, 5)) == 5


def test_a_key_that_is_none_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="not saved yet"):
        resource_of(Article(title="new"))
    with pytest.raises(ValueError, match="primary key"):
        pk_of(Resource("default", "dataapp.pair", "7"))
    for key in ("x", "", "1; DROP TABLE"):
        with pytest.raises(ValueError, match="primary key"):
            resource_of(Article, key)
        with pytest.raises(ValueError, match="primary key"):
            pk_of(Resource("default", "articles.article", key))


def test_a_key_that_only_the_collation_calls_equal_is_another_object(databases: None) -> None:
    """MariaDB finds ``EUR`` for ``eur``."""
    rows = Currency.objects.using("mariadb")
    rows.create(code="EUR")
    try:
        assert rows.filter(pk="eur").exists()
        other = resource_of(Currency, "eur", "mariadb")
        assert objects_of([other]) == {}
        assert matched([resource_of(Currency, "EUR", "mariadb")], rows.filter(pk="eur"))
    finally:
        rows.all().delete()


def test_ids_are_checked() -> None:
    for wrong in ({"tab": "ä" * 10}, {"principal": "p" * 256}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Owner(**{"principal": "user:1", "tab": "a" * 16, "label": "Ada", **wrong})


# grants


def test_a_grant_comes_back_as_it_was() -> None:
    found = read_grant(sign(GRANT), "user:1")
    assert found == GRANT
    assert found.resource.kind == "articles.article"
    assert read_grant(sign(GRANT), None) == GRANT


def test_what_is_no_grant_of_ours() -> None:
    text = sign(GRANT)
    forged = ["", "x", "a:b:c", text[:-1], text[1:], text.swapcase()]
    for value in (None, 5, [], {"r": []}, {"r": [["default"]], "p": "user:1"}):  # signed for another purpose
        forged += [signing.dumps(value), signing.dumps(value, salt=SALT)]
    for each in forged:
        with pytest.raises(GrantError, match="forged"):
            read_grant(each, "user:1")


# versions


def thing(**values: Any) -> Any:
    return Thing(**{"pk": 1, "price": Decimal("1.00"), "data": {"a": 1, "b": 2}, "name": "x", **values})


def test_a_version_is_that_of_the_named_fields() -> None:
    assert version_of(thing(), ["name"]) == version_of(thing(price=2), ["name"])
    assert version_of(thing(), ["name"]) != version_of(thing(name="y"), ["name"])
    assert version_of(thing(), ["name", "price"]) == version_of(thing(), ["price", "name", "no_such_field"])
    assert version_of(thing()) != version_of(thing(price=Decimal("1.01")))
    assert version_of(thing(), ["data"]) == version_of(thing(data={"b": 2, "a": 1}), ["data"])
    assert version_field_of(Versioned) == "revision"
    assert version_field_of(Article) is None


def test_values_that_differ_have_different_versions() -> None:
    pairs = [("", None), ("null", None), ("1", 1), (1, True), (0, False), ("a", b"a"), ([], {}), (1, 1.5)]
    for one, other in pairs:
        assert version_of(thing(data=one), ["data"]) != version_of(thing(data=other), ["data"]), (one, other)
    assert version_of(thing(name="a", data="b")) != version_of(thing(name="ab", data=""))


def test_a_time_is_the_same_in_every_zone() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    there = noon.astimezone(timezone(timedelta(hours=2)))
    assert version_of(thing(name=noon)) == version_of(thing(name=there))
    assert version_of(thing(name=noon)) != version_of(thing(name=noon.replace(hour=13)))


def test_an_inline_by_another_key_than_the_primary_one() -> None:
    rows = Inline(model="dataapp.till", fk="shop").rows(Shop(pk=5, code="north"), "default")
    assert "= north" in str(rows.query)


# settings

WRONG: list[tuple[Any, str]] = [
    (["MODE"], "must be a dict"),
    ({"TIMEOUT": 5}, "unknown key 'TIMEOUT'"),
    ({"TTL": "60"}, "TTL must be a number"),
    ({"TTL": 0}, "TTL must be above zero"),
    ({"TTL": 20, "BEAT": 20}, "BEAT"),
    ({"MODE": "strict"}, "MODE must be one of"),
    ({"WHEN": None}, "WHEN must be one of"),
    ({"LABEL": "no.such.module"}, "LABEL"),
    ({"LABEL": 5}, "LABEL must be a callable"),
    ({"DATABASE": 5}, "DATABASE must be an alias"),
    ({"MAX_HELD": 0}, "MAX_HELD must be above zero"),
]


class ToPostgres:
    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "postgres" if model is Article else None


class Kept:
    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **hints: Any) -> bool | None:
        return False if model_name == "editleaserow" else None


def ids() -> list[str | None]:
    return [message.id for message in check_editing(None)]


def test_wrong_settings_are_errors_of_the_check(settings: Any) -> None:
    for setting, text in WRONG:
        settings.DISTLOCK_EDITING = setting
        with pytest.raises(ImproperlyConfigured, match=text):
            config()
        assert ids() == ["distlock.E070"]


def test_checks_of_the_database(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DISTLOCK_EDITING = {"DATABASE": "nowhere"}
    assert ids() == ["distlock.E071"]
    settings.DISTLOCK_EDITING = {"DATABASE": "default"}
    assert ids() == []
    settings.DATABASE_ROUTERS = [ToPostgres()]
    assert ids() == ["distlock.W070"]
    settings.DISTLOCK_EDITING = {}
    assert ids() == []
    settings.DATABASE_ROUTERS = [Kept()]
    assert ids() == ["distlock.W072"]
    settings.DATABASE_ROUTERS = []
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    assert ids() == ["distlock.W071"]


def test_a_view_overrides_the_setting(settings: Any) -> None:
    settings.DISTLOCK_EDITING = {"TTL": 90, "MODE": "warn", "LABEL": lambda user: f"user {user}"}
    assert (config().ttl, config(idle=120).ttl, config(idle=120).idle, config(idle=None).idle) == (90, 90, 120, 900)
    assert (config(mode="off").mode, config().mode) == ("off", "warn")
    assert config().label_of("ada") == "user ada"


# a mixin behind the class whose methods it extends would lock nothing, and nobody would notice

PAIRS = [
    (EditLockAdmin, ModelAdmin),
    (EditLockMixin, UpdateView),
    (EditLockViewSetMixin, ModelViewSet),
    (IdempotentMixin, ModelViewSet),
]


def test_a_mixin_in_the_wrong_place_is_refused() -> None:
    for mixin, base in PAIRS:
        child = type("Child", (base,), {})
        for wrong in ((base, mixin), (child, mixin)):
            text = f"Put {mixin.__name__} before {wrong[0].__name__} among the bases of Wrong"
            with pytest.raises(TypeError, match=text):
                type("Wrong", wrong, {})
        right = type("Right", (mixin, child), {})
        assert issubclass(type("Child", (right,), {}), mixin)


# templates with the tag

TAG = "{% load editing %}"


@pytest.fixture
def found(tmp_path: Path, settings: Any) -> Any:
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "APP_DIRS": False, "DIRS": [tmp_path]}]
    assert engines

    def ids(text: str) -> list[str | None]:
        (tmp_path / "form.html").write_text(text)
        return [message.id for message in check_templates(None)]

    return ids


FORMS = {
    '<form method="post">{% edit_lock object %}</form>': ["distlock.W075"],
    '<form method="post" autocomplete="off">{% edit_lock object %}</form>': [],
    "<form autocomplete=off method=post>{%edit_lock object%}</form>": [],
    "<FORM\n method=post>\n{% edit_lock object when='open' %}</FORM>": ["distlock.W075"],
    "<form></form>{% edit_lock object %}": [],
    "<form>{# {% edit_lock object %} #}</form>": [],
    "<form>{% edit_locked object %}</form>": [],
    '<form autocomplete="off"></form><form>{% edit_lock object %}</form>': ["distlock.W075"],
}


def test_forms(found: Any) -> None:
    assert {text: found(TAG + text) for text in FORMS} == FORMS


def test_addresses(found: Any, settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.idempotency.served"
    assert found('<form autocomplete="off">{% edit_lock object %}</form>') == ["distlock.W076"]
    assert found("<form></form>") == []
