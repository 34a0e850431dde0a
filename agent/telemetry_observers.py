"""Metrics of the object store and the cache, in an agent's registry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from cache.observer import Tier
from tailrace.counters import PlainCounter

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0, 2.5, 5.0, 10.0, 30.0)


class StoreMetrics:
    """The observer of a metered and of a hedged store: requests as S3 bills them, repeats, bytes, and latencies."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "tailrace_object_store_requests", "Requests to the object store as S3 would bill them.",
            ["operation", "outcome"], registry=registry,
        )  # fmt: skip
        self._sent = Counter(
            "tailrace_object_store_sent_bytes", "Bytes put on the object store.", registry=registry
        )
        self._received = Counter(
            "tailrace_object_store_received_bytes", "Bytes got from the object store.", registry=registry
        )
        self._repeats = Counter(
            "tailrace_object_store_repeats", "Requests made again, by why: hedge, lost or retry.",
            ["operation", "reason"], registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "tailrace_object_store_request_duration_seconds", "Time of a call to the object store.",
            ["operation"], buckets=_SECONDS, registry=registry,
        )  # fmt: skip

    def observe(
        self,
        operation: str,
        *,
        requests: int,
        sent_bytes: int,
        received_bytes: int,
        seconds: float,
        error: str | None,
    ) -> None:
        """Count one call. `outcome` is ok, or the name of the error's type."""
        self._requests.labels(operation, error or "ok").inc(requests)
        self._sent.inc(sent_bytes)
        self._received.inc(received_bytes)
        self._seconds.labels(operation).observe(seconds)

    def repeated(self, operation: str, reason: str) -> None:
        """Count one attempt that was not its call's first; `observe` counts it, too."""
        self._repeats.labels(operation, reason).inc()


class CacheMetrics:
    """A `cache.observer.CacheObserver`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._reads = Counter(
            "tailrace_cache_chunk_reads", "Chunks that readers got, by where they came from.",
            ["tier", "reader"], registry=registry,
        )  # fmt: skip
        self._bytes = Counter(
            "tailrace_cache_chunk_read_bytes",
            "Bytes of chunks that readers got.",
            ["tier"],
            registry=registry,
        )
        self._of_chunks: dict[tuple[str, bool], tuple[Counter, Counter]] = {}
        """Of a tier and a kind of reader: looking labels up costs more than counting."""
        self._framed_bytes = PlainCounter(
            "tailrace_cache_framed_read_bytes_total",
            "Bytes that readers got in the form in which they are kept to be sent: no chunk was needed.",
            registry=registry,
        )
        self._peer_failures = Counter(
            "tailrace_cache_peer_failures", "Calls to cache peers that failed.", registry=registry
        )
        self._peer_bypasses = Counter(
            "tailrace_cache_peer_bypasses",
            "Cache peers not asked, as they failed of late.",
            registry=registry,
        )
        self._corrupt = Counter(
            "tailrace_cache_corrupt_batches", "Batches whose CRC was wrong when they were read.",
            ["outcome"], registry=registry,
        )  # fmt: skip

    def chunk_read(self, tier: Tier, length: int, *, is_catch_up: bool) -> None:
        """Count one chunk."""
        place = tier.value, is_catch_up
        counters = self._of_chunks.get(place)
        if counters is None:
            reads = self._reads.labels(tier.value, "catch_up" if is_catch_up else "tail")
            counters = self._of_chunks[place] = reads, self._bytes.labels(tier.value)
        counters[0].inc()
        counters[1].inc(length)

    def framed_read(self, length: int) -> None:
        """Count what one read got."""
        self._framed_bytes.inc(length)

    def peer_failed(self, broker_id: int, reason: str) -> None:
        """Count one; which peer and why is the log's."""
        self._peer_failures.inc()

    def peer_bypassed(self, broker_id: int) -> None:
        """Count one."""
        self._peer_bypasses.inc()

    def batch_corrupt(self, key: str, start: int, length: int, *, is_repaired: bool) -> None:
        """Count one."""
        self._corrupt.labels("repaired" if is_repaired else "lost").inc()
