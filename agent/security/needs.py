"""What a client needs for each API: Kafka's rules, as guards.

Every API has an entry, possibly an empty one. `python -m tailrace_cli.doc_pages.authorization_table` writes the table
of docs/security.md from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from agent.handlers.config_resources import RESOURCE_GROUP, RESOURCE_TOPIC
from agent.security import refusals
from agent.security.api_guards import (
    AddPartitionsGuard,
    CoordinatorGuard,
    CreateTopicsGuard,
    DeleteTopicsGuard,
    DescribeGuard,
    HeartbeatGuard,
    MetadataGuard,
    OffsetFetchGuard,
    ProducerIdGuard,
    TopicPartitionsGuard,
    TransactionsGuard,
)
from agent.security.guard import (
    ALTER_CLUSTER,
    CLUSTER,
    DESCRIBE_CLUSTER,
    DESCRIBE_GROUP,
    DESCRIBE_TOPIC,
    DESCRIBE_TRANSACTION,
    GROUPS,
    READ_GROUP,
    READ_TOPIC,
    TOPIC,
    WRITE_TOPIC,
    WRITE_TRANSACTION,
    Call,
    Guard,
    ListingGuard,
    Need,
    Next,
    PartsGuard,
    RequestGuard,
    names_guard,
    topics_guard,
)
from tailrace.kafka import ApiKey
from tailrace.kafka.apis import APIS
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.alter_client_quotas import AlteredEntry
from tailrace.kafka.messages.consumer_group_describe import DescribedConsumerGroup
from tailrace.kafka.messages.create_acls import AclCreationResult
from tailrace.kafka.messages.create_partitions import CreatePartitionsTopicResult
from tailrace.kafka.messages.delete_acls import DeleteAclsFilterResult
from tailrace.kafka.messages.delete_groups import DeletableGroupResult
from tailrace.kafka.messages.describe_groups import DescribedGroup
from tailrace.kafka.messages.share_group_describe import DescribedShareGroup
from tailrace.security.acls import Operation, ResourceType


@dataclass(frozen=True, slots=True)
class _InHandler:
    """The handler itself checks, because only it knows the resources."""

    needs: tuple[Need, ...]
    effect: str

    async def __call__(self, call: Call, request: Any, answer: Next) -> Any:
        return await answer(request)


def _of_group(need: Need, refuse: Callable[[Any, ErrorCode], Any] = refusals.with_code) -> RequestGuard:
    return RequestGuard(need, refuse, lambda request: (request.group_id,))


def _of_transaction(refuse: Callable[[Any, ErrorCode], Any] = refusals.with_code) -> RequestGuard:
    return RequestGuard(WRITE_TRANSACTION, refuse, lambda request: (request.transactional_id,))


def _group_of(part: Any) -> str:
    return str(part.group_id)


def _topic_name(part: Any) -> str:
    return str(part.topic_name)


def _config_resource(resource: Any) -> int:
    """Return the index of a config resource's need: a topic's, a group's, or else the cluster's."""
    return {RESOURCE_TOPIC: 0, RESOURCE_GROUP: 1}.get(resource.resource_type, 2)


def _of_configs(
    operation: Operation, refuse: Callable[[Any, ErrorCode], Any], response_field: str = "responses"
) -> PartsGuard:
    needs = (Need(operation, TOPIC), Need(operation, GROUPS), Need(operation, CLUSTER))
    return PartsGuard(
        needs=needs,
        request_field="resources",
        response_field=response_field,
        name=lambda resource: str(resource.resource_name),
        refuse=refuse,
        need_of=_config_resource,
    )


_READ_TOPICS = _InHandler((READ_TOPIC,), "TOPIC_AUTHORIZATION_FAILED for each")
_SHARING_GROUP = RequestGuard(READ_GROUP, refusals.with_code, lambda request: (request.group_id or "",))


_PRODUCED_TRANSACTION = RequestGuard(
    WRITE_TRANSACTION,
    lambda request, code: APIS[ApiKey.PRODUCE].response(
        responses=[refusals.produce(topic, code) for topic in request.topic_data]
    ),
    lambda request: () if request.transactional_id is None else (request.transactional_id,),
)

NEEDS: dict[int, tuple[Guard, ...]] = {
    ApiKey.PRODUCE: (
        _PRODUCED_TRANSACTION,
        topics_guard(WRITE_TOPIC, refusals.produce, request_field="topic_data", response_field="responses"),
    ),
    ApiKey.FETCH: (_READ_TOPICS,),
    ApiKey.LIST_OFFSETS: (topics_guard(DESCRIBE_TOPIC, refusals.list_offsets),),
    ApiKey.METADATA: (MetadataGuard(),),
    ApiKey.OFFSET_COMMIT: (
        _of_group(READ_GROUP, partial(refusals.each_topic, refusals.offset_commit)),
        topics_guard(READ_TOPIC, refusals.offset_commit),
    ),
    ApiKey.OFFSET_FETCH: (OffsetFetchGuard(),),
    ApiKey.FIND_COORDINATOR: (CoordinatorGuard(),),
    ApiKey.JOIN_GROUP: (_of_group(READ_GROUP, refusals.join_group),),
    ApiKey.HEARTBEAT: (_of_group(READ_GROUP),),
    ApiKey.LEAVE_GROUP: (_of_group(READ_GROUP),),
    ApiKey.SYNC_GROUP: (_of_group(READ_GROUP),),
    ApiKey.DESCRIBE_GROUPS: (
        names_guard(
            DESCRIBE_GROUP,
            lambda group_id, code: DescribedGroup(error_code=code, group_id=group_id),
            "groups",
            "groups",
        ),
    ),
    ApiKey.LIST_GROUPS: (
        ListingGuard(DESCRIBE_GROUP, "groups", lambda row: str(row.group_id), DESCRIBE_CLUSTER),
    ),
    ApiKey.SASL_HANDSHAKE: (),
    ApiKey.API_VERSIONS: (),
    ApiKey.CREATE_TOPICS: (CreateTopicsGuard(),),
    ApiKey.DELETE_TOPICS: (DeleteTopicsGuard(),),
    ApiKey.DELETE_RECORDS: (topics_guard(Need(Operation.DELETE, TOPIC), refusals.delete_records),),
    ApiKey.INIT_PRODUCER_ID: (ProducerIdGuard(),),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        topics_guard(DESCRIBE_TOPIC, refusals.offset_for_leader_epoch, name=lambda topic: str(topic.topic)),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (AddPartitionsGuard(),),
    ApiKey.ADD_OFFSETS_TO_TXN: (_of_transaction(), _of_group(READ_GROUP)),
    ApiKey.END_TXN: (_of_transaction(),),
    ApiKey.WRITE_TXN_MARKERS: (
        RequestGuard(Need(Operation.CLUSTER_ACTION, CLUSTER, ALTER_CLUSTER), refusals.write_markers),
    ),
    ApiKey.TXN_OFFSET_COMMIT: (
        _of_transaction(partial(refusals.each_topic, refusals.txn_offset_commit)),
        _of_group(READ_GROUP, partial(refusals.each_topic, refusals.txn_offset_commit)),
        topics_guard(READ_TOPIC, refusals.txn_offset_commit),
    ),
    ApiKey.DESCRIBE_ACLS: (RequestGuard(DESCRIBE_CLUSTER, refusals.with_code),),
    ApiKey.CREATE_ACLS: (
        RequestGuard(
            ALTER_CLUSTER,
            lambda request, code: APIS[ApiKey.CREATE_ACLS].response(
                results=[AclCreationResult(code, refusals.FAILED) for _ in request.creations]
            ),
        ),
    ),
    ApiKey.DELETE_ACLS: (
        RequestGuard(
            ALTER_CLUSTER,
            lambda request, code: APIS[ApiKey.DELETE_ACLS].response(
                filter_results=[DeleteAclsFilterResult(code, refusals.FAILED) for _ in request.filters]
            ),
        ),
    ),
    ApiKey.DESCRIBE_CONFIGS: (_of_configs(Operation.DESCRIBE_CONFIGS, refusals.describe_config, "results"),),
    ApiKey.ALTER_CONFIGS: (_of_configs(Operation.ALTER_CONFIGS, refusals.alter_config),),
    ApiKey.DESCRIBE_LOG_DIRS: (RequestGuard(DESCRIBE_CLUSTER, refusals.with_code),),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (RequestGuard(ALTER_CLUSTER, refusals.alter_log_dirs),),
    ApiKey.SASL_AUTHENTICATE: (),
    ApiKey.CREATE_PARTITIONS: (
        topics_guard(
            Need(Operation.ALTER, TOPIC),
            lambda topic, code: CreatePartitionsTopicResult(topic.name, code, refusals.FAILED),
            response_field="results",
        ),
    ),
    ApiKey.ELECT_LEADERS: (RequestGuard(ALTER_CLUSTER, refusals.with_code),),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (RequestGuard(ALTER_CLUSTER, refusals.with_code),),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (RequestGuard(DESCRIBE_CLUSTER, refusals.with_code),),
    ApiKey.DESCRIBE_QUORUM: (RequestGuard(DESCRIBE_CLUSTER, refusals.with_code),),
    ApiKey.UPDATE_FEATURES: (RequestGuard(ALTER_CLUSTER, refusals.with_code),),
    ApiKey.DELETE_GROUPS: (
        names_guard(Need(Operation.DELETE, GROUPS), DeletableGroupResult, "groups_names", "results"),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (_of_configs(Operation.ALTER_CONFIGS, refusals.alter_config),),
    ApiKey.OFFSET_DELETE: (
        _of_group(Need(Operation.DELETE, GROUPS)),
        topics_guard(READ_TOPIC, refusals.offset_delete),
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (RequestGuard(DESCRIBE_CLUSTER, refusals.with_code),),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (RequestGuard(ALTER_CLUSTER, refusals.alter_scram),),
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
                entries=[AlteredEntry(code, refusals.FAILED, entry.entity) for entry in request.entries]
            ),
        ),
    ),
    ApiKey.DESCRIBE_CLUSTER: (),
    ApiKey.DESCRIBE_PRODUCERS: (topics_guard(READ_TOPIC, refusals.describe_producers),),
    ApiKey.DESCRIBE_TRANSACTIONS: (TransactionsGuard(),),
    ApiKey.LIST_TRANSACTIONS: (
        ListingGuard(DESCRIBE_TRANSACTION, "transaction_states", lambda row: str(row.transactional_id)),
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (HeartbeatGuard(),),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (DescribeGuard(DescribedConsumerGroup),),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (),
    ApiKey.PUSH_TELEMETRY: (),
    ApiKey.LIST_CONFIG_RESOURCES: (
        RequestGuard(Need(Operation.DESCRIBE_CONFIGS, CLUSTER), refusals.with_code),
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (TopicPartitionsGuard(),),
    ApiKey.SHARE_GROUP_HEARTBEAT: (HeartbeatGuard(),),
    ApiKey.SHARE_GROUP_DESCRIBE: (DescribeGuard(DescribedShareGroup),),
    ApiKey.SHARE_FETCH: (_SHARING_GROUP, _READ_TOPICS),
    ApiKey.SHARE_ACKNOWLEDGE: (_SHARING_GROUP, _READ_TOPICS),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (
        PartsGuard(
            needs=(DESCRIBE_GROUP,),
            request_field="groups",
            response_field="groups",
            name=_group_of,
            refuse=refusals.describe_share_offsets,
        ),
        _InHandler(
            (DESCRIBE_TOPIC,), "TOPIC_AUTHORIZATION_FAILED for each; left out of a listing of all topics"
        ),
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (
        _of_group(READ_GROUP),
        topics_guard(READ_TOPIC, refusals.alter_share_offsets, response_field="responses", name=_topic_name),
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (
        _of_group(Need(Operation.DELETE, GROUPS)),
        topics_guard(READ_TOPIC, refusals.delete_share_offsets, response_field="responses", name=_topic_name),
    ),
}
"""The guards of each API, in the order in which they are called."""
