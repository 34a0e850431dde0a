"""librdkafka on two tenants with the same names side by side."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.agent.security.secured import Secured, in_thread, secured_agent
from tests.support.patience import PATIENCE_SECONDS

LISTENERS = tuple(f"{name}:PLAINTEXT://127.0.0.1:0" for name in ("ACME", "OTHER", "OPERATOR"))
TENANTS = ("ACME=acme", "OTHER=zwilling")
SECONDS = PATIENCE_SECONDS
"""How long a client may wait for anything."""


def settings(secured: Secured, listener: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": secured.bootstrap(listener), "log_level": 0, **more}


def on_tenants(secured: Secured, work: Callable[[dict[str, Any], str], None]) -> Callable[[], None]:
    def both() -> None:
        for listener in ("ACME", "OTHER"):
            work(settings(secured, listener), listener)

    return both


def consumed(consumer: Consumer, count: int) -> list[bytes]:
    values: list[bytes] = []
    until = time.monotonic() + SECONDS
    while len(values) < count and time.monotonic() < until:
        message = consumer.poll(1.0)
        if message is not None and not message.error():
            values.append(message.value())
    return values


def created(client: dict[str, Any]) -> AdminClient:
    admin = AdminClient(client)
    admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(SECONDS)
    return admin


def produced(client: dict[str, Any], *values: str) -> None:
    producer = Producer(client | {"enable.idempotence": True})
    for value in values:
        producer.produce("orders", value.encode())
    assert producer.flush(SECONDS) == 0


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_groups_of_one_name_in_two_tenants_read_their_own_topic_of_one_name(
    protocol: str, tmp_path: Path
) -> None:
    def work(client: dict[str, Any], listener: str) -> None:
        created(client)
        produced(client, f"{listener}-1", f"{listener}-2")
        pattern = "^ord.*" if protocol == "consumer" else "orders"
        for _ in range(2):  # the second time from the committed offsets on
            consumer = Consumer(
                client | {"group.id": "billing", "group.protocol": protocol, "auto.offset.reset": "earliest"}
            )
            consumer.subscribe([pattern])
            assert sorted(consumed(consumer, 2)) == [f"{listener}-{n}".encode() for n in (1, 2)]
            consumer.commit(asynchronous=False)
            consumer.close()
            produced(client, f"{listener}-1", f"{listener}-2")

    prompt = {"group_consumer_heartbeat_interval_ms": 200}

    async with secured_agent(tmp_path, *LISTENERS, tenant_listeners=TENANTS, agent=prompt) as secured:
        await in_thread(on_tenants(secured, work))


async def test_members_of_both_protocols_are_in_one_group_of_a_tenant(tmp_path: Path) -> None:
    """The coordinator reads what the classic member says, and writes what it is given."""

    def work(client: dict[str, Any], listener: str) -> None:
        created(client)
        members = []
        for protocol in ("classic", "consumer"):
            member = Consumer(
                client
                | {"group.id": "mixed", "group.protocol": protocol, "auto.offset.reset": "earliest"}
                | (
                    {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 300}
                    if protocol == "classic"
                    else {}
                )
            )
            member.subscribe(["orders"])
            members.append(member)
            until = time.monotonic() + SECONDS
            while time.monotonic() < until and [len(each.assignment()) for each in members] not in (
                [2],
                [1, 1],
            ):
                for each in members:
                    each.poll(0.1)
        assigned = [{(each.topic, each.partition) for each in member.assignment()} for member in members]
        assert set.union(*assigned) == {("orders", 0), ("orders", 1)}
        assert [len(each) for each in assigned] == [1, 1]
        for member in members:
            member.close()

    prompt = {"group_consumer_heartbeat_interval_ms": 200}

    async with secured_agent(tmp_path, *LISTENERS, tenant_listeners=TENANTS, agent=prompt) as secured:
        await in_thread(lambda: work(settings(secured, "ACME"), "ACME"))


def transfer(client: dict[str, Any], listener: str) -> None:
    """Read, write and commit in a transaction; then abort one."""
    created(client)
    produced(client, "in")
    consumer = Consumer(
        client
        | {"group.id": "g", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        | {"enable.auto.commit": False}
    )
    consumer.subscribe(["orders"])
    assert consumed(consumer, 1) == [b"in"]
    producer = Producer(client | {"transactional.id": "tx"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("orders", f"{listener}-out".encode(), partition=0)
    producer.send_offsets_to_transaction(
        consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), SECONDS
    )
    producer.commit_transaction(SECONDS)
    producer.begin_transaction()
    producer.produce("orders", b"aborted", partition=0)
    producer.flush(SECONDS)
    producer.abort_transaction(SECONDS)
    assert consumed(consumer, 1) == [f"{listener}-out".encode()]
    committed = consumer.committed([TopicPartition("orders", number) for number in (0, 1)], SECONDS)
    assert sum(max(0, each.offset) for each in committed) >= 1
    consumer.close()


async def test_transactions_of_one_id_in_two_tenants_do_not_fence_each_other(tmp_path: Path) -> None:
    async with secured_agent(tmp_path, *LISTENERS, tenant_listeners=TENANTS) as secured:
        await in_thread(on_tenants(secured, transfer))


async def test_an_administrator_sees_its_own_tenant_and_the_operator_sees_all(tmp_path: Path) -> None:
    def work(secured: Secured) -> None:
        clusters = {}
        for listener in ("ACME", "OTHER"):
            client = settings(secured, listener)
            admin = created(client)
            if listener == "ACME":
                admin.create_topics([NewTopic("acmes-own", 1, 1)])["acmes-own"].result(SECONDS)
            metadata = admin.list_topics(timeout=SECONDS)
            own = {"acmes-own"} if listener == "ACME" else set()
            assert set(metadata.topics) == {"orders"} | own
            assert [broker.port for broker in metadata.brokers.values()] == [
                secured.wired.agent.kafka_ports[listener]
            ]
            clusters[listener] = metadata.cluster_id
            consumer = Consumer(client | {"group.id": listener})
            consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
            consumer.close()
            groups = admin.list_consumer_groups().result(SECONDS).valid
            assert [group.group_id for group in groups] == [listener]
        assert clusters["ACME"] != clusters["OTHER"]
        operator = AdminClient(settings(secured, "OPERATOR"))
        assert set(operator.list_topics(timeout=SECONDS).topics) == {
            "acme~orders",
            "acme~acmes-own",
            "zwilling~orders",
        }
        groups = operator.list_consumer_groups().result(SECONDS).valid
        assert {group.group_id for group in groups} == {"acme~ACME", "zwilling~OTHER"}
        other = AdminClient(settings(secured, "OTHER"))
        with pytest.raises(KafkaException):
            other.delete_topics(["acmes-own"])["acmes-own"].result(SECONDS)
        other.delete_topics(["orders"])["orders"].result(SECONDS)
        assert "acme~orders" in operator.list_topics(timeout=SECONDS).topics

    async with secured_agent(tmp_path, *LISTENERS, tenant_listeners=TENANTS) as secured:
        await in_thread(lambda: work(secured))
