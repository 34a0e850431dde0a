"""Topics, their partitions and configs.

A deleted topic is invisible at once: its row is deleted, and nothing is added to it. Code that reads rows under a
topic's id checks that the topic exists. The other rows are removed later, in steps (`rules.deleted_topics`).

Work per partition is `Steps`, in units of a run of a commit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from uuid import UUID

from sequencer.api.errors import InvalidConfig, InvalidRequest, LimitReached, TopicExists, UnknownTopic
from sequencer.api.reads import PartitionError
from sequencer.api.retention import DeletedRecords, DeleteRecords
from sequencer.api.topics import (
    MAX_REPLICATION_FACTOR,
    AlterConfig,
    ConfigOperation,
    ConfigScope,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    Topic,
)
from sequencer.api.values import Empty
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.rows import BrokerConfigRow, LogEpoch, PartitionRow, TopicRow
from sequencer.store.state import LOG_EPOCH, METADATA_VERSION, config_bytes, replace_row
from tailrace.configs.broker_config import broker_configs
from tailrace.configs.topic_config import TOPIC_CONFIGS, InvalidConfigValue, check_compaction_lags
from tailrace.tenants import is_topic_name
from tailrace.turns import Steps

PARTITIONS_AS_A_STEP = 10
"""The number of new partitions that cost as much as one run of a commit."""
MAX_CONFIG_BYTES = 16 << 10
"""Limit of the size of one topic's configs."""
MAX_CONFIG_BYTES_OF_ALL = 16 << 20
"""Limit of the size of all topics' configs: a new agent gets all topics in one answer, which fits in a frame of RPC."""

ValidateConfig = Callable[[str, Mapping[str, str]], None]
"""Called with 'topic' or 'broker' and all configs that are set; raises InvalidConfig."""

_BROKER = re.compile(r"[0-9]{0,19}")


def accept_any_config(scope: str, configs: Mapping[str, str]) -> None:
    """A validation that accepts all configs."""


def topic_value(row: TopicRow) -> Topic:
    """Return a topic as callers see it."""
    return Topic(
        topic_id=row.topic_id,
        name=row.name,
        partitions=row.partitions,
        configs=row.configs,
        created_ms=row.created_ms,
        replication_factor=row.replication_factor,
    )


def create_topic(
    draft: Draft, request: CreateTopic, topic_id: UUID, validate: ValidateConfig, settings: SequencerSettings
) -> Steps[Topic]:
    """Create a topic with empty partitions."""
    if not is_topic_name(request.name):
        raise InvalidRequest(
            f"topic name {request.name[:300]!r}: allowed are 1 to 249 of a-z A-Z 0-9 . _ - but not '.' or '..'"
        )
    if draft.topic_named(request.name) is not None:
        raise TopicExists(f"Topic '{request.name}' already exists.")
    _check_partitions(draft, 0, request.partitions, settings)
    if not 1 <= request.replication_factor <= MAX_REPLICATION_FACTOR:
        raise InvalidRequest(
            f"replication factor {request.replication_factor}; allowed is 1 to {MAX_REPLICATION_FACTOR}"
        )
    topics = draft.count(TopicRow)
    if topics >= settings.max_topics:
        raise LimitReached(f"{topics} topics; max_topics is {settings.max_topics}")
    _check_topic(draft, {}, request.configs, validate)
    row = TopicRow(
        topic_id=topic_id,
        name=request.name,
        partitions=request.partitions,
        configs=dict(request.configs),
        created_ms=draft.now_ms,
        replication_factor=request.replication_factor,
    )
    if not request.validate_only:
        draft.put(row)
        yield from _add_partitions(draft, topic_id, range(request.partitions))
        draft.bump_once(METADATA_VERSION)
    return topic_value(row)


