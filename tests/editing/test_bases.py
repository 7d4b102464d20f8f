"""A mixin behind the class whose methods it extends would lock nothing, and nobody would notice."""

from __future__ import annotations

import pytest
from django.contrib.admin import ModelAdmin
from django.views.generic import UpdateView
from rest_framework.viewsets import ModelViewSet

from django_distlock.editing import EditLockAdmin, EditLockMixin
from django_distlock.editing.drf import EditLockViewSetMixin
from django_distlock.idempotency.drf import IdempotentMixin

PAIRS = [
    (EditLockAdmin, ModelAdmin),
    (EditLockMixin, UpdateView),
    (EditLockViewSetMixin, ModelViewSet),
    (IdempotentMixin, ModelViewSet),
]


def test_a_mixin_in_the_wrong_place_is_refused() -> None:
    for mixin, base in PAIRS:
        child = type("Child", (base,), {})
        for wrong in ((base, mixin), (child, mixin)):
            text = f"Put {mixin.__name__} before {wrong[0].__name__} among the bases of Wrong"
            with pytest.raises(TypeError, match=text):
                type("Wrong", wrong, {})
        right = type("Right", (mixin, child), {})
        assert issubclass(type("Child", (right,), {}), mixin)
