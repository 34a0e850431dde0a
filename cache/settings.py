"""What the cache may use: bytes of memory, requests side by side, and how long a peer is waited for."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Budgets of one agent process. All bytes are of chunks held; views given to readers may outlive them.

    `chunk_bytes`: 4 MiB. A sealed buffer (8 MiB) is two chunks, a lingered one usually a single, short one,
    so the tail costs one or two GETs per object and zone; S3 takes about as long for the first byte as for
    4 MiB, so smaller chunks cost more requests and save no time, larger ones make a reader of 50 KiB wait.
    Agents of a ring must agree on it: a peer with another size is bypassed.
    """

    chunk_bytes: int = 4 * MIB
    """How much one GET reads; agents of a ring must agree on it."""
    memory_bytes: int = 256 * MIB
    """Chunks held, of all kinds together."""
    fresh_share: float = 0.25
    """Part of `memory_bytes` for what this agent uploaded itself, in order of age."""
    catch_up_share: float = 0.25
    """Part of `memory_bytes` for readers of old runs, who can so never push out what the tail reads."""
    tail_gets: int = 64
    """Store reads side by side for the tail."""
    catch_up_gets: int = 8
    """Store and peer reads side by side for readers of old runs and for read-ahead."""
    read_ahead_chunks: int = 4
    """Chunks fetched before they are asked for, at most, at a time."""
    catch_up_age_ms: int = 30_000
    """A run older than this is read as catch-up, not as the tail."""
    peer_timeout_s: float = 0.5
    """How long one call to a peer may take; a live peer answers PENDING before that."""
    peer_patience_s: float = 10.0
    """How long a peer that keeps answering PENDING is asked again."""
    peer_failures: int = 3
    """Failures in a row after which a peer is bypassed."""
    peer_bypass_s: float = 5.0
    """How long; then one call tries it again."""
    index_bytes: int = 32 * MIB
    """Decoded Parquet indexes kept, beside `memory_bytes`."""
    decoded_bytes: int = 64 * MIB
    """Batches rebuilt from Parquet row groups kept, beside `memory_bytes`."""
    framed_bytes: int = 64 * MIB
    """Runs of small batches kept in the form in which they are sent, beside `memory_bytes`."""

    def __post_init__(self) -> None:
        complaints: list[str] = []
        if self.chunk_bytes < 1 or self.memory_bytes < 0:
            complaints.append(
                f"chunk_bytes {self.chunk_bytes} and memory_bytes {self.memory_bytes}: at least 1 and 0"
            )
        if not (
            min(self.fresh_share, self.catch_up_share) >= 0 and self.fresh_share + self.catch_up_share <= 1
        ):
            complaints.append(
                f"fresh_share {self.fresh_share} and catch_up_share {self.catch_up_share}: "
                "neither below 0, together at most 1"
            )
        if min(self.tail_gets, self.catch_up_gets, self.peer_failures) < 1:
            complaints.append("tail_gets, catch_up_gets and peer_failures: at least 1 each")
        if min(self.peer_timeout_s, self.peer_patience_s, self.peer_bypass_s) <= 0:
            complaints.append("peer_timeout_s, peer_patience_s and peer_bypass_s: above 0")
        if self.framed_bytes < 0:
            complaints.append(f"framed_bytes {self.framed_bytes}: at least 0")
        if complaints:
            raise ValueError("; ".join(complaints))
