"""The check-then-write that this scenario is about, and the log-in beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib.auth.hashers import check_password, make_password

from .models import Account

if TYPE_CHECKING:
    from .forms import SignUp


def register(sign_up: SignUp) -> Account | None:
    """The new account, or None when the address is taken.

    Between the check and the insert lies the password hash. Every request that checks before another one has
    inserted (and committed) finds the address free: alone, this function is the race.
    """
    if Account.objects.filter(email__iexact=sign_up.email).exists():
        return None
    password = make_password(sign_up.password)
    return Account.objects.create(email=sign_up.email, password=password)


def authenticate(email: str, password: str) -> Account | None:
    """The account with this address and password; reads only, so it waits for nobody who merely writes."""
    account = Account.objects.filter(email__iexact=email).order_by("pk").first()
    if account is None:
        make_password(password)  # An unknown address takes as long as a wrong password.
        return None
    return account if check_password(password, account.password) else None
