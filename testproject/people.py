"""The two people of the scenes. In a demo they need no password; in the admin they may edit articles, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model, login
from django.contrib.auth.models import Permission
from django.http import Http404, HttpResponseRedirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

PEOPLE = {"ada": "Ada", "bo": "Bo"}


def person(slug: str) -> Any:
    """The user of that name, made when first asked for. KeyError for any other name."""
    given = {"first_name": PEOPLE[slug], "is_staff": True}
    user, made = get_user_model().objects.get_or_create(username=slug, defaults=given)
    if made:
        user.set_unusable_password()
        user.save()
        user.user_permissions.set(Permission.objects.filter(content_type__app_label="articles"))
    return user


@require_POST
def become(request: HttpRequest, slug: str) -> HttpResponse:
    """Log in as one of them, and go back to the scene."""
    if slug not in PEOPLE:
        raise Http404(f"There is nobody called {slug!r}.")
    login(request, person(slug), backend="django.contrib.auth.backends.ModelBackend")
    back = request.POST.get("next", "/")
    return HttpResponseRedirect(back if url_has_allowed_host_and_scheme(back, allowed_hosts=None) else "/")