def create_partitions(draft: Draft, request: CreatePartitions, settings: SequencerSettings) -> Steps[Topic]:
    """Increase a topic's number of partitions to `request.partitions`."""
    row = _topic(draft, request.topic_id)
    if request.partitions <= row.partitions:
        raise InvalidRequest(
            f"{request.partitions} partitions; topic {row.name!r} has {row.partitions} already"
        )
    _check_partitions(draft, row.partitions, request.partitions, settings)
    changed = replace_row(row, partitions=request.partitions)
    if not request.validate_only:
        draft.put(changed)
        yield from _add_partitions(draft, row.topic_id, range(row.partitions, request.partitions))
        draft.bump_once(METADATA_VERSION)
    return topic_value(changed)


def delete_topic(draft: Draft, request: DeleteTopic) -> Steps[Empty]:
    """Make a topic invisible, with everything that belongs to it."""
    row = _topic(draft, request.topic_id)
    draft.delete(TopicRow, row.topic_id)
    for number in range(row.partitions):
        if number % PARTITIONS_AS_A_STEP == 0:
            yield 1
        draft.publish(row.topic_id, number)
    draft.bump_once(METADATA_VERSION)
    draft.visible_change()
    return Empty()


def alter_config(draft: Draft, request: AlterConfig, validate: ValidateConfig) -> Empty:
    """Change the configs of a topic, a broker, or all brokers."""
    if request.scope is ConfigScope.TOPIC:
        topic = draft.topic_named(request.name)
        if topic is None:
            raise UnknownTopic(f"topic {request.name!r} does not exist")
        configs = changed_configs(topic.configs, request)
        _check_topic(draft, topic.configs, configs, validate)
        changed: TopicRow | BrokerConfigRow = replace_row(topic, configs=configs)
    else:
        if _BROKER.fullmatch(request.name) is None:
            raise InvalidRequest(f"broker {request.name[:100]!r}: a broker id, or '' for all of them")
        row = draft.get(BrokerConfigRow, request.name)
        configs = changed_configs({} if row is None else row.configs, request)
        validate("broker", configs)
        changed = BrokerConfigRow(name=request.name, configs=configs)
    if not request.validate_only:
        draft.put(changed)
        draft.bump_once(METADATA_VERSION)
    return Empty()


def _check_topic(
    draft: Draft, before: Mapping[str, str], configs: Mapping[str, str], validate: ValidateConfig
) -> None:
    """Raise InvalidConfig if a topic can't have these configs, or LimitReached if all topics' configs are too large."""
    validate("topic", configs)
    size = config_bytes(configs)
    if size > MAX_CONFIG_BYTES:
        raise InvalidConfig(f"{size} bytes of configs; a topic has at most {MAX_CONFIG_BYTES}")
    more = size - config_bytes(before)
    if more > 0 and draft.durable.topic_config_bytes + more > MAX_CONFIG_BYTES_OF_ALL:
        raise LimitReached(
            f"all topics have {draft.durable.topic_config_bytes} bytes of configs, and {more} more were given; "
            f"{MAX_CONFIG_BYTES_OF_ALL} are allowed: shorten some"
        )
    cluster = draft.get(BrokerConfigRow, "")
    try:
        check_compaction_lags(configs, None if cluster is None else cluster.configs)
    except InvalidConfigValue as error:
        raise InvalidConfig(str(error)) from error


def changed_configs(before: Mapping[str, str], request: AlterConfig) -> dict[str, str]:
    """Return the configs after the request. A list that is not set is appended to, and subtracted from, as its default,
    as in Kafka; what it has already keeps its place. Raises InvalidConfig."""
    configs = {} if request.replace else dict(before)
    for change in request.changes:
        if change.operation is ConfigOperation.DELETE:
            configs.pop(change.name, None)
            continue
        if change.value is None:
            raise InvalidConfig(f"{change.name}: no value was given")
        if change.operation is ConfigOperation.SET:
            configs[change.name] = change.value
            continue
        named = _parts(change.value)
        now = _parts(configs.get(change.name, _default(request.scope, change.name)))
        if change.operation is ConfigOperation.APPEND:
            now += named
        else:
            now = [part for part in now if part not in named]
        configs[change.name] = ",".join(dict.fromkeys(now))
    return configs


