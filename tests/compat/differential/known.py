"""The differences that are known, each with its reason. A difference that is not here is a failure; so is one that is
here, and that no script shows any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from tests.compat.differential.compare import Difference


@dataclass(frozen=True, slots=True)
class Known:
    """A difference that is meant. Script, step and path are patterns (*, ?) of `Difference`'s.

    `kafka` and `tailrace`: the values that it holds of; None for any.
    """

    script: str
    step: str
    path: str
    reason: str
    kafka: Any = None
    tailrace: Any = None

    def covers(self, found: Difference) -> bool:
        """Whether it is this difference."""
        return (
            fnmatchcase(found.script, self.script)
            and fnmatchcase(found.step, self.step)
            and fnmatchcase(found.path, self.path)
            and self.kafka in (None, found.kafka)
            and self.tailrace in (None, found.tailrace)
        )


KNOWN: tuple[Known, ...] = ()
