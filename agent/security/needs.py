"""What a client needs for each API: Kafka's rules, as guards.

Every API has an entry, possibly an empty one. `python -m tailrace_cli.doc_pages.authorization_table` writes the table
of docs/security.md from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from agent.handlers import metadata
from agent.handlers.configs import RESOURCE_GROUP, RESOURCE_TOPIC
from agent.handlers.described_groups import groups_once
from agent.handlers.groups import BATCHED, GROUP
from agent.security.guard import (
    NAMES_IN_A_TURN,
    Call,
    Guard,
    ListingGuard,
    Need,
    Next,
    PartsGuard,
    RequestGuard,
)
from tailrace.ids import NIL_TOPIC_ID
from tailrace.kafka import ApiKey
from tailrace.kafka.apis import APIS
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages import describe_transactions, find_coordinator, offset_fetch
from tailrace.kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from tailrace.kafka.messages.alter_client_quotas import AlteredEntry
from tailrace.kafka.messages.alter_configs import AlterConfigsResourceResponse
from tailrace.kafka.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirTopicResult,
)
from tailrace.kafka.messages.alter_share_group_offsets import AlteredShareOffset, AlteredShareTopic
from tailrace.kafka.messages.alter_user_scram_credentials import AlterUserScramCredentialsResult
from tailrace.kafka.messages.consumer_group_describe import DescribedConsumer, DescribedConsumerGroup
from tailrace.kafka.messages.create_acls import AclCreationResult
from tailrace.kafka.messages.create_partitions import CreatePartitionsTopicResult
from tailrace.kafka.messages.create_topics import CreatableTopicResult
from tailrace.kafka.messages.delete_acls import DeleteAclsFilterResult
from tailrace.kafka.messages.delete_groups import DeletableGroupResult
from tailrace.kafka.messages.delete_records import DeleteRecordsPartitionResult, DeleteRecordsTopicResult
from tailrace.kafka.messages.delete_share_group_offsets import DeletedShareTopic
from tailrace.kafka.messages.delete_topics import DeletableTopicResult, DeleteTopicState
from tailrace.kafka.messages.describe_configs import DescribeConfigsResult
from tailrace.kafka.messages.describe_groups import DescribedGroup
from tailrace.kafka.messages.describe_producers import PartitionResponse, TopicResponse
from tailrace.kafka.messages.describe_share_group_offsets import DescribedShareOffsets
from tailrace.kafka.messages.describe_topic_partitions import (
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from tailrace.kafka.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse as IncrementallyAltered,
)
from tailrace.kafka.messages.join_group import JoinGroupResponse
from tailrace.kafka.messages.list_offsets import ListOffsetsPartitionResponse, ListOffsetsTopicResponse
from tailrace.kafka.messages.metadata import MetadataRequestTopic, MetadataResponse, MetadataResponseTopic
from tailrace.kafka.messages.offset_commit import OffsetCommitResponsePartition, OffsetCommitResponseTopic
from tailrace.kafka.messages.offset_delete import OffsetDeleteResponsePartition, OffsetDeleteResponseTopic
from tailrace.kafka.messages.offset_for_leader_epoch import EpochEndOffset, OffsetForLeaderTopicResult
from tailrace.kafka.messages.produce import PartitionProduceResponse, TopicProduceResponse
from tailrace.kafka.messages.share_group_describe import DescribedShareGroup
from tailrace.kafka.messages.txn_offset_commit import (
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tailrace.kafka.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
)
from tailrace.security.acls import CLUSTER_NAME, Operation, ResourceType
from tailrace.turns import Turns

FAILED = "Authorization failed."
"""Kafka's error message, for responses that have one."""

TOPIC, GROUPS, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTION = ResourceType.TRANSACTIONAL_ID
READ_TOPIC = Need(Operation.READ, TOPIC)
WRITE_TOPIC = Need(Operation.WRITE, TOPIC)
DESCRIBE_TOPIC = Need(Operation.DESCRIBE, TOPIC)
READ_GROUP = Need(Operation.READ, GROUPS)
DESCRIBE_GROUP = Need(Operation.DESCRIBE, GROUPS)
WRITE_TRANSACTION = Need(Operation.WRITE, TRANSACTION)
DESCRIBE_TRANSACTION = Need(Operation.DESCRIBE, TRANSACTION)
DESCRIBE_CLUSTER = Need(Operation.DESCRIBE, CLUSTER)
ALTER_CLUSTER = Need(Operation.ALTER, CLUSTER)
CREATE_TOPIC = Need(Operation.CREATE, CLUSTER, Need(Operation.CREATE, TOPIC))
FIRST_BATCHED_TRANSACTIONS = 4
FIRST_MANY_GROUPS = 8


