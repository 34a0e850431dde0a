"""Differences that are known, each with its reason. They stand beside the scripts that show them (`Scripts.known`). Any
other difference is a failure; so is a known one that is no longer shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from tests.compat.differential.compare import Difference

ANY = "<any>"


@dataclass(frozen=True, slots=True)
class Known:
    """A difference that is meant. Script, step and path are patterns (*, ?) of `Difference`'s.

    `kafka` and `tailrace`: the values that it holds of.
    """

    script: str
    step: str
    path: str
    reason: str
    kafka: Any = ANY
    tailrace: Any = ANY

    def covers(self, found: Difference) -> bool:
        """Whether it is this difference."""
        return (
            fnmatchcase(found.script, self.script)
            and fnmatchcase(found.step, self.step)
            and fnmatchcase(found.path, self.path)
            and self.kafka in (ANY, found.kafka)
            and self.tailrace in (ANY, found.tailrace)
        )


def says_nothing(script: str) -> Known:
    """Where neither says anything of a success, Tailrace's message is null."""
    return Known(
        script, "*", "*error_message", "a message that says nothing is null", kafka="", tailrace=None
    )


def says_why(script: str, step: str = "*") -> Known:
    """Where Kafka has the error's code alone, Tailrace says more."""
    reason = "Tailrace says why; Kafka has the code alone"
    return Known(script, step, "*error_message", reason, tailrace="<text>")
