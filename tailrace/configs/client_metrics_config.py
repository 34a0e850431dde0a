"""Client-metrics configs: which clients push which metrics (KIP-714). Names and bounds are Kafka's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import re2

from tailrace.configs.topic_config import ConfigDefinition, ConfigType, InvalidConfigValue

METRICS, INTERVAL_MS, MATCH = "metrics", "interval.ms", "match"
ALL_METRICS = "*"
MATCHED = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""The properties of clients that a subscription can match."""
MAX_PATTERN_CHARACTERS = 500
REMEMBERED_PATTERNS = 256
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 1 << 20


@lru_cache(REMEMBERED_PATTERNS)
def patterns_of(value: str) -> Mapping[str, Any]:
    """Parse a `match` config: the pattern (RE2) for each property of a client. Raises ValueError."""
    patterns: dict[str, Any] = {}
    for part in filter(None, (text.strip() for text in value.split(","))):
        name, _, pattern = part.partition("=")
        if name not in MATCHED:
            raise ValueError(f"{name[:100]!r} is none of {', '.join(MATCHED)}")
        if len(pattern) > MAX_PATTERN_CHARACTERS:
            raise ValueError(f"the pattern of {name} has more than {MAX_PATTERN_CHARACTERS} characters")
        try:
            patterns[name] = re2.compile(pattern, _OPTIONS)
        except re2.error:
            raise ValueError(f"the pattern of {name} is not a regular expression") from None
    return patterns


CLIENT_METRICS_CONFIGS: dict[str, ConfigDefinition] = {
    definition.name: definition
    for definition in (
        ConfigDefinition(
            METRICS, ConfigType.LIST, "", "Prefixes of the names of metrics that clients push; * for all."
        ),
        ConfigDefinition(INTERVAL_MS, ConfigType.INT, "300000", "How often clients push.", 100, 3_600_000),
        ConfigDefinition(
            MATCH,
            ConfigType.LIST,
            default="",
            doc="Which clients push metrics: NAME=PATTERN for each property that must match; empty for all.",
            parse=patterns_of,
        ),
    )
}
"""Every config of a client-metrics resource, by name."""


def check_client_metrics_configs(configs: Mapping[str, str]) -> None:
    """Raise InvalidConfigValue unless a subscription may have these configs."""
    for name, value in configs.items():
        definition = CLIENT_METRICS_CONFIGS.get(name)
        if definition is None:
            raise InvalidConfigValue(f"Unknown client metrics config name: {name[:100]}")
        definition.check(value)
