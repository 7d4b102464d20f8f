"""``EditLockMixin`` for class-based views and ``@edit_locked`` for functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.contrib import messages
from django.contrib.auth.mixins import AccessMixin
from django.core.exceptions import ImproperlyConfigured, ObjectDoesNotExist, PermissionDenied
from django.forms.formsets import BaseFormSet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from django.views.generic.base import View
from django.views.generic.edit import DeletionMixin

from django_distlock.http import answers
from django_distlock.http.transactions import outside_transactions, transactions_of_request
from django_distlock.http.visitors import user_of
from django_distlock.leases import rows
from django_distlock.validation import qualified_name, refuse_order, refuse_registered

from .conf import EditingConfig, config, has_login, require_own
from .http import beats, refusals
from .http.forms import LockedForm, editable_fields, open_form, ready_forms
from .http.guard import SaveGuard
from .http.refusals import Refusal
from .http.rows import keep_rows, new_rows_text
from .http.takeover import TAKEOVER, decided, has_permission
from .resources import resource_of, rows_of
from .versions import Inline

if TYPE_CHECKING:
    from django.db.models import Model

    from django_distlock.leases.records import Resource

    from .saving import Save

F = TypeVar("F", bound=Callable[..., Any])
SAFE_METHODS = ("GET", "HEAD", "OPTIONS", "TRACE")
LOCKED = 423


class EditLockMixin:
    """Above ``UpdateView``, ``DeleteView``, or a ``FormView`` with ``get_object()``.

    A save is refused if another user edits the object or has saved it since the form was rendered; the answer is a page
    with both versions. Put ``{% edit_lock form.instance %}`` inside the form. ``edit_lock`` has ``MODE``, ``WHEN``,
    ``IDLE`` or ``TAKEOVER`` of ``DISTLOCK_EDITING`` for this view: ``{"WHEN": "open"}``.
    """

    edit_lock: ClassVar[Mapping[str, Any]] = {}
    # The names of the fields that make the version; None: those of the form.
    edit_lock_fields: Sequence[str] | None = None
    # The classes of inlineformset_factory() that the view saves as well: their rows belong to the version.
    edit_lock_inlines: Sequence[Any] = ()
    edit_conflict_template = refusals.PAGE
    request: HttpRequest
    object: Any
    _is_saving = False
    _is_valid = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_order(cls, EditLockMixin, View)

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        if cls.view_is_async:  # type: ignore[attr-defined]
            raise ImproperlyConfigured(
                f"{cls.__name__}: the handlers of a view with an edit lock run in a transaction and must be plain "
                "functions. @edit_locked also decorates an async def."
            )
        require_own(initkwargs.get("edit_lock", cls.edit_lock))
        if not all(hasattr(kind, "fk") for kind in initkwargs.get("edit_lock_inlines", cls.edit_lock_inlines)):
            raise ImproperlyConfigured("edit_lock_inlines has the classes that inlineformset_factory() returns.")
        return outside_transactions(super().as_view(**initkwargs))  # type: ignore[misc]

    # hooks

    def may_edit(self, request: HttpRequest, obj: Any) -> bool:
        """May the visitor edit the object? Asked at each request, also while the form is open."""
        return True

    def may_take_over(self, request: HttpRequest, obj: Any) -> bool:
        """May the visitor take the object over from another user? The permission ``takeover_editlease`` by default."""
        return has_permission(request)

    def get_edit_config(self) -> EditingConfig:
        """The options of this view."""
        return config(**{name.lower(): value for name, value in self.edit_lock.items()})

    def get_edit_fields(self) -> Sequence[str] | None:
        """The names of the fields that make the version."""
        if self.edit_lock_fields is not None:
            return self.edit_lock_fields
        kind = getattr(self, "get_form_class", None)
        return None if kind is None else editable_fields(kind())

    def _inlines(self) -> list[Inline]:
        return [
            Inline(model=kind.model._meta.label_lower, fk=kind.fk.name, fields=editable_fields(kind.form))
            for kind in self.edit_lock_inlines
        ]

    # requests

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """The form, with the values that its version is about."""
        with transactions_of_request():
            settings = self.get_edit_config()
            obj = self._loaded()  # also in the mode "off": a FormView with an object relies on it
            if settings.mode != "off" and _is_saved(obj):
                ready = open_form(request, obj, settings, fields=self.get_edit_fields(), inlines=self._inlines())
                if ready is not None:
                    ready_forms(request)[ready.grant.resource] = ready
            return super().get(request, *args, **kwargs)  # type: ignore[misc,no-any-return]

    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        """As Django's; handlers that may write run under the lock, also those of the view's own.

        A beat of the script comes here as well, and then passes ``dispatch()`` and all that asks for permissions there.
        It must reach no handler of the view, which would take it for a form.
        """
        super().setup(request, *args, **kwargs)  # type: ignore[misc]
        is_beat = beats.is_beat(request)
        for method in self.http_method_names:  # type: ignore[attr-defined]
            handler = getattr(self, method, None)
            if is_beat and (handler is not None or method == "post") and method != "options":
                setattr(self, method, self._beat)
            elif handler is not None and method.upper() not in SAFE_METHODS:
                setattr(self, method, functools.partial(self._guarded, handler))

    def _beat(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return beats.answer(request, self._editable, self.get_edit_config(), self.may_take_over)

    def _editable(self) -> Any:
        obj = self._loaded()
        if not _is_saved(obj):
            raise Http404
        return obj

    def _guarded(self, handler: Callable[..., HttpResponseBase], *args: Any, **kwargs: Any) -> HttpResponseBase:
        if self._is_saving:  # put() has called post(), for example
            return handler(*args, **kwargs)
        self._is_saving = True
        try:
            return self._under_lock(functools.partial(handler, *args, **kwargs))
        finally:
            self._is_saving = False

    def _under_lock(self, handler: Callable[[], HttpResponseBase]) -> HttpResponseBase:
        settings = self.get_edit_config()
        if settings.mode == "off":
            with transactions_of_request():
                self._loaded()
                return handler()
        try:
            with transactions_of_request():  # get_object() may lock the row
                obj = self._loaded()
        except Http404:
            page = SaveGuard(self.request, settings, []).deleted(self.edit_conflict_template)
            if page is None:
                raise
            return page
        if not _is_saved(obj):
            with transactions_of_request():
                return handler()
        guard = SaveGuard(self.request, settings, [resource_of(obj)], self.may_take_over)
        try:
            return guard.save(lambda save: self._saved(save, handler), obj=obj)
        except Refusal as refusal:
            return self.edit_refused(guard, refusal, obj)

    def form_valid(self, form: Any) -> HttpResponseBase:
        """As Django's. What it saves counts, whatever the view answers then."""
        self._is_valid = True
        return super().form_valid(form)  # type: ignore[misc,no-any-return]

    def _loaded(self) -> Any:
        """The object by ``get_object()``, once for this request: a second one would be an older or a newer copy."""
        obj = self.get_object()  # type: ignore[has-type]
        self.get_object = lambda queryset=None: obj  # type: ignore[method-assign,unused-ignore]
        self.object = obj
        if _is_saved(obj):
            if not decided(self.may_edit(self.request, obj)):
                raise PermissionDenied
            LockedForm(resource=resource_of(obj), config=self.get_edit_config()).tell(self.request)
        return obj

    def _saved(self, save: Save, handler: Callable[[], HttpResponseBase]) -> HttpResponseBase:
        """Call the handler with the object as it was locked."""
        self._is_valid = False
        response = handler()
        # a form with errors is shown again with 200
        if 200 < response.status_code < 400 or (response.status_code == 200 and self._is_valid):
            if save.object.pk is None:
                save.deleted()
            else:
                save.wrote()
        return response

    # a refused save

    def edit_refused(self, guard: SaveGuard, refusal: Refusal, obj: Any) -> HttpResponseBase:
        """The answer to a refused save: the form with what was typed, and what is saved now beside what differs."""
        ready = guard.prepare(refusal, obj, fields=self.get_edit_fields(), inlines=self._inlines())
        refusal.deletes = isinstance(self, DeletionMixin) or self.request.method == "DELETE"
        if ready is None or refusal.deletes or not hasattr(self, "get_form"):
            return refusals.page(self.request, refusal, template=self.edit_conflict_template)
        self.object = copy(obj)
        self._keep_rows()
        form = self.get_form()
        refusals.add_conflict(form, refusal)
        response: Any = self.form_invalid(form)  # type: ignore[attr-defined]
        self._mark_rows(getattr(response, "context_data", None) or {})
        response.status_code = refusals.CONFLICT
        return response  # type: ignore[no-any-return]

    def _keep_rows(self) -> None:
        """What was typed into rows that are gone becomes new rows."""
        for kind in self.edit_lock_inlines:
            params = {"instance": self.object, "prefix": kind.get_default_prefix(), "data": self.request.POST.copy()}
            if keep_rows(kind, params):
                messages.warning(self.request, new_rows_text(), fail_silently=True)
            self.request.POST = params["data"]

    def _mark_rows(self, context: Mapping[str, Any]) -> None:
        """Show what is saved now in the rows of the formsets that the view has put into its context."""
        for formset in context.values():
            if isinstance(formset, BaseFormSet) and type(formset) in self.edit_lock_inlines and formset.is_bound:
                for form in formset.initial_forms:
                    refusals.add_saved_values(form)


