"""One save under an edit lock: from the hidden fields of a form to the answer, or to why it is refused."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urljoin, urlsplit

from django.contrib import messages
from django.contrib.messages import get_messages
from django.db import transaction
from django.utils.translation import gettext as _

from django_distlock.editing.grants import EditGrant, ReadyForm, sign
from django_distlock.editing.records import EditConflict
from django_distlock.editing.resources import rows_of
from django_distlock.editing.saving import Save, run_save
from django_distlock.http.grants import GrantError
from django_distlock.http.transactions import transactions_of_request
from django_distlock.http.visitors import visitor_of
from django_distlock.leases import rows
from django_distlock.leases.records import Row
from django_distlock.locks.lazy_results import refuse_unfinished

from . import refusals
from .audit import take_over
from .forms import Posted, open_form, ready_forms
from .refusals import Refusal
from .takeover import may_take_over

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from django.db.models import Model
    from django.http import HttpRequest, HttpResponse

    from django_distlock.editing.conf import EditingConfig
    from django_distlock.editing.versions import Inline
    from django_distlock.leases.records import Resource

T = TypeVar("T")


class SaveGuard:
    """The save of ``resources`` by one request. The first one is the object of the form.

    ``hook`` says whether the visitor may take that object over; without it no visitor may.
    """

    def __init__(
        self,
        request: HttpRequest,
        config: EditingConfig,
        resources: Sequence[Resource],
        hook: Callable[[HttpRequest, Any], bool] | None = None,
    ) -> None:
        self.request = request
        self.config = config
        self.resources = tuple(resources)
        self.hook = hook
        self.visitor = visitor_of(request, config.label_of)
        self.posted = Posted.of(request)
        self.lease = self.posted.lease

    def grant(self) -> EditGrant:
        """The grant of the form. Without one the save asks only whether another user holds the lock.

        Refusal if the grant is forged, too old, of another visitor or for another object.
        """
        try:
            found = self.posted.grant(self.visitor)
        except GrantError as error:
            raise Refusal(reason="grant") from error
        if found is None:
            return EditGrant(resources=self.resources, principal=self.visitor.signer, mode=self.config.mode)
        if found.resources[: len(self.resources)] != self.resources:  # edited along with another one is not enough
            raise Refusal(reason="grant")
        # in the mode of this view: the grant of another page of the same object may be weaker
        return replace(found, mode=self.config.mode)

    def save(self, work: Callable[[Save], T], *, obj: Model | None = None, grant: EditGrant | None = None) -> T:
        """Lock, compare, and call ``work`` in the transaction. Refusal if the save would destroy another one.

        ``work`` may be called twice: once again if the database gave up because of other transactions. While it runs,
        the form of the object has the fields that were posted, for a page that shows it again with errors. ``obj``, the
        object as the view has it, is brought up to date.
        """
        grant = grant or self.grant()
        if self.posted.choice == "overwrite":
            self._take_over(grant, obj)
        queued = getattr(get_messages(self.request), "_queued_messages", [])
        before = len(queued)
        try:
            with transactions_of_request(but=[grant.database]):
                repeatable = self._repeatable(work, queued, before)
                attempts = 1 if self.request.FILES else 2  # the first one may have moved a file to its place
                found = run_save(grant, self.visitor, self.lease, repeatable, obj=obj, attempts=attempts)
        except EditConflict as conflict:
            del queued[before:]
            raise Refusal.of(conflict) from conflict
        return found

    def _repeatable(self, work: Callable[[Save], T], queued: list[Any], before: int) -> Callable[[Save], T]:
        """Take back the messages of an attempt that was rolled back; say what the mode "warn" has let through."""

        def repeatable(save: Save) -> T:
            del queued[before:]
            for conflict in save.warnings:
                text = _("This was saved, although: %(why)s") % {"why": Refusal.of(conflict).text}
                messages.warning(self.request, text, fail_silently=True)
            if self.posted.text:
                ready = ReadyForm(grant=save.grant, config=self.config, leases=save.rows)
                ready = replace(ready, text=self.posted.text, lease=self.posted.lease)
                ready_forms(self.request)[self.resources[0]] = ready
            view = getattr(self.request.resolver_match, "func", work)
            response = refuse_unfinished(getattr(view, "view_class", view), work(save))
            # @idempotent above frees the key of such an answer
            if getattr(self.request, "_distlock_rolls_back_5xx", False) and getattr(response, "status_code", 0) >= 500:
                transaction.set_rollback(True, using=save.grant.database)
            elif save.written and not _leaves_page(self.request, response):
                save.keep()
            elif save.written and not _comes_back(self.request, response):
                save.give_back()
            return response

        return repeatable

    def _may_overwrite(self, leases: Mapping[str, Row], obj: Model) -> bool:
        """May the visitor take over from each other user among the holders? Asked about None if there is none."""
        hook, others = self.hook, [row for row in leases.values() if row.is_held_by_another(self.visitor.principal)]
        holders: list[Row | None] = [*others] or [None]
        return hook is not None and all(may_take_over(self.request, self.config, obj, each, hook) for each in holders)

    def _take_over(self, grant: EditGrant, obj: Model | None) -> None:
        present = rows.read(grant.resources)
        obj = rows_of(self.resources[0]).first() if obj is None else obj
        if obj is None:
            return  # there is nobody to ask about, and nothing to take: the save says that the object is gone
        if not self._may_overwrite(present, obj):
            raise Refusal(reason="held")
        self.lease = self.lease or secrets.token_hex(16)
        for resource in sorted(grant.resources, key=lambda resource: resource.digest):
            row = present.get(resource.digest)
            if row is None or not row.held or row.lease == self.lease:
                continue
            why, ttl = _("To save other text."), self.config.ttl
            if not isinstance(take_over(self.request, self.visitor, resource, row, self.lease, ttl, why), Row):
                raise Refusal(reason="saving")

    def deleted(self, template: str) -> HttpResponse | None:
        """The page that keeps the text of a form whose object does not exist; None if no such form was sent."""
        try:
            if self.posted.text and self.grant().resources:
                return refusals.page(self.request, Refusal(reason="deleted"), template=template)
        except Refusal:
            pass
        return None

    def prepare(
        self, refusal: Refusal, obj: Model, *, fields: Sequence[str] | None = None, inlines: Sequence[Inline] = ()
    ) -> ReadyForm | None:
        """Make the form ready to be shown again. None if the object is deleted.

        After a change it gets a grant for what is saved now, which the form shows beside what was typed. Otherwise it
        keeps its grant: it must not pass if the object has changed.
        """
        opened = open_form(self.request, obj, self.config, fields=fields, inlines=inlines, visitor=self.visitor)
        if opened is None:
            refusal.reason, refusal.obj = "deleted", None
            return None
        refusal.obj = obj
        if refusal.replaces or not self.posted.text:
            refusal.grant = sign(replace(opened.grant, mode=self.config.mode))
        else:
            opened = replace(opened, grant=self.grant())
        ready = ready_forms(self.request)[self.resources[0]] = replace(
            opened,
            text=refusal.grant or self.posted.text,
            lease=self.posted.lease,
            refused=True,
            can_overwrite=refusal.reason == "held" and self._may_overwrite(opened.leases, obj),
        )
        return ready


def _leaves_page(request: HttpRequest, response: Any) -> bool:
    """Does the browser leave the page of the form with this answer?

    A script stays. Where browsers do not say who asks (``Sec-Fetch-Mode`` needs HTTPS), the answer tells: they leave
    for another page, and not for JSON, a download or nothing.
    """
    asked = request.headers.get("Sec-Fetch-Mode", "navigate"), request.headers.get("Sec-Fetch-Dest", "document")
    if asked != ("navigate", "document") or response.status_code in (204, 205):
        return False
    is_page = response.get("Content-Type", "").startswith("text/html")
    return 300 <= response.status_code < 400 or (
        is_page and "attachment" not in response.get("Content-Disposition", "")
    )


def _comes_back(request: HttpRequest, response: Any) -> bool:
    """May the next page be the form again, which adopts the lease? Not after a redirect to another address."""
    here = request.get_full_path()
    return bool(urlsplit(urljoin(here, response.get("Location", ""))).path == urlsplit(here).path)
