"""Metrics of the object store and the cache, in an agent's registry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from cache.disk import DiskTier
from cache.observer import CacheObserver, DiskRead, DiskWrite, Tier
from tailrace.telemetry.counters import PlainCounter
from tailrace.telemetry.declared_metrics import DeclaredMetrics, metric

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0, 2.5, 5.0, 10.0, 30.0)


class StoreMetrics(DeclaredMetrics, prefix="tailrace_object_store_"):
    """The observer of a metered and of a hedged store: requests as S3 bills them, repeats, bytes, and latencies."""

    _requests = metric(
        Counter, "Requests to the object store, as the store bills them.", ["operation", "outcome"]
    )
    _sent_bytes = metric(Counter, "Bytes uploaded to the object store.")
    _received_bytes = metric(Counter, "Bytes downloaded from the object store.")
    _repeats = metric(
        Counter,
        "Attempts after the first one of a call, by reason: hedge, lost or retry.",
        ["operation", "reason"],
    )
    _request_duration_seconds = metric(
        Histogram, "Duration of a call to the object store.", ["operation"], buckets=_SECONDS
    )

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
        self._sent_bytes.inc(sent_bytes)
        self._received_bytes.inc(received_bytes)
        self._request_duration_seconds.labels(operation).observe(seconds)

    def repeated(self, operation: str, reason: str) -> None:
        """Count one attempt that was not its call's first; `observe` counts it, too."""
        self._repeats.labels(operation, reason).inc()


class CacheMetrics(DeclaredMetrics, CacheObserver, prefix="tailrace_cache_"):
    """The cache's metrics."""

    _chunk_reads = metric(Counter, "Chunks read, by the tier that they came from.", ["tier", "reader"])
    _chunk_read_bytes = metric(Counter, "Bytes of chunks read, by the tier that they came from.", ["tier"])
    _framed_read_bytes = metric(
        PlainCounter,
        "Bytes of small batches read from the cache of framed runs, without a chunk.",
    )
    _peer_failures = metric(Counter, "Calls to cache peers that failed.")
    _peer_bypasses = metric(Counter, "Calls to cache peers skipped because the peer failed recently.")
    _corrupt_batches = metric(Counter, "Batches that were read with a wrong CRC, by outcome.", ["outcome"])
    _disk_reads = metric(Counter, "Lookups of a chunk on the cache's disk, by outcome.", ["outcome"])
    _disk_writes = metric(Counter, "Chunks to be written to the cache's disk, by outcome.", ["outcome"])
    _disk_written_bytes = metric(PlainCounter, "Bytes of chunks written to the cache's disk.")
    _disk_bytes = metric(Gauge, "Bytes of chunks on the cache's disk.")
    _disk_is_off = metric(Gauge, "1 while the cache does not use its disk, after an error.")

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._of_chunks: dict[tuple[str, bool], tuple[Counter, Counter]] = {}
        """The counters by tier and kind of reader: looking up labels costs more than counting."""

    def chunk_read(self, tier: Tier, length: int, *, is_catch_up: bool, chunks: int = 1) -> None:
        labels = tier.value, is_catch_up
        counters = self._of_chunks.get(labels)
        if counters is None:
            reads = self._chunk_reads.labels(tier.value, "catch_up" if is_catch_up else "tail")
            counters = self._of_chunks[labels] = reads, self._chunk_read_bytes.labels(tier.value)
        counters[0].inc(chunks)
        counters[1].inc(length)

    def framed_read(self, length: int) -> None:
        self._framed_read_bytes.inc(length)

    def peer_failed(self, broker_id: int, reason: str) -> None:
        self._peer_failures.inc()  # the log names the peer and the reason

    def peer_bypassed(self, broker_id: int) -> None:
        self._peer_bypasses.inc()

    def batch_corrupt(self, key: str, start: int, length: int, *, is_repaired: bool) -> None:
        self._corrupt_batches.labels("repaired" if is_repaired else "lost").inc()

    def disk_read(self, outcome: DiskRead) -> None:
        self._disk_reads.labels(outcome.value).inc()

    def disk_write(self, outcome: DiskWrite, length: int) -> None:
        self._disk_writes.labels(outcome.value).inc()
        if outcome is DiskWrite.WRITTEN:
            self._disk_written_bytes.inc(length)

    def show_disk(self, disk: DiskTier) -> None:
        """Let each scrape read the state of the disk."""
        self._disk_bytes.set_function(lambda: disk.bytes_held)
        self._disk_is_off.set_function(lambda: disk.is_off)
