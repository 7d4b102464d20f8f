"""What an edit lock costs the server: processor time of a whole request, over an empty view with a login."""

from __future__ import annotations

import html
import json
import random
import re
import secrets
import statistics
import time
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import path
from django.views.generic import UpdateView

from benchmarks.idempotency import BATCH, WARM_UP, Request
from benchmarks.pinning import pinned
from benchmarks.servers import SERVERS
from django_distlock.editing import EditLockMixin
from testproject.articles.models import Article

if TYPE_CHECKING:
    from collections.abc import Callable

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
EMPTY = "an empty view with a login"
RENEW, CLAIM, WATCH = "a beat that renews", "a beat that claims", "a beat that watches"
HIDDEN = re.compile(r'name="(distlock_edit\w*)" value="([^"]*)"')
FORM = "{% load editing %}<form method=post>{% edit_lock form.instance %}{{ form }}</form>"
LOADERS = [
    ("django.template.loaders.locmem.Loader", {"form.html": FORM}),
    "django.template.loaders.app_directories.Loader",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "OPTIONS": {"loaders": LOADERS, "context_processors": ["django.template.context_processors.request"]},
    }
]
place = {"alias": "default"}


class OneDatabase:
    """Users, sessions, articles and locks are in the database that is measured."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return place["alias"]

    db_for_write = db_for_read


def empty(request: HttpRequest) -> HttpResponse:
    """Knows who sends the request, and does nothing."""
    return JsonResponse({"user": request.user.is_authenticated})


class Unlocked(LoginRequiredMixin, UpdateView):  # type: ignore[type-arg]  # not subscriptable at run time
    """A form for users who are logged in, as it was."""

    model = Article
    fields = ("title", "body")
    template_name = "form.html"
    success_url = "/"


class Locked(EditLockMixin, Unlocked):
    """The same form with the lock."""

    edit_lock: ClassVar[dict[str, Any]] = {"WHEN": "change"}


urlpatterns = [
    path("empty/", empty),
    path("unlocked/<int:pk>/", Unlocked.as_view()),
    path("locked/<int:pk>/", Locked.as_view(), name="locked"),
]


class Editing:
    """One user with one form open."""

    def __init__(self) -> None:
        self.client = Client()
        self.client.handler.load_middleware()
        self.user = User.objects.create(username=secrets.token_hex(8), is_superuser=True)
        self.client.force_login(self.user)
        self.article = Article.objects.create(title="On locks", body="x")
        self.form = self.hidden()
        self.lease = secrets.token_hex(16)
        self.beat("claim", lease=self.lease)

    def hidden(self) -> dict[str, str]:
        """Render the form, and take its hidden fields."""
        page = self.client.get(f"/locked/{self.article.pk}/").content.decode()
        found = {name: html.unescape(value) for name, value in HIDDEN.findall(page)}
        if "distlock_edit" not in found:
            raise RuntimeError("The form has no grant.")
        return found

    def empty(self) -> None:
        """The measure: a POST of the same size."""
        self._posted("/empty/", {"grant": self.form["distlock_edit"], "verb": "renew"})

    def beat(self, verb: str, **more: Any) -> None:
        """One request of the script."""
        body = {"grant": self.form["distlock_edit"], "verb": verb, "idle": 3, **more}
        answer = self._posted(f"/locked/{self.article.pk}/", body, {"Distlock-Edit": verb})
        if answer["state"] not in ("held", "free"):
            raise RuntimeError(f"{verb} is answered with {answer}")

    def renew(self) -> None:
        """What each open form sends every 20 seconds."""
        self.beat("renew", lease=self.lease)

    def claim(self) -> None:
        """What the first key sends."""
        self.lease = secrets.token_hex(16)
        self.beat("claim", lease=self.lease)

    def watch(self) -> None:
        """What a page sends that is only read."""
        self.beat("watch")

    def _posted(self, url: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
        response = self.client.post(url, json.dumps(body), content_type="application/json", headers=headers)
        if response.status_code != 200:
            raise RuntimeError(f"{url} answers {response.status_code}")
        return response.json()

    def save(self, kind: str) -> list[str]:
        """Send a form; return the statements of the view."""
        hidden = self.hidden() if kind == "locked" else {}
        hidden |= {"distlock_edit_lease": self.lease} if hidden else {}
        with CaptureQueriesContext(connections[place["alias"]]) as queries:
            data = {"title": "On locks", "body": secrets.token_hex(4), **hidden}
            status = self.client.post(f"/{kind}/{self.article.pk}/", data).status_code
        if status != 302:
            raise RuntimeError(f"{kind} answers {status}")
        words = [query["sql"].split(None, 1)[0] for query in queries]
        return [word for word in words if word not in ("BEGIN", "COMMIT")]


def measure(group: str, rounds: int) -> list[Request]:
    """Let the ways take turns in batches, so that a disturbance hits all of them alike."""
    server: Any = SERVERS[group]
    place["alias"] = server.alias
    call_command("migrate", database=server.alias, verbosity=0)
    with (
        override_settings(
            ROOT_URLCONF=__name__,
            MIDDLEWARE=MIDDLEWARE,
            TEMPLATES=TEMPLATES,
            ALLOWED_HOSTS=["*"],
            DATABASE_ROUTERS=[OneDatabase()],
            DISTLOCK_EDITING={},
        ),
        pinned(server.pids),
    ):
        editing = Editing()
        try:
            return [*_measure(group, editing, rounds), *_statements(group, editing)]
        finally:
            editing.article.delete()
            editing.user.delete()
            with connections[server.alias].cursor() as cursor:
                cursor.execute("DELETE FROM django_distlock_weblease")


def _measure(group: str, editing: Editing, rounds: int) -> list[Request]:
    ways: dict[str, Callable[[], None]] = {
        EMPTY: editing.empty,
        RENEW: editing.renew,
        CLAIM: editing.claim,
        WATCH: editing.watch,
    }
    samples: dict[str, list[float]] = {way: [] for way in ways}
    order, chance = list(ways.items()), random.Random(1)
    for turn in range(-WARM_UP, rounds):
        chance.shuffle(order)
        for way, send in order:
            began = time.process_time()
            for _ in range(BATCH):
                send()
            if turn >= 0:
                samples[way].append((time.process_time() - began) / BATCH * 1e6)
    medians = {way: statistics.median(values) for way, values in samples.items()}
    return [Request(group, way, median, median / medians[EMPTY]) for way, median in medians.items()]


def _statements(group: str, editing: Editing) -> list[Request]:
    """How many statements a save has, with the lock and without: no time, and no ratio."""
    counts = {kind: len(editing.save(kind)) for kind in ("unlocked", "locked")}
    return [Request(group, f"statements of a save, {kind}", count, 0.0) for kind, count in counts.items()]
