"""What a movement must bring; checked before any lock is taken."""

from __future__ import annotations

from typing import Any

from django import forms


class WithdrawForm(forms.Form):
    account = forms.IntegerField(min_value=1)
    amount = forms.IntegerField(min_value=1, max_value=1_000_000)


class TransferForm(WithdrawForm):
    target = forms.IntegerField(min_value=1)
    field_order = ("account", "target", "amount")

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        if cleaned.get("target") is not None and cleaned.get("target") == cleaned.get("account"):
            self.add_error("target", "A transfer needs two accounts.")
        return cleaned


class BalanceForm(forms.Form):
    account = forms.IntegerField(min_value=1)
