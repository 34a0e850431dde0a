"""Due lists: keys by the time at which each is examined next, so that idle rows cost nothing.

The caller takes a key, examines its row, and puts the key back with the next time. Using a row does not move its key:
when the key is taken, the row says how much later it is due.

Pure: the caller passes the time.
"""

from __future__ import annotations

import heapq
from itertools import islice

from sequencer.store.state import Key


class DueList:
    """Keys by time, in steps of `width_ms`: a key is taken at its time, or up to one step before it.

    With `keeps_earliest` the list has each key once, with the earliest of its times, and keys can be discarded. Use it
    for keys whose times may become earlier, or whose rows may be deleted long before.
    """

    def __init__(self, width_ms: int, *, keeps_earliest: bool = False) -> None:
        self._width_ms = max(1, width_ms)
        self._earliest: dict[Key, int] | None = {} if keeps_earliest else None
        self._keys: dict[int, dict[Key, None]] = {}
        self._times: list[int] = []

    def put(self, key: Key, at_ms: int) -> None:
        """Schedule the key for this time. A key that is put with two times is taken twice, unless the list keeps the
        earliest."""
        at = at_ms // self._width_ms
        if self._earliest is not None:
            before = self._earliest.get(key)
            if before is not None:
                if before <= at:
                    return
                del self._keys[before][key]
            self._earliest[key] = at
        keys = self._keys.get(at)
        if keys is None:
            self._keys[at] = {key: None}
            heapq.heappush(self._times, at)
        else:
            keys[key] = None

    def discard(self, key: Key) -> None:
        """Remove a key whose row was deleted, if it is there. Only for a list that keeps the earliest times."""
        assert self._earliest is not None, "the time of the key is not known"
        at = self._earliest.pop(key, None)
        if at is not None:
            del self._keys[at][key]

    def put_back(self, key: Key, at_ms: int) -> None:
        """Schedule a key that was just examined; it is not taken again before this time."""
        self.put(key, at_ms + self._width_ms)

    def take(self, now_ms: int, most: int) -> list[Key]:
        """Take at most `most` keys that are due."""
        taken: list[Key] = []
        while len(taken) < most and self._times and self._times[0] <= now_ms // self._width_ms:
            keys = self._keys[self._times[0]]
            some = list(islice(keys, most - len(taken)))
            for key in some:
                del keys[key]
                if self._earliest is not None:
                    del self._earliest[key]
            taken += some
            if not keys:
                del self._keys[heapq.heappop(self._times)]
        return taken
