"""The password hash is the work that a sign-up does between its check and its insert."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.hashers import PBKDF2PasswordHasher


class DemoPasswordHasher(PBKDF2PasswordHasher):
    """Django's PBKDF2 with PASSWORD_HASH_ITERATIONS rounds: 60,000 are some 20 ms, Django's own default some 300 ms.

    The default would make hundreds of sign-ups, one after the other, a demo of minutes. It is the same work, done
    outside Python's interpreter lock as always, only less of it.
    """

    iterations = settings.PASSWORD_HASH_ITERATIONS
