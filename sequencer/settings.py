"""Limits and leases of the sequencer, and the settings of one of its servers, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from tailrace.settings import SettingsSection

_DAY_MS = 24 * 3600 * 1000
_YEAR_MS = 366 * _DAY_MS
_INT64 = (1 << 63) - 1
COMMITTER_BUSY = 0.7
EARLY_PUTS_PER_SECOND_ON_S3 = 5.0
"""13 million PUTs in 30 days, which cost $65 at $0.005 per 1,000 (decision 20)."""


class SequencerSettings(SettingsSection):
    """Durations are in ms, limits are counts. A request that exceeds a limit gets an error that names it."""

    session_lease_ms: int = Field(default=30_000, ge=100, le=_DAY_MS)
    """How long an upload session lives without a renewal."""
    writer_lease_ms: int = Field(default=6 * 3_600_000, ge=100, le=7 * _DAY_MS)
    """How long objects uploaded by a Spark job wait for its commit, counted from the last upload."""
    agent_lease_ms: int = Field(default=10_000, ge=100, le=_DAY_MS)
    """How long an agent keeps its broker id, its place in the ring and its groups without a renewal."""
    agent_silence_ms: int = Field(default=3_000, ge=100, le=_DAY_MS)
    """If another agent reports an agent as silent, its lease ends once the sequencer has not heard from it for this
    long. At most half of `agent_lease_ms` counts."""
    committer_lease_ms: int = Field(default=2_000, ge=100, le=60_000)
    """Length of the committer's lease. With the servers' polling, another server takes over within 3 s of a committer's
    death."""
    deletion_grace_ms: int = Field(default=60_000, ge=0, le=_YEAR_MS)
    """How long a retired object is kept; it must be longer than the longest read of an object."""
    sweep_interval_ms: int = Field(default=_DAY_MS, ge=1, le=_YEAR_MS)
    """The prefix of an ended session must be found empty twice, this far apart. A compactor task has half of this time
    to upload its object, so a process refuses to start with less than 600000."""
    producer_expiry_ms: int = Field(default=7 * _DAY_MS, ge=1, le=_YEAR_MS)
    """The state of a producer in a partition is forgotten when the producer has not written there for this time."""
    offsets_retention_ms: int = Field(default=7 * _DAY_MS, ge=1, le=_YEAR_MS)
    """Offsets of a group without members are forgotten after this time (offsets.retention.minutes)."""
    max_offsets_retention_ms: int = Field(default=_YEAR_MS, ge=1, le=10 * _YEAR_MS)
    """Longest offset retention that a commit may request (versions 2 to 4 of OffsetCommit can)."""
    share_offsets_retention_ms: int = Field(default=7 * _DAY_MS, ge=1, le=10 * _YEAR_MS)
    """A share group without members is forgotten, with its positions, after this time."""
    empty_group_ms: int = Field(default=10 * 60 * 1000, ge=1, le=_YEAR_MS)
    """A group without members and offsets is forgotten after this time."""
    orphaned_members_ms: int = Field(default=60 * 60 * 1000, ge=1, le=_YEAR_MS)
    """Members that have no coordinator and do not look for one are forgotten after this time; it must exceed the
    longest session (agent.group_max_session_timeout_ms)."""
    transaction_max_timeout_ms: int = Field(default=15 * 60 * 1000, ge=1, le=_YEAR_MS)
    """Longest time-out that a transactional producer may request (Kafka's transaction.max.timeout.ms)."""
    transactional_id_expiration_ms: int = Field(default=7 * _DAY_MS, ge=1, le=_YEAR_MS)
    """A transactional id that was not used for this time is forgotten."""
    swap_answers_ms: int = Field(default=7 * _DAY_MS, ge=1, le=_YEAR_MS)
    """How long the answer to a swap is kept for retries."""
    stream_epochs_ms: int = Field(default=90 * _DAY_MS, ge=1, le=10 * _YEAR_MS)
    """How long the last epoch of a writing stream is kept: a stream that is restarted later may repeat it."""
    request_answers_ms: int = Field(default=3_600_000, ge=1, le=_YEAR_MS)
    """How long the first answer to a change (of topics, configs, groups, producers) is kept for retries."""
    max_request_answers: int = Field(default=100_000, ge=1, le=10_000_000)
    """Limit of answers kept for retries; above it the oldest are forgotten."""
    max_request_answer_bytes: int = Field(default=64 << 20, ge=1 << 20, le=8 << 30)
    """Limit of their total size; above it the oldest are forgotten, a quarter of the bytes."""
    default_retention_ms: int = Field(default=7 * _DAY_MS, ge=-1, le=_INT64)
    """retention.ms of topics if neither topic nor cluster sets it; -1 for no limit."""
    default_retention_bytes: int = Field(default=-1, ge=-1, le=_INT64)
    """retention.bytes of such topics; -1 for no limit."""
    default_cleanup_policy: str = "delete"
    """cleanup.policy of such topics."""
    early_puts_per_second: float | None = Field(default=None, gt=0, le=1_000_000)
    """The cluster's budget of early-sealed PUTs per second, divided between agents by demand. Unset: 5 on S3, which
    cost $65 a month at $0.005 per 1,000, in addition to the four per second that each busy agent's linger time causes;
    on other stores each agent has its own budget."""
    max_committer_busy: float | None = Field(default=None, gt=0, le=1)
    """Fraction of its time that the committer may be busy. Above it, agents get smaller shares of rows per second, and
    their buffers linger longer. Unset: 0.7."""
    commit_wait_ms: int = Field(default=5_000, ge=0, le=600_000)
    """How long a commit waits for the previous number of its session."""
    max_early_commits: int = Field(default=64, ge=1, le=10_000)
    """Limit of commits per session that wait for an earlier number."""
    max_queued_requests: int = Field(default=10_000, ge=1, le=1_000_000)
    """Limit of requests that wait for the committer; further requests get a retriable refusal."""
    max_group_requests: int = Field(default=256, ge=1, le=10_000)
    """Limit of requests in one transaction."""
    max_topics: int = Field(default=10_000, ge=1, le=100_000)
    """Limit of topics in the cluster."""
    max_partitions_per_topic: int = Field(default=10_000, ge=1, le=1_000_000)
    """Limit of partitions per topic."""
    max_partitions: int = Field(default=200_000, ge=1, le=10_000_000)
    """Limit of partitions in the cluster."""
    max_batches_per_commit: int = Field(default=100_000, ge=1, le=10_000_000)
    """Limit of batches in one object."""
    max_runs_per_commit: int = Field(default=20_000, ge=1, le=100_000)
    """Limit of partitions in one object."""
    max_writers: int = Field(default=1_000, ge=1, le=10_000)
    """Limit of Spark jobs that write at the same time."""
    max_writes: int = Field(default=100_000, ge=1, le=10_000_000)
    """Limit of Spark writes whose last epoch is remembered."""
    max_groups: int = Field(default=50_000, ge=1, le=10_000_000)
    """Limit of consumer groups."""
    max_group_bytes: int = Field(default=512 << 20, ge=1 << 20, le=1 << 40)
    """Limit of member data of all groups (what members send about themselves and are assigned); the sequencer keeps it
    in memory. Above it, a group that grows is refused; the others continue."""
    max_share_partitions: int = Field(default=200_000, ge=1, le=10_000_000)
    """Limit of partitions that share groups read, counted per group."""
    max_share_spans: int = Field(default=4_000_000, ge=1_000, le=1 << 40)
    """Limit of spans of records in the same state in all share groups; the sequencer keeps them in memory, some 120
    bytes each. Above it, a partition's members get one new record at a time."""
    max_transactional_ids: int = Field(default=100_000, ge=1, le=10_000_000)
    """Limit of remembered transactional ids."""
    max_groups_per_transaction: int = Field(default=1_000, ge=1, le=1_000_000)
    """Limit of groups whose offsets take part in one transaction."""
    max_open_transactions: int = Field(default=50_000, ge=1, le=10_000_000)
    """Limit of open transactions."""
    max_users: int = Field(default=10_000, ge=1, le=100_000)
    """Limit of users with SCRAM credentials; every agent keeps them all."""
    max_acls: int = Field(default=10_000, ge=1, le=100_000)
    """Limit of access control list entries; every agent keeps them all."""
    max_client_configs: int = Field(default=10_000, ge=1, le=100_000)
    """Limit of entities with client quotas plus groups with configs; every agent keeps them all."""
    max_delegation_tokens: int = Field(default=10_000, ge=1, le=100_000)
    """Limit of delegation tokens that have not expired."""
    max_delegation_tokens_per_owner: int = Field(default=1_000, ge=1, le=100_000)
    """The same limit per owner."""
    max_feed_commits: int = Field(default=10_000, ge=1, le=1_000_000)
    """Commits that the feed remembers for its followers."""
    max_feed_runs: int = Field(default=50_000, ge=1, le=10_000_000)
    """Runs that the feed remembers; as many again are kept for reading the tail. Their batches are limited too: to some
    25 for each of these runs."""
    max_feed_wait_ms: int = Field(default=30_000, ge=0, le=600_000)
    """Longest wait for an update."""
    max_feed_waiters: int = Field(default=10_000, ge=1, le=1_000_000)
    """Limit of waiting feed calls; the same limit applies to subscribers."""
    max_watched_partitions: int = Field(default=20_000, ge=1, le=1_000_000)
    """Limit of partitions that one subscriber (an agent) watches; for other partitions it asks for changes at each
    fetch."""
    max_subscriptions: int = Field(default=1_000_000, ge=1, le=100_000_000)
    """Limit of partitions that all subscribers together watch."""
    max_subscriber_bytes: int = Field(default=4 * 1024 * 1024, ge=1024, le=1 << 30)
    """Limit of the changes that wait for one subscriber; a slower subscriber must start a new subscription."""
    max_watch_calls_per_second: int = Field(default=5_000, ge=1, le=1_000_000)
    """Limit of calls per second of all subscribers together while watched partitions change; with it, 1,000 agents make
    one call every 200 ms each. No agent waits more than 750 ms between two calls."""
    removal_step: int = Field(default=1_000, ge=1, le=100_000)
    """Runs that one transaction of retention removes."""
    checkpoint_interval_ms: int = Field(default=3_000, ge=0, le=_DAY_MS)
    """Pause between two exports of metadata to the bucket, if the committer has an object store; 0 disables them."""
    checkpoint_reservation: int = Field(default=16_000_000, ge=1, le=1 << 40)
    """Offsets that a partition may assign beyond the last export; after a recovery, new records start above them. No
    commit of an agent or Spark job may have more records for one partition; agents' objects have less than 8,000,000
    records."""

    @property
    def max_offsets_at_once(self) -> int:
        """Limit of the offsets that one commit assigns in a partition: a checkpoint reserves no more."""
        return self.checkpoint_reservation if self.checkpoint_interval_ms else _INT64

    def on_store(self, url: str | None) -> SequencerSettings:
        """Return the settings with defaults for unset cluster budgets, if agents use the store at this URL."""
        defaults: dict[str, float] = {"max_committer_busy": COMMITTER_BUSY}
        if url is not None and url.startswith("s3:"):
            defaults["early_puts_per_second"] = EARLY_PUTS_PER_SECOND_ON_S3
        return self.filled(**defaults)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of a server. `advertise`: the 'host:port' at which other servers and agents reach it ('': where it
    listens)."""

    host: str = "127.0.0.1"
    port: int = 0
    advertise: str = ""
    poll_s: float = 0.5
    """How often a server that is not the committer tries to become it."""
    empty_poll_s: float = 0.2
    """The same while there is no committer: its database is unreachable, or nobody holds the lease."""
    margin_s: float = 0.25
    """How long before the end of its lease a committer stops answering, because clocks run at different speeds."""
    confirm_s: float = 0.5
    """How long calls wait for the renewal of an expired lease before they fail; twice the database's round trip if that
    is longer."""
    silence_s: float = 20.0
    """How long a committer with an expired lease waits for the database to confirm it before it steps down. Until then
    it answers nothing."""
    forward_timeout_s: float = 20.0
    first_head_s: float = 0.5
    """How long a new committer waits, before it serves calls, for the first head of its checkpoints to be written."""
    drain_s: float = 2.0
    retention_interval_s: float = 30.0
    collection_interval_s: float = 30.0
    max_rpc_connections: int = 4096
    keeps_journal: bool = True
    """Whether the database has a journal. All servers of a database must agree."""
    follows: bool = True
    """Whether this server keeps a copy of the rows while another server is the committer."""
    follow_pause_s: float = 0.2
    """How often a follower reads the journal when no call asks for it."""
