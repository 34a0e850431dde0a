"""The configs of one group: its own, else the agent's settings."""

from __future__ import annotations

from agent.catalog import Catalog
from agent.settings import AgentSettings
from sequencer.api.share_groups import ShareLimits
from tailrace.configs import group_config

SETTING_OF = {
    group_config.CONSUMER_SESSION_TIMEOUT_MS: "group_consumer_session_timeout_ms",
    group_config.CONSUMER_HEARTBEAT_INTERVAL_MS: "group_consumer_heartbeat_interval_ms",
    group_config.SHARE_SESSION_TIMEOUT_MS: "group_share_session_timeout_ms",
    group_config.SHARE_HEARTBEAT_INTERVAL_MS: "group_share_heartbeat_interval_ms",
    group_config.SHARE_RECORD_LOCK_DURATION_MS: "group_share_record_lock_duration_ms",
    group_config.SHARE_DELIVERY_COUNT_LIMIT: "group_share_delivery_count_limit",
    group_config.SHARE_PARTITION_MAX_RECORD_LOCKS: "group_share_partition_max_record_locks",
    group_config.SHARE_AUTO_OFFSET_RESET: "group_share_auto_offset_reset",
}
"""The agent setting that is a group config's default."""


def default_of(name: str, settings: AgentSettings) -> str:
    """Return the value for a group that does not set this config."""
    setting = SETTING_OF.get(name)
    return group_config.GROUP_CONFIGS[name].default if setting is None else str(getattr(settings, setting))


class GroupConfigs:
    """The configs of all groups, as the catalog knows them now."""

    def __init__(self, catalog: Catalog, settings: AgentSettings) -> None:
        self._catalog = catalog
        self._settings = settings

    def text(self, group_id: str, name: str) -> str:
        """Return the config's value for this group."""
        own = self._catalog.client_configs.groups.get(group_id, {})
        return own[name] if name in own else default_of(name, self._settings)

    def number(self, group_id: str, name: str) -> int:
        """Return the value of a config that is a number."""
        return int(self.text(group_id, name))

    def seconds(self, group_id: str, name: str) -> float:
        """Return the value of a config in ms, in seconds."""
        return self.number(group_id, name) / 1_000

    def reset_seconds(self, group_id: str) -> float | None:
        """Return how far back the share group begins, if it begins by time; otherwise None."""
        return group_config.reset_seconds(self.text(group_id, group_config.SHARE_AUTO_OFFSET_RESET))

    def share_limits(self, group_id: str) -> ShareLimits:
        """Return the configs of a share group that the sequencer needs."""
        return ShareLimits(
            lock_ms=self.number(group_id, group_config.SHARE_RECORD_LOCK_DURATION_MS),
            max_deliveries=self.number(group_id, group_config.SHARE_DELIVERY_COUNT_LIMIT),
            max_in_flight=self.number(group_id, group_config.SHARE_PARTITION_MAX_RECORD_LOCKS),
            from_earliest=self.text(group_id, group_config.SHARE_AUTO_OFFSET_RESET) == group_config.EARLIEST,
            read_committed=self.text(group_id, group_config.SHARE_ISOLATION_LEVEL)
            == group_config.READ_COMMITTED,
        )
