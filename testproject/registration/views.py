"""The sign-up view once per way, the log-in, and the page that shows what the last replay measured."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING

from django import forms
from django.contrib import messages
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from django_distlock import advisory_lock, row_lock, table_lock
from testproject.replay.scene import Way, way

from .models import Account, Door, authenticate, register

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class SignUp:
    """A valid sign-up: the address as typed, and `key`, the form in which two spellings of one address are equal."""

    email: str
    password: str

    @property
    def key(self) -> str:
        return self.email.casefold()


class LogInForm(forms.Form):
    email = forms.EmailField(max_length=254, widget=forms.EmailInput(attrs={"autocomplete": "email"}))
    password = forms.CharField(
        max_length=128, strip=False, widget=forms.PasswordInput(attrs={"autocomplete": "current-password"})
    )


class SignUpForm(LogInForm):
    password = forms.CharField(
        min_length=8,
        max_length=128,
        strip=False,
        help_text="At least 8 characters.",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )


def sign_up_form(sign_up_view: Callable[[HttpRequest, SignUp], Account | None]) -> Callable[..., HttpResponse]:
    """Show the form and check what was posted, so that neither a GET nor a bad form ever waits for the lock."""

    @require_http_methods(["GET", "HEAD", "POST"])
    @wraps(sign_up_view)
    def view(request: HttpRequest, way: Way) -> HttpResponse:
        form = SignUpForm(request.POST if request.method == "POST" else None)
        status = 400 if form.is_bound else 200
        if form.is_valid():
            account = sign_up_view(request, SignUp(**form.cleaned_data))
            if wants_json(request):
                return as_json(409, error="taken") if account is None else as_json(201, account=account.pk)
            if account is not None:
                messages.success(request, f"Account {account.pk} was made for {account.email}.")
                return redirect(request.path)
            form.add_error("email", "This address is already registered.")
            status = 409
        if form.is_bound and wants_json(request):
            return as_json(status, errors=form.errors)
        return render(request, "registration/sign_up.html", {"way": way, "form": form}, status=status)

    return view


@way("No lock", prevents=False)
@sign_up_form
def none(request: HttpRequest, sign_up: SignUp) -> Account | None:
    """Check, hash the password, insert. Two requests that both check before either inserts make two accounts."""
    return register(sign_up.email, sign_up.password)


@way("Table lock", "@table_lock(Account)")
@sign_up_form
@table_lock(Account)
def table(request: HttpRequest, sign_up: SignUp) -> Account | None:
    """The table locked around check and insert, against code too that knows of no agreement. On MySQL and MariaDB those
    who only read the table wait as well, log-ins among them."""
    return register(sign_up.email, sign_up.password)


@way("Row lock", "with row_lock(Door, pk=Door.REGISTRATION)")
@sign_up_form
def row(request: HttpRequest, sign_up: SignUp) -> Account | None:
    """One row that every registration locks: the row of an account that does not exist yet cannot be locked."""
    with row_lock(Door, pk=Door.REGISTRATION):
        return register(sign_up.email, sign_up.password)


@way("Advisory lock", '@advisory_lock("register")', lock="register")
@sign_up_form
@advisory_lock("register")
def advisory(request: HttpRequest, sign_up: SignUp) -> Account | None:
    """One name for all registrations: they go one at a time, and nobody else waits."""
    return register(sign_up.email, sign_up.password)


@way("Advisory lock per address", '@advisory_lock("register:{sign_up.key}")', lock="register:{key}")
@sign_up_form
@advisory_lock("register:{sign_up.key}")
def advisory_per_email(request: HttpRequest, sign_up: SignUp) -> Account | None:
    """One name per address: only registrations of the same address wait for each other."""
    return register(sign_up.email, sign_up.password)


WAYS = (none, table, row, advisory, advisory_per_email)


# With ATOMIC_REQUESTS on SQLite a transaction begins with the write lock of the whole database (BEGIN IMMEDIATE);
# a log-in only reads and has no use for one.
@non_atomic_requests
@require_http_methods(["GET", "HEAD", "POST"])
def log_in(request: HttpRequest) -> HttpResponse:
    form = LogInForm(request.POST if request.method == "POST" else None)
    account = authenticate(**form.cleaned_data) if form.is_valid() else None
    if form.is_bound and wants_json(request):
        return as_json(401, error="credentials") if account is None else as_json(200, account=account.pk)
    if account is not None:
        messages.success(request, f"Logged in as {account.email}.")
        return redirect("log-in")
    if form.is_valid():
        form.add_error(None, "Address or password is wrong.")
    return render(request, "registration/log_in.html", {"form": form}, status=401 if form.is_bound else 200)


def wants_json(request: HttpRequest) -> bool:
    return request.get_preferred_type(["text/html", "application/json"]) == "application/json"


def as_json(status: int, **facts: object) -> JsonResponse:
    # The process id shows a client of the demo that several server processes took part.
    return JsonResponse(facts, status=status, headers={"Process": os.getpid()})
