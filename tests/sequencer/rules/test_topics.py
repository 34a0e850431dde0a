"""Topics' configs: what a change makes of them. New partitions."""

from __future__ import annotations

from uuid import UUID

import pytest

from sequencer.api.topics import AlterConfig, ConfigChange, ConfigOperation, ConfigScope
from sequencer.rules.topics import changed_configs, empty_partition

APPEND, SUBTRACT = ConfigOperation.APPEND, ConfigOperation.SUBTRACT


@pytest.mark.parametrize(
    ("scope", "name", "before", "operation", "value", "after"),
    [
        (ConfigScope.TOPIC, "cleanup.policy", None, APPEND, "compact", "delete,compact"),
        (ConfigScope.TOPIC, "cleanup.policy", "compact", APPEND, "delete", "compact,delete"),
        (ConfigScope.TOPIC, "cleanup.policy", "", APPEND, "compact", "compact"),
        (ConfigScope.TOPIC, "cleanup.policy", None, SUBTRACT, "delete", ""),
        (ConfigScope.BROKER, "log.cleanup.policy", None, APPEND, "compact", "delete,compact"),
        (ConfigScope.BROKER, "config.providers", None, APPEND, "file", "file"),
    ],
)
def test_a_list_that_is_not_set_is_changed_as_its_default(
    scope: ConfigScope, name: str, before: str | None, operation: ConfigOperation, value: str, after: str
) -> None:
    request = AlterConfig(scope, "", [ConfigChange(name, operation, value)])
    assert changed_configs({} if before is None else {name: before}, request) == {name: after}


def test_new_partitions_share_their_epochs() -> None:
    first, second = (empty_partition(UUID(int=1), partition, 7) for partition in range(2))
    assert first.epochs is second.epochs and first.epochs[0].epoch == 7
    assert empty_partition(UUID(int=1), 2, 8).epochs[0].epoch == 8
