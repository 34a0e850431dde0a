"""The topics that a member of a group names. One request has room for 200,000, so each pass over them takes steps."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from tailrace.turns import Steps, in_parts

NAMES_IN_A_STEP = 500
"""Names that are collected, sorted, looked up or matched with a pattern in one step."""


class TopicNames(frozenset[str]):
    """Topic names. `kept_bytes`: of all of them together; counted unless it is known."""

    __slots__ = ("kept_bytes",)

    kept_bytes: int

    def __new__(cls, names: Iterable[str] = (), kept_bytes: int | None = None) -> TopicNames:
        made = super().__new__(cls, names)
        made.kept_bytes = sum(map(len, made)) if kept_bytes is None else kept_bytes
        return made


NO_TOPICS = TopicNames()


def topic_names(named: Sequence[str]) -> Steps[TopicNames]:
    """Collect the names that a member sent, each once."""
    names, kept_bytes = set[str](), 0
    for some in in_parts(named, NAMES_IN_A_STEP):
        new = set(some) - names
        kept_bytes += sum(map(len, new))
        names |= new
        yield len(some)
    made = TopicNames(names, kept_bytes)
    yield len(made)
    return made


def in_order(names: Collection[str]) -> Steps[list[str]]:
    """Sort the names."""
    parts = []
    for some in in_parts(list(names), NAMES_IN_A_STEP):
        parts.append(sorted(some))
        yield len(some)
    if len(parts) == 1:
        return parts[0]
    merging, ordered = heapq.merge(*parts), list[str]()
    while some := list(islice(merging, NAMES_IN_A_STEP)):
        ordered += some
        yield len(some)
    return ordered
