"""One view that locks a row and may fail after its write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.http import Http404, HttpResponse
from django.urls import path

from django_distlock import row_lock
from tests.data.app.models import Account

if TYPE_CHECKING:
    from django.http import HttpRequest


@row_lock(Account, pk="pk", into="account")
def spend(request: HttpRequest, pk: int, account: Account) -> HttpResponse:
    account.balance -= 1
    account.save()
    if "fail" in request.GET:
        raise RuntimeError
    return HttpResponse(str(account.balance))


def outer(request: HttpRequest, pk: int) -> HttpResponse:
    """The view that Django resolves is not the one that locks: the transaction is then the request's own."""
    try:
        return spend(request, pk)
    except Account.DoesNotExist as error:
        raise Http404 from error


urlpatterns = [path("<int:pk>/", spend), path("outer/<int:pk>/", outer)]
