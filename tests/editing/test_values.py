"""Resources, grants, versions and settings: values that need no server."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission
from django.core import signing
from django.core.exceptions import ImproperlyConfigured
from django.db import models

from django_distlock.editing import EditConflict
from django_distlock.editing.checks import check_editing
from django_distlock.editing.conf import EditingConfig, config
from django_distlock.editing.grants import SALT, EditGrant, GrantError, open_grant, read_grant, sign
from django_distlock.editing.records import Resource
from django_distlock.editing.resources import matched, model_of, objects_of, pk_of, resource_of
from django_distlock.editing.versions import Inline, version_field_of, version_of
from testproject.articles.models import Article
from tests.data.app.models import AccountProxy, Currency, Place, Restaurant

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
    assert resource_of(Currency, "Abc").digest != resource_of(Currency, "abc").digest
    assert pk_of(resource_of(Article, 7)) == 7
    key = uuid.uuid4()
    assert Resource("default", "a.b", str(key)).pk == str(key)


class Pair(models.Model):
    pk = models.CompositePrimaryKey("shelf", "name")
    shelf = models.IntegerField()
    name = models.CharField(max_length=10)

    class Meta:
        managed = False
        app_label = "dataapp"

    def __str__(self) -> str:
        return self.name


class Profile(models.Model):
    user = models.OneToOneField("auth.User", models.DO_NOTHING, primary_key=True, related_name="+")

    class Meta:
        managed = False
        app_label = "dataapp"

    def __str__(self) -> str:
        return ""


def test_keys_of_several_columns_and_keys_that_are_foreign() -> None:
    found = resource_of(Pair, (7, "a,b"))
    assert found.pk == '["7", "a,b"]'
    assert pk_of(found) == (7, "a,b")
    with pytest.raises(ValueError, match="primary key"):
        pk_of(Resource("default", "dataapp.pair", "7"))
    assert resource_of(Profile, "05").pk == "5"
    assert pk_of(resource_of(Profile, 5)) == 5


def test_an_add_form_has_no_lock() -> None:
    with pytest.raises(ValueError, match="not saved yet"):
        resource_of(Article(title="new"))


@pytest.mark.parametrize("key", ["x", "", "1; DROP TABLE"])
def test_a_key_that_is_none_is_a_value_error(key: str) -> None:
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


def test_objects_of_several_models_are_read_with_one_query_each(
    databases: None, django_assert_num_queries: Any
) -> None:
    group = Group.objects.create(name="g")
    permission = Permission.objects.order_by("pk")[0]
    try:
        wanted = [resource_of(group), resource_of(permission), resource_of(Group, 10**6)]
        with django_assert_num_queries(2):
            assert set(objects_of(wanted).values()) == {group, permission}
    finally:
        group.delete()


# grants


def test_a_grant_comes_back_as_it_was() -> None:
    found = read_grant(sign(GRANT), "user:1")
    assert found == GRANT
    assert found.resource.kind == "articles.article"
    assert read_grant(sign(GRANT), None) == GRANT


@pytest.mark.parametrize("text", ["", "x", "a:b:c", sign(GRANT)[:-1], sign(GRANT)[1:], sign(GRANT).swapcase()])
def test_a_forged_grant(text: str) -> None:
    with pytest.raises(GrantError) as caught:
        read_grant(text, "user:1")
    assert caught.value.reason == "forged"


@pytest.mark.parametrize("value", [None, 5, [], {"r": []}, {"r": [["default"]], "p": "user:1"}])
def test_a_text_that_another_part_of_the_project_has_signed(value: Any) -> None:
    with pytest.raises(GrantError) as caught:
        read_grant(signing.dumps(value), "user:1")
    assert caught.value.reason == "forged"
    with pytest.raises(GrantError):
        read_grant(signing.dumps(value, salt=SALT), "user:1")


def test_a_grant_of_somebody_else_and_one_that_has_run_out() -> None:
    with pytest.raises(GrantError, match="foreign"):
        read_grant(sign(GRANT), "user:2")
    old = EditGrant(resources=GRANT.resources, principal="user:1", until=1.0)
    with pytest.raises(GrantError, match="expired"):
        read_grant(sign(old), "user:1")


def test_a_grant_is_for_one_database() -> None:
    with pytest.raises(ValueError, match="one database"):
        EditGrant(resources=(Resource("a", "b.c", "1"), Resource("b", "b.c", "1")), principal="p")
    with pytest.raises(ValueError, match="counter"):
        EditGrant(resources=GRANT.resources, principal="p", writes=(1, 2))


def test_there_is_no_grant_for_what_does_not_exist(databases: None) -> None:
    assert open_grant([resource_of(Article, 10**6)], principal="user:1") is None


# versions


class Thing(models.Model):
    price = models.DecimalField(max_digits=8, decimal_places=2)
    data = models.JSONField(default=dict)
    name = models.CharField(max_length=20)

    class Meta:
        managed = False
        app_label = "dataapp"

    def __str__(self) -> str:
        return self.name


def thing(**values: Any) -> Thing:
    return Thing(**{"pk": 1, "price": Decimal("1.00"), "data": {"a": 1, "b": 2}, "name": "x", **values})


def test_a_version_is_that_of_the_named_fields() -> None:
    assert version_of(thing(), ["name"]) == version_of(thing(price=2), ["name"])
    assert version_of(thing(), ["name"]) != version_of(thing(name="y"), ["name"])
    assert version_of(thing(), ["name", "price"]) == version_of(thing(), ["price", "name", "no_such_field"])
    assert version_of(thing()) != version_of(thing(price=Decimal("1.01")))


def test_the_order_of_keys_is_none_of_its_business() -> None:
    assert version_of(thing(), ["data"]) == version_of(thing(data={"b": 2, "a": 1}), ["data"])


@pytest.mark.parametrize(
    ("one", "other"), [("", None), ("null", None), ("1", 1), (1, True), (0, False), ("a", b"a"), ([], {}), (1, 1.5)]
)
def test_values_that_differ_have_different_versions(one: Any, other: Any) -> None:
    assert version_of(thing(data=one), ["data"]) != version_of(thing(data=other), ["data"])


def test_values_cannot_run_into_each_other() -> None:
    assert version_of(thing(name="a", data="b")) != version_of(thing(name="ab", data=""))


def test_a_version_field_of_the_model() -> None:
    class Versioned(models.Model):
        edit_version_field = "revision"
        revision = models.IntegerField(default=1)

        class Meta:
            managed = False
            app_label = "dataapp"

        def __str__(self) -> str:
            return ""

    assert version_field_of(Versioned) == "revision"
    assert version_field_of(Article) is None


# settings


def test_the_defaults() -> None:
    assert config() == EditingConfig()
    assert (config().ttl, config().beat, config().idle, config().mode, config().when) == (
        60,
        20,
        900,
        "enforce",
        "change",
    )


def test_a_view_overrides_the_setting(settings: Any) -> None:
    settings.DISTLOCK_EDITING = {"TTL": 90, "MODE": "warn"}
    assert (config().ttl, config(idle=120).ttl, config(idle=120).idle, config(idle=None).idle) == (90, 90, 120, 900)
    assert (config(mode="off").mode, config().mode) == ("off", "warn")


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ([], "must be a dict"),
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
    ],
)
def test_wrong_settings_are_errors_of_the_check(settings: Any, setting: Any, text: str) -> None:
    settings.DISTLOCK_EDITING = setting
    if not setting:
        settings.DISTLOCK_EDITING = ["MODE"]
    with pytest.raises(ImproperlyConfigured, match=text):
        config()
    assert [message.id for message in check_editing(None)] == ["distlock.E070"]


def test_labels(settings: Any) -> None:
    class User:
        def get_full_name(self) -> str:
            return ""

        def __str__(self) -> str:
            return "ada"

    assert config().label_of(User()) == "ada"
    settings.DISTLOCK_EDITING = {"LABEL": lambda user: f"user {user}"}
    assert config().label_of(User()) == "user ada"


class ToPostgres:
    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "postgres" if model is Article else None


def ids() -> list[str | None]:
    return [message.id for message in check_editing(None)]


def test_checks_of_the_database(settings: Any) -> None:
    settings.DISTLOCK_EDITING = {"DATABASE": "nowhere"}
    assert ids() == ["distlock.E071"]
    settings.DISTLOCK_EDITING = {"DATABASE": "default"}
    assert ids() == []
    settings.DATABASE_ROUTERS = [ToPostgres()]
    assert ids() == ["distlock.W070"]
    settings.DISTLOCK_EDITING = {}
    assert ids() == []


def test_checks_of_the_table(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import connections

    class Kept:
        def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **hints: Any) -> bool | None:
            return False if model_name == "editleaserow" else None

    settings.DISTLOCK_EDITING = {}
    settings.DATABASE_ROUTERS = [Kept()]
    assert ids() == ["distlock.W072"]
    settings.DATABASE_ROUTERS = []
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    assert ids() == ["distlock.W071"]


def test_the_message_of_a_conflict() -> None:
    resource = Resource("default", "shop.invoice", "5")
    assert str(EditConflict("changed", resource=resource)) == "shop.invoice 5 was changed after the form was rendered."
    assert str(EditConflict("deleted")) == "The object was deleted after the form was rendered."
    assert "another user" in str(EditConflict("held"))
    assert "busy" in str(EditConflict("saving"))


def test_an_inline_by_another_key_than_the_primary_one() -> None:
    class Shop(models.Model):
        code = models.CharField(max_length=9, unique=True)

        class Meta:
            managed = False
            app_label = "dataapp"

        def __str__(self) -> str:
            return self.code

    class Till(models.Model):
        shop = models.ForeignKey(Shop, models.CASCADE, to_field="code")

        class Meta:
            managed = False
            app_label = "dataapp"

        def __str__(self) -> str:
            return self.shop_id

    rows = Inline(model="dataapp.till", fk="shop").rows(Shop(pk=5, code="north"), "default")
    assert "= north" in str(rows.query)


def test_a_time_is_the_same_in_every_zone() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    there = noon.astimezone(timezone(timedelta(hours=2)))
    assert version_of(thing(name=noon)) == version_of(thing(name=there))
    assert version_of(thing(name=noon)) != version_of(thing(name=noon.replace(hour=13)))
