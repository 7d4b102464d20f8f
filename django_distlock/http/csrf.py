"""Django's CSRF check: the reasons after which a page keeps the data of a form, and who has sent it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from django.middleware.csrf import REASON_NO_CSRF_COOKIE

if TYPE_CHECKING:
    from django.http import HttpRequest

# Reasons that Django's middleware gives for a token of another session of the same visitor.
SESSION_CHANGED = ("CSRF token from POST incorrect.", REASON_NO_CSRF_COOKIE)


def is_sent_by_this_site(request: HttpRequest) -> bool:
    """Is the ``Origin``, which every browser sends with a POST, this host?

    Django has checked the scheme, and accepts the sites of CSRF_TRUSTED_ORIGINS as well.
    """
    try:
        origin: str = urlsplit(request.headers.get("Origin", "")).netloc
        return bool(origin) and origin == request.get_host()
    except ValueError:
        return False
