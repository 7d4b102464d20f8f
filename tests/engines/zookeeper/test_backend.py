"""What is ZooKeeper's own: requests, nodes, options and rights."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.exceptions import ImproperlyConfigured
from kazoo.exceptions import NoAuthError
from kazoo.security import make_acl, make_digest_acl

from django_distlock import BackendUnavailable, advisory_lock, semaphore
from django_distlock.backends.holders import holder_json
from django_distlock.backends.zookeeper.backend import ZooKeeperBackend
from django_distlock.backends.zookeeper.introspection import described
from django_distlock.backends.zookeeper.nodes import queue
from django_distlock.keys import LockKey
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.zookeeper.server import USING, Waiter, address, clerk, nodes, own_path, packets, path_of, use

pytestmark = pytest.mark.usefixtures("databases")


def test_two_requests_to_acquire_and_one_to_release(name: str, settings: Any) -> None:
    """Counted by the server; signs of life come on top, a few per second."""
    use(settings, session_timeout=30)
    lock = advisory_lock(name, using=USING)
    lock.acquire().release()
    before = packets()
    for _ in range(20):
        with lock:
            pass
    assert 60 <= packets() - before <= 70


def test_r21_r23_the_server_deletes_the_node_above_and_the_fence_rises_all_the_same(name: str, server: Any) -> None:
    """It is a container, which kazoo cannot make by itself. Its sequence begins again."""
    fences, sequences = [], []
    for _ in range(3):
        with advisory_lock(name, using=USING) as lease:
            fences.append(lease.fence)
            (node,) = nodes(server, name)
            sequences.append(node[-10:])
        eventually(lambda: server.exists(path_of(name)) is None, "it is no container", pause=0.05)
    assert fences == sorted(set(fences))
    assert len(set(sequences)) == 1


def test_r4_a_semaphores_waiters_get_in_whichever_holder_leaves(name: str, server: Any) -> None:
    held = [Waiter(server, name, limit=3) for _ in range(3)]
    for each in held:
        each.comes_in()
    waiting = [Waiter(server, name, limit=3) for _ in range(4)]
    for place, (leaver, follower) in enumerate(zip((held[1], held[2], held[0]), waiting, strict=False)):
        assert leaver.release()
        follower.comes_in()
        assert [each.grant for each in waiting[place + 1 :]] == [None] * (3 - place), "not in order of arrival"
    for each in waiting:
        assert each.release()


def test_rights_belong_to_the_creator_if_there_are_credentials(name: str, settings: Any, server: Any) -> None:
    path, ours = own_path(settings), [("digest", "app:canary-password")]
    use(settings, auth_data=ours)
    with clerk(auth_data=ours) as friend:
        with advisory_lock(name, using=USING):
            with pytest.raises(NoAuthError):
                server.get_children(path)
            assert len(nodes(friend, name)) == 1
        use(settings, auth_data=[("digest", "other:canary-password")])
        with pytest.raises(BackendUnavailable, match="NoAuth") as refused:
            advisory_lock(name, using=USING).acquire(timeout=1)
        assert isinstance(refused.value.__cause__, NoAuthError)
        assert "canary" not in f"{refused.value!r} {registry.entry(USING).backend!r}"
        registry.close()
        friend.delete(path, recursive=True)


def test_without_the_right_to_write(name: str, settings: Any, server: Any) -> None:
    """A release is then not marked; nobody waits for that."""
    path = own_path(settings)
    use(settings, acl=[make_acl("world", "anyone", read=True, create=True, delete=True)])
    for facts in ({}, {"limit": 1}):
        waiters = [Waiter(server, name, **facts) for _ in range(3)]
        for waiter in waiters:
            assert waiter.release()
    with semaphore(name, limit=2, using=USING):
        pass
    registry.close()
    server.delete(path, recursive=True)


def test_r7_without_the_right_to_read_no_node_is_left(name: str, settings: Any, server: Any) -> None:
    """It is created all the same, and nobody gets past it."""
    path, rights = own_path(settings), make_acl("world", "anyone", create=True, delete=True)
    with clerk(auth_data=[("digest", "root:root")]) as root:
        use(settings, acl=[rights, make_digest_acl("root", "root", all=True)])
        with pytest.raises(BackendUnavailable, match="NoAuth"):
            advisory_lock(name, using=USING).acquire(timeout=5)
        assert root.exists(path_of(name)).cversion > 0, "it was not created"
        eventually(lambda: nodes(root, name) == [], "a node stays behind")
        registry.close()
        root.delete(path, recursive=True)


def test_a_chroot_that_does_not_exist_is_said(name: str, settings: Any) -> None:
    use(settings, hosts=f"127.0.0.1:{address()[1]}/nowhere/at/all")
    with pytest.raises(BackendUnavailable, match="chroot"):
        advisory_lock(name, using=USING).acquire(timeout=20)
    registry.close()


WRONG: dict[str, list[Any]] = {
    "hosts": [None, "", " ,", 5, [1], "zk:port", "zk:99999", "zk:1,,zk:2", "/app", ":2181", "[::1:2", ["zk:1", "/app"]],
    "path": ["", "/", "distlock", "/a/../b", "/a//b", "/\ud800", "/a\0", 5],
    "session_timeout": [0, True, "5", float("nan")],
    "auth_data": ["app:secret", [("digest",)], [("digest", 5)], 5],
    "acl": [[], "open", [5]],
    "sasl_options": [{}, "DIGEST-MD5"],
}


def test_wrong_options_are_named_without_their_value() -> None:
    for option, values in WRONG.items():
        for value in values:
            with pytest.raises(ImproperlyConfigured, match=option) as error:
                ZooKeeperBackend("zk", {"hosts": "localhost", option: value})
            assert "secret" not in str(error.value)
    with pytest.raises(ImproperlyConfigured, match="sasl_options"):  # kazoo's old way
        ZooKeeperBackend("zk", {"hosts": "localhost", "auth_data": [("sasl", "bob:secret")]})


def test_a_long_list_of_hosts_without_dots(name: str, settings: Any) -> None:
    """Each host is a name of its own. Naive code takes the list as one name, whose label is too long."""
    hosts = [f"localhost:{address()[1]}"] * 8
    for given in (",".join(hosts), hosts):
        use(settings, hosts=given)
        with advisory_lock(name, using=USING) as lease:
            assert lease.held
        registry.close()


KEY = LockKey("zk", "na\ud800me", b"\0" * 32)


def node_name(sequence: int, mode: str = "x") -> str:
    return f"{sequence % 2**32:032x}-{mode}-{sequence:010d}"


def test_what_is_not_ours_is_left_out() -> None:
    for foreign in ("", "lock-0000000001", node_name(1)[1:], node_name(1) + "0", node_name(1, "n0"), node_name(1, "y")):
        assert [node.sequence for node in queue([foreign, node_name(3)])] == [3]


@pytest.mark.parametrize("first", [0, 2**31 - 3, -3])
def test_r4_the_order_goes_on_where_the_counter_of_32_bits_begins_again(first: int) -> None:
    """ZooKeeper's sequence is a signed int: sorted as numbers or as text the newest would come first."""
    sequences = [(first + step + 2**31) % 2**32 - 2**31 for step in range(6)]
    names = [node_name(sequence) for sequence in sequences]
    assert [node.sequence for node in queue(reversed(names))] == sequences


def test_what_a_node_says_comes_back_and_corrupt_data_is_a_holder_that_is_not_known() -> None:
    (node,), stat, said = queue([node_name(1)]), Mock(czxid=17, ctime=10**12), holder_json(KEY)
    info = described("zk", "ab", node, (said, stat), 3, [(said, stat), None])
    assert (info.name, info.fence, info.waiters, info.key) == (KEY.name, 17, 3, "ab")
    assert info.acquired_at == datetime.fromtimestamp(1e9, UTC)
    assert info.waiting == (info.holder,)
    for data in (b"", b"\xff", b"[]", b"null", b'{"name": 1, "host": []}', b"[" * 9999):
        info = described("zk", "ab", node, (data, stat), 1, [(data, stat)])
        assert (info.name, info.holder, info.fence, info.waiting) == (None, "unknown", 17, ("unknown",))
