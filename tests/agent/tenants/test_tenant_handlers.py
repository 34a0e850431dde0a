"""Tenants' requests beyond the walk over all APIs: sequences of requests, and the tenant's own resources."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agent.groups.topic_pattern import TopicPattern, local_pattern, pattern_of_tenant
from agent.quotas.quotas import Charge
from agent.tenants.consumer_protocol import translated_bytes
from agent.tenants.names import to_local, to_stored
from sequencer.api.producers import InitProducer
from sequencer.api.security import DeleteAcls, DeletedAcls
from tailrace.ids import NIL_TOPIC_ID
from tailrace.kafka import ApiKey
from tailrace.kafka.embedded import write_embedded
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from tailrace.kafka.messages.consumer_protocol import ConsumerProtocolSubscription
from tailrace.kafka.messages.create_acls import AclCreation, CreateAclsRequest
from tailrace.kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tailrace.kafka.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from tailrace.kafka.messages.describe_acls import DescribeAclsRequest
from tailrace.kafka.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
)
from tailrace.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.kafka.messages.find_coordinator import FindCoordinatorRequest
from tailrace.kafka.messages.incremental_alter_configs import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tailrace.kafka.messages.list_transactions import ListTransactionsRequest
from tailrace.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.kafka.messages.share_fetch import ShareFetchPartition, ShareFetchRequest, ShareFetchTopic
from tailrace.kafka.messages.share_group_describe import ShareGroupDescribeRequest
from tailrace.kafka.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tailrace.quotas import PRODUCER_BYTE_RATE
from tailrace.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from tailrace.telemetry.counters import PlainCounters
from tailrace.tenants import Tenant
from tests.agent.tenants.neighbours import ACME, OTHER, Client, there_is
from tests.support.agents import agent_bench, batch


def produce(*batches: bytes, topic: str = "orders", transactional_id: str | None = None) -> ProduceRequest:
    rows = [PartitionProduceData(0, memoryview(records)) for records in batches]
    return ProduceRequest(transactional_id, -1, 1_000, [TopicProduceData(topic, NIL_TOPIC_ID, rows)])


async def test_produce_requests_like_the_one_before_go_to_the_tenants_topic() -> None:
    async with agent_bench() as bench:
        nobodys = await bench.topic("orders", 1)
        own = await bench.topic(ACME.stored("orders"), 1)
        client = Client(bench)
        for number in range(5):
            response = await client.ask(ApiKey.PRODUCE, 9, produce(batch(b"value")))
            (row,) = response.responses[0].partition_responses
            assert (response.responses[0].name, row.error_code, row.base_offset) == ("orders", 0, number)
        stored = [run.topic_id for commit in bench.sequencer.commits for run in commit.runs]
        assert set(stored) == {own.topic_id} != {nobodys.topic_id}


@pytest.mark.parametrize("version", [11, 12])
async def test_records_of_a_transaction_that_name_anothers_producer_are_refused(version: int) -> None:
    async with agent_bench() as bench:
        await bench.topic(ACME.stored("orders"), 1)
        await there_is(bench, OTHER.stored("tx"))
        sequencer = bench.services.sequencer
        others = await sequencer.init_producer(InitProducer(-1, -1, OTHER.stored("tx"), 60_000))
        own = await sequencer.init_producer(InitProducer(-1, -1, ACME.stored("tx"), 60_000))
        absent = own.producer_id + 1_000
        told = []
        for producer_id in (others.producer_id, absent):
            records = transactional(producer_id, others.producer_epoch)
            request = produce(records, transactional_id="tx")
            response = await Client(bench).ask(ApiKey.PRODUCE, version, request)
            told.append(response.responses[0].partition_responses[0].error_code)
        assert told == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
        behind_own = transactional(own.producer_id, 0) + transactional(others.producer_id, 0)
        response = await Client(bench).ask(
            ApiKey.PRODUCE, version, produce(behind_own, transactional_id="tx")
        )
        row = response.responses[0].partition_responses[0]
        assert row.error_code == ErrorCode.INVALID_RECORD  # two batches


def transactional(producer_id: int, epoch: int) -> bytes:
    """A batch with the attribute of transactions, and its CRC."""
    from fastcrc.crc32 import iscsi as crc32c

    records = bytearray(batch(b"value", producer=producer_id, epoch=epoch, sequence=0))
    records[22] |= 0x10
    records[17:21] = crc32c(records[21:]).to_bytes(4, "big")
    return bytes(records)


async def test_a_fetch_session_is_gone_for_another_tenants_client() -> None:
    async with agent_bench() as bench:
        for tenant in (ACME, OTHER):
            await bench.topic(tenant.stored("orders"), 1)
        opened = FetchRequest(
            session_epoch=0, topics=[FetchTopic(topic="orders", partitions=[FetchPartition(0)])]
        )
        session_id = (await Client(bench, OTHER).ask(ApiKey.FETCH, 12, opened)).session_id
        assert session_id
        for tenant, code in (
            (ACME, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
            (None, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
            (OTHER, ErrorCode.NONE),
        ):
            request = FetchRequest(session_id=session_id, session_epoch=1)
            assert (await Client(bench, tenant).ask(ApiKey.FETCH, 12, request)).error_code == code


async def test_a_topics_name_may_be_as_long_as_without_tenants_and_has_no_mark() -> None:
    async with agent_bench() as bench:
        names = ["n" * 249, "n" * 250, "other~orders", "."]
        request = CreateTopicsRequest(topics=[CreatableTopic(name, 1, 1) for name in names], timeout_ms=1_000)
        response = await Client(bench).ask(ApiKey.CREATE_TOPICS, 7, request)
        assert [topic.name for topic in response.topics] == names
        wrong = ErrorCode.INVALID_TOPIC_EXCEPTION
        assert [topic.error_code for topic in response.topics] == [0, wrong, wrong, wrong]
        assert set(bench.services.catalog.snapshot.by_name) == {ACME.stored("n" * 249)}


async def test_kafkas_own_topics_are_not_made_up_for_a_tenant() -> None:
    async with agent_bench() as bench:
        request = MetadataRequest([MetadataRequestTopic(name="__consumer_offsets")], True)
        response = await Client(bench).ask(ApiKey.METADATA, 12, request)
        assert [topic.error_code for topic in response.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_topics_are_created_by_a_request_for_metadata_in_the_tenant() -> None:
    async with agent_bench() as bench:
        request = MetadataRequest([MetadataRequestTopic(name="fresh")], True)
        response = await Client(bench).ask(ApiKey.METADATA, 12, request)
        assert [(topic.name, topic.error_code) for topic in response.topics] == [("fresh", 0)]
        assert set(bench.services.catalog.snapshot.by_name) == {ACME.stored("fresh")}


ACLS = (
    ("orders", PatternType.LITERAL, "User:alice", ResourceType.TOPIC),
    ("*", PatternType.LITERAL, "User:*", ResourceType.GROUP),
    ("or", PatternType.PREFIXED, "User:alice", ResourceType.TOPIC),
    ("kafka-cluster", PatternType.LITERAL, "User:alice", ResourceType.CLUSTER),
)


def creation(name: str, pattern: PatternType, principal: str, kind: ResourceType) -> AclCreation:
    return AclCreation(kind, name, pattern, principal, "*", Operation.DESCRIBE, Permission.ALLOW)


def any_acl(kind: type[Any], **chosen: Any) -> Any:
    wanted = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    return kind(**(wanted | chosen))


async def acls_seen(client: Client, **chosen: Any) -> set[tuple[str, int, str, int]]:
    response = await client.ask(ApiKey.DESCRIBE_ACLS, 3, any_acl(DescribeAclsRequest, **chosen))
    return {
        (resource.resource_name, resource.pattern_type, acl.principal, resource.resource_type)
        for resource in response.resources
        for acl in resource.acls
    }


async def test_acls_of_two_tenants_are_made_seen_and_deleted_apart() -> None:
    async with agent_bench() as bench:
        clients = {tenant: Client(bench, tenant) for tenant in (ACME, OTHER)}
        for client in clients.values():
            request = CreateAclsRequest(creations=[creation(*acl) for acl in ACLS])
            response = await client.ask(ApiKey.CREATE_ACLS, 3, request)
            assert [row.error_code for row in response.results] == [0] * len(ACLS)
            assert await acls_seen(client) == set(ACLS)
            literal = {acl for acl in ACLS if acl[1] is PatternType.LITERAL}
            assert await acls_seen(client, pattern_type_filter=PatternType.LITERAL) == literal
        filters = [
            any_acl(DeleteAclsFilter, resource_type_filter=ResourceType.GROUP),
            any_acl(DeleteAclsFilter, resource_name_filter="absent"),
            any_acl(DeleteAclsFilter, principal_filter="User:alice"),
        ]
        response = await clients[ACME].ask(ApiKey.DELETE_ACLS, 3, DeleteAclsRequest(filters=filters))
        deleted = [
            [
                (acl.resource_name, acl.pattern_type, acl.principal, acl.resource_type)
                for acl in row.matching_acls
            ]
            for row in response.filter_results
        ]
        assert [len(rows) for rows in deleted] == [1, 0, 3]
        assert {acl for rows in deleted for acl in rows} == set(ACLS)
        assert await acls_seen(clients[ACME]) == set()
        everything = DeleteAclsRequest(filters=[any_acl(DeleteAclsFilter)])
        response = await clients[ACME].ask(ApiKey.DELETE_ACLS, 3, everything)
        assert [(row.error_code, row.matching_acls) for row in response.filter_results] == [(0, [])]
        assert await acls_seen(clients[OTHER]) == set(ACLS)


async def test_acls_are_deleted_in_as_many_parts_as_the_sequencer_makes_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with agent_bench() as bench:
        client = Client(bench, None)
        request = CreateAclsRequest(creations=[creation(f"t{each}", *ACLS[0][1:]) for each in range(20)])
        await client.ask(ApiKey.CREATE_ACLS, 3, request)
        asked: list[int] = []
        delete_acls = bench.services.sequencer.delete_acls

        async def counted(request: DeleteAcls) -> DeletedAcls:
            asked.append(len(request.filters))
            return await delete_acls(request)

        monkeypatch.setattr(bench.services.sequencer, "delete_acls", counted)
        monkeypatch.setattr("sequencer.bounds.MAX_ANSWER_BYTES", 1_000)
        filters = [
            any_acl(DeleteAclsFilter, resource_name_filter="t3"),
            any_acl(DeleteAclsFilter),
            any_acl(DeleteAclsFilter, resource_name_filter="t3"),
        ]
        response = await client.ask(ApiKey.DELETE_ACLS, 3, DeleteAclsRequest(filters=filters))
        deleted = [[acl.resource_name for acl in row.matching_acls] for row in response.filter_results]
        assert deleted[0] == ["t3"] and len(set(deleted[1]) | {"t3"}) == 20
        assert await acls_seen(client) == set()
        assert asked == [3, 2], "the second filter is asked again for the rest"


async def test_filters_of_acls_that_overlap_or_are_wrong_are_answered_each() -> None:
    async with agent_bench() as bench:
        client = Client(bench)
        request = CreateAclsRequest(creations=[creation(*acl) for acl in ACLS])
        await client.ask(ApiKey.CREATE_ACLS, 3, request)
        filters = [
            any_acl(DeleteAclsFilter),
            any_acl(DeleteAclsFilter, resource_type_filter=99),
            any_acl(DeleteAclsFilter, resource_type_filter=ResourceType.TOPIC),
        ]
        response = await client.ask(ApiKey.DELETE_ACLS, 3, DeleteAclsRequest(filters=filters))
        told = [(row.error_code, len(row.matching_acls)) for row in response.filter_results]
        assert told == [(0, 4), (ErrorCode.INVALID_REQUEST, 0), (0, 2)]
        assert await acls_seen(client) == set()


async def test_an_acl_that_a_tenant_made_gives_nothing_outside_of_it() -> None:
    async with agent_bench() as bench:
        everything = [
            AclCreation(kind, name, PatternType.LITERAL, "User:*", "*", Operation.ALL, Permission.ALLOW)
            for kind, name in (
                (ResourceType.TOPIC, "*"),
                (ResourceType.GROUP, "*"),
                (ResourceType.TRANSACTIONAL_ID, "*"),
                (ResourceType.CLUSTER, "kafka-cluster"),
            )
        ]
        await Client(bench).ask(ApiKey.CREATE_ACLS, 3, CreateAclsRequest(creations=everything))
        from agent.security.listener_contexts import CurrentAcls

        acls = CurrentAcls(bench.services.catalog, ())
        cluster = (Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
        own = (Operation.READ, ResourceType.TOPIC, ACME.stored("orders"))
        others = (Operation.READ, ResourceType.TOPIC, OTHER.stored("orders"))
        nobodys = (Operation.READ, ResourceType.TOPIC, "orders")

        def may(index: Any, principal: str) -> list[bool]:
            return [index.allows(principal, "h", *each) for each in (cluster, own, others, nobodys)]

        assert may(acls.of(ACME), "User:acme~bob") == [
            True,
            True,
            False,
            False,
        ]
        assert may(acls.of(OTHER), "User:zwilling~bob") == [False] * 4
        for principal in ("User:bob", "User:acme~bob"):  # an agent that knows of no tenants
            assert may(acls(), principal) == [False] * 4


def test_an_operators_acls_do_not_hold_for_a_tenants_users() -> None:
    from agent.tenants.acl_names import deciding_acls

    of_all = Acl(ResourceType.TOPIC, "*", PatternType.LITERAL, "User:*", "*", Operation.ALL, Permission.ALLOW)
    assert deciding_acls(ACME, [of_all]) == []


def quota(kind: str, name: str | None) -> EntryData:
    return EntryData([EntityData(kind, name)], [OpData(PRODUCER_BYTE_RATE, 1_000.0)])


async def test_quotas_of_two_tenants_are_apart_and_those_of_addresses_are_the_operators() -> None:
    async with agent_bench() as bench:
        entries = [
            quota("user", "alice"),
            quota("client-id", None),
            quota("ip", "10.0.0.1"),
            quota("user", ""),
        ]
        response = await Client(bench).ask(
            ApiKey.ALTER_CLIENT_QUOTAS, 1, AlterClientQuotasRequest(entries=entries)
        )
        assert [row.error_code for row in response.entries] == [
            0,
            0,
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            ErrorCode.INVALID_REQUEST,
        ]
        assert [row.entity[0].entity_name for row in response.entries] == ["alice", None, "10.0.0.1", ""]
        for tenant, count in ((ACME, 2), (OTHER, 0)):
            response = await Client(bench, tenant).ask(
                ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, DescribeClientQuotasRequest()
            )
            assert len(response.entries) == count
        default = DescribeClientQuotasRequest(components=[ComponentData("client-id", 1, None)], strict=True)
        response = await Client(bench).ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, default)
        assert [entry.entity[0].entity_name for entry in response.entries] == [None]
        quotas, connection = bench.services.quotas, Client(bench).connection
        for tenant, is_charged in ((ACME, True), (OTHER, False), (None, False)):
            charge = quotas.charge(ApiKey.PRODUCE, "User:x", "svc", connection, 1, tenant)
            assert (charge is not None) == is_charged


class Muted:
    """A connection, as far as quotas know it."""

    muted_until = 0.0

    def mute(self, until: float, wait: object) -> None:
        self.muted_until = until


async def test_an_operators_quota_of_a_tenant_bounds_all_its_clients_together() -> None:
    async with agent_bench() as bench:
        entry = EntryData([EntityData("user", ACME.everyone)], [OpData(PRODUCER_BYTE_RATE, 1_000.0)])
        request = AlterClientQuotasRequest(entries=[entry])
        for tenant in (OTHER, ACME):  # neither can set it: it names a user of its own
            await Client(bench, tenant).ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, request)
        quotas, connection = bench.services.quotas, Muted()

        def charge(user: str, tenant: Tenant | None) -> Charge | None:
            return quotas.charge(ApiKey.PRODUCE, f"User:{user}", "svc", connection, 9_000, tenant)

        assert charge("acme~alice", ACME) is None
        await Client(bench, None).ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, request)
        assert charge("zwilling~alice", OTHER) is None is charge("alice", None)
        waits = []
        for user in ("alice", "bob"):
            account = charge(f"acme~{user}", ACME)
            assert account is not None
            account.handled()
            waits.append(account.throttle_time_ms)
        assert waits[0] == 0 < waits[1]
        own = DescribeClientQuotasRequest()
        entries = (await Client(bench).ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, own)).entries
        assert [entry.entity[0].entity_name for entry in entries] == [ACME.everyone]


async def test_a_tenant_changes_no_config_of_agents() -> None:
    async with agent_bench() as bench:
        for kind in (4, 8, 16):
            request = IncrementalAlterConfigsRequest(resources=[AlterConfigsResource(kind, "")])
            response = await Client(bench).ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
            assert [row.error_code for row in response.responses] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]


@pytest.mark.parametrize("pattern", ["(", "o.*", ".*", "acme~.*"])
async def test_a_pattern_of_transactional_ids_is_matched_with_local_names(pattern: str) -> None:
    async with agent_bench() as bench:
        await there_is(bench, OTHER.stored("other"))
        answers = []
        for has_own in (False, True):
            if has_own:
                await there_is(bench, ACME.stored("own"))
            request = ListTransactionsRequest(transactional_id_pattern=pattern, duration_filter=-1)
            answers.append(await Client(bench).ask(ApiKey.LIST_TRANSACTIONS, 2, request))
        codes = [answer.error_code for answer in answers]
        assert codes == [ErrorCode.INVALID_REGULAR_EXPRESSION if pattern == "(" else 0] * 2
        named = [row.transactional_id for row in answers[1].transaction_states]
        assert named == (["own"] if pattern in ("o.*", ".*") else [])


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("^ord.*$", {"acme~orders"}),
        (".*", {"acme~orders", "acme~other"}),
        ("orders|zwilling~.*", {"acme~orders"}),
        ("(?i)ORDERS", {"acme~orders"}),
        (".*~.*", set()),
    ],
)
def test_a_tenants_pattern_finds_its_own_topics_alone(pattern: str, found: set[str]) -> None:
    stored = pattern_of_tenant(ACME, pattern)
    names = ("acme~orders", "acme~other", "zwilling~orders", "orders")
    assert TopicPattern(stored).matches(names) == found
    assert local_pattern(stored) == pattern


async def test_requests_are_counted_by_tenant() -> None:
    async with agent_bench() as bench:
        for tenant in (ACME, ACME, OTHER, None):
            await Client(bench, tenant).ask(ApiKey.METADATA, 12, MetadataRequest([], False))
        registry = bench.services.telemetry.registry
        for tenant, count in (("acme", 2), ("zwilling", 1)):
            assert registry.get_sample_value("tailrace_tenant_requests_total", {"tenant": tenant}) == count


def test_a_counter_with_a_label_has_a_bound() -> None:
    registry = CollectorRegistry()
    counters = PlainCounters("n_total", "n", "of", limit=2, others="rest", registry=registry)
    for value in ("a", "b", "c", "a", "d"):
        counters.inc(value)
    counts = [registry.get_sample_value("n_total", {"of": value}) for value in ("a", "b", "c", "rest")]
    assert counts == [2, 1, None, 2]


async def test_share_groups_of_one_name_in_two_tenants_share_their_own_records() -> None:
    async with agent_bench(group_share_auto_offset_reset="earliest") as bench:
        for tenant in (ACME, OTHER):
            client = Client(bench, tenant)
            topic_id = (await bench.topic(tenant.stored("orders"), 1)).topic_id
            await client.ask(ApiKey.PRODUCE, 9, produce(batch(tenant.prefix.encode())))
            await client.ask(ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=["g"]))
            beat = ShareGroupHeartbeatRequest("g", "m", 0, subscribed_topic_names=["orders"])
            answer = await client.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, beat)
            assert answer.error_code == 0, answer.error_message
            assert [topic.topic_id for topic in answer.assignment.topic_partitions] == [topic_id]
            wanted = ShareFetchTopic(topic_id, [ShareFetchPartition(0)])
            fetch = ShareFetchRequest("g", "m", 0, 500, min_bytes=1, max_records=10, topics=[wanted])
            answer = await client.ask(ApiKey.SHARE_FETCH, 2, fetch)
            (row,) = answer.responses[0].partitions
            assert [(each.first_offset, each.last_offset) for each in row.acquired_records] == [(0, 0)]
            assert tenant.prefix.encode() in bytes(row.records)
            described = await client.ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, ShareGroupDescribeRequest(["g"]))
            (group,) = described.groups
            assert (group.group_id, len(group.members)) == ("g", 1)
            assert group.members[0].subscribed_topic_names == ["orders"]


SUBSCRIBED = b"\x00\x01\x00\x00\x00\x01\x00\x06orders\xff\xff\xff\xff\x00\x00\x00\x00"
"""A ConsumerProtocolSubscription of version 1."""


WHAT_MEMBERS_SAY = (SUBSCRIBED, SUBSCRIBED + b"later", b"", b"\x00", b"worker of Connect", SUBSCRIBED[:9])


@pytest.mark.parametrize("given", WHAT_MEMBERS_SAY)
def test_bytes_between_members_arrive_unchanged(given: bytes) -> None:
    inside = translated_bytes(ConsumerProtocolSubscription, given, to_stored(ACME))
    assert translated_bytes(ConsumerProtocolSubscription, inside, to_local(ACME)) == given
    assert (b"acme~orders" in inside) == (given.startswith(SUBSCRIBED))


def test_a_subscription_with_a_name_that_leaves_no_room_for_the_tenant_is_empty() -> None:
    longest = ConsumerProtocolSubscription(topics=[f"{OTHER.prefix}orders", "x" * 32_767])
    given = write_embedded(longest, b"\x00\x01")
    assert translated_bytes(ConsumerProtocolSubscription, given, to_stored(ACME)) == b""