# --- shapes shared by several APIs


def _with_code(request: Any, code: ErrorCode) -> Any:
    """Return a response with only the code."""
    return APIS[request.api.key].response(error_code=code)


def _group_id(request: Any) -> Iterable[str]:
    return (request.group_id,)


def _of_group(need: Need, refuse: Callable[[Any, ErrorCode], Any] = _with_code) -> RequestGuard:
    return RequestGuard(need, refuse, _group_id)


def _of_transaction(refuse: Callable[[Any, ErrorCode], Any] = _with_code) -> RequestGuard:
    return RequestGuard(WRITE_TRANSACTION, refuse, lambda request: (request.transactional_id,))


def _name(part: Any) -> str:
    return str(part.name or "")


def _topics(
    need: Need,
    refuse: Callable[[Any, ErrorCode], Any],
    *,
    asked: str = "topics",
    answered: str = "topics",
    name: Callable[[Any], str] = _name,
) -> PartsGuard:
    return PartsGuard(needs=(need,), asked=asked, answered=answered, name=name, refuse=refuse)


def _each_topic(refuse: Callable[[Any, ErrorCode], Any], request: Any, code: ErrorCode) -> Any:
    """Return a response in which every topic of the request has the code."""
    return APIS[request.api.key].response(topics=[refuse(topic, code) for topic in request.topics])


# --- parts of responses that have a code


def _produced(topic: Any, code: ErrorCode) -> TopicProduceResponse:
    rows = [
        PartitionProduceResponse(partition.index, code, base_offset=-1) for partition in topic.partition_data
    ]
    return TopicProduceResponse(topic.name, topic.topic_id, rows)


def _listed(topic: Any, code: ErrorCode) -> ListOffsetsTopicResponse:
    rows = [
        ListOffsetsPartitionResponse(partition.partition_index, code, timestamp=-1, offset=-1)
        for partition in topic.partitions
    ]
    return ListOffsetsTopicResponse(topic.name, rows)


def _committed(topic: Any, code: ErrorCode) -> OffsetCommitResponseTopic:
    rows = [OffsetCommitResponsePartition(partition.partition_index, code) for partition in topic.partitions]
    return OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=rows)


def _committed_in_transaction(topic: Any, code: ErrorCode) -> TxnOffsetCommitResponseTopic:
    rows = [
        TxnOffsetCommitResponsePartition(partition.partition_index, code) for partition in topic.partitions
    ]
    return TxnOffsetCommitResponseTopic(topic.name, rows)


def _records_deleted(topic: Any, code: ErrorCode) -> DeleteRecordsTopicResult:
    rows = [
        DeleteRecordsPartitionResult(partition.partition_index, low_watermark=-1, error_code=code)
        for partition in topic.partitions
    ]
    return DeleteRecordsTopicResult(topic.name, rows)


def _offsets_deleted(topic: Any, code: ErrorCode) -> OffsetDeleteResponseTopic:
    rows = [OffsetDeleteResponsePartition(partition.partition_index, code) for partition in topic.partitions]
    return OffsetDeleteResponseTopic(topic.name, rows)


def _group_of(part: Any) -> str:
    return str(part.group_id)


def _topic_name(part: Any) -> str:
    return str(part.topic_name)


def _share_offsets_refused(group: Any, code: ErrorCode) -> DescribedShareOffsets:
    return DescribedShareOffsets(group.group_id, error_code=code, error_message=FAILED)


def _share_altered(topic: Any, code: ErrorCode) -> AlteredShareTopic:
    rows = [AlteredShareOffset(partition.partition_index, code, FAILED) for partition in topic.partitions]
    return AlteredShareTopic(topic.topic_name, partitions=rows)


def _share_deleted(topic: Any, code: ErrorCode) -> DeletedShareTopic:
    return DeletedShareTopic(topic.topic_name, error_code=code, error_message=FAILED)


def _epochs(topic: Any, code: ErrorCode) -> OffsetForLeaderTopicResult:
    rows = [EpochEndOffset(error_code=code, partition=partition.partition) for partition in topic.partitions]
    return OffsetForLeaderTopicResult(topic.topic, rows)


def _producers(topic: Any, code: ErrorCode) -> TopicResponse:
    rows = [PartitionResponse(index, code, FAILED) for index in topic.partition_indexes]
    return TopicResponse(topic.name, rows)


def _added(topic: Any, code: ErrorCode) -> AddPartitionsToTxnTopicResult:
    rows = [AddPartitionsToTxnPartitionResult(index, code) for index in topic.partitions]
    return AddPartitionsToTxnTopicResult(topic.name, rows)