def _is_saved(obj: Any) -> bool:
    return obj is not None and not obj._state.adding


def edit_locked(
    model: type[Model],
    pk: str = "pk",
    *,
    permission: str | Callable[[HttpRequest, Any], bool] | None = None,
    takeover: str | Callable[[HttpRequest, Any], bool] | None = None,
    on_conflict: Callable[..., HttpResponseBase] | None = None,
    **options: Any,
) -> Callable[[F], F]:
    """Refuse a save of the object ``pk`` by a function view, sync or async, if it would destroy another one.

    POST, PUT, PATCH and DELETE run in a transaction that has locked the object: read it again in the view.
    ``request.edit_lock`` is the save; a redirect counts as a write, and so does ``request.edit_lock.wrote()``.

    :param pk: the argument of the route that has the primary key.
    :param permission: the name of a permission, or a callable ``(request, obj)``: asked at each request before anything
        is locked, and again while the form is open. Else an anonymous visitor is sent to the log-in, others get 403.
    :param takeover: the same for taking the object over; ``django_distlock.takeover_editlease`` by default.
    :param on_conflict: makes the answer to a refused save; called with the request, the refusal and the arguments of
        the route. By default a page with what was typed, or problem+json with status 423 for programs.
    :param options: ``mode``, ``when`` or ``idle`` of ``DISTLOCK_EDITING``.
    """
    if any(iscoroutinefunction(each) for each in (permission, takeover)):
        raise TypeError("permission and takeover of @edit_locked must be plain functions, not async.")
    require_own(options)
    settings_of = functools.partial(config, **options)

    def decorate(view: F) -> F:
        refuse_registered(view)
        locked = _LockedView(qualified_name(view), model, pk, settings_of, on_conflict, permission, takeover)
        chosen = _async_wrapper(locked, view) if iscoroutinefunction(view) else _sync_wrapper(locked, view)
        return outside_transactions(chosen)  # type: ignore[no-any-return]

    return decorate


