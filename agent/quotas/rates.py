"""Kafka's measures of use: a rate over a sliding window, and a token bucket. Pure.

Both follow Kafka's classes (org.apache.kafka.common.metrics.stats, Rate and TokenBucket).

The window consists of samples of one second: the newest is still being filled, SAMPLES - 1 are complete. Before that
much time has passed, the rate is still taken over SAMPLES - 1 full samples, so a client may start with a burst.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

SAMPLES = 11
SAMPLE_MS = 1_000.0
"""Kafka's defaults of quota.window.num and quota.window.size.seconds."""
FULL_SECONDS = (SAMPLES - 1) * SAMPLE_MS / 1_000


@dataclass(slots=True)
class _Sample:
    began_ms: float
    last_ms: float
    amount: float


class SlidingRate:
    """The recorded amount per second. Times are in milliseconds and never go back."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()

    def record(self, now_ms: float, amount: float) -> None:
        """Add an amount; a negative one takes back an earlier one."""
        samples = self._samples
        if not samples or now_ms - samples[-1].began_ms >= SAMPLE_MS:
            self._forget_old(now_ms)
            samples.append(_Sample(now_ms, now_ms, 0.0))
        samples[-1].amount += amount
        samples[-1].last_ms = now_ms

    def excess_ms(self, now_ms: float, bound: float) -> float:
        """Return how long nothing more may be recorded until the rate is within the bound; 0 if it is."""
        used = self.used(now_ms)
        if not self._samples:
            return 0.0
        window_ms = self._window_ms(now_ms)
        rate = used * 1_000 / window_ms
        return max(0.0, (rate - bound) / bound * window_ms)

    def used(self, now_ms: float) -> float:
        """Return the amount that was recorded within the window."""
        self._forget_old(now_ms)
        return sum(sample.amount for sample in self._samples)

    def _window_ms(self, now_ms: float) -> float:
        elapsed = now_ms - self._samples[0].began_ms
        missing = SAMPLES - 1 - elapsed // SAMPLE_MS
        return max(1.0, elapsed + max(0.0, missing) * SAMPLE_MS)

    def _forget_old(self, now_ms: float) -> None:
        samples = self._samples
        while samples and now_ms - samples[0].last_ms >= SAMPLES * SAMPLE_MS:
            samples.popleft()


class TokenBucket:
    """A limit for bursts (KIP-599): the amount of SAMPLES seconds may be used at once, and refills at the bound. The
    last use may exceed what is left; then nothing may be used until it has refilled."""

    def __init__(self) -> None:
        self._used = 0.0
        self._at_ms = 0.0
        self._bound = 0.0

    def record(self, now_ms: float, amount: float) -> None:
        """Use an amount."""
        self._refill(now_ms)
        self._used += amount

    def excess_ms(self, now_ms: float, bound: float) -> float:
        """Return how long nothing more may be used; 0 if something may be used now."""
        self._refill(now_ms)
        self._bound = bound
        return max(0.0, (self._used - bound * SAMPLES) / bound * 1_000)

    def used(self, now_ms: float) -> float:
        """Return the amount that was used and has not refilled."""
        self._refill(now_ms)
        return self._used

    def _refill(self, now_ms: float) -> None:
        self._used = max(0.0, self._used - self._bound * (now_ms - self._at_ms) / 1_000)
        self._at_ms = now_ms
