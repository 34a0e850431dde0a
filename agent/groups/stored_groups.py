"""The stored forms of all types of groups: which module writes and reads a group's row."""

from __future__ import annotations

from agent.groups import stored_consumer_group, stored_group, stored_share_group
from agent.groups.consumer_group import ConsumerGroup
from agent.groups.group_bytes import AnyGroup
from agent.groups.group_configs import GroupConfigs
from agent.groups.share_group import ShareGroup
from agent.settings import AgentSettings
from sequencer.api.groups import CONSUMER_GROUP, SHARE_GROUP, GroupState
from tailrace.configs.group_config import CONSUMER_SESSION_TIMEOUT_MS, SHARE_SESSION_TIMEOUT_MS
from tailrace.turns import Steps, at_once


def stored(group: AnyGroup) -> Steps[GroupState]:
    """Return the row of the group, in steps."""
    if isinstance(group, ConsumerGroup):
        return stored_consumer_group.stored(group)
    if isinstance(group, ShareGroup):
        return stored_share_group.stored(group)
    return stored_group.stored(group)


def restored(
    state: GroupState, *, now: float, settings: AgentSettings, configs: GroupConfigs
) -> Steps[AnyGroup]:
    """Restore the group from its row, with every deadline restarted at `now`, in steps."""
    if state.type == CONSUMER_GROUP:
        return stored_consumer_group.restored(
            state,
            now=now,
            session_seconds=configs.seconds(state.group_id, CONSUMER_SESSION_TIMEOUT_MS),
            max_size=settings.group_consumer_max_size,
            max_bytes=settings.group_max_bytes,
        )
    if state.type == SHARE_GROUP:
        return stored_share_group.restored(
            state,
            now=now,
            session_seconds=configs.seconds(state.group_id, SHARE_SESSION_TIMEOUT_MS),
            max_size=settings.group_share_max_size,
            max_bytes=settings.group_max_bytes,
        )
    return stored_group.restored(
        state,
        now=now,
        initial_delay_seconds=settings.group_initial_rebalance_delay_ms / 1000,
        max_size=settings.group_max_size,
        max_bytes=settings.group_max_bytes,
    )


def emptied(
    group: AnyGroup, kind: str, *, now: float, settings: AgentSettings, configs: GroupConfigs
) -> AnyGroup:
    """Return a group of this type without members, with the group's id and generation."""
    empty = GroupState(
        group_id=group.group_id,
        generation=group.generation,
        state="",
        protocol_type="",
        members=[],
        blob=b"",
        type=kind,
    )
    return at_once(restored(empty, now=now, settings=settings, configs=configs))
