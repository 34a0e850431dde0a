"""The settings of a share group (KIP-932)."""

from __future__ import annotations

from agent.services import Services
from sequencer.api import ShareLimits

EARLIEST = "earliest"


def share_limits(services: Services, group_id: str) -> ShareLimits:
    """What applies to a group: the agent's settings."""
    settings = services.settings
    return ShareLimits(
        lock_ms=settings.group_share_record_lock_duration_ms,
        max_deliveries=settings.group_share_delivery_count_limit,
        max_in_flight=settings.group_share_partition_max_record_locks,
        from_earliest=settings.group_share_auto_offset_reset == EARLIEST,
    )
