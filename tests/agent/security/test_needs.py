"""Every API, asked by a client that lacks what it needs: no data, no metadata, no hint at what exists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from agent.dispatch import Dispatcher
from agent.handlers import HANDLERS
from agent.security.access import Access
from agent.security.audit_log import MAX_LINES_PER_SECOND, AuditLog
from agent.security.authorize import AclIndex
from agent.security.guard import READ_TOPIC, Need
from agent.security.guarded_handlers import GUARDED, GUARDED_AT_ONCE
from agent.security.needs import NEEDS
from sequencer.api.groups import CommitOffsets, OffsetPosition
from sequencer.api.producers import InitProducer
from sequencer.api.transactions import AddToTransaction, TransactionRef
from tailrace.ids import NIL_TOPIC_ID
from tailrace.kafka import ApiKey, decode_response, encode_request
from tailrace.kafka.apis import APIS
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.share_acknowledge import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from tailrace.kafka.messages.share_fetch import (
    AcknowledgementBatch,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
)
from tailrace.security.acls import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from tests.support.agents import AgentBench, agent_bench, connection, token_of

TYPES = tuple(kind for kind in ResourceType if kind is not ResourceType.ANY)
REFUSED = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


def made(kind: Any, name: str, version: int) -> Any:
    """A message with one entry in each of its lists, and `name` wherever a text stands."""
    from tailrace.kafka.schema import Wire, fields_of

    values: dict[str, Any] = {}
    for field in fields_of(kind):
        if field.name == "topic_id" or version not in field.versions:
            continue
        if isinstance(field.kind, Wire):
            single: Any = (
                name if field.kind is Wire.STRING else 0 if field.kind.name.startswith("INT") else None
            )
            if single is None or field.name in ("transactional_id_pattern", "subscribed_topic_regex"):
                continue
        else:
            single = made(field.kind, name, version)
        values[field.name] = [single] if field.is_array else single
    return kind(**values)


def request_of(key: ApiKey, name: str) -> Any:
    """A request about the topic, group and transactional id of this name."""
    request = made(APIS[key].request, name, VERSIONS.get(key, APIS[key].served.last))
    for field in ("states_filter", "types_filter", "state_filters", "producer_id_filters", "resource_types"):
        if hasattr(request, field):
            setattr(request, field, [])
    if key is ApiKey.METADATA:
        request.allow_auto_topic_creation = False
        for topic in request.topics:
            topic.topic_id = NIL_TOPIC_ID
    if key in (ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
        request.resources[0].resource_type = 2
        if key is ApiKey.DESCRIBE_CONFIGS:
            request.resources[0].configuration_keys = None
    if key is ApiKey.PRODUCE:
        request.acks, request.transactional_id = -1, None
    if key is ApiKey.DESCRIBE_TOPIC_PARTITIONS:
        request.cursor, request.response_partition_limit = None, 100
    if key is ApiKey.CONSUMER_GROUP_HEARTBEAT:
        request.server_assignor, request.topic_partitions = None, []
        request.rebalance_timeout_ms = 60_000
    if key is ApiKey.DESCRIBE_CLUSTER:
        request.endpoint_type = 1
    if key is ApiKey.INIT_PRODUCER_ID:
        request.producer_id = request.producer_epoch = -1
        request.transaction_timeout_ms = 1000
    if key is ApiKey.FETCH:
        request.session_epoch, request.forgotten_topics_data = -1, []
    if key is ApiKey.LIST_TRANSACTIONS:
        request.duration_filter = -1
    if key is ApiKey.CREATE_DELEGATION_TOKEN:
        request.owner_principal_type = request.renewers[0].principal_type = "User"
    if key is ApiKey.DESCRIBE_DELEGATION_TOKEN:
        request.owners[0].principal_type = "User"
    return request


VERSIONS = {ApiKey.PRODUCE: 9, ApiKey.FETCH: 12, ApiKey.OFFSET_COMMIT: 9, ApiKey.OFFSET_FETCH: 9,
            ApiKey.ADD_PARTITIONS_TO_TXN: 3, ApiKey.CREATE_TOPICS: 7, ApiKey.DELETE_TOPICS: 5}  # fmt: skip
"""Where topics are named by name; else the newest."""


async def ask(
    bench: AgentBench, key: ApiKey, request: Any, acls: list[Acl], version: int | None = None
) -> Any:
    index = AclIndex(acls)
    client = connection()
    client.access = Access("SASL", "10.0.0.1", "User:mallory", lambda: index)
    version = VERSIONS.get(key, APIS[key].served.last) if version is None else version
    sent = b"".join(encode_request(7, key, version, request, "client"))
    reply = await Dispatcher(bench.services, GUARDED, GUARDED_AT_ONCE)(memoryview(sent)[4:], client)
    assert not reply.close, "the request was answered"
    assert reply.parts is not None
    return decode_response(key, version, memoryview(b"".join(reply.parts))[4:])[1]


def codes(message: Any) -> Iterator[int]:
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if name.endswith("error_code"):
            yield value
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, msgspec.Struct):
                yield from codes(each)


def anonymous(response: Any, name: str) -> str:
    return re.sub("0x[0-9a-f]+", "", repr(response)).replace(name, "NAME")


async def there_is(bench: AgentBench, name: str) -> None:
    """A topic, a group with a position, a transactional id, and a delegation token of a user of this name."""
    await bench.services.sequencer.create_token(token_of(f"User:{name}", name))
    topic = await bench.topic(name)
    position = OffsetPosition(topic_id=topic.topic_id, partition=0, offset=1, leader_epoch=-1, metadata="")
    await bench.services.sequencer.commit_offsets(CommitOffsets(name, -1, -1, -1, [], [position]))
    grant = await bench.services.sequencer.init_producer(InitProducer(-1, -1, name, 60_000))
    reference = TransactionRef(name, grant.producer_id, grant.producer_epoch)
    await bench.services.sequencer.add_to_transaction(AddToTransaction(reference, [(topic.topic_id, 0)]))


OPEN = {key for key, guards in NEEDS.items() if not guards}
GUARDED_APIS = sorted(ApiKey(key) for key in NEEDS if NEEDS[key])


def test_every_api_says_what_it_needs() -> None:
    assert set(NEEDS) == set(HANDLERS) == set(APIS)
    assert {
        ApiKey.API_VERSIONS,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
        ApiKey.PUSH_TELEMETRY,
    } == OPEN


LISTINGS = (ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_DELEGATION_TOKEN)


@pytest.mark.parametrize("key", GUARDED_APIS, ids=lambda key: key.name)
async def test_a_client_that_may_do_nothing_learns_nothing(key: ApiKey) -> None:
    async with agent_bench() as bench:
        await there_is(bench, "secret")
        about_existing = await ask(bench, key, request_of(key, "secret"), [])
        about_nothing = await ask(bench, key, request_of(key, "absent"), [])
        assert anonymous(about_existing, "secret") == anonymous(about_nothing, "absent")
        told = set(codes(about_existing)) - {ErrorCode.NONE}
        assert told <= REFUSED | {ErrorCode.SECURITY_DISABLED}
        is_listing = key in LISTINGS
        assert told or (is_listing and "secret" not in repr(about_existing))
        assert bench.services.catalog.snapshot.by_name.keys() == {"secret"}


@pytest.mark.parametrize("transactional_id", [None, "secret"])
async def test_a_refused_producer_that_wants_no_answers_is_sent_away(transactional_id: str | None) -> None:
    async with agent_bench() as bench:
        await there_is(bench, "secret")
        request = request_of(ApiKey.PRODUCE, "secret")
        request.acks, request.transactional_id = 0, transactional_id
        client = connection()
        client.access = Access("SASL", "10.0.0.1", "User:mallory", lambda: AclIndex([]))
        sent = b"".join(encode_request(7, ApiKey.PRODUCE, VERSIONS[ApiKey.PRODUCE], request, "client"))
        reply = await Dispatcher(bench.services, GUARDED, GUARDED_AT_ONCE)(memoryview(sent)[4:], client)
        assert reply.close and reply.parts is None


def all_but(need: Need) -> list[Acl]:
    """ACLs that allow everything but this."""
    acls = [
        Acl(kind, "*", PatternType.LITERAL, "User:mallory", "*", Operation.ALL, Permission.ALLOW)
        for kind in TYPES
    ]
    lacking: Need | None = need
    while lacking is not None:
        acls.append(
            Acl(
                lacking.resource_type,
                "*",
                PatternType.LITERAL,
                "User:*",
                "*",
                lacking.operation,
                Permission.DENY,
            )
        )
        lacking = lacking.instead
    return acls


EACH_NEED = [
    (ApiKey(key), need)
    for key, guards in sorted(NEEDS.items())
    for need in dict.fromkeys(need for guard in guards for need in guard.needs)
]
OTHER_REQUEST: dict[tuple[ApiKey, ResourceType], Callable[[Any], None]] = {
    (ApiKey.PRODUCE, ResourceType.TRANSACTIONAL_ID): lambda request: setattr(
        request, "transactional_id", "secret"
    ),
    (ApiKey.FIND_COORDINATOR, ResourceType.TRANSACTIONAL_ID): lambda request: setattr(request, "key_type", 1),
    (ApiKey.INIT_PRODUCER_ID, ResourceType.CLUSTER): lambda request: setattr(
        request, "transactional_id", None
    ),
    **{
        (key, kind): lambda request, number=number: setattr(request.resources[0], "resource_type", number)
        for key in (ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS)
        for kind, number in ((ResourceType.CLUSTER, 4), (ResourceType.GROUP, 32))
    },
}  # type: ignore[misc]
"""Requests that need what others of the API don't."""
LESS_IS_TOLD = {
    (ApiKey.CREATE_TOPICS, Operation.DESCRIBE_CONFIGS),
    (ApiKey.LIST_GROUPS, Operation.DESCRIBE),
    (ApiKey.LIST_TRANSACTIONS, Operation.DESCRIBE),
    (ApiKey.DESCRIBE_DELEGATION_TOKEN, Operation.DESCRIBE),
    (ApiKey.DESCRIBE_TRANSACTIONS, Operation.DESCRIBE),
    (ApiKey.CONSUMER_GROUP_DESCRIBE, Operation.DESCRIBE),
    (ApiKey.SHARE_GROUP_DESCRIBE, Operation.DESCRIBE),
    (ApiKey.METADATA, Operation.CREATE),
    (ApiKey.ADD_PARTITIONS_TO_TXN, Operation.CLUSTER_ACTION),
}
"""Not refused, but told less; or of another version. Tests of their own have them."""
IN_A_SHARE_SESSION = {(key, READ_TOPIC) for key in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE)}
"""Refused once a session is open, which names topics by their ids. A test of its own has them."""


