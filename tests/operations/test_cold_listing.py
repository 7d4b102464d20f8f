"""The first listing of a process imports drivers before its time begins."""

from __future__ import annotations

import pytest

from tests.operations.cold import list_first
from tests.support.processes import Child

pytestmark = pytest.mark.usefixtures("databases")


@pytest.mark.tier2
@pytest.mark.parametrize(
    ("alias", "module"),
    [
        ("postgres", "django_distlock.backends.postgres.backend"),
        ("redis", "django_redis.client"),
    ],
)
def test_a_driver_that_takes_long_to_import_is_no_backend_that_does_not_answer(alias: str, module: str) -> None:
    with Child(list_first, alias, module) as child:
        assert child.hear() == [None, True]
