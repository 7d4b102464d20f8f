"""Accounts, and the row that registrations lock."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.hashers import PBKDF2PasswordHasher, check_password, make_password
from django.db import models


class Account(models.Model):
    """A registered person.

    `email` has no unique constraint on purpose: this app stands for the ones that cannot have it, because the table
    already holds duplicates, because the address is compared without case, or because the check spans two tables.
    Where a unique constraint fits, it is the right tool, and no lock is needed.
    """

    email = models.CharField(max_length=254)
    password = models.CharField(max_length=128)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return self.email


class Door(models.Model):
    """A row to lock, for work that no row of its own stands for; made by the first replay."""

    REGISTRATION = 1

    name = models.CharField(max_length=50)

    def __str__(self) -> str:
        return self.name


def register(email: str, password: str) -> Account | None:
    """The new account, or None when the address is taken.

    Between the check and the insert lies the password hash. Every request that checks before another one has
    inserted (and committed) finds the address free: alone, this function is the race.
    """
    if Account.objects.filter(email__iexact=email).exists():
        return None
    return Account.objects.create(email=email, password=make_password(password))


def authenticate(email: str, password: str) -> Account | None:
    """The account with this address and password; reads only, so it waits for nobody who merely writes."""
    account = Account.objects.filter(email__iexact=email).order_by("pk").first()
    if account is None:
        make_password(password)  # An unknown address takes as long as a wrong password.
        return None
    return account if check_password(password, account.password) else None


class DemoPasswordHasher(PBKDF2PasswordHasher):
    """Django's PBKDF2 with PASSWORD_HASH_ITERATIONS rounds: 60,000 are some 20 ms, Django's own default some 300 ms.

    The default would make hundreds of sign-ups, one after the other, a demo of minutes.
    """

    iterations = settings.PASSWORD_HASH_ITERATIONS