def _sync_wrapper(locked: _LockedView, view: Any) -> Any:
    @functools.wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if (done := locked.first(request, kwargs)) is not None:
            return done
        if locked.is_unguarded(request, kwargs):
            with transactions_of_request():
                locked.before(request, kwargs)
                return view(request, *args, **kwargs)
        return locked.save(request, view, args, kwargs)

    return wrapper


def _async_wrapper(locked: _LockedView, view: Any) -> Any:
    @functools.wraps(view)
    async def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if (done := await sync_to_async(locked.first)(request, kwargs)) is not None:
            return done
        if locked.is_unguarded(request, kwargs):
            await sync_to_async(locked.before)(request, kwargs)
            return await view(request, *args, **kwargs)
        # what the view asks of the database runs in the thread that has the transaction
        return await sync_to_async(locked.save)(request, async_to_sync(view), args, kwargs)

    return wrapper


class _NoSave:
    """``request.edit_lock`` in the mode "off": it counts nothing, and its object is read when it is asked for."""

    warnings = ()

    def __init__(self, model: type[Model], pk: Any) -> None:
        self._model = model
        self._pk = pk

    @functools.cached_property
    def object(self) -> Any:
        return get_object_or_404(self._model._base_manager, pk=self._pk)

    def wrote(self, **options: Any) -> None:
        """Nothing counts."""

    def deleted(self) -> None:
        """Nothing counts."""


