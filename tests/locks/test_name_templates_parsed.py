"""Names with fields: what is refused when a function is decorated, and what a call fills in."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_distlock.locks.name_templates import Template


def plain(pk: Any, other: Any = "o", *rest: Any, key: Any = "k") -> None: ...


def anything(first: Any, *args: Any, **kwargs: Any) -> None: ...


def mixed(pk: Any, /, **kwargs: Any) -> None: ...


def filled(name: str, function: Any, *args: Any, **kwargs: Any) -> str:
    return Template([name], function).fill(args, kwargs)[name]


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "expected"),
    [
        ("a:{pk}", (7,), {}, "a:7"),
        ("a:{pk}", (), {"pk": 7}, "a:7"),
        ("{pk}{pk}-{other}-{key}", (7,), {}, "77-o-k"),
        ("{key}{other}", (7, "x", "y"), {"key": "z"}, "zx"),
        ("{{{pk}}}", (7,), {}, "{7}"),
        ("{{pk}}", (7,), {}, "{pk}"),
        ("{pk}", ("{other}",), {}, "{other}"),
        ("{pk}", ("None",), {}, "None"),
        ("{pk.user.pk}", (SimpleNamespace(user={"pk": 3}),), {}, "3"),
        ("{pk.real}", (5,), {}, "5"),
        ("{pk}", ("\ud800\x00",), {}, "\ud800\x00"),
    ],
)
def test_what_a_call_fills_in(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], expected: str) -> None:
    assert filled(name, plain, *args, **kwargs) == expected


@pytest.mark.tier2
@given(st.text(st.characters(exclude_characters="{}"), max_size=20), st.text(max_size=20))
def test_text_and_values_come_through_as_they_are(text: str, value: str) -> None:
    assert filled(f"{text}{{pk}}{text}", plain, value) == f"{text}{value}{text}"


def test_names_without_braces_are_left_alone() -> None:
    template = Template(["a", "b:{pk}"], plain)
    assert template.fill((1,), {}) == {"b:{pk}": "b:1"}
    assert Template(["a", "b"], plain).fill((), {"no": "binding"}) == {}


@pytest.mark.parametrize("name", ["{", "}", "a{pk", "a}", "{pk}}", "{{pk}"])
def test_loose_braces(name: str) -> None:
    with pytest.raises(ValueError, match=r"is no template: .* Write \{\{ and \}\} for braces\.$") as raised:
        Template([name], plain)
    assert repr(name) in str(raised.value)


@pytest.mark.parametrize(
    "name", ["{}", "{0}", "{pk[0]}", "{pk!r}", "{pk:>3}", "{pk:{other}}", "{pk.}", "{.pk}", "{pk..x}", "{ pk}", "{p-k}"]
)
def test_a_field_is_a_name_and_a_path(name: str) -> None:
    with pytest.raises(ValueError, match="a field is the name of an argument with a dotted path") as raised:
        Template([name], plain)
    assert repr(name) in str(raised.value)


@pytest.mark.parametrize("field", ["missing", "missing.pk", "rest"])
def test_a_field_that_the_signature_does_not_have(field: str) -> None:
    with pytest.raises(ValueError, match="has no argument") as raised:
        Template([f"a:{{{field}}}"], plain)
    assert str(raised.value) == (
        f"The lock name 'a:{{{field}}}' has the field {{{field}}}, but 'plain' has no argument "
        f"{field.split('.')[0]!r}; it has pk, other, key."
    )


def test_where_the_signature_takes_anything_the_call_tells() -> None:
    assert filled("{pk}-{first}", anything, 1, pk=2) == "2-1"
    for args, kwargs in (((1,), {}), ((1, 2), {"other": 3})):
        with pytest.raises(TypeError, match=r"^The lock name '\{pk\}' needs \{pk\}, which this call does not have\.$"):
            filled("{pk}", anything, *args, **kwargs)


@pytest.mark.parametrize("path", ["missing", "missing.deeper", "user.missing"])
def test_a_path_that_ends_early(path: str) -> None:
    with pytest.raises(TypeError, match=f"needs {{pk.{path}}}, which this call does not have"):
        filled(f"{{pk.{path}}}", plain, SimpleNamespace(user={"pk": 3}))


def test_a_call_that_does_not_fit_fails_like_the_function() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'pk'"):
        filled("{pk}", plain)


def test_a_keyword_does_not_hide_an_argument_of_the_same_name() -> None:
    """f(1, pk=2) is a legal call: pk is 1, and the other one lies in kwargs."""
    assert filled("{pk}", mixed, 1, pk=2) == "1"


def test_bound_methods_and_partials_have_their_first_argument() -> None:
    class View:
        def get(self, request: Any, pk: Any) -> None: ...

    view = View()
    assert filled("{pk}", view.get, "request", 4) == "4"
    assert filled("{pk}", View.get, view, "request", 4) == "4"
    assert filled("{pk}", functools.partial(view.get, "request"), 4) == "4"
    # what method_decorator makes: a partial that says it wraps the method
    decorated = functools.wraps(View.get)(functools.partial(View.get, view))
    assert filled("{request}{pk}", decorated, "request", 4) == "request4"


def test_a_decorator_with_wraps_shows_the_signature_below_it() -> None:
    @functools.wraps(plain)
    def wrapper(*args: Any, **kwargs: Any) -> None: ...

    assert filled("{pk}", wrapper, 8) == "8"
    with pytest.raises(ValueError, match="has no argument 'missing'"):
        Template(["{missing}"], wrapper)
