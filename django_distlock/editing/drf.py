"""``EditLockViewSetMixin`` for view sets of the REST framework: 423 with the holder, ``ETag``, ``If-Match`` and 412."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import Error, connections
from django.views.generic.base import View
from rest_framework.response import Response

from django_distlock.http.transactions import outside_transactions, transactions_of_request
from django_distlock.http.visitors import visitor_of
from django_distlock.leases import rows
from django_distlock.locks.lazy_results import refuse_unfinished
from django_distlock.storage.transactions import in_transaction
from django_distlock.storage.values import ID
from django_distlock.validation import refuse_order

from .conf import EditingConfig, config, require_own
from .grants import EditGrant
from .http.refusals import Refusal
from .records import EditConflict
from .resources import resource_of, rows_of
from .saving import run_save
from .versions import version_field_of, version_of
from .views import problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django_distlock.leases.records import Row

    from .saving import Save

PRECONDITION_REQUIRED = 428
# The id of a lease that the client holds, for an API beside a page with the script.
LEASE_HEADER = "Distlock-Lease"
_TAG = re.compile(r'(W/)?"([^"]*)"')
_WRITES = ("PUT", "PATCH", "DELETE")


class EditLockViewSetMixin:
    """Above ``ModelViewSet``: a write is refused while another user edits the object, or if it was changed since it was
    read.

    Answers about one object have its version as ``ETag``. A write with ``If-Match`` and another version gets 412, a
    write while another user holds the lock 423, both as problem+json with the holder.
    """

    edit_lock: ClassVar[Mapping[str, Any]] = {}
    # The names of the fields that make the version; None: all columns.
    edit_lock_fields: Sequence[str] | None = None
    # Answer 428 to a write without If-Match.
    edit_if_match_required: bool = False
    request: Any
    _edit_save: Save | None = None
    _edit_object: Any = None
    _edit_row: Row | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_order(cls, EditLockViewSetMixin, View)

    @classmethod
    def as_view(cls, *args: Any, **initkwargs: Any) -> Any:
        require_own(initkwargs.get("edit_lock", cls.edit_lock))
        return outside_transactions(super().as_view(*args, **initkwargs))  # type: ignore[misc]

    def get_edit_config(self) -> EditingConfig:
        """The options of this view set."""
        return config(**{name.lower(): value for name, value in self.edit_lock.items()})

    def may_ignore_lock(self, request: Any, obj: Any) -> bool:
        """May this client write although another user holds the lock? No client may by default."""
        return False

    # requests

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """After authentication, permissions and throttles: put the save around the handler."""
        super().initial(request, *args, **kwargs)  # type: ignore[misc]
        name = request.method.lower()
        handler = getattr(self, name, None)
        if handler is None:
            return
        saves = request.method in _WRITES and self._has_object() and self.get_edit_config().mode != "off"
        setattr(self, name, functools.partial(self._saved if saves else self._plain, handler))

    def _has_object(self) -> bool:
        """Is the request about one object: by the argument of the route, or by a get_object() of the view's own?"""
        in_route = (self.lookup_url_kwarg or self.lookup_field) in self.kwargs  # type: ignore[attr-defined]
        is_own = type(self).get_object is not EditLockViewSetMixin.get_object
        return in_route or (is_own and getattr(self, "detail", None) is not False)

    def get_object(self) -> Any:
        """The object; while it is saved, the one that was locked."""
        if self._edit_save is not None:
            return self._edit_object
        obj = super().get_object()  # type: ignore[misc]
        if self.get_edit_config().mode != "off":
            row = rows.read_one(resource_of(obj))
            if row is not None and row.changed_at is not None:
                # the first copy, with what it has prefetched, may be older than the last save that the row counts
                obj = super().get_object()  # type: ignore[misc]
            self._edit_object, self._edit_row = obj, row
        return obj

    def handle_exception(self, exc: Exception) -> Any:
        """As the framework's; an EditConflict, also of ``edit_lock()`` in an action, is answered with its problem."""
        if isinstance(exc, _Answered):
            return exc.response
        if isinstance(exc, EditConflict):
            return problem(Refusal.of(exc))
        # the framework marks the innermost transaction for a rollback: let it not be that of a TestCase
        tests = {alias for alias in connections if connections[alias].in_atomic_block and not in_transaction(alias)}
        with transactions_of_request(but=set(connections) - tests):
            return super().handle_exception(exc)  # type: ignore[misc]

    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Add the ``ETag`` of the object that the answer is about."""
        response = super().finalize_response(request, response, *args, **kwargs)  # type: ignore[misc]
        obj = self._edit_object
        if obj is not None and 200 <= response.status_code < 300 and "ETag" not in response:
            response["ETag"] = f'"{self._version(obj, self._edit_row)}"'
        return response

    # saves

    def _plain(self, handler: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        with transactions_of_request():
            return handler(request, *args, **kwargs)

    def _saved(self, handler: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        settings = self.get_edit_config()
        obj = self.get_object()  # permissions of the object, and 404
        if self.edit_if_match_required and not request.headers.get("If-Match"):
            facts = {"code": "if_match", "detail": "This request needs If-Match.", "status": PRECONDITION_REQUIRED}
            return Response(facts, status=PRECONDITION_REQUIRED)
        visitor = visitor_of(request, settings.label_of)
        mode = "warn" if settings.mode == "warn" or self.may_ignore_lock(request, obj) else "enforce"
        grant = EditGrant(resources=(resource_of(obj),), principal=visitor.signer, mode=mode)
        lease = request.headers.get(LEASE_HEADER, "")
        work = functools.partial(self._work, functools.partial(handler, request, *args, **kwargs), request, obj)
        try:
            with transactions_of_request(but=[grant.database]):
                return run_save(
                    grant,
                    visitor,
                    lease if ID.fullmatch(lease) else "",
                    work,
                    obj=obj,
                    attempts=1 if request.FILES else 2,  # the first one may have moved an uploaded file to its place
                )
        finally:
            self._edit_save = None

    def _work(self, handler: Any, request: Any, obj: Any, save: Save) -> Any:
        row = save.rows[save.grant.resource.digest]
        header = request.headers.get("If-Match", "")
        if not self._matches(header, obj, row):
            by = "" if f'.{row.writes}"' in header else row.changed_by  # else it was code that knows no edit locks
            raise EditConflict("changed", changed_by=by, resource=save.grant.resource)
        self._edit_save, self._edit_object = save, obj  # an attempt that was rolled back has left another object there
        try:
            response = refuse_unfinished(type(self), handler())
        except Error:
            raise
        except Exception as error:
            # as without a transaction around it: the framework's answer, and nothing is written
            response = self.handle_exception(error)
            response.exception = True
            raise _Answered(response) from error
        if response.status_code >= 400:
            raise _Answered(response)
        # what was saved and what the database has may be spelled differently
        self._edit_object = rows_of(save.grant.resource).first()
        if request.method == "DELETE" and self._edit_object is None:
            save.deleted()
        else:
            save.wrote()
            save.keep()  # a client of an API stays where it is
            self._edit_row = rows.read_one(save.grant.resource)
        return response

    def _matches(self, header: str, obj: Any, row: Row) -> bool:
        """Does If-Match name the version of the object? A weak tag never does (RFC 9110)."""
        if not header or header.strip() == "*":
            return True
        return ("", self._version(obj, row)) in _TAG.findall(header)

    def _version(self, obj: Any, row: Row | None) -> str:
        """The version, and the counter of the saves that change no column (many-to-many)."""
        own = version_field_of(obj.__class__)
        version = version_of(obj, (own,) if own is not None else self.edit_lock_fields)
        return version if row is None or row.changed_at is None else f"{version}.{row.writes}"


class _Answered(Exception):
    """The answer to a request whose transaction is rolled back."""

    def __init__(self, response: Any) -> None:
        self.response = response
        super().__init__()
