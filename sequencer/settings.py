"""The sequencer's bounds and leases, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass

_DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class SequencerSettings:
    """Durations in ms, limits as counts. A limit that is reached is answered with an error that names it."""

    session_lease_ms: int = 30_000
    agent_lease_ms: int = 10_000
    committer_lease_ms: int = 2_000
    """With the nodes' polling, another node has taken over within 3 s of a committer's death."""
    deletion_grace_ms: int = 60_000
    """How long a retired object is kept: longer than the longest read of it."""
    sweep_interval_ms: int = _DAY_MS
    """A dead session's prefix must be found empty twice, this far apart."""
    producer_expiry_ms: int = 7 * _DAY_MS
    offsets_retention_ms: int = 7 * _DAY_MS
    transaction_max_timeout_ms: int = 15 * 60 * 1000
    """The longest time-out a transactional producer may ask for (Kafka's transaction.max.timeout.ms)."""
    transactional_id_expiration_ms: int = 7 * _DAY_MS
    """A transactional id that was not used for so long is forgotten."""
    swap_answers_ms: int = 7 * _DAY_MS
    """How long a swap's answer is kept for being asked again."""
    default_retention_ms: int = 7 * _DAY_MS
    default_retention_bytes: int = -1
    default_cleanup_policy: str = "delete"
    commit_wait_ms: int = 5_000
    """How long a commit waits for the number before it."""
    max_early_commits: int = 64
    """Commits of one session that wait for an earlier number."""
    max_queued_requests: int = 10_000
    max_group_requests: int = 256
    """Requests merged into one transaction."""
    max_topics: int = 10_000
    max_partitions_per_topic: int = 10_000
    max_batches_per_commit: int = 100_000
    max_runs_per_commit: int = 20_000
    max_groups: int = 50_000
    max_transactional_ids: int = 100_000
    max_open_transactions: int = 50_000
    max_feed_commits: int = 10_000
    max_feed_runs: int = 50_000
    max_feed_wait_ms: int = 30_000
    max_feed_waiters: int = 10_000
    removal_step: int = 1_000
    """Runs removed by one transaction of retention."""
    checkpoint_interval_ms: int = 3_000
    """Pause between two exports of metadata to the bucket, where the committer has an object store; 0 turns them
    off."""
    checkpoint_reservation: int = 1 << 24
    """Offsets a partition may give out beyond the last export; after a recovery, new records start above them."""
