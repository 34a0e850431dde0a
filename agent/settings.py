"""An agent's settings, with their defaults and bounds."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tailrace.settings import SettingsSection

MIB = 1024 * 1024
_DAY_SECONDS = 24 * 3600
_DAY_MS = _DAY_SECONDS * 1000
PUTS_PER_SECOND_ON_S3 = 5.0
"""13 million PUTs in 30 days: $65 at $0.005 per 1,000 (decision 20)."""


class AgentSettings(SettingsSection):
    """An agent's settings. Sizes in bytes, times in ms unless the name says otherwise."""

    flush_bytes: int = Field(default=8 * MIB, ge=64 * 1024, le=256 * MIB)
    """Seal the buffer at this size."""
    linger_ms: int = Field(default=250, ge=1, le=60_000)
    """Seal the buffer after this time at the latest. It waits up to four times as long if its budget of rows is used
    up."""
    quiet_ms: int = Field(default=10, ge=0, le=60_000)
    """Seal early if no batch arrived for this long."""
    max_puts_per_second: float | None = Field(default=None, gt=0, le=10_000)
    """Budget of early-sealed PUTs per second, per lane. Unset: no limit on a folder, where PUTs are free; 5 on S3,
    which cost $65 a month at $0.005 per 1,000."""
    fast_dollars_per_day: float = Field(default=10.0, gt=0, le=1e6)
    """Budget of PUTs for topics with `tailrace.latency=fast`, per lane, in addition to `max_puts_per_second`: $10 pay
    for 23 PUTs per second on S3."""
    put_dollars_per_1000: float | None = Field(default=None, ge=0, le=1_000)
    """Price of 1,000 PUTs. Unset: 0 on a folder, where no topic needs `fast`; on S3 the price table's price."""
    max_rows_per_second: float = Field(default=2_000.0, gt=0, le=1_000_000)
    """Budget of rows (one per object and partition), per lane. Above it buffers linger longer."""
    flush_lanes: int = Field(default=1, ge=1, le=64)
    """Independent buffers, sessions and commit orders."""
    max_inflight_uploads: int = Field(default=4, ge=1, le=256)
    """Concurrent uploads per lane."""
    max_unanswered_commits: int = Field(default=128, ge=2, le=10_000)
    """Commits that the sequencer has not answered, per lane. Above half of it, lanes do not seal early. At the limit
    they seal nothing, and producers must retry."""
    upload_deadline_ms: int = Field(default=5_000, ge=100, le=120_000)
    """After this time without a stored object, a sealed buffer fails with a retriable error."""
    commit_deadline_ms: int = Field(default=20_000, ge=100, le=120_000)
    """After this time without the sequencer's answer, producers get a timeout error."""
    gap_deadline_ms: int = Field(default=5_000, ge=0, le=60_000)
    """How long a batch waits for the missing sequences before it, which another agent may store."""
    session_rotation_seconds: int = Field(default=3_600, ge=1, le=86_400)
    """Age at which an upload session is replaced."""
    memory_budget_bytes: int = Field(default=512 * MIB, ge=16 * MIB, le=1 << 40)
    """Limit of all requests that were read and not answered. Above it the agent stops reading. Large answers have an
    eighth as much in addition, and the objects of produce requests of many partitions a quarter."""
    max_request_bytes: int = Field(default=100 * MIB, ge=1024, le=1024 * MIB)
    """Largest request frame (socket.request.max.bytes)."""
    max_connections: int = Field(default=10_000, ge=1, le=1_000_000)
    """Limit of open client connections."""
    max_inflight_requests: int = Field(default=64, ge=1, le=10_000)
    """Produce requests in flight per connection."""
    idle_connection_ms: int = Field(default=600_000, ge=1_000, le=_DAY_MS)
    """Idle connections are closed after this time."""
    stalled_connection_ms: int = Field(default=60_000, ge=1_000, le=_DAY_MS)
    """A connection is closed when its client neither completes a request nor reads its answers for this time."""
    fetch_memory_bytes: int = Field(default=256 * MIB, ge=MIB, le=1 << 40)
    """Budget of records on their way to consumers. Above it fetches return less at a time. The chunks that they keep in
    memory may take as much again."""
    fetch_max_bytes: int = Field(default=64 * MIB, ge=1024, le=1 << 30)
    """Limit of one fetch response's records."""
    fetch_max_wait_ms: int = Field(default=30_000, ge=0, le=_DAY_MS)
    """Limit of a fetch's wait, whatever the client asks."""
    fetch_sessions: int = Field(default=1_000, ge=0, le=1_000_000)
    """Limit of fetch sessions, and of share sessions. At the limit, a new fetch session replaces one that was idle for
    two minutes; other fetches are served without a session. No share session is opened."""
    auto_create_topics: bool = True
    """Create unknown topics on Metadata requests (auto.create.topics.enable)."""
    default_partitions: int = Field(default=1, ge=1, le=10_000)
    """Partitions of auto-created topics (num.partitions)."""
    drain_ms: int = Field(default=30_000, ge=0, le=_DAY_MS)
    """How long shutdown waits for requests in flight."""
    group_min_session_timeout_ms: int = Field(default=6_000, ge=1, le=_DAY_MS)
    """group.min.session.timeout.ms"""
    group_max_session_timeout_ms: int = Field(default=1_800_000, ge=1, le=_DAY_MS)
    """group.max.session.timeout.ms"""
    group_initial_rebalance_delay_ms: int = Field(default=3_000, ge=0, le=60_000)
    """How long a new group waits for more members before its first rebalance (group.initial.rebalance.delay.ms)."""
    group_max_size: int = Field(default=10_000, ge=1, le=1_000_000)
    """Limit of members of one group (group.max.size)."""
    group_max_bytes: int = Field(default=4 * MIB, ge=64 * 1024, le=32 * MIB)
    """Limit of the names, metadata and assignments of one group's members, together."""
    groups_max_bytes: int = Field(default=256 * MIB, ge=MIB, le=1 << 40)
    """Limit of the names, metadata and assignments of the members of all groups that this agent coordinates. Above it,
    a member that needs more must retry later; assignments may exceed it by a quarter."""
    group_consumer_session_timeout_ms: int = Field(default=45_000, ge=1, le=_DAY_MS)
    """group.consumer.session.timeout.ms (KIP-848)."""
    group_consumer_heartbeat_interval_ms: int = Field(default=5_000, ge=1, le=_DAY_MS)
    """group.consumer.heartbeat.interval.ms (KIP-848)."""
    group_consumer_max_size: int = Field(default=10_000, ge=1, le=1_000_000)
    """Limit of members of one consumer group (group.consumer.max.size)."""
    group_consumer_migration_policy: Literal["disabled", "downgrade", "upgrade", "bidirectional"] = (
        "bidirectional"
    )
    """Whether groups with members can change between the classic protocol and KIP-848's
    (group.consumer.migration.policy)."""
    group_share_session_timeout_ms: int = Field(default=45_000, ge=1, le=_DAY_MS)
    """group.share.session.timeout.ms (KIP-932)."""
    group_share_heartbeat_interval_ms: int = Field(default=5_000, ge=1, le=_DAY_MS)
    """group.share.heartbeat.interval.ms (KIP-932)."""
    group_share_max_size: int = Field(default=200, ge=1, le=1_000)
    """Limit of members of one share group (group.share.max.size)."""
    group_share_record_lock_duration_ms: int = Field(default=30_000, ge=1_000, le=3_600_000)
    """How long a record is locked for a member before others may acquire it (group.share.record.lock.duration.ms)."""
    group_share_delivery_count_limit: int = Field(default=5, ge=2, le=100)
    """How often a record is delivered before it is given up (group.share.delivery.count.limit)."""
    group_share_partition_max_record_locks: int = Field(default=2_000, ge=100, le=10_000)
    """Limit of offsets between the first record that is not finished and the last one acquired, per group and partition
    (group.share.partition.max.record.locks)."""
    group_share_auto_offset_reset: Literal["latest", "earliest"] = "latest"
    """Where a share group begins in a partition that it has never read (share.auto.offset.reset)."""
    offset_metadata_max_bytes: int = Field(default=4_096, ge=0, le=MIB)
    """offset.metadata.max.bytes"""

    @property
    def fast_puts_per_second(self) -> float | None:
        """How many PUTs per second `fast_dollars_per_day` pays for; None if PUTs are free."""
        if not self.put_dollars_per_1000:
            return None
        return self.fast_dollars_per_day / _DAY_SECONDS / self.put_dollars_per_1000 * 1_000

    def on_store(self, url: str, put_dollars_per_1000: float) -> AgentSettings:
        """Return the settings with unset budgets of PUTs filled in for the store at this URL."""
        if not url.startswith("s3:"):
            return self
        return self.filled(
            max_puts_per_second=PUTS_PER_SECOND_ON_S3, put_dollars_per_1000=put_dollars_per_1000
        )
