"""What is due, what was run, and what the replays measured."""

from __future__ import annotations

from django.db import models

from django_distlock.data import FencedModel


class Schedule(FencedModel):
    """A job that is due every so often: `last` is the slot that was run last.

    Where one conditional `UPDATE ... SET last = 8 WHERE last = 7` and the job fit into one transaction, that is the
    right tool. Here the job takes a while between the look at `last` and the write.
    """

    enforce_fence = True

    name = models.CharField(max_length=50)
    last = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.name}: {self.last}"


class Job(models.Model):
    """One run of a slot by one copy of the scheduler. Nothing keeps a slot from having two, on purpose: a mail that was
    sent does not come back."""

    schedule = models.ForeignKey(Schedule, models.CASCADE, related_name="jobs")
    slot = models.IntegerField()
    process = models.IntegerField()

    def __str__(self) -> str:
        return f"slot {self.slot}, process {self.process}"


class SchedulerRun(models.Model):
    """One replay; `result` is testproject.scheduler.records.Replay as JSON."""

    created = models.DateTimeField(auto_now_add=True)
    engine = models.CharField(max_length=20)
    result = models.JSONField()

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.engine}, {self.created:%Y-%m-%d %H:%M}"