@pytest.mark.parametrize(
    ("key", "need"),
    [
        (key, need)
        for key, need in EACH_NEED
        if (key, need.operation) not in LESS_IS_TOLD and (key, need) not in IN_A_SHARE_SESSION
    ],
    ids=lambda each: str(each),
)
async def test_each_need_alone_is_required(key: ApiKey, need: Need) -> None:
    async with agent_bench() as bench:
        await there_is(bench, "secret")
        request = request_of(key, "secret")
        OTHER_REQUEST.get((key, need.resource_type), lambda _: None)(request)
        response = await ask(bench, key, request, all_but(need))
        assert need.code in set(codes(response))


def allowed(operation: Operation, kind: ResourceType, name: str) -> Acl:
    return Acl(kind, name, PatternType.LITERAL, "User:mallory", "*", operation, Permission.ALLOW)


async def test_a_listing_has_only_what_may_be_described() -> None:
    async with agent_bench() as bench:
        for name in ("secret", "mine"):
            await there_is(bench, name)
        acls = [
            allowed(Operation.READ, ResourceType.TOPIC, "mine"),
            allowed(Operation.DESCRIBE, ResourceType.GROUP, "mine"),
            allowed(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "mine"),
        ]
        everything = request_of(ApiKey.METADATA, "")
        everything.topics = None
        topics = (await ask(bench, ApiKey.METADATA, everything, acls)).topics
        assert [topic.name for topic in topics] == ["mine"]
        request = request_of(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "")
        request.topics = []
        topics = (await ask(bench, ApiKey.DESCRIBE_TOPIC_PARTITIONS, request, acls)).topics
        assert [topic.name for topic in topics] == ["mine"]
        listed = await ask(bench, ApiKey.LIST_TRANSACTIONS, request_of(ApiKey.LIST_TRANSACTIONS, ""), acls)
        assert [row.transactional_id for row in listed.transaction_states] == ["mine"]
        listed = await ask(bench, ApiKey.LIST_GROUPS, request_of(ApiKey.LIST_GROUPS, ""), acls)
        assert [row.group_id for row in listed.groups] == ["mine"]
        for_all = [allowed(Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster")]
        listed = await ask(bench, ApiKey.LIST_GROUPS, request_of(ApiKey.LIST_GROUPS, ""), for_all)
        assert {row.group_id for row in listed.groups} == {"mine", "secret"}


async def test_a_refused_part_does_not_affect_the_rest() -> None:
    async with agent_bench() as bench:
        for name in ("secret", "mine"):
            await bench.topic(name)
        request = request_of(ApiKey.METADATA, "mine")
        request.topics += request_of(ApiKey.METADATA, "secret").topics
        acls = [allowed(Operation.READ, ResourceType.TOPIC, "mine")]
        topics = (await ask(bench, ApiKey.METADATA, request, acls)).topics
        assert [(topic.name, topic.error_code) for topic in topics] == [
            ("mine", ErrorCode.NONE),
            ("secret", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ]
        assert topics[1].topic_id == NIL_TOPIC_ID and not topics[1].partitions


async def test_a_topic_is_made_up_only_for_those_who_may_create_it() -> None:
    async with agent_bench() as bench:
        request = request_of(ApiKey.METADATA, "fresh")
        request.allow_auto_topic_creation = True
        describe = allowed(Operation.DESCRIBE, ResourceType.TOPIC, "fresh")
        response = await ask(bench, ApiKey.METADATA, request, [describe])
        assert [topic.error_code for topic in response.topics] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        assert not (await bench.services.catalog.refresh()).by_name
        request = request_of(ApiKey.METADATA, "fresh")
        request.allow_auto_topic_creation = True
        create = allowed(Operation.CREATE, ResourceType.TOPIC, "fresh")
        response = await ask(bench, ApiKey.METADATA, request, [describe, create])
        assert [topic.error_code for topic in response.topics] == [ErrorCode.NONE]


async def test_a_member_of_a_share_group_reads_and_acknowledges_only_what_it_may_read() -> None:
    async with agent_bench() as bench:
        topic_id = (await bench.topic("secret")).topic_id
        member: dict[str, Any] = {"group_id": "mine", "member_id": "m"}
        acls = [allowed(Operation.READ, ResourceType.GROUP, "mine")]
        fetch = ShareFetchRequest(**member, topics=[ShareFetchTopic(topic_id, [ShareFetchPartition(0)])])
        [fetched] = (await ask(bench, ApiKey.SHARE_FETCH, fetch, acls)).responses
        assert [part.error_code for part in fetched.partitions] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]

        said = AcknowledgePartition(0, [AcknowledgementBatch(0, 0, [1])])
        acknowledge = ShareAcknowledgeRequest(
            **member, share_session_epoch=1, topics=[AcknowledgeTopic(topic_id, [said])]
        )
        [acknowledged] = (await ask(bench, ApiKey.SHARE_ACKNOWLEDGE, acknowledge, acls)).responses
        assert [part.error_code for part in acknowledged.partitions] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


async def test_authorized_operations_are_those_of_the_client() -> None:
    async with agent_bench() as bench:
        await bench.topic("mine")
        request = request_of(ApiKey.METADATA, "mine")
        request.include_topic_authorized_operations = True
        acls = [allowed(Operation.READ, ResourceType.TOPIC, "mine")]
        [topic] = (await ask(bench, ApiKey.METADATA, request, acls)).topics
        assert topic.topic_authorized_operations == 1 << Operation.READ | 1 << Operation.DESCRIBE


async def test_a_client_that_may_not_describe_the_cluster_is_told_no_operation_on_it() -> None:
    async with agent_bench() as bench:
        for api, version in ((ApiKey.METADATA, 8), (ApiKey.DESCRIBE_CLUSTER, 0)):
            request = request_of(api, "mine")
            request.include_cluster_authorized_operations = True
            acls = [allowed(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)]
            answer = await ask(bench, api, request, acls, version=version)
            assert answer.cluster_authorized_operations == 0
            acls.append(allowed(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME))
            answer = await ask(bench, api, request, acls, version=version)
            expected = 1 << Operation.CREATE | 1 << Operation.DESCRIBE
            assert answer.cluster_authorized_operations == expected


async def test_a_topic_that_may_not_be_created_is_refused_as_a_topic() -> None:
    async with agent_bench() as bench:
        [topic] = (
            await ask(bench, ApiKey.CREATE_TOPICS, request_of(ApiKey.CREATE_TOPICS, "fresh"), [])
        ).topics
        assert topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_the_configs_of_a_new_topic_go_to_clients_that_may_describe_them() -> None:
    async with agent_bench() as bench:
        request = request_of(ApiKey.CREATE_TOPICS, "fresh")
        request.topics[0].num_partitions = request.topics[0].replication_factor = 1
        request.topics[0].assignments, request.topics[0].configs = [], []
        acls = [allowed(Operation.CREATE, ResourceType.TOPIC, "fresh")]
        [topic] = (await ask(bench, ApiKey.CREATE_TOPICS, request, acls)).topics
        assert (topic.error_code, topic.num_partitions) == (ErrorCode.NONE, -1)
        assert topic.topic_config_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_every_refusal_is_noted_and_counted() -> None:
    async with agent_bench() as bench:
        audit = AuditLog(bench.services.telemetry, bench.services.clock)
        index = AclIndex([])
        client = connection()
        client.access = Access("SASL", "10.0.0.1", "User:mallory", lambda: index, audit)
        sent = b"".join(
            encode_request(7, ApiKey.HEARTBEAT, 4, request_of(ApiKey.HEARTBEAT, "secret"), "client")
        )
        with capture_logs() as logs:
            for _ in range(50):
                await Dispatcher(bench.services, GUARDED, GUARDED_AT_ONCE)(memoryview(sent)[4:], client)
        assert 1 <= len(logs) <= 2 * MAX_LINES_PER_SECOND, "lines are bounded"
        assert (logs[0]["principal"], logs[0]["resource"], logs[0]["operation"]) == (
            "User:mallory",
            "secret",
            "READ",
        )
        counted = bench.services.telemetry.registry.get_sample_value(
            "tailrace_authorization_refusals_total",
            {"api": "Heartbeat", "resource_type": "GROUP", "operation": "READ"},
        )
        assert counted == 50
