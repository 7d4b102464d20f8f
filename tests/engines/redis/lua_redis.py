"""As much of Redis as the scripts of a lock need, in memory: one data set on two nodes, each with subscribers of its
own. A message goes to the subscribers of both; the publisher counts those of one, as in Redis with a replica and in a
cluster."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from lupa import lua51

from tests.engines.redis.server import commands

_lua = lua51.LuaRuntime(encoding="latin-1")
_compiled: dict[str, Any] = {}


def _function(text: str) -> Any:
    if text not in _compiled:
        _compiled[text] = _lua.execute(f"return function(KEYS, ARGV, redis)\n{text}\nend")
    return _compiled[text]


class World:
    """``owner``: the node that runs scripts, because it is the primary, or has the slot. ``flight``: messages that have
    not arrived, by channel."""

    def __init__(self, scripts: dict[str, str]) -> None:
        self.owner = 0
        self.subscribers: dict[str, int] = {}
        self.flight: dict[str, list[bytes]] = defaultdict(list)
        self._scripts = scripts
        self._hashes: dict[str, dict[str, str]] = defaultdict(dict)
        self._sets: dict[str, dict[str, float]] = defaultdict(dict)
        self._strings: dict[str, str] = {}
        self._clock = 1_700_000_000_000_000
        self._redis = _lua.table_from({"call": self._call})

    def run(self, command: bytes) -> Any:
        """An EVALSHA, packed."""
        ((_, sha, count, *rest),) = commands(command)
        words = [word.decode("latin-1") for word in rest]
        keys, args = words[: int(count)], words[int(count) :]
        self._clock += 1000
        function = _function(self._scripts[sha.decode()])
        reply = function(_lua.table_from(keys), _lua.table_from(args), self._redis)
        return list(reply.values()) if lua51.lua_type(reply) == "table" else reply

    def held(self, key: bytes) -> dict[str, str]:
        """Holder -> what is kept of it."""
        return self._hashes[key.decode("latin-1")]

    def _call(self, name: str, *args: Any) -> Any:
        reply = getattr(self, f"_{name.lower()}")(*args)
        return _lua.table_from(reply) if isinstance(reply, list) else reply

    def _time(self) -> list[Any]:
        return [str(part) for part in divmod(self._clock, 1_000_000)]

    def _exists(self, *keys: str) -> int:
        return sum(bool(self._hashes[key] or self._sets[key] or key in self._strings) for key in keys)

    def _set(self, key: str, value: str, *options: Any) -> str | None:
        before = self._strings.get(key)
        self._strings[key] = value
        return before

    def _hget(self, key: str, field: str) -> str | None:
        return self._hashes[key].get(field)

    def _hgetall(self, key: str) -> list[Any]:
        return [part for pair in self._hashes[key].items() for part in pair]

    def _hset(self, key: str, field: str, value: str) -> None:
        self._hashes[key][field] = value

    def _hdel(self, key: str, field: str) -> int:
        return 0 if self._hashes[key].pop(field, None) is None else 1

    def _zadd(self, key: str, option: str, score: str, member: str) -> None:
        assert option == "NX"
        self._sets[key].setdefault(member, float(score))

    def _zrem(self, key: str, member: str) -> None:
        self._sets[key].pop(member, None)

    def _zrange(self, key: str, first: int, last: int, *options: str) -> list[Any]:
        members = sorted(self._sets[key], key=self._sets[key].__getitem__)
        begin, end = (at if at >= 0 else at + len(members) for at in (first, last))
        members = members[max(begin, 0) : end + 1]
        return [part for each in members for part in ([each, str(self._sets[key][each])] if options else [each])]

    def _zrank(self, key: str, member: str) -> int | None:
        members = sorted(self._sets[key], key=self._sets[key].__getitem__)
        return members.index(member) if member in members else None

    def _pexpire(self, key: str, milliseconds: int) -> None:
        """Nothing lives so short."""

    _pexpireat = _pexpire

    def _pubsub(self, what: str, channel: str) -> list[Any]:
        assert what == "NUMSUB"
        return [channel, int(self.subscribers.get(channel) == self.owner)]

    def _publish(self, channel: str, message: str) -> int:
        if channel in self.subscribers:
            self.flight[channel].append(message.encode("latin-1"))
        return int(self.subscribers.get(channel) == self.owner)
