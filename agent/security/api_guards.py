"""Guards of single APIs, whose requests need more than one check per request or per part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agent.handlers import metadata
from agent.handlers.described_groups import groups_once
from agent.handlers.groups import BATCHED, GROUP
from agent.security import refusals
from agent.security.guard import (
    CLUSTER,
    CREATE_TOPIC,
    DESCRIBE_GROUP,
    DESCRIBE_TOPIC,
    DESCRIBE_TRANSACTION,
    NAMES_IN_A_TURN,
    READ_GROUP,
    TOPIC,
    WRITE_TOPIC,
    WRITE_TRANSACTION,
    Call,
    Need,
    Next,
    PartsGuard,
    names_guard,
    topics_guard,
)
from tailrace.ids import NIL_TOPIC_ID
from tailrace.kafka import ApiKey
from tailrace.kafka.apis import APIS
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages import describe_transactions, find_coordinator, offset_fetch
from tailrace.kafka.messages.add_partitions_to_txn import AddPartitionsToTxnResult
from tailrace.kafka.messages.consumer_group_describe import DescribedConsumer, DescribedConsumerGroup
from tailrace.kafka.messages.delete_topics import DeletableTopicResult, DeleteTopicState
from tailrace.kafka.messages.describe_topic_partitions import (
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from tailrace.kafka.messages.metadata import MetadataRequestTopic, MetadataResponse, MetadataResponseTopic
from tailrace.kafka.messages.share_group_describe import DescribedShareGroup
from tailrace.security.acls import CLUSTER_NAME, Operation
from tailrace.turns import Turns

FIRST_BATCHED_TRANSACTIONS = 4
FIRST_MANY_GROUPS = 8


@dataclass(frozen=True, slots=True)
class MetadataGuard:
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
class CoordinatorGuard:
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
                error_code=need.code, error_message=refusals.FAILED, node_id=-1, port=-1
            )
        request.coordinator_keys = allowed
        response = await answer(request)
        response.coordinators += [
            find_coordinator.Coordinator(
                key=key, node_id=-1, port=-1, error_code=need.code, error_message=refusals.FAILED
            )
            for key in refused
        ]
        return response


@dataclass(frozen=True, slots=True)
class OffsetFetchGuard:
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
        async for row in Turns(NAMES_IN_A_TURN).over(await groups_once(request.groups)):
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
            async for row in Turns(NAMES_IN_A_TURN).over(refused_groups)
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
class ProducerIdGuard:
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
class AddPartitionsGuard:
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
                    added.transactional_id,
                    [refusals.add_partitions(topic, self.needs[2].code) for topic in added.topics],
                )
                async for added in Turns(NAMES_IN_A_TURN).over(request.transactions)
            ]
            return kind(error_code=self.needs[2].code, results_by_transaction=results)
        topics = request.v3_and_below_topics
        if not call.may(WRITE_TRANSACTION, request.v3_and_below_transactional_id):
            rows = [refusals.add_partitions(topic, WRITE_TRANSACTION.code) for topic in topics]
            return kind(results_by_topic_v3_and_below=rows)
        parts = PartsGuard(
            needs=(WRITE_TOPIC,),
            request_field="v3_and_below_topics",
            response_field="results_by_topic_v3_and_below",
            name=lambda topic: str(topic.name),
            refuse=refusals.add_partitions,
            code_of_others=ErrorCode.OPERATION_NOT_ATTEMPTED,
        )
        return await parts(call, request, answer)


@dataclass(frozen=True, slots=True)
class DeleteTopicsGuard:
    """Checks topics by name or by id. A refusal by id does not reveal the topic's name."""

    needs = (Need(Operation.DELETE, TOPIC),)
    effect = "TOPIC_AUTHORIZATION_FAILED for each"

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        request.topics = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
        request.topic_names = []

        def refuse(state: Any, code: ErrorCode) -> DeletableTopicResult:
            return DeletableTopicResult(state.name, state.topic_id, code)

        return await topics_guard(self.needs[0], refuse, response_field="responses")(call, request, answer)


@dataclass(frozen=True, slots=True)
class CreateTopicsGuard:
    """Returns the configs of a new topic only to clients that may describe them."""

    needs = (CREATE_TOPIC, Need(Operation.DESCRIBE_CONFIGS, TOPIC))
    effect = (
        "TOPIC_AUTHORIZATION_FAILED for each; without DESCRIBE_CONFIGS a new topic's configs are left out"
    )

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        response = await topics_guard(CREATE_TOPIC, refusals.create_topic)(call, request, answer)
        for row in response.topics:
            if not row.error_code and not call.may(self.needs[1], row.name, is_noted=False):
                row.topic_config_error_code = self.needs[1].code
                row.num_partitions, row.replication_factor, row.configs = -1, -1, []
        return response


@dataclass(frozen=True, slots=True)
class TransactionsGuard:
    """Returns a transaction's topics only to clients that may describe them."""

    needs = (DESCRIBE_TRANSACTION, DESCRIBE_TOPIC)
    effect = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED for each; topics are left out"

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        def refuse(name: str, code: ErrorCode) -> describe_transactions.TransactionState:
            return describe_transactions.TransactionState(code, name)

        parts = names_guard(DESCRIBE_TRANSACTION, refuse, "transactional_ids", "transaction_states")
        response = await parts(call, request, answer)
        async for row in Turns(NAMES_IN_A_TURN).over(response.transaction_states):
            row.topics = [
                topic for topic in row.topics if call.may(DESCRIBE_TOPIC, topic.topic, is_noted=False)
            ]
        return response


@dataclass(frozen=True, slots=True)
class TopicPartitionsGuard:
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

        return await topics_guard(DESCRIBE_TOPIC, refuse)(call, request, answer)


@dataclass(frozen=True, slots=True)
class HeartbeatGuard:
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
            return kind(error_code=READ_GROUP.code, error_message=refusals.FAILED)
        if not all(call.may(DESCRIBE_TOPIC, name) for name in request.subscribed_topic_names or ()):
            return kind(error_code=DESCRIBE_TOPIC.code, error_message=refusals.FAILED)
        response = await answer(request)
        if response.assignment is not None:
            response.assignment.topic_partitions = [
                topic
                for topic in response.assignment.topic_partitions
                if call.may(DESCRIBE_TOPIC, await call.topic_name("", topic.topic_id), is_noted=False)
            ]
        return response


@dataclass(frozen=True, slots=True)
class DescribeGuard:
    """Checks named groups, each described as `kind`. A group is refused as a whole if its members have a topic that the
    client may not describe."""

    kind: type[DescribedConsumerGroup | DescribedShareGroup]
    needs = (DESCRIBE_GROUP, DESCRIBE_TOPIC)
    effect = "GROUP_AUTHORIZATION_FAILED or TOPIC_AUTHORIZATION_FAILED for each"

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        def refuse(group_id: str, code: ErrorCode) -> DescribedConsumerGroup | DescribedShareGroup:
            return self.kind(error_code=code, error_message=refusals.FAILED, group_id=group_id)

        parts = names_guard(DESCRIBE_GROUP, refuse, "group_ids", "groups")
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
