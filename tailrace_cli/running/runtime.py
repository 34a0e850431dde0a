"""What every process opens: the clock, randomness, and the object store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from agent.telemetry_observers import StoreMetrics
from tailrace.clock import Clock, Entropy
from tailrace.object_store.api import ObjectStore
from tailrace.object_store.hedged import GET_POLICY, PUT_POLICY, HedgedStore
from tailrace.object_store.metered import MeteredStore
from tailrace.object_store.open import open_store


@dataclass(frozen=True, slots=True)
class Runtime:
    """The real clock and randomness."""

    clock: Clock
    entropy: Entropy


@asynccontextmanager
async def opened_store(url: str, runtime: Runtime, observer: StoreMetrics) -> AsyncIterator[ObjectStore]:
    """Open the store with metrics, retries and hedging.

    Each attempt is counted. PUTs and GETs are retried if they fail or get no answer. They are hedged on S3 only: a slow
    disk does not get faster by reading twice.
    """
    inner = open_store(url, clock=runtime.clock, repeats_requests=False)
    metered = MeteredStore(inner, runtime.clock, observer)
    put, get = PUT_POLICY, GET_POLICY
    if not url.startswith("s3:"):
        put, get = replace(put, hedged_share=0.0), replace(get, hedged_share=0.0)
    try:
        yield HedgedStore(metered, runtime.clock, runtime.entropy, put=put, get=get, observer=observer)
    finally:
        await inner.close()
