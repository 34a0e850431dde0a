"""How much one answer of the sequencer may hold. There may always be more: the caller asks again, for what follows.

The frame limit of RPC is far above these bounds, so that no answer is refused for its size.
"""

from __future__ import annotations

from collections.abc import Sequence

from sequencer.api import Run

MAX_ANSWER_BYTES = 1 << 20
"""Encoded bytes after which nothing more is added to an answer; one item may pass it by its own size."""
MAX_ANSWER_RUNS = 2_048
"""Runs of one answer of `find_batches` or `feed`: as many are decoded within a few turns of the loop."""
MAX_PAGE = 5_000
"""Entries of one page of a listing."""


def run_bytes(run: Run) -> int:
    """An upper bound of the run's encoded size: integers have at most nine bytes, UUIDs sixteen and two."""
    return 160 + len(run.key) + 33 * len(run.batches) + 33 * len(run.markers)


class AnswerRoom:
    """What is left of an answer with runs: bytes of the log, as its asker bounds them, and the answer's own bounds.

    The first run always fits, so that whoever asks again gets on.
    """

    def __init__(self, log_bytes: int) -> None:
        self.log_bytes = log_bytes
        self.runs = MAX_ANSWER_RUNS
        self._bytes = MAX_ANSWER_BYTES
        self._is_empty = True

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be added."""
        return not self._is_empty and min(self.log_bytes, self.runs, self._bytes) <= 0

    def take(self, runs: Sequence[Run], max_bytes: int) -> list[Run]:
        """As many of the runs, in order, as there is room for; of the log until `max_bytes` are reached."""
        taken: list[Run] = []
        left = max_bytes
        for run in runs:
            if self.is_full or (taken and left <= 0):
                break
            taken.append(run)
            left -= run.length
            self._is_empty = False
            self.log_bytes -= run.length
            self.runs -= 1
            self._bytes -= run_bytes(run)
        return taken