def _not_created(topic: Any, code: ErrorCode) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        error_code=code,
        error_message=FAILED,
        num_partitions=-1,
        replication_factor=-1,
        configs=[],
    )


def _altered(kind: type[Any], resource: Any, code: ErrorCode) -> Any:
    return kind(code, FAILED, resource.resource_type, resource.resource_name)


def _configs(resource: Any, code: ErrorCode) -> DescribeConfigsResult:
    return DescribeConfigsResult(code, FAILED, resource.resource_type, resource.resource_name)


def _config_resource(resource: Any) -> int:
    """Return the index of a config resource's need: a topic's, a group's, or else the cluster's."""
    return {RESOURCE_TOPIC: 0, RESOURCE_GROUP: 1}.get(resource.resource_type, 2)


def _of_configs(
    operation: Operation, refuse: Callable[[Any, ErrorCode], Any], answered: str = "responses"
) -> PartsGuard:
    needs = (Need(operation, TOPIC), Need(operation, GROUPS), Need(operation, CLUSTER))
    return PartsGuard(
        needs=needs,
        asked="resources",
        answered=answered,
        name=lambda resource: str(resource.resource_name),
        refuse=refuse,
        need_of=_config_resource,
    )


def _scram_results(request: Any, code: ErrorCode) -> Any:
    users = dict.fromkeys(change.name for change in [*request.deletions, *request.upsertions])
    rows = [AlterUserScramCredentialsResult(user, code, FAILED) for user in users]
    return APIS[request.api.key].response(results=rows)


