"""Settings of the cache: memory budgets, concurrent requests, and time-outs for peers."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from tailrace.settings import SettingsSection

MIB = 1 << 20


class CacheSettings(SettingsSection):
    """Budgets of one agent process. Byte budgets count the chunks that the cache holds; views given to readers may
    outlive them.

    `chunk_bytes` defaults to 4 MiB. A sealed buffer (8 MiB) is two chunks; a buffer sealed by the linger time is
    usually one short chunk. So the tail costs one or two GETs per object and zone. S3 takes about as long for the first
    byte as for 4 MiB: smaller chunks cost more requests and save no time, larger chunks delay a reader of 50 KiB.
    Agents of a ring must use the same value: an agent refuses a peer's request for a chunk of another size.
    """

    chunk_bytes: int = Field(default=4 * MIB, ge=1, le=256 * MIB)
    """Bytes that one GET reads; the agents of a ring must use the same value."""
    memory_bytes: int = Field(default=256 * MIB, ge=0, le=1 << 40)
    """Memory for all chunks. An uploaded chunk may take up to one eighth more than its size."""
    fresh_share: float = Field(default=0.25, ge=0, le=1)
    """Share of `memory_bytes` for objects that this agent uploaded; the oldest are evicted first."""
    catch_up_share: float = Field(default=0.35, ge=0, le=1)
    """Share of `memory_bytes` for readers of old runs; they never evict the tail readers' share. Both kinds of reader
    borrow memory that the other shares do not use."""
    tail_gets: int = Field(default=64, ge=1, le=10_000)
    """Concurrent store reads for the tail."""
    catch_up_gets: int = Field(default=8, ge=1, le=10_000)
    """Concurrent store and peer reads for readers of old runs and for read-ahead. As many row groups of Parquet are
    fetched and decoded at a time; each takes up to 32 MiB meanwhile."""
    read_ahead_chunks: int = Field(default=16, ge=0, le=1_000)
    """Limit of chunks read ahead of one reader of a partition's old runs; 0 disables read-ahead. All readers together
    use at most half of the catch-up share."""
    catch_up_age_ms: int = Field(default=30_000, ge=0, le=86_400_000)
    """A run older than this is read as catch-up, not as the tail."""
    peer_timeout_s: float = Field(default=0.5, gt=0, le=600)
    """Time-out of one call to a peer; a live peer answers PENDING before that."""
    peer_patience_s: float = Field(default=10.0, gt=0, le=3_600)
    """How long an agent keeps retrying a peer that answers PENDING."""
    peer_failures: int = Field(default=3, ge=1, le=1_000)
    """Consecutive failures after which a peer is bypassed."""
    peer_bypass_s: float = Field(default=5.0, gt=0, le=3_600)
    """How long a peer is bypassed; then a single call tries it again."""
    index_bytes: int = Field(default=32 * MIB, ge=0, le=1 << 40)
    """Memory for decoded Parquet indexes, in addition to `memory_bytes`."""
    decoded_bytes: int = Field(default=128 * MIB, ge=0, le=1 << 40)
    """Memory for batches rebuilt from Parquet row groups, in addition to `memory_bytes`."""
    framed_bytes: int = Field(default=64 * MIB, ge=0, le=1 << 40)
    """Memory for runs of small batches that are ready to send, in addition to `memory_bytes`."""
    disk_path: Path | None = None
    """A folder on a local disk for chunks that have left memory; unset: no disk is used. Each agent needs its own
    folder; with `processes`, each process uses a subfolder. A restart loses the chunks."""
    disk_bytes: int = Field(default=0, ge=0, le=1 << 50)
    """The most bytes that one process keeps in `disk_path`; required with it. In addition to `memory_bytes`, up to
    32 MiB of chunks wait to be written, and each chunk on the disk takes some 400 bytes of memory."""

    @field_validator("disk_path", mode="before")
    @classmethod
    def _check_path(cls, given: object) -> object:
        if given == "":
            raise ValueError("expected a folder, such as /mnt/nvme/tailrace")
        return given

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        if self.fresh_share + self.catch_up_share > 1:
            raise ValueError(
                f"fresh_share {self.fresh_share} and catch_up_share {self.catch_up_share}: expected at most 1 together"
            )
        return self

    @model_validator(mode="after")
    def _check_disk(self) -> Self:
        if self.disk_path is not None and self.disk_bytes < self.chunk_bytes:
            raise ValueError(
                f"disk_path {str(self.disk_path)!r} with disk_bytes {self.disk_bytes}: expected room for one chunk "
                f"({self.chunk_bytes}) at least; set disk_bytes, such as 107374182400 (100 GiB)"
            )
        return self
