"""A fuzz target: valid inputs, and a function that may only accept or refuse their mutations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


def _nothing() -> None:
    return


@dataclass(slots=True)
class Target:
    """`check(data)`: True if it accepted the bytes, False if it refused them as declared; any other exception
    is a finding. `weight`: its share of a whole run. `close` gives back what the first input opened."""

    name: str
    weight: int
    seeds: Sequence[bytes]
    check: Callable[[bytes], bool]
    close: Callable[[], None] = _nothing
    max_growth_mib: int = 48
    """Resident memory that one input may add at most."""
    max_seconds: float = 1.0
    """Processor time that one input may take at most."""