def _markers(request: Any, code: ErrorCode) -> Any:
    return APIS[request.api.key].response(
        markers=[
            WritableTxnMarkerResult(
                marker.producer_id,
                [
                    WritableTxnMarkerTopicResult(
                        topic.name,
                        [WritableTxnMarkerPartitionResult(index, code) for index in topic.partition_indexes],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def _log_dirs(request: Any, code: ErrorCode) -> Any:
    return APIS[request.api.key].response(
        results=[
            AlterReplicaLogDirTopicResult(
                topic.name, [AlterReplicaLogDirPartitionResult(index, code) for index in topic.partitions]
            )
            for log_dir in request.dirs
            for topic in log_dir.topics
        ]
    )


def _join_refused(request: Any, code: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, protocol_name="", member_id=request.member_id)


# --- guards of single APIs


@dataclass(frozen=True, slots=True)
class _MetadataGuard:
    """Refuses named topics that the client may not describe; leaves them out of a listing of all."""

    needs = (DESCRIBE_TOPIC, CREATE_TOPIC)
    effect = (
        "TOPIC_AUTHORIZATION_FAILED for each, also for one that does not exist; left out of a listing of all"
    )

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        await call.services.catalog.refresh_if_possible()
        snapshot = call.services.catalog.snapshot
        if metadata.wants_all(call.context, request):
            kept = await _described(call, snapshot.by_name)
            if len(kept) == len(snapshot.by_name):
                return await answer(request)
            request.topics = [MetadataRequestTopic(name=name) for name in kept]
            request.allow_auto_topic_creation = False
            return await self._respond(call, request, [])
        named: list[MetadataRequestTopic] = []
        refused: list[MetadataResponseTopic] = []
        creates = metadata.creates_topics(call.services, call.context, request)
        async for topic in Turns(NAMES_IN_A_TURN).over(request.topics):
            by_id = topic.topic_id != NIL_TOPIC_ID
            name = await call.topic_name(topic.name, topic.topic_id)
            is_allowed = not name or call.may(DESCRIBE_TOPIC, name)
            if is_allowed and name and creates and name not in snapshot.by_name:
                is_allowed = call.may(CREATE_TOPIC, name)
            if is_allowed:
                named.append(topic)
            else:
                shown = (
                    None
                    if by_id and call.context.api_version >= metadata.FIRST_NULL_NAME_VERSION
                    else topic.name
                )
                refused.append(
                    MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, shown, topic.topic_id)
                )
        if not refused:
            return await answer(request)
        request.topics = named
        return await self._respond(call, request, refused)

    async def _respond(
        self, call: Call, request: Any, refused: list[MetadataResponseTopic]
    ) -> MetadataResponse:
        """Return an answer for this client only. In version 0, an empty list of topics would mean all topics."""
        is_empty = not request.topics
        response = await metadata.respond(call.services, call.context, request)
        response.topics = [] if is_empty else response.topics
        response.topics += refused
        return response


async def _described(call: Call, names: Iterable[str]) -> list[str]:
    """Return the topics that the client may describe."""
    return [
        name
        async for name in Turns(NAMES_IN_A_TURN).over(list(names))
        if call.may(DESCRIBE_TOPIC, name, is_noted=False)
    ]


@dataclass(frozen=True, slots=True)
class _CoordinatorGuard:
    """Checks the keys of groups or transactional ids, one or several."""

    needs = (DESCRIBE_GROUP, DESCRIBE_TRANSACTION)
    effect = "GROUP_AUTHORIZATION_FAILED or TRANSACTIONAL_ID_AUTHORIZATION_FAILED for each"

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        need = DESCRIBE_GROUP if request.key_type == GROUP else DESCRIBE_TRANSACTION
        is_many = call.context.api_version >= BATCHED
        keys = list(dict.fromkeys(request.coordinator_keys)) if is_many else [request.key]
        allowed: list[str] = []
        refused: list[str] = []
        async for key in Turns(NAMES_IN_A_TURN).over(keys):
            (allowed if call.may(need, key) else refused).append(key)
        if not refused:
            return await answer(request)
        if not is_many:
            return find_coordinator.FindCoordinatorResponse(
                error_code=need.code, error_message=FAILED, node_id=-1, port=-1
            )
        request.coordinator_keys = allowed
        response = await answer(request)
        response.coordinators += [
            find_coordinator.Coordinator(
                key=key, node_id=-1, port=-1, error_code=need.code, error_message=FAILED
            )
            for key in refused
        ]
        return response


@dataclass(frozen=True, slots=True)
class _OffsetFetchGuard:
    """Checks one group or several, and the named topics of each, or all topics."""

    needs = (DESCRIBE_GROUP, DESCRIBE_TOPIC)
    effect = (
        "GROUP_AUTHORIZATION_FAILED for the group, TOPIC_AUTHORIZATION_FAILED for each; left out of a listing"
    )

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        if call.context.api_version < FIRST_MANY_GROUPS:
            return await self._one(call, request, answer)
        allowed: list[Any] = []
        refused_groups: list[Any] = []
        async for row in Turns(NAMES_IN_A_TURN).over(groups_once(request.groups)):
            (allowed if call.may(DESCRIBE_GROUP, row.group_id) else refused_groups).append(row)
        request.groups = allowed
        refused_topics = {
            group.group_id: await self._take_refused(
                call,
                group,
                offset_fetch.OffsetFetchResponseTopics,
                offset_fetch.OffsetFetchResponsePartitions,
            )
            for group in request.groups
        }
        response = await answer(request)
        for group in response.groups:
            await self._keep_described(call, group)
            group.topics += refused_topics.get(group.group_id, []) if not group.error_code else []
        response.groups += [
            offset_fetch.OffsetFetchResponseGroup(group_id=row.group_id, error_code=DESCRIBE_GROUP.code)
            for row in refused_groups
        ]
        return response

    async def _one(self, call: Call, request: Any, answer: Next) -> Any:
        if not call.may(DESCRIBE_GROUP, request.group_id):
            response = offset_fetch.OffsetFetchResponse(error_code=DESCRIBE_GROUP.code)
            if call.context.api_version < 2:  # no field for the group's code
                response.topics = [_unfetched(topic, DESCRIBE_GROUP.code) for topic in request.topics or []]
            return response
        refused = await self._take_refused(
            call, request, offset_fetch.OffsetFetchResponseTopic, offset_fetch.OffsetFetchResponsePartition
        )
        response = await answer(request)
        await self._keep_described(call, response)
        response.topics += refused
        return response

    async def _take_refused(
        self, call: Call, group: Any, topic_kind: type[Any], row_kind: type[Any]
    ) -> list[Any]:
        """Remove a group's topics that may not be described. Return their rows for the answer."""
        kept, refused = [], []
        async for topic in Turns(NAMES_IN_A_TURN).over(group.topics or []):
            topic_id = getattr(topic, "topic_id", NIL_TOPIC_ID)
            name = await call.topic_name(topic.name, topic_id)
            if not name or call.may(DESCRIBE_TOPIC, name):
                kept.append(topic)
            else:
                refused.append(_unfetched(topic, DESCRIBE_TOPIC.code, topic_kind, row_kind))
        if refused:
            group.topics = kept
        return refused

    async def _keep_described(self, call: Call, group: Any) -> None:
        """Keep only the topics that may be described. Topics requested by name were checked before."""
        group.topics = [
            topic
            async for topic in Turns(NAMES_IN_A_TURN).over(group.topics)
            if not topic.name or call.may(DESCRIBE_TOPIC, topic.name, is_noted=False)
        ]


def _unfetched(
    topic: Any,
    code: ErrorCode,
    topic_kind: type[Any] = offset_fetch.OffsetFetchResponseTopic,
    row_kind: type[Any] = offset_fetch.OffsetFetchResponsePartition,
) -> Any:
    rows = [
        row_kind(partition_index=index, committed_offset=-1, error_code=code)
        for index in topic.partition_indexes
    ]
    answered = topic_kind(name=topic.name, partitions=rows)
    if hasattr(topic, "topic_id"):
        answered.topic_id = topic.topic_id
    return answered


@dataclass(frozen=True, slots=True)
class _ProducerIdGuard:
    """Needs the transactional id, or any topic to write to (KIP-679)."""

    needs = (
        WRITE_TRANSACTION,
        Need(Operation.IDEMPOTENT_WRITE, CLUSTER, Need(Operation.WRITE, TOPIC)),
    )
    effect = (
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED with a transactional id; else CLUSTER_AUTHORIZATION_FAILED (WRITE on any"
        " topic is enough)"
    )

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        need = self.needs[1]
        if request.transactional_id is not None:
            need = WRITE_TRANSACTION
            is_allowed = call.may(need, request.transactional_id)
        else:
            access = call.context.access
            is_allowed = access.may(
                Operation.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME
            ) or access.may_with_some(Operation.WRITE, TOPIC)
            if not is_allowed:
                call.note(need, CLUSTER_NAME)
        if is_allowed:
            return await answer(request)
        return APIS[ApiKey.INIT_PRODUCER_ID].response(error_code=need.code, producer_id=-1, producer_epoch=-1)


@dataclass(frozen=True, slots=True)
class _AddPartitionsGuard:
    """Checks one transaction from clients, several from brokers (version 4 and above)."""

    needs = (WRITE_TRANSACTION, WRITE_TOPIC, Need(Operation.CLUSTER_ACTION, CLUSTER))
    effect = (
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED or TOPIC_AUTHORIZATION_FAILED for each, and no partition is added; from"
        " version 4 on CLUSTER_AUTHORIZATION_FAILED for the request"
    )

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        kind = APIS[ApiKey.ADD_PARTITIONS_TO_TXN].response
        if call.context.api_version >= FIRST_BATCHED_TRANSACTIONS:
            if call.may(self.needs[2], CLUSTER_NAME):
                return await answer(request)
            results = [
                AddPartitionsToTxnResult(
                    added.transactional_id, [_added(topic, self.needs[2].code) for topic in added.topics]
                )
                for added in request.transactions
            ]
            return kind(error_code=self.needs[2].code, results_by_transaction=results)
        topics = request.v3_and_below_topics
        if not call.may(WRITE_TRANSACTION, request.v3_and_below_transactional_id):
            rows = [_added(topic, WRITE_TRANSACTION.code) for topic in topics]
            return kind(results_by_topic_v3_and_below=rows)
        parts = PartsGuard(
            needs=(WRITE_TOPIC,),
            asked="v3_and_below_topics",
            answered="results_by_topic_v3_and_below",
            name=_name,
            refuse=_added,
            code_of_others=ErrorCode.OPERATION_NOT_ATTEMPTED,
        )
        return await parts(call, request, answer)


@dataclass(frozen=True, slots=True)
class _DeleteTopicsGuard:
    """Checks topics by name or by id. A refusal by id does not reveal the topic's name."""

    needs = (Need(Operation.DELETE, TOPIC),)
    effect = "TOPIC_AUTHORIZATION_FAILED for each"

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        request.topics = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
        request.topic_names = []

        def refuse(state: Any, code: ErrorCode) -> DeletableTopicResult:
            return DeletableTopicResult(state.name, state.topic_id, code)

        return await _topics(self.needs[0], refuse, answered="responses")(call, request, answer)


@dataclass(frozen=True, slots=True)
class _CreateTopicsGuard:
    """Returns the configs of a new topic only to clients that may describe them."""

    needs = (CREATE_TOPIC, Need(Operation.DESCRIBE_CONFIGS, TOPIC))
    effect = (
        "TOPIC_AUTHORIZATION_FAILED for each; without DESCRIBE_CONFIGS a new topic's configs are left out"
    )

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        response = await _topics(CREATE_TOPIC, _not_created)(call, request, answer)
        for row in response.topics:
            if not row.error_code and not call.may(self.needs[1], row.name, is_noted=False):
                row.topic_config_error_code = self.needs[1].code
                row.num_partitions, row.replication_factor, row.configs = -1, -1, []
        return response


@dataclass(frozen=True, slots=True)
class _TransactionsGuard:
    """Returns a transaction's topics only to clients that may describe them."""

    needs = (DESCRIBE_TRANSACTION, DESCRIBE_TOPIC)
    effect = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED for each; topics are left out"

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        def refuse(name: str, code: ErrorCode) -> describe_transactions.TransactionState:
            return describe_transactions.TransactionState(code, name)

        parts = PartsGuard(
            needs=(DESCRIBE_TRANSACTION,),
            asked="transactional_ids",
            answered="transaction_states",
            name=str,
            refuse=refuse,
        )
        response = await parts(call, request, answer)
        async for row in Turns(NAMES_IN_A_TURN).over(response.transaction_states):
            row.topics = [
                topic for topic in row.topics if call.may(DESCRIBE_TOPIC, topic.topic, is_noted=False)
            ]
        return response


@dataclass(frozen=True, slots=True)
class _TopicPartitionsGuard:
    """Checks named topics, or all."""

    needs = (DESCRIBE_TOPIC,)
    effect = (
        "TOPIC_AUTHORIZATION_FAILED for each, also for one that does not exist; left out of a listing of all"
    )

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        if not request.topics:
            snapshot = await call.services.catalog.refresh()
            names = await _described(call, snapshot.by_name)
            if not names:
                return APIS[ApiKey.DESCRIBE_TOPIC_PARTITIONS].response()
            request.topics = [TopicRequest(name) for name in names]
            return await answer(request)

        def refuse(topic: Any, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
            return DescribeTopicPartitionsResponseTopic(error_code=code, name=topic.name)

        return await _topics(DESCRIBE_TOPIC, refuse)(call, request, answer)


@dataclass(frozen=True, slots=True)
class _HeartbeatGuard:
    """Checks the group of a member whose assignment the coordinator computes, the topics that it names, and those that
    its pattern matches."""

    needs = (READ_GROUP, DESCRIBE_TOPIC)
    effect = (
        "GROUP_AUTHORIZATION_FAILED or TOPIC_AUTHORIZATION_FAILED for the request; topics that only match the pattern"
        " are left out of the assignment"
    )

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        kind = APIS[request.api.key].response
        if not call.may(READ_GROUP, request.group_id):
            return kind(error_code=READ_GROUP.code, error_message=FAILED)
        if not all(call.may(DESCRIBE_TOPIC, name) for name in request.subscribed_topic_names or ()):
            return kind(error_code=DESCRIBE_TOPIC.code, error_message=FAILED)
        response = await answer(request)
        if response.assignment is not None:
            response.assignment.topic_partitions = [
                topic
                for topic in response.assignment.topic_partitions
                if call.may(DESCRIBE_TOPIC, await call.topic_name("", topic.topic_id), is_noted=False)
            ]
        return response


@dataclass(frozen=True, slots=True)
class _DescribeGuard:
    """Checks named groups, each described as `kind`. A group is refused as a whole if its members have a topic that the
    client may not describe."""

    kind: type[DescribedConsumerGroup | DescribedShareGroup]
    needs = (DESCRIBE_GROUP, DESCRIBE_TOPIC)
    effect = "GROUP_AUTHORIZATION_FAILED or TOPIC_AUTHORIZATION_FAILED for each"

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        def refuse(group_id: str, code: ErrorCode) -> DescribedConsumerGroup | DescribedShareGroup:
            return self.kind(error_code=code, error_message=FAILED, group_id=group_id)

        parts = PartsGuard(
            needs=(DESCRIBE_GROUP,), asked="group_ids", answered="groups", name=str, refuse=refuse
        )
        response = await parts(call, request, answer)
        response.groups = [
            group
            if all(call.may(DESCRIBE_TOPIC, name) for name in _topics_of(group))
            else refuse(group.group_id, DESCRIBE_TOPIC.code)
            for group in response.groups
        ]
        return response


def _topics_of(group: DescribedConsumerGroup | DescribedShareGroup) -> set[str]:
    """Return the topics that the group's members subscribe to or have assigned."""
    names: set[str] = set()
    for member in group.members:
        names.update(member.subscribed_topic_names)
        names.update(topic.topic_name for topic in member.assignment.topic_partitions)
        if isinstance(member, DescribedConsumer):
            names.update(topic.topic_name for topic in member.target_assignment.topic_partitions)
    return names


_SHARING_GROUP = RequestGuard(READ_GROUP, _with_code, lambda request: (request.group_id or "",))


@dataclass(frozen=True, slots=True)
class _InHandler:
    """The handler itself checks, because only it knows the resources."""

    needs: tuple[Need, ...]
    effect: str

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        return await answer(request)


_PRODUCED_TRANSACTION = RequestGuard(
    WRITE_TRANSACTION,
    lambda request, code: APIS[ApiKey.PRODUCE].response(
        responses=[_produced(topic, code) for topic in request.topic_data]
    ),
    lambda request: () if request.transactional_id is None else (request.transactional_id,),
)

NEEDS: dict[int, tuple[Guard, ...]] = {
    ApiKey.PRODUCE: (
        _PRODUCED_TRANSACTION,
        _topics(WRITE_TOPIC, _produced, asked="topic_data", answered="responses"),
    ),
    ApiKey.FETCH: (_InHandler((READ_TOPIC,), "TOPIC_AUTHORIZATION_FAILED for each"),),
    ApiKey.LIST_OFFSETS: (_topics(DESCRIBE_TOPIC, _listed),),
    ApiKey.METADATA: (_MetadataGuard(),),
    ApiKey.OFFSET_COMMIT: (
        _of_group(READ_GROUP, partial(_each_topic, _committed)),
        _topics(READ_TOPIC, _committed),
    ),
    ApiKey.OFFSET_FETCH: (_OffsetFetchGuard(),),
    ApiKey.FIND_COORDINATOR: (_CoordinatorGuard(),),
    ApiKey.JOIN_GROUP: (_of_group(READ_GROUP, _join_refused),),
    ApiKey.HEARTBEAT: (_of_group(READ_GROUP),),
    ApiKey.LEAVE_GROUP: (_of_group(READ_GROUP),),
    ApiKey.SYNC_GROUP: (_of_group(READ_GROUP),),
    ApiKey.DESCRIBE_GROUPS: (
        PartsGuard(
            needs=(DESCRIBE_GROUP,),
            asked="groups",
            answered="groups",
            name=str,
            refuse=lambda group_id, code: DescribedGroup(error_code=code, group_id=group_id),
        ),
    ),
    ApiKey.LIST_GROUPS: (
        ListingGuard(DESCRIBE_GROUP, "groups", lambda row: str(row.group_id), DESCRIBE_CLUSTER),
    ),
    ApiKey.SASL_HANDSHAKE: (),
    ApiKey.API_VERSIONS: (),
    ApiKey.CREATE_TOPICS: (_CreateTopicsGuard(),),
    ApiKey.DELETE_TOPICS: (_DeleteTopicsGuard(),),
    ApiKey.DELETE_RECORDS: (_topics(Need(Operation.DELETE, TOPIC), _records_deleted),),
    ApiKey.INIT_PRODUCER_ID: (_ProducerIdGuard(),),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (_topics(DESCRIBE_TOPIC, _epochs, name=lambda topic: str(topic.topic)),),
    ApiKey.ADD_PARTITIONS_TO_TXN: (_AddPartitionsGuard(),),
    ApiKey.ADD_OFFSETS_TO_TXN: (_of_transaction(), _of_group(READ_GROUP)),
    ApiKey.END_TXN: (_of_transaction(),),
    ApiKey.WRITE_TXN_MARKERS: (
        RequestGuard(Need(Operation.CLUSTER_ACTION, CLUSTER, ALTER_CLUSTER), _markers),
    ),
    ApiKey.TXN_OFFSET_COMMIT: (
        _of_transaction(partial(_each_topic, _committed_in_transaction)),
        _of_group(READ_GROUP, partial(_each_topic, _committed_in_transaction)),
        _topics(READ_TOPIC, _committed_in_transaction),
    ),
    ApiKey.DESCRIBE_ACLS: (RequestGuard(DESCRIBE_CLUSTER, _with_code),),
    ApiKey.CREATE_ACLS: (
        RequestGuard(
            ALTER_CLUSTER,
            lambda request, code: APIS[ApiKey.CREATE_ACLS].response(
                results=[AclCreationResult(code, FAILED) for _ in request.creations]
            ),
        ),
    ),
    ApiKey.DELETE_ACLS: (
        RequestGuard(
            ALTER_CLUSTER,
            lambda request, code: APIS[ApiKey.DELETE_ACLS].response(
                filter_results=[DeleteAclsFilterResult(code, FAILED) for _ in request.filters]
            ),
        ),
    ),
    ApiKey.DESCRIBE_CONFIGS: (_of_configs(Operation.DESCRIBE_CONFIGS, _configs, "results"),),
    ApiKey.ALTER_CONFIGS: (
        _of_configs(Operation.ALTER_CONFIGS, partial(_altered, AlterConfigsResourceResponse)),
    ),
    ApiKey.DESCRIBE_LOG_DIRS: (RequestGuard(DESCRIBE_CLUSTER, _with_code),),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (RequestGuard(ALTER_CLUSTER, _log_dirs),),
    ApiKey.SASL_AUTHENTICATE: (),
    ApiKey.CREATE_PARTITIONS: (
        _topics(
            Need(Operation.ALTER, TOPIC),
            lambda topic, code: CreatePartitionsTopicResult(topic.name, code, FAILED),
            answered="results",
        ),
    ),
    ApiKey.ELECT_LEADERS: (RequestGuard(ALTER_CLUSTER, _with_code),),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (RequestGuard(ALTER_CLUSTER, _with_code),),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (RequestGuard(DESCRIBE_CLUSTER, _with_code),),
    ApiKey.DESCRIBE_QUORUM: (RequestGuard(DESCRIBE_CLUSTER, _with_code),),
    ApiKey.UPDATE_FEATURES: (RequestGuard(ALTER_CLUSTER, _with_code),),
    ApiKey.DELETE_GROUPS: (
        PartsGuard(
            needs=(Need(Operation.DELETE, GROUPS),),
            asked="groups_names",
            answered="results",
            name=str,
            refuse=DeletableGroupResult,
        ),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        _of_configs(Operation.ALTER_CONFIGS, partial(_altered, IncrementallyAltered)),
    ),
    ApiKey.OFFSET_DELETE: (
        _of_group(Need(Operation.DELETE, GROUPS)),
        _topics(READ_TOPIC, _offsets_deleted),
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (RequestGuard(DESCRIBE_CLUSTER, _with_code),),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (RequestGuard(ALTER_CLUSTER, _scram_results),),
    ApiKey.CREATE_DELEGATION_TOKEN: (
        _InHandler(
            (Need(Operation.CREATE_TOKENS, ResourceType.USER),),
            "DELEGATION_TOKEN_AUTHORIZATION_FAILED for a token of another owner",
        ),
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: (),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (
        _InHandler(
            (
                Need(
                    Operation.DESCRIBE,
                    ResourceType.DELEGATION_TOKEN,
                    Need(Operation.DESCRIBE_TOKENS, ResourceType.USER),
                ),
            ),
            "left out of the listing, except for tokens that the client owns, requested or may renew",
        ),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (
        RequestGuard(
            Need(Operation.DESCRIBE_CONFIGS, CLUSTER),
            lambda request, code: APIS[request.api.key].response(error_code=code, entries=None),
        ),
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: (
        RequestGuard(
            Need(Operation.ALTER_CONFIGS, CLUSTER),
            lambda request, code: APIS[request.api.key].response(
                entries=[AlteredEntry(code, FAILED, entry.entity) for entry in request.entries]
            ),
        ),
    ),
    ApiKey.DESCRIBE_CLUSTER: (),
    ApiKey.DESCRIBE_PRODUCERS: (_topics(READ_TOPIC, _producers),),
    ApiKey.DESCRIBE_TRANSACTIONS: (_TransactionsGuard(),),
    ApiKey.LIST_TRANSACTIONS: (
        ListingGuard(DESCRIBE_TRANSACTION, "transaction_states", lambda row: str(row.transactional_id)),
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (_HeartbeatGuard(),),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (_DescribeGuard(DescribedConsumerGroup),),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (),
    ApiKey.PUSH_TELEMETRY: (),
    ApiKey.LIST_CONFIG_RESOURCES: (RequestGuard(Need(Operation.DESCRIBE_CONFIGS, CLUSTER), _with_code),),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (_TopicPartitionsGuard(),),
    ApiKey.SHARE_GROUP_HEARTBEAT: (_HeartbeatGuard(),),
    ApiKey.SHARE_GROUP_DESCRIBE: (_DescribeGuard(DescribedShareGroup),),
    ApiKey.SHARE_FETCH: (_SHARING_GROUP, _InHandler((READ_TOPIC,), "TOPIC_AUTHORIZATION_FAILED for each")),
    ApiKey.SHARE_ACKNOWLEDGE: (
        _SHARING_GROUP,
        _InHandler((READ_TOPIC,), "TOPIC_AUTHORIZATION_FAILED for each"),
    ),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (
        PartsGuard(
            needs=(DESCRIBE_GROUP,),
            asked="groups",
            answered="groups",
            name=_group_of,
            refuse=_share_offsets_refused,
        ),
        _InHandler(
            (DESCRIBE_TOPIC,), "TOPIC_AUTHORIZATION_FAILED for each; left out of a listing of all topics"
        ),
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (
        _of_group(READ_GROUP),
        _topics(READ_TOPIC, _share_altered, answered="responses", name=_topic_name),
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (
        _of_group(Need(Operation.DELETE, GROUPS)),
        _topics(READ_TOPIC, _share_deleted, answered="responses", name=_topic_name),
    ),
}
"""The guards of each API, in the order in which they are called."""
