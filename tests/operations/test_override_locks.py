"""Locks in memory for users' own tests, and what the transactions of a TestCase do to them."""

from __future__ import annotations

import asyncio
import threading
import unittest
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import SimpleTestCase, TestCase

from django_distlock import advisory_lock
from django_distlock.manager.registry import registry
from django_distlock.testing import assert_no_locks_held, override_locks

pytestmark = pytest.mark.usefixtures("databases")


def engine(alias: str = "default") -> str:
    return type(registry.entry(alias).backend).__name__


def busy_elsewhere(name: str) -> bool:
    """Does another thread find it held?"""
    found: list[Any] = []

    def look() -> None:
        lease = advisory_lock(name).try_acquire()
        found.append(lease is None)
        if lease is not None:
            lease.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return bool(found[0])


def run_case(case: type[unittest.TestCase]) -> int:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    assert result.wasSuccessful(), result.errors + result.failures
    return result.testsRun


def test_all_aliases_or_those_named_are_in_memory_and_come_back() -> None:
    @override_locks()
    def plain() -> str:
        return engine()

    @override_locks()
    async def coroutine() -> str:
        async with advisory_lock("x"):
            return engine()

    usual = ("LeaseTableBackend", "AdvisoryBackend")
    assert (engine(), engine("postgres")) == usual
    with override_locks("memory"):
        assert {engine(alias) for alias in registry.aliases()} == {"MemoryBackend"}
        with override_locks(using="postgres"):  # nested
            assert engine() == "MemoryBackend"
    with override_locks(using=["postgres"]):
        assert (engine(), engine("postgres")) == ("LeaseTableBackend", "MemoryBackend")
    assert [plain(), asyncio.run(coroutine())] == ["MemoryBackend"] * 2
    assert (engine(), engine("postgres")) == usual
    with pytest.raises(ValueError, match="memory"):
        override_locks("redis")
    with pytest.raises(ValueError, match="'nowhere'"), override_locks(using="nowhere"):
        pass


def test_what_is_left_held_is_forgotten() -> None:
    with override_locks():
        lease = advisory_lock("left").acquire()
    assert lease.lost
    assert_no_locks_held()

    @override_locks()
    class Leaving(SimpleTestCase):
        def leave(self) -> None:
            assert not busy_elsewhere("left")
            lease = advisory_lock("left").acquire()
            self.addCleanup(lambda: lease)

        test_one = test_two = leave

    assert run_case(Leaving) == 2


def test_in_a_testcase_a_lock_ends_with_its_block_or_with_the_atomic_around_it() -> None:
    """Without override_locks the transaction of the test keeps it."""

    class Kept(TestCase):
        def test_kept(self) -> None:
            with advisory_lock("case"):
                pass
            assert busy_elsewhere("case")

    @override_locks()
    class Mine(TestCase):
        def test_given_back(self) -> None:
            with advisory_lock("case"):
                assert busy_elsewhere("case")
            assert not busy_elsewhere("case")
            assert_no_locks_held()

        async def test_async(self) -> None:
            async with advisory_lock("case"):
                pass
            assert_no_locks_held()

        def test_commit_and_rollback(self) -> None:
            for fails in (False, True):
                try:
                    with transaction.atomic():
                        with transaction.atomic(), advisory_lock("case"):
                            User.objects.create(username="x")
                        assert busy_elsewhere("case")
                        if fails:
                            raise ZeroDivisionError
                        User.objects.all().delete()
                except ZeroDivisionError:
                    pass
                assert not busy_elsewhere("case")
                assert_no_locks_held()

    assert run_case(Kept) == 1
    assert run_case(Mine) == 3
