"""What an order must say; checked before anything is paid."""

from __future__ import annotations

import uuid
from typing import Any

from django import forms

# The most of one order; only the server knows it, so that a browser cannot find this mistake by itself.
MOST = {"teapot": 3, "kettle": 5, "cup": 12}


class OrderForm(forms.Form):
    item = forms.ChoiceField(choices=[(item, item.title()) for item in MOST])
    quantity = forms.IntegerField(min_value=1, max_value=100, initial=1)
    note = forms.CharField(max_length=200, required=False, widget=forms.TextInput(attrs={"autocomplete": "off"}))
    sheet = forms.UUIDField(initial=uuid.uuid4, widget=forms.HiddenInput)

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        most = MOST.get(cleaned.get("item", ""), 0)
        if cleaned.get("quantity", 0) > most > 0:
            self.add_error("quantity", f"At most {most} of these in one order.")
        return cleaned
