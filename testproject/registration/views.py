"""The sign-up view once per way, the log-in, and the page that shows what the last replay measured."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING

from django.contrib import messages
from django.db.transaction import non_atomic_requests
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from django_distlock import advisory_lock, row_lock, table_lock
from testproject.replay.views import page

from .accounts import authenticate, register
from .answers import as_json, form_page, registered, wants_json
from .forms import LogInForm, SignUp, SignUpForm
from .models import Account, Door
from .scene import ADVISORY, NONE, PER_EMAIL, ROW, TABLE, Way

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest, HttpResponse

    SignUpView = Callable[[HttpRequest, SignUp], Account | None]


def sign_up_form(way: Way) -> Callable[[SignUpView], Callable[[HttpRequest], HttpResponse]]:
    """Show the form and check what was posted, so that neither a GET nor a bad form ever waits for the lock."""

    def decorate(sign_up_view: SignUpView) -> Callable[[HttpRequest], HttpResponse]:
        @wraps(sign_up_view)
        def view(request: HttpRequest) -> HttpResponse:
            if request.method != "POST":
                return form_page(request, way, SignUpForm())
            form = SignUpForm(request.POST)
            if not form.is_valid():
                return form_page(request, way, form, status=400)
            return registered(request, way, form, sign_up_view(request, form.sign_up()))

        return require_http_methods(["GET", "HEAD", "POST"])(view)

    return decorate


@sign_up_form(NONE)
def register_none(request: HttpRequest, sign_up: SignUp) -> Account | None:
    return register(sign_up)


@sign_up_form(TABLE)
@table_lock(Account)
def register_table(request: HttpRequest, sign_up: SignUp) -> Account | None:
    return register(sign_up)


@sign_up_form(ROW)
def register_row(request: HttpRequest, sign_up: SignUp) -> Account | None:
    with row_lock(Door, pk=Door.REGISTRATION):
        return register(sign_up)


@sign_up_form(ADVISORY)
@advisory_lock("register")
def register_advisory(request: HttpRequest, sign_up: SignUp) -> Account | None:
    return register(sign_up)


@sign_up_form(PER_EMAIL)
@advisory_lock("register:{sign_up.key}")
def register_per_email(request: HttpRequest, sign_up: SignUp) -> Account | None:
    return register(sign_up)


# With ATOMIC_REQUESTS on SQLite a transaction begins with the write lock of the whole database (BEGIN IMMEDIATE);
# a log-in only reads and has no use for one.
@non_atomic_requests
@require_http_methods(["GET", "HEAD", "POST"])
def log_in(request: HttpRequest) -> HttpResponse:
    form = LogInForm(request.POST if request.method == "POST" else None)
    account = authenticate(**form.cleaned_data) if form.is_valid() else None
    if wants_json(request) and request.method == "POST":
        return as_json(401, error="credentials") if account is None else as_json(200, account=account.pk)
    if account is not None:
        messages.success(request, f"Logged in as {account.email}.")
        return redirect("log-in")
    if form.is_valid():
        form.add_error(None, "Address or password is wrong.")
    status = 401 if request.method == "POST" else 200
    return render(request, "registration/log_in.html", {"form": form}, status=status)


def home(request: HttpRequest) -> HttpResponse:
    return page(request, "registration", "registration/home.html")