@dataclass(frozen=True)
class _LockedView:
    """A function view under ``@edit_locked``, with the arguments of the decorator."""

    _name: str
    _model: type[Model]
    _pk: str
    _settings_of: Callable[[], EditingConfig]
    _on_conflict: Callable[..., HttpResponseBase] | None
    _permission: str | Callable[[HttpRequest, Any], bool] | None
    _takeover: str | Callable[[HttpRequest, Any], bool] | None

    def first(self, request: HttpRequest, kwargs: Mapping[str, Any]) -> HttpResponseBase | None:
        """The answer to a visitor without the permission, or to a beat; None for a request of the view."""
        refused = self._refused(request, kwargs)
        if refused is not None or not beats.is_beat(request):
            return refused
        resource = self._resource(kwargs)
        return beats.answer(request, functools.partial(_object_of, resource), self._settings_of(), self.may_take_over)

    def may_take_over(self, request: HttpRequest, obj: Any) -> bool:
        """By ``takeover=``: the name of a permission, or a callable."""
        if callable(self._takeover):
            return decided(self._takeover(request, obj))
        return has_permission(request, self._takeover or TAKEOVER)

    def _refused(self, request: HttpRequest, kwargs: Mapping[str, Any]) -> HttpResponseBase | None:
        """The answer to a visitor without the permission, before anything is locked or told: Django's own.

        An anonymous visitor is sent to the log-in; PermissionDenied for one that is logged in, or where there is none.
        """
        if self._permission is None:
            return None
        with transactions_of_request():
            if isinstance(self._permission, str):
                allowed = has_permission(request, self._permission)
            else:
                obj = rows_of(self._resource(kwargs)).first()
                allowed = obj is None or decided(self._permission(request, obj))
        if allowed:
            return None
        if user_of(request) is None:
            raise PermissionDenied
        gate: Any = AccessMixin()
        gate.request, gate.raise_exception = request, not has_login()
        return gate.handle_no_permission()  # type: ignore[no-any-return]

    def _resource(self, kwargs: Mapping[str, Any]) -> Resource:
        if self._pk not in kwargs:
            raise TypeError(f"@edit_locked: the route of {self._name} gives no argument {self._pk!r}.")
        try:
            return resource_of(self._model, kwargs[self._pk])
        except (ValueError, ObjectDoesNotExist) as error:
            raise Http404 from error

    def is_unguarded(self, request: HttpRequest, kwargs: Mapping[str, Any]) -> bool:
        """Is this a request that saves nothing, or is the lock switched off?"""
        if request.method in SAFE_METHODS:
            return True
        if self._settings_of().mode != "off":
            return False
        request.edit_lock = _NoSave(self._model, kwargs.get(self._pk))  # type: ignore[attr-defined]
        return True

    def before(self, request: HttpRequest, kwargs: Mapping[str, Any]) -> None:
        """Read the counter of writes before the view reads the object and its many-to-many rows."""
        settings = self._settings_of()
        with suppress(KeyError, ValueError, ObjectDoesNotExist):  # the view answers 404
            resource = resource_of(self._model, kwargs[self._pk])
            leases = rows.read([resource]) if settings.mode != "off" else None
            LockedForm(resource=resource, config=settings, leases=leases).tell(request)

    def save(self, request: HttpRequest, view: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call the view in a save, or answer the refusal."""
        resource = self._resource(kwargs)
        settings = self._settings_of()
        guard = SaveGuard(request, settings, [resource], self.may_take_over)
        LockedForm(resource=resource, config=settings).tell(request)

        def work(save: Save) -> Any:
            request.edit_lock = save  # type: ignore[attr-defined]
            response = view(request, *args, **kwargs)
            if 300 <= response.status_code < 400 and not save.written:
                save.wrote()
            return response

        try:
            return guard.save(work)
        except Refusal as refusal:
            if refusal.reason == "deleted" and not guard.posted.text:
                raise Http404 from refusal
            if (obj := rows_of(resource).first()) is not None:
                guard.prepare(refusal, obj)
            if self._on_conflict is not None:
                return self._on_conflict(request, refusal, *args, **kwargs)
            return answer(request, refusal)


def _object_of(resource: Resource) -> Any:
    """The object. Http404 if it does not exist."""
    obj = rows_of(resource).first()
    if obj is None:
        raise Http404
    return obj


def answer(request: HttpRequest, refusal: Refusal) -> HttpResponse:
    """The page for people, problem+json for programs."""
    preferred = request.get_preferred_type(["text/html", "application/json", "application/problem+json"])
    if preferred == "text/html" and request.content_type != "application/json":
        return refusals.page(request, refusal)
    return problem(refusal)


def problem(refusal: Refusal) -> HttpResponse:
    """The refusal for a program: 423 while another user holds the lock, 412 after a change, 404 after a deletion."""
    status = {"held": LOCKED, "saving": LOCKED, "deleted": 404}.get(refusal.reason, 412)
    return answers.problem(status, _("Not saved"), refusal.text, code=refusal.reason, holder=refusal.who or None)
