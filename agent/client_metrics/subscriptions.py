"""What one client must push: all subscriptions that match it, merged (KIP-714). Pure.

The merged subscription's id is its checksum, so any agent computes the same id, and changed configs yield a new one.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.configs.client_metrics_config import (
    ALL_METRICS,
    CLIENT_METRICS_CONFIGS,
    INTERVAL_MS,
    MATCH,
    METRICS,
    patterns_of,
)

EVERYTHING = ("",)
"""Tells a client to push all its metrics: each name begins with this prefix."""
_INT32_MASK = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class ClientSubscription:
    """`metrics`: prefixes of names; if empty, nothing is to be pushed."""

    metrics: tuple[str, ...]
    interval_ms: int

    @property
    def subscription_id(self) -> int:
        return zlib.crc32(repr((self.metrics, self.interval_ms)).encode()) & _INT32_MASK


def subscription_of(
    configs: Mapping[str, Mapping[str, str]], client: Mapping[str, str]
) -> ClientSubscription:
    """Return what a client with these properties (client_id, ...) must push. The shortest interval applies."""
    prefixes: set[str] = set()
    intervals = []
    for own in configs.values():
        if all(
            pattern.fullmatch(client.get(name, ""))
            for name, pattern in patterns_of(own.get(MATCH, "")).items()
        ):
            names = {name.strip() for name in own.get(METRICS, "").split(",")} - {""}
            prefixes |= names
            if names:
                intervals.append(int(own.get(INTERVAL_MS, CLIENT_METRICS_CONFIGS[INTERVAL_MS].default)))
    metrics = EVERYTHING if ALL_METRICS in prefixes else tuple(sorted(prefixes))
    return ClientSubscription(
        metrics, min(intervals, default=int(CLIENT_METRICS_CONFIGS[INTERVAL_MS].default))
    )
