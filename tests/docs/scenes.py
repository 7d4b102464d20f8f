"""What each page needs before its code can run, and what must be true after it.

A page without a scene is executed all the same, on the default backend of the test project.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from django.contrib import admin
from django.contrib.auth.models import AnonymousUser, User
from django.db import IntegrityError, connection
from django.db import models as django_models
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import include, path
from django.utils.module_loading import import_string
from django.views.generic import UpdateView

from django_distlock import LockLost, LockNotAcquired, UnsupportedOperation, advisory_lock
from django_distlock.browser.grants import LockGrant, read_grant
from django_distlock.data.fencing.triggers import reconcile
from django_distlock.editing.versions import version_field_of
from django_distlock.http.visitors import visitor_of
from testproject.articles.models import Article, Source
from tests.data.app import models
from tests.docs.tasks import delivered_twice, function_of, slots_are_done_once, task_modules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


Names = dict[str, Any]


@dataclass(frozen=True)
class Scene:
    """``using``: the alias of the test project that is "default" on the page."""

    using: str = "leasetable"
    before: Callable[[], contextlib.AbstractContextManager[Names]] = lambda: contextlib.nullcontext({})
    after: Callable[[Names], None] = lambda names: None


def post(**fields: str) -> HttpRequest:
    request = RequestFactory().post("/", fields)
    request.user = AnonymousUser()
    return request


def in_another_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def held_by_another_thread(name: str) -> contextlib.AbstractContextManager[Any]:
    return in_another_thread(lambda: advisory_lock(name).acquire())


ADDRESS = "scene@docs.example"
PASSWORD = "correct horse battery"


def readme(names: Names) -> None:
    try:
        user = names["create_account"](ADDRESS, PASSWORD)
        assert user.check_password(PASSWORD)
        assert names["create_account"](ADDRESS, PASSWORD) is None
        names["deactivate"](user_id=user.pk)
        user.refresh_from_db()
        assert not user.is_active
    finally:
        User.objects.filter(email__iexact=ADDRESS).delete()
    sent: list[str] = []
    names["nightly"](sent.append)
    assert sent == ["sales", "stock"]
    with held_by_another_thread("nightly-report"), pytest.raises(LockNotAcquired):
        names["nightly"](sent.append)
    assert names["INSTALLED_APPS"] == ["django_distlock"]


def quickstart(names: Names) -> None:
    """The file on the page is complete: a browser gets the form, signs up, and is refused the second time."""
    (route,) = names["urlpatterns"]
    assert b"csrfmiddlewaretoken" in route.callback(RequestFactory().get("/register/")).content
    try:
        for address, status, text in [
            (ADDRESS, 201, b"Welcome"),
            (ADDRESS.upper(), 200, b"This address is taken."),
            ("x" * 600, 200, b"valid email address"),
        ]:
            answer = route.callback(post(email=address, password=PASSWORD))
            assert (answer.status_code, text in answer.content) == (status, True), address
        assert User.objects.filter(email__iexact=ADDRESS).count() == 1
    finally:
        User.objects.filter(email__iexact=ADDRESS).delete()
    with held_by_another_thread("clean-up"):
        assert names["clean_up"]() is None
    assert names["clean_up"]() == "done"


def decorators(names: Names) -> None:
    assert names["update_rates"]() == asyncio.run(names["update_rates_async"]()) == "updated"
    assert names["Ledger"].close_books() == "Ledger"
    assert names["settle"](7) == 7
    assert names["ship"](SimpleNamespace(customer=SimpleNamespace(id=1), number=2)) == 2
    request = post()
    request.user = SimpleNamespace(pk=5, is_authenticated=True)
    request.session = SimpleNamespace(session_key="k")
    assert names["edit_profile"](request) == 5
    assert names["add_to_basket"](request) == 5
    assert names["BasketView"].as_view()(request).content == b"saved"
    assert names["refund"](request).content == b"refunded"
    assert names["refund"](RequestFactory().get("/")).status_code == 405
    with held_by_another_thread("settings-page"):
        assert names["save_settings"](request).status_code == 409
    exported = names["export"](request)
    assert in_another_thread(lambda: advisory_lock("export").try_acquire()) is None
    assert exported.getvalue() == b"name,total\r\n"
    advisory_lock("export", timeout=0).acquire().release()
    middleware = names["PatientMiddleware"](lambda request: HttpResponse())
    with held_by_another_thread("rates"), pytest.raises(LockNotAcquired) as busy:
        advisory_lock("rates").acquire(timeout=0)
    answer = middleware.process_exception(request, busy.value)
    assert (answer.status_code, answer["Retry-After"]) == (503, "10")


def transactions(names: Names) -> None:
    for pay in ("pay", "pay_inside"):
        invoice = SimpleNamespace(paid=False, save=lambda: None)
        names[pay](invoice)
        assert invoice.paid
    rows = [models.Account.objects.create(owner=owner, balance=10) for owner in ("ann", "bob")]
    for move in ("move", "move_in_a_block"):
        names[move](rows[0].pk, rows[1].pk, 3)
    in_another_thread(lambda: asyncio.run(names["empty"](rows[1].pk)))
    assert list(models.Account.objects.order_by("pk").values_list("balance", flat=True)) == [4, 0]
    models.Account.objects.all().delete()


def in_asyncio(names: Names) -> None:
    for coroutine in ("report", "report_if_free", "within_a_second"):
        assert asyncio.run(names[coroutine]()) == "made"
    asyncio.run(names["parent"]())
    with held_by_another_thread("report"):
        assert asyncio.run(names["report_if_free"]()) == "busy"
        assert asyncio.run(names["within_a_second"]()) == "gave up"


def waiting(names: Names) -> None:
    published: list[str] = []
    assert names["make_report"](lambda: "figures", published.append, None) == "made"
    with held_by_another_thread("report"):
        assert names["make_report"](lambda: "figures", published.append, None) == "another caller makes it"
    assert published == ["figures"]
    assert names["transfer"](7, 3, 1) == ("account:7", 2)
    assert names["transfer_decorated"](7, 3, 1) == 1
    assert names["render"]("letter") == "rendered letter"
    assert names["read_catalogue"]() == "with other readers"
    assert names["write_catalogue"]() == "alone"
    with pytest.raises(UnsupportedOperation, match="share"):
        advisory_lock("catalogue", using="leases", shared=True).acquire()


def fencing(names: Names) -> None:
    report = names["Report"]
    with connection.schema_editor() as editor:
        editor.create_model(report)
    try:
        with mock.patch("django_distlock.data.fencing.triggers.apps", report._meta.apps):  # the page's own
            reconcile("default", plan=[])
        late = report.objects.create()
        assert names["publish"](late.pk, "first") == 1
        names["correct"](late.pk, " and last")
        report.objects.update(fence=2**62)  # somebody with a later token
        for write in ("publish", "correct"):
            with pytest.raises(LockLost, match="later fencing token"):
                names[write](late.pk, "late")
        with pytest.raises(IntegrityError, match="stale fencing token"):
            report.objects.update(body="late", fence=1)
        assert report.objects.get().body == "first and last"
    finally:
        with connection.schema_editor() as editor:
            editor.delete_model(report)


def data_locks(names: Names) -> None:
    row_locks(names)
    table_locks(names)


def row_locks(names: Names) -> None:
    wallet = names["Wallet"]
    with connection.schema_editor() as editor:
        editor.create_model(wallet)
    try:
        first, second = (wallet.objects.create(owner=owner, balance=1000) for owner in ("ann", "bob"))
        assert [names["withdraw"](first.pk, amount) for amount in (600, 700)] == [True, False]
        names["transfer"](second.pk, first.pk, 100)
        names["deposit"](first.pk, 150)
        names["withdraw_inside"](second.pk, 300)
        assert list(wallet.objects.order_by("pk").values_list("balance", flat=True)) == [650, 600]
        assert (names["next_wallets"](1), asyncio.run(names["report"](first.pk))) == ([first.pk], first)
    finally:
        with connection.schema_editor() as editor:
            editor.delete_model(wallet)


def tasks(names: Names) -> None:
    slots_are_done_once(names)
    for library in ("", "_rq", "_huey", "_dramatiq"):
        names[f"send_invoice{library}"](7)
    function_of(names["send_invoice_task"])(None, 7)
    names["count_stock"]("sku")
    names["nightly"]()
    delivered_twice(names)


def testing(names: Names) -> None:
    names["test_stops_when_the_lock_is_lost"]()
    names["test_nobody_gets_the_same_number"]()
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(names["ReportTests"]).run(result)
    assert result.testsRun == 1
    assert result.wasSuccessful(), result.errors + result.failures
    assert issubclass(names["Runner"], names["DiscoverRunner"])


def operations(names: Names) -> None:
    with advisory_lock("watched"):
        pass
    assert names["waits"][0][:2] == ("default", "-")
    names["DistlockInstrumentor"]().uninstrument()


def sends_timeouts(names: Names) -> None:
    with held_by_another_thread("watched"):
        assert advisory_lock("watched").try_acquire() is None
    assert names["timeouts"] == [("LeaseTableBackend", "watched", "default")]


def duplicate_requests(names: Names) -> None:
    assert names["book"](post(seat="12")).status_code == 400  # without a key


def table_locks(names: Names) -> None:
    account = models.Account.objects.create(owner="x", balance=3)
    student, course = models.Student.objects.create(name="x"), models.Course.objects.create(title="y")
    try:
        assert names["close_books"]() == 3
        assert names["settle"](7) == "settled 7"
        assert names["convert"]() == names["deep"]() == 0
        names["enrol"](student, course)
        assert list(student.courses.all()) == [course]
    finally:
        for row in (account, student, course):
            row.delete()


@contextmanager
def with_invoice() -> Iterator[Names]:
    """An object that people edit."""
    invoice = Article.objects.create(title="Invoice 5", body="")
    try:
        yield {
            "invoice": invoice,
            "Invoice": Article,
            "Line": Source,
            "InvoiceForm": object,
            "models": django_models,
            "admin": admin,
            "UpdateView": UpdateView,
        }
    finally:
        invoice.delete()


def editing_code(names: Names) -> None:
    assert Article.objects.get(pk=names["invoice"].pk).title == "Corrected by the import"
    assert names["initials"](User(first_name="Ada", last_name="Lovelace")) == "AL"
    assert names["initials"](User()) == "A colleague"


def editing_guide(names: Names) -> None:
    refused = names["csrf_failure"](post(title="New"))
    assert refused.status_code == 403
    assert import_string(names["CSRF_FAILURE_VIEW"])(post(title="New")).status_code == 403
    assert version_field_of(names["Bill"]) == "revision"


def browser_guide(names: Names) -> None:
    refused_without_a_lease(names["change_cart"])
    refused_without_a_lease(names["move_piece"], pk=3)
    assert granted(names).audience is None


def refused_without_a_lease(view: Callable[..., HttpResponse], **arguments: Any) -> None:
    request = post()
    request.user.pk = 5
    assert view(request, **arguments).status_code == 423


def granted(names: Names) -> LockGrant:
    """The grant that the view of the page has signed."""
    user = User.objects.create_user("scene-of-the-docs")
    try:
        request = post()
        request.user = user
        grant = json.loads(names["cart_grant"](request).content)["grant"]
        found = read_grant(grant, visitor_of(request, str).signer)
        assert found.name == f"cart:{user.pk}"
        return found
    finally:
        user.delete()


@contextmanager
def with_channels() -> Iterator[Names]:
    """Stand-ins for what the recipe imports."""
    layers = ModuleType("channels.layers")
    vars(layers)["get_channel_layer"] = SimpleNamespace
    with mock.patch.dict(sys.modules, {"channels": ModuleType("channels"), layers.__name__: layers}):
        yield {}


def browser_reference(names: Names) -> None:
    headers: dict[str, str] = {}
    names["WHITENOISE_ADD_HEADERS_FUNCTION"](headers, "/srv/worker.js", "/static/worker.js")
    names["WHITENOISE_ADD_HEADERS_FUNCTION"](headers, "/srv/site.css", "/static/site.css")
    assert headers == {"Cross-Origin-Embedder-Policy": "require-corp"}
    refused_without_a_lease(names["move"], pk=3)
    assert granted(names).audience == "https://app.example.com"


TABLES = {name: getattr(models, name) for name in ("Account", "Currency", "Student", "Course", "Node")}
TABLES["Transfer"] = models.Place
ROUTES = {"include": include, "path": path}
SCENES = {
    "README.md": Scene(after=readme),
    "docs/quickstart.md": Scene(after=quickstart),
    "docs/idempotency/overview.md": Scene(after=duplicate_requests),
    "docs/operations.md": Scene(after=operations),
    "docs/backends/postgres.md": Scene("postgres"),
    "docs/backends/mysql.md": Scene("mysql"),
    "docs/browser/index.md": Scene(before=lambda: contextlib.nullcontext(ROUTES), after=browser_guide),
    "docs/browser/server.md": Scene(before=with_channels, after=browser_reference),
    "docs/editing/index.md": Scene(before=with_invoice, after=editing_guide),
    "docs/editing/code.md": Scene(before=with_invoice, after=editing_code),
    "docs/usage/decorators.md": Scene(after=decorators),
    "docs/usage/transactions.md": Scene(before=lambda: contextlib.nullcontext(TABLES), after=transactions),
    "docs/usage/async.md": Scene(after=in_asyncio),
    "docs/usage/waiting.md": Scene("postgres", after=waiting),
    "docs/usage/fencing.md": Scene(after=fencing),
    "docs/data-locks.md": Scene(before=lambda: contextlib.nullcontext(TABLES), after=data_locks),
    "docs/usage/tasks.md": Scene(before=task_modules, after=tasks),
    "docs/usage/testing.md": Scene(after=testing),
    "docs/reference/api.md": Scene(after=sends_timeouts),
}
