"""The sequencer's bounds and leases, with their defaults."""

from __future__ import annotations

from pydantic import Field

from tailrace.settings import SettingsSection

_DAY_MS = 24 * 3600 * 1000
_YEAR_MS = 366 * _DAY_MS
_INT64 = (1 << 63) - 1
COMMITTER_BUSY = 0.7
EARLY_PUTS_PER_SECOND_ON_S3 = 5.0
"""13 million PUTs in 30 days: $65 where 1,000 cost $0.005 (decision 20)."""


class SequencerSettings(SettingsSection):
    """Durations in ms, limits as counts. A limit that is reached is answered with an error that names it."""

    session_lease_ms: int = Field(default=30_000, ge=100, le=_DAY_MS)
    """How long an upload session lives without a renewal."""
    writer_lease_ms: int = Field(default=6 * 3_600_000, ge=100, le=7 * _DAY_MS)
    """How long what a job of Spark has uploaded waits for its commit, from the last upload on."""
    agent_lease_ms: int = Field(default=10_000, ge=100, le=_DAY_MS)
    """How long an agent keeps its broker id, its place in the ring and its groups without renewing."""
    agent_silence_ms: int = Field(default=3_000, ge=100, le=_DAY_MS)
    """How long the sequencer may hear nothing from an agent that its neighbour finds silent; then its lease ends. At
    most half of `agent_lease_ms` counts."""
    committer_lease_ms: int = Field(default=2_000, ge=100, le=60_000)
    """With the servers' polling, another server takes over within 3 s of a committer's death."""
    deletion_grace_ms: int = Field(default=60_000, ge=0, le=_YEAR_MS)
    """How long a retired object is kept: longer than the longest read of it."""
    sweep_interval_ms: int = Field(default=_DAY_MS, ge=1, le=_YEAR_MS)
    """A dead session's prefix must be found empty twice, this far apart. A compactor's task has half of this time to
    put its object: less than 600000 is refused where a process starts."""
    producer_expiry_ms: int = Field(default=7 * _DAY_MS, ge=1, le=_YEAR_MS)
    """The state of a producer in a partition is forgotten when the producer wrote nothing there for this time."""
    offsets_retention_ms: int = Field(default=7 * _DAY_MS, ge=1, le=_YEAR_MS)
    """Offsets of a group without members are forgotten after this time (offsets.retention.minutes)."""
    max_offsets_retention_ms: int = Field(default=_YEAR_MS, ge=1, le=10 * _YEAR_MS)
    """The longest time for which a commit may ask to have its offsets kept (versions 2 to 4 of OffsetCommit can)."""
    share_offsets_retention_ms: int = Field(default=7 * _DAY_MS, ge=1, le=10 * _YEAR_MS)
    """A share group without members is forgotten, with what it has read, after this time."""
    empty_group_ms: int = Field(default=10 * 60 * 1000, ge=1, le=_YEAR_MS)
    """A group without members and offsets is forgotten after this time."""
    orphaned_members_ms: int = Field(default=60 * 60 * 1000, ge=1, le=_YEAR_MS)
    """Members that have no coordinator, and look for none, are forgotten after this time: more than the longest
    session (agent.group_max_session_timeout_ms)."""
    transaction_max_timeout_ms: int = Field(default=15 * 60 * 1000, ge=1, le=_YEAR_MS)
    """The longest time-out a transactional producer may ask for (Kafka's transaction.max.timeout.ms)."""
    transactional_id_expiration_ms: int = Field(default=7 * _DAY_MS, ge=1, le=_YEAR_MS)
    """A transactional id that was not used for this time is forgotten."""
    swap_answers_ms: int = Field(default=7 * _DAY_MS, ge=1, le=_YEAR_MS)
    """How long a swap's answer is kept for retries."""
    stream_epochs_ms: int = Field(default=90 * _DAY_MS, ge=1, le=10 * _YEAR_MS)
    """How long the last epoch of a stream that writes is kept: a stream that is started again later may repeat it."""
    request_answers_ms: int = Field(default=3_600_000, ge=1, le=_YEAR_MS)
    """How long the first answer to a change (of topics, configs, groups, producers) is kept for retries."""
    max_request_answers: int = Field(default=100_000, ge=1, le=10_000_000)
    """Answers kept for retries; above it the oldest are forgotten."""
    max_request_answer_bytes: int = Field(default=64 << 20, ge=1 << 20, le=8 << 30)
    """Bytes of these answers; above it the oldest are forgotten, a quarter of the bytes."""
    default_retention_ms: int = Field(default=7 * _DAY_MS, ge=-1, le=_INT64)
    """retention.ms of topics if neither topic nor cluster sets it; -1 for no limit."""
    default_retention_bytes: int = Field(default=-1, ge=-1, le=_INT64)
    """retention.bytes of such topics; -1 for no limit."""
    default_cleanup_policy: str = "delete"
    """cleanup.policy of such topics."""
    early_puts_per_second: float | None = Field(default=None, gt=0, le=1_000_000)
    """The cluster's budget of early-sealed PUTs a second, shared out between agents by what they want. Unset: on S3 5,
    which cost $65 a month at $0.005 per 1,000, beside four a second of each busy agent's linger; elsewhere each agent
    has its own."""
    max_committer_busy: float | None = Field(default=None, gt=0, le=1)
    """Part of its time that the committer may work: above it, agents get smaller shares of rows a second, and their
    buffers linger longer. Unset: 0.7."""
    commit_wait_ms: int = Field(default=5_000, ge=0, le=600_000)
    """How long a commit waits for the number before it."""
    max_early_commits: int = Field(default=64, ge=1, le=10_000)
    """Commits of one session that wait for an earlier number."""
    max_queued_requests: int = Field(default=10_000, ge=1, le=1_000_000)
    """Requests that wait for the committer; more get a retriable refusal."""
    max_group_requests: int = Field(default=256, ge=1, le=10_000)
    """Requests merged into one transaction."""
    max_topics: int = Field(default=10_000, ge=1, le=100_000)
    """Topics of the cluster."""
    max_partitions_per_topic: int = Field(default=10_000, ge=1, le=1_000_000)
    """Partitions of one topic."""
    max_partitions: int = Field(default=200_000, ge=1, le=10_000_000)
    """Partitions of all topics together."""
    max_batches_per_commit: int = Field(default=100_000, ge=1, le=10_000_000)
    """Batches of one object."""
    max_runs_per_commit: int = Field(default=20_000, ge=1, le=100_000)
    """Partitions of one object."""
    max_writers: int = Field(default=1_000, ge=1, le=10_000)
    """Jobs of Spark that write at once."""
    max_writes: int = Field(default=100_000, ge=1, le=10_000_000)
    """Writes of Spark whose last epoch is remembered."""
    max_groups: int = Field(default=50_000, ge=1, le=10_000_000)
    """Consumer groups."""
    max_group_bytes: int = Field(default=512 << 20, ge=1 << 20, le=1 << 40)
    """What the members of all groups say of themselves and are assigned; the sequencer keeps it in memory. Above it a
    group that grows is refused; others go on."""
    max_share_partitions: int = Field(default=200_000, ge=1, le=10_000_000)
    """Partitions that share groups read, counted for each group."""
    max_transactional_ids: int = Field(default=100_000, ge=1, le=10_000_000)
    """Transactional ids that are remembered."""
    max_groups_per_transaction: int = Field(default=1_000, ge=1, le=1_000_000)
    """Groups whose offsets take part in one transaction."""
    max_open_transactions: int = Field(default=50_000, ge=1, le=10_000_000)
    """Transactions open at once."""
    max_users: int = Field(default=10_000, ge=1, le=100_000)
    """Users with SCRAM credentials; every agent keeps them all."""
    max_acls: int = Field(default=10_000, ge=1, le=100_000)
    """Access control list entries; every agent keeps them all."""
    max_client_configs: int = Field(default=10_000, ge=1, le=100_000)
    """Entities with client quotas, and groups with configs; every agent keeps them all."""
    max_delegation_tokens: int = Field(default=10_000, ge=1, le=100_000)
    """Delegation tokens that have not expired."""
    max_delegation_tokens_per_owner: int = Field(default=1_000, ge=1, le=100_000)
    """Such tokens of one owner."""
    max_feed_commits: int = Field(default=10_000, ge=1, le=1_000_000)
    """Commits that the feed remembers for its followers."""
    max_feed_runs: int = Field(default=50_000, ge=1, le=10_000_000)
    """Runs that it remembers; as many again are kept for reading the tail."""
    max_feed_wait_ms: int = Field(default=30_000, ge=0, le=600_000)
    """The longest wait for an update."""
    max_feed_waiters: int = Field(default=10_000, ge=1, le=1_000_000)
    """Followers that wait at once, and as many subscribers."""
    max_watched_partitions: int = Field(default=20_000, ge=1, le=1_000_000)
    """Partitions that one subscriber (an agent) watches; it asks for what changed in others at each fetch."""
    max_subscriptions: int = Field(default=1_000_000, ge=1, le=100_000_000)
    """Partitions that all subscribers together watch."""
    max_subscriber_bytes: int = Field(default=4 * 1024 * 1024, ge=1024, le=1 << 30)
    """Changes that wait for one subscriber; one that is too slow for this begins anew."""
    max_watch_calls_per_second: int = Field(default=5_000, ge=1, le=1_000_000)
    """Calls of all subscribers together while what they watch changes; 1,000 agents then make one every 200 ms each.
    No agent lets more than 750 ms pass between two calls."""
    removal_step: int = Field(default=1_000, ge=1, le=100_000)
    """Runs removed by one transaction of retention."""
    checkpoint_interval_ms: int = Field(default=3_000, ge=0, le=_DAY_MS)
    """Pause between two exports of metadata to the bucket, where the committer has an object store; 0 turns them
    off."""
    checkpoint_reservation: int = Field(default=16_000_000, ge=1, le=1 << 40)
    """Offsets that a partition may assign beyond the last export; after a recovery, new records start above them."""

    def on_store(self, url: str | None) -> SequencerSettings:
        """With what unset budgets of the cluster mean, where agents use the store at this URL."""
        defaults: dict[str, float] = {"max_committer_busy": COMMITTER_BUSY}
        if url is not None and url.startswith("s3:"):
            defaults["early_puts_per_second"] = EARLY_PUTS_PER_SECOND_ON_S3
        return self.model_copy(
            update={name: value for name, value in defaults.items() if getattr(self, name) is None}
        )