def _parts(value: str) -> list[str]:
    return [part for part in value.split(",") if part]


def _default(scope: ConfigScope, name: str) -> str:
    definition = TOPIC_CONFIGS.get(name) if scope is ConfigScope.TOPIC else broker_configs().get(name)
    return (definition.default or "") if definition is not None else ""


def delete_records(draft: Draft, request: DeleteRecords) -> Steps[DeletedRecords]:
    """Raise log starts; runs that lie wholly below are removed later."""
    errors: list[PartitionError] = []
    log_starts: list[int] = []
    for requested in request.partitions:
        yield 1
        row = draft.live_partition(requested.topic_id, requested.partition)
        if row is None:
            errors.append(PartitionError.UNKNOWN_TOPIC_OR_PARTITION)
            log_starts.append(-1)
            continue
        before = row.end_offset if requested.before_offset == -1 else requested.before_offset
        if not 0 <= before <= row.end_offset:
            errors.append(PartitionError.OFFSET_OUT_OF_RANGE)
            log_starts.append(row.log_start_offset)
            continue
        errors.append(PartitionError.NONE)
        log_starts.append(move_log_start(draft, row, before))
    return DeletedRecords(errors, log_starts)


def move_log_start(draft: Draft, row: PartitionRow, offset: int) -> int:
    """Raise a partition's log start to `offset`; it never decreases. Return the resulting log start.

    Runs and ranges of aborted transactions below it are removed later, in steps (sequencer.rules.retention).
    """
    assert offset <= row.end_offset, f"log start {offset} past the end {row.end_offset}"
    if offset <= row.log_start_offset:
        return row.log_start_offset
    draft.put(replace_row(row, log_start_offset=offset))
    draft.publish(row.topic_id, row.partition)
    draft.visible_change()
    return offset


def _topic(draft: Draft, topic_id: UUID) -> TopicRow:
    row = draft.get(TopicRow, topic_id)
    if row is None:
        raise UnknownTopic(f"no topic has the id {topic_id}")
    return row


def _check_partitions(draft: Draft, before: int, partitions: int, settings: SequencerSettings) -> None:
    if partitions < 1:
        raise InvalidRequest(f"{partitions} partitions; a topic has at least 1")
    if partitions > settings.max_partitions_per_topic:
        limit = settings.max_partitions_per_topic
        raise LimitReached(f"{partitions} partitions; max_partitions_per_topic is {limit}")
    others = draft.count(PartitionRow) - before
    if others + partitions > settings.max_partitions:
        raise LimitReached(
            f"{partitions} partitions and {others} of other topics; max_partitions is {settings.max_partitions}"
        )


def _add_partitions(draft: Draft, topic_id: UUID, numbers: range) -> Steps[None]:
    epoch = draft.counter(LOG_EPOCH)
    for count, number in enumerate(numbers):
        if count % PARTITIONS_AS_A_STEP == 0:
            yield 1
        draft.put(empty_partition(topic_id, number, epoch))
        draft.publish(topic_id, number)
    draft.visible_change()


def empty_partition(topic_id: UUID, partition: int, epoch: int) -> PartitionRow:
    """Return a partition before its first record."""
    return PartitionRow(
        topic_id=topic_id,
        partition=partition,
        log_start_offset=0,
        end_offset=0,
        running_max_timestamp=-1,
        epochs=_only_epoch(epoch),
    )


@lru_cache(maxsize=1)
def _only_epoch(epoch: int) -> list[LogEpoch]:
    """Return the epochs of a new log. All partitions created in an epoch of the cluster share the list."""
    return [LogEpoch(epoch, 0)]
