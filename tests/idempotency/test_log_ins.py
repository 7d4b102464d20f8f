"""What a log-in writes to the session: a site that has no forms with keys does not pay for their pages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = """
import json, sys
import django
from django.conf import settings
from django.http import HttpResponse

uses, failure_view = sys.argv[1:]
settings.configure(
    SECRET_KEY="x" * 50,
    ALLOWED_HOSTS=["testserver"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions", "django_distlock"],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        *(["django_distlock.idempotency.IdempotencyMiddleware"] if uses == "middleware" else []),
    ],
    ROOT_URLCONF="__main__",
    USE_TZ=True,
    LOGIN_REDIRECT_URL="/",
    **({} if failure_view == "of Django" else {"CSRF_FAILURE_VIEW": failure_view}),
)
django.setup()

from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView
from django.core.management import call_command
from django.test import Client
from django.urls import path

def view(request):
    return HttpResponse("ok")

if uses == "decorator":
    from django_distlock.idempotency import idempotent
    view = idempotent(view)

urlpatterns = [path("in/", LoginView.as_view()), path("act/", view)]
call_command("migrate", verbosity=0)
User.objects.create_user("smith", password="pass")
client = Client(raise_request_exception=True)
client.cookies["csrftoken"] = "c" * 32
assert client.post("/in/", {"username": "smith", "password": "pass"}).status_code == 302
more = sorted(name for name in client.session.keys() if not name.startswith("_auth"))
print(json.dumps([more, "django_distlock.idempotency" in sys.modules]))
"""
OURS = "django_distlock.idempotency.csrf.csrf_failure"
OWN = "shop.views.csrf_failure"


def after_log_in(uses: str, failure_view: str) -> tuple[list[str], bool]:
    """What the session has besides the user, and whether the package of idempotency keys was imported."""
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-c", SITE, uses, failure_view]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    noted, imported = json.loads(done.stdout)
    return noted, imported


@pytest.mark.parametrize(("uses", "failure_view"), [("nothing", "of Django"), ("nothing", OWN)])
def test_a_site_without_keys_is_left_alone(uses: str, failure_view: str) -> None:
    noted, imported = after_log_in(uses, failure_view)
    assert noted == []
    if failure_view != OWN:
        assert not imported


def test_nothing_is_noted_that_no_page_needs() -> None:
    assert after_log_in("middleware", "of Django")[0] == []


@pytest.mark.parametrize(("uses", "failure_view"), [("middleware", OWN), ("decorator", OURS)])
def test_a_site_with_forms_that_have_keys_notes_the_browser(uses: str, failure_view: str) -> None:
    assert len(after_log_in(uses, failure_view)[0]) == 1
