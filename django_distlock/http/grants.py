"""Grants: signed texts that count for the visitor they were made for, and for some time. Clients cannot invent them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from django.core import signing


class GrantError(Exception):
    """The text is no grant for this visitor.

    ``reason`` is "forged", "expired", "foreign" (of another visitor, ``signer``, or for another host) or "audience":
    the request comes from another origin than the grant is for.
    """

    def __init__(self, reason: Literal["forged", "expired", "foreign", "audience"], signer: str = "") -> None:
        self.reason = reason
        self.signer = signer
        super().__init__(f"The grant is {reason}.")


def sign(salt: str, signer: str, facts: Any) -> str:
    """The facts, which JSON can have, as a text for the client of this visitor."""
    return signing.dumps([signer, facts], salt=salt, compress=True)


def read(salt: str, text: str, signer: str, seconds: float) -> Any:
    """The facts in a text that was signed for this visitor in the last ``seconds``. Else GrantError."""
    try:
        of, facts = signing.loads(text, salt=salt, max_age=timedelta(seconds=seconds))
    except signing.SignatureExpired as error:
        raise GrantError("expired") from error
    except (signing.BadSignature, TypeError, ValueError) as error:
        raise GrantError("forged") from error
    if of != signer:
        raise GrantError("foreign", str(of))
    return facts
