"""Topics' configs: what a change makes of them. New partitions."""

from __future__ import annotations

from uuid import UUID

import pytest

from sequencer.api.errors import InvalidConfig, LimitReached
from sequencer.api.topics import (
    AlterConfig,
    ConfigChange,
    ConfigOperation,
    ConfigScope,
    CreateTopic,
    MetadataRequest,
)
from sequencer.reading.topic_changes import TopicChanges
from sequencer.rules.topics import (
    MAX_CONFIG_BYTES,
    MAX_CONFIG_BYTES_OF_ALL,
    accept_any_config,
    alter_config,
    changed_configs,
    create_topic,
    empty_partition,
)
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.row_store import DatabaseIdentity
from sequencer.store.state import HotState
from tailrace.rpc.frames import MAX_FRAME_BYTES, encode_body
from tailrace.turns import at_once

APPEND, SUBTRACT = ConfigOperation.APPEND, ConfigOperation.SUBTRACT


@pytest.mark.parametrize(
    ("scope", "name", "before", "operation", "value", "after"),
    [
        (ConfigScope.TOPIC, "cleanup.policy", None, APPEND, "compact", "delete,compact"),
        (ConfigScope.TOPIC, "cleanup.policy", "compact", APPEND, "delete", "compact,delete"),
        (ConfigScope.TOPIC, "cleanup.policy", "", APPEND, "compact", "compact"),
        (ConfigScope.TOPIC, "cleanup.policy", None, APPEND, "compact,delete", "delete,compact"),
        (ConfigScope.TOPIC, "cleanup.policy", "delete,compact", APPEND, "delete,delete", "delete,compact"),
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


def test_the_configs_of_all_topics_are_bounded_together_and_all_topics_fit_in_an_answer() -> None:
    state, settings = HotState({}), SequencerSettings()
    large = {"x": "v" * (MAX_CONFIG_BYTES - 1)}
    most = MAX_CONFIG_BYTES_OF_ALL // MAX_CONFIG_BYTES

    def written(draft: Draft) -> None:
        state.apply(draft.changes)

    def created(number: int, configs: dict[str, str]) -> None:
        draft, request = Draft(state, 1), CreateTopic(f"t{number}", 1, configs)
        at_once(create_topic(draft, request, UUID(int=number), accept_any_config, settings))
        written(draft)

    def altered(name: str, value: str) -> None:
        draft, change = Draft(state, 1), ConfigChange("x", ConfigOperation.SET, value)
        alter_config(draft, AlterConfig(ConfigScope.TOPIC, name, [change]), accept_any_config)
        written(draft)

    for number in range(most):
        created(number, large)
    with pytest.raises(InvalidConfig, match="a topic has at most"):
        altered("t0", "v" * MAX_CONFIG_BYTES)
    with pytest.raises(LimitReached, match="all topics"):
        created(most, {"x": ""})
    created(most, {})
    altered("t0", "")
    created(most + 1, {"x": ""})
    answer = TopicChanges(state).answer(MetadataRequest(), DatabaseIdentity("c", 1))
    assert len(answer.topics or ()) == most + 2 and len(encode_body(answer)) < MAX_FRAME_BYTES // 3


def test_new_partitions_share_their_epochs() -> None:
    first, second = (empty_partition(UUID(int=1), partition, 7) for partition in range(2))
    assert first.epochs is second.epochs and first.epochs[0].epoch == 7
    assert empty_partition(UUID(int=1), 2, 8).epochs[0].epoch == 8
