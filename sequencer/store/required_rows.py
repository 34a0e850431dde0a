"""The rows that a decision reads and that may not be in memory (rows.LOOKED_UP); it names them beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sequencer.store.rows import GroupOffsetRow, PositionKey, Row
from sequencer.store.state import HotState, Key


@dataclass(frozen=True, slots=True)
class RequiredRows:
    """The rows under these keys (iterated over once), and all positions of these groups."""

    keys: Mapping[type[Row], Iterable[Key]] = field(default_factory=dict)
    groups: Sequence[str] = ()


Needs: TypeAlias = Callable[[HotState], RequiredRows]
"""Returns what a decision reads, given the state on which it is decided."""


def rows_needed(kind: type[Row], keys: Sequence[Key]) -> Needs:
    """Need these rows, whatever the state."""
    needed = RequiredRows({kind: keys})
    return lambda state: needed


def positions_needed(keys: Iterable[PositionKey]) -> RequiredRows:
    """Need these positions."""
    return RequiredRows({GroupOffsetRow: keys})
