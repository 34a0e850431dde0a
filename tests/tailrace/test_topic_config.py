"""Bounds of topics' configs."""

from __future__ import annotations

import pytest

from tailrace.configs.topic_config import TOPIC_CONFIGS, InvalidConfigValue

TEXTS = {
    "tailrace.schema.columns",
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
}


@pytest.mark.parametrize("name", sorted(TOPIC_CONFIGS.keys() - TEXTS))
def test_a_value_that_is_no_text_is_short_with_the_spaces_around_it(name: str) -> None:
    config = TOPIC_CONFIGS[name]
    config.check(config.default.rjust(100))
    with pytest.raises(InvalidConfigValue, match="at most 100"):
        config.check(config.default.rjust(101))
