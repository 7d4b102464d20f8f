"""What a sign-up or log-in must bring; checked before any lock is taken."""

from __future__ import annotations

from dataclasses import dataclass

from django import forms


@dataclass(frozen=True, slots=True)
class SignUp:
    """A valid sign-up: the address as typed, and `key`, the form in which two spellings of one address are equal."""

    email: str
    password: str

    @property
    def key(self) -> str:
        return self.email.casefold()


class LogInForm(forms.Form):
    email = forms.EmailField(max_length=254, widget=forms.EmailInput(attrs={"autocomplete": "email"}))
    password = forms.CharField(
        max_length=128, strip=False, widget=forms.PasswordInput(attrs={"autocomplete": "current-password"})
    )


class SignUpForm(LogInForm):
    password = forms.CharField(
        min_length=8,
        max_length=128,
        strip=False,
        help_text="At least 8 characters.",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
