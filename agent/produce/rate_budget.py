"""A budget of so many per second: what may be spent now, and how long to wait for more."""

from __future__ import annotations


class RateBudget:
    """Refills at `rate` a second up to `most`. May be overdrawn: then it takes longer until there is some again."""

    def __init__(self, rate: float, most: float, now: float) -> None:
        self._rate = rate
        self._most = most
        self._left = most
        self._seen = now

    def wait(self, amount: float, now: float) -> float:
        """Seconds until `amount` (or all that there can be) may be spent; 0 when it may be now."""
        self._left = min(self._most, self._left + (now - self._seen) * self._rate)
        self._seen = now
        return max(0.0, min(amount, self._most) - self._left) / self._rate

    def spend(self, amount: float) -> None:
        """Take it, whether it is there or not."""
        self._left -= amount
