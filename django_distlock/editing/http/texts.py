"""The texts of the script, translated. Their keys are those of ``TEXTS`` in editing.js."""

from __future__ import annotations

from django.utils.translation import gettext as _


def texts() -> dict[str, str]:
    """The texts in the language of this request. ``{who}`` and the like are filled in by the script."""
    return {**_states(), **_losses(), **_actions(), **_times()}


def _states() -> dict[str, str]:
    return {
        "busy": _(
            "{who} is editing this, and has been for {since}. You can read it; it opens here when {who} has finished."
        ),
        "busy_idle": _("{who} is editing this, and has been for {since}, but has typed nothing for {idle}."),
        "own_tab": _("You are editing this in another tab."),
        "saving": _("{who} is saving this. One moment."),
        "free": _("You can edit this now."),
        "changed": _("{who} has saved this meanwhile. Load the new version before you edit."),
        "changed_typing": _("{who} has saved this meanwhile. When you save, you will see both versions."),
        "session_ends": _("Your session ends in {left}. Save now, or log in again in another tab."),
        "idle_warning": _("Are you still editing? In {left} this is given back to others. Press any key to go on."),
        "idle": _("This was given back to others, because nothing was typed for a while. Go on typing to edit again."),
        "offline": _("No connection. Go on typing; the save will check whether somebody else has edited this."),
        "error": _("The edit lock does not answer. The save will check whether somebody else has edited this."),
        "unasked": _(
            "The edit lock does not work on this page: others are not told that you edit. The save will check whether "
            "somebody else has edited this."
        ),
        "kept": _("You had typed something here that was not saved."),
        "kept_older": _("You had typed something here, against an older version. Perhaps it was not saved."),
    }


def _losses() -> dict[str, str]:
    return {
        "taken_over": _("{who} has taken over. What you typed is still here and is not saved."),
        "other_tab": _("You continue in another tab. What you typed here is still here and is not saved."),
        "broken": _("An administrator has ended your edit lock. What you typed is still here and is not saved."),
        "expired": _("Your edit lock has ended and {who} is editing. What you typed is still here and is not saved."),
        "deleted": _("This was deleted meanwhile. What you typed is still here: copy what you need."),
        "permission": _("You may no longer edit this. What you typed is still here: copy what you need."),
        "logged_out": _("You are logged out. What you typed is still here. Log in in another tab, then go on here."),
    }


def _actions() -> dict[str, str]:
    return {
        "edit_here": _("Edit here"),
        "take_over": _("Take over"),
        "take_over_reason": _("Reason for the takeover"),
        "cancel": _("Cancel"),
        "reload": _("Load the new version"),
        "put_back": _("Put my text back"),
        "discard": _("Discard it"),
    }


def _times() -> dict[str, str]:
    return {
        "somebody": _("Somebody else"),
        "seconds": _("{n} seconds"),
        "minutes": _("{n} minutes"),
        "hours": _("{n} hours"),
    }
