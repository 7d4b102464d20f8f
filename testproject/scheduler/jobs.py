"""One look at what is due, in each way. `work` is the job itself: it takes a while."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from django.db import transaction

from .models import Job, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    Work = Callable[[], None]


def run_next(pk: int, due: int, work: Work) -> bool:
    """Run the slot after the last one, if it is due. False: nothing is."""
    slot = Schedule.objects.get(pk=pk).last + 1
    if slot > due:
        return False
    work()
    with transaction.atomic():
        Schedule.objects.filter(pk=pk).update(last=slot)
        Job.objects.create(schedule_id=pk, slot=slot, process=os.getpid())
    return True


def run_next_fenced(pk: int, due: int, work: Work, fence: int) -> bool:
    """The same, but LockLost if another leader has written since; then nothing of it is done."""
    slot = Schedule.objects.get(pk=pk).last + 1
    if slot > due:
        return False
    work()
    with transaction.atomic():
        Schedule.objects.fenced(fence).filter(pk=pk).update(last=slot)
        Job.objects.create(schedule_id=pk, slot=slot, process=os.getpid())
    return True
