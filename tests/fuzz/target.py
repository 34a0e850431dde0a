"""A fuzz target: sound inputs to begin with, and a function that may only accept or refuse what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


def _nothing() -> None:
    return


@dataclass(slots=True)
class Target:
    """`check(data)`: True where the bytes were taken, False where they were refused as declared; whatever else it
    raises is a finding. `weight`: its share of a whole run. `close` gives back what the first input opened."""

    name: str
    weight: int
    seeds: Sequence[bytes]
    check: Callable[[bytes], bool]
    close: Callable[[], None] = _nothing
    max_growth_mib: int = 48
    """Resident memory that one input may add at most."""
    max_seconds: float = 1.0
    """Processor time that one input may take at most."""
