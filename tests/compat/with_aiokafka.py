"""aiokafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaError

from tests.compat.areas import CODECS, Client, equal
from tests.compat.broker import Broker
from tests.support.patience import PATIENCE_SECONDS

BASE_MS = int(time.time() * 1000) - 3_600_000
"""An hour ago: young enough for every retention."""


async def produce(broker: Broker) -> None:
    """Every codec, idempotent; keys, nulls, headers, timestamps; topics auto-created."""
    for codec in CODECS:
        topic = broker.name(f"aiokafka-{codec}")
        settings = {"compression_type": None if codec == "none" else codec, "enable_idempotence": True}
        async with AIOKafkaProducer(bootstrap_servers=broker.address, **settings) as producer:
            sent = [
                await producer.send(
                    topic,
                    None if number % 5 == 0 else b"v%d" % number,
                    b"k%d" % number,
                    partition=0,
                    timestamp_ms=BASE_MS + number,
                    headers=[("n", b"%d" % number)],
                )
                for number in range(100)
            ]
            equal([(await each).offset for each in sent], list(range(100)), "offsets")
        async with _consumer(broker) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            await consumer.seek_to_beginning()
            for number, record in enumerate(await _take(consumer, 100)):
                value = None if number % 5 == 0 else b"v%d" % number
                seen = (record.key, record.value, list(record.headers), record.timestamp)
                equal(seen, (b"k%d" % number, value, [("n", b"%d" % number)], BASE_MS + number), "record")


async def consume(broker: Broker) -> None:
    """The ends, seeks, and offsets by timestamp."""
    topic = broker.name("aiokafka-consume")
    await _fill(broker, topic, 2, 100)
    zero = TopicPartition(topic, 0)
    async with _consumer(broker) as consumer:
        consumer.assign([zero])
        equal((await consumer.beginning_offsets([zero]))[zero], 0, "beginning")
        equal((await consumer.end_offsets([zero]))[zero], 50, "end")
        found = await consumer.offsets_for_times({zero: BASE_MS + 20_500})
        equal(found[zero].offset, 11, "offset by timestamp")
        consumer.seek(zero, 48)
        equal([record.offset for record in await _take(consumer, 2)], [48, 49], "after a seek")
        consumer.seek(zero, 9_999)
        equal((await _take(consumer, 1))[0].offset, 0, "after a reset")


async def groups(broker: Broker) -> None:
    """Range and sticky; join and leave; commits; groups described and listed."""
    for assignor in (RangePartitionAssignor, StickyPartitionAssignor):
        topic, group = broker.name("aiokafka-groups"), broker.name("aiokafka-group")
        await _fill(broker, topic, 4, 40)
        joined = partial(_consumer, broker, group_id=group, partition_assignment_strategy=(assignor,))
        async with joined() as first:
            first.subscribe([topic])
            equal(len(await _take(first, 40)), 40, "records")
            await first.commit()
            async with joined() as second:
                second.subscribe([topic])
                await _until(
                    lambda a=first, b=second: len(a.assignment()) == len(b.assignment()) == 2, "shared"
                )
            await _until(lambda a=first: len(a.assignment()) == 4, "one has all again")
            equal(await first.committed(TopicPartition(topic, 0)), 10, "committed")
            client = AIOKafkaAdminClient(bootstrap_servers=broker.address)
            await client.start()
            try:
                if group not in str(await client.list_consumer_groups()):
                    raise AssertionError("the group is not listed")
                if "Stable" not in str(await client.describe_consumer_groups([group])):
                    raise AssertionError("the group is not stable")
                offsets = await client.list_consumer_group_offsets(group)
                equal(offsets[TopicPartition(topic, 3)].offset, 10, "offset by the admin")
            finally:
                await client.close()


async def admin(broker: Broker) -> None:
    """Topics, partitions, configs, records."""
    topic = broker.name("aiokafka-admin")
    client = AIOKafkaAdminClient(bootstrap_servers=broker.address)
    await client.start()
    try:
        await client.create_topics([NewTopic(topic, 2, 1)])
        await client.create_partitions({topic: NewPartitions(3)})
        described = await client.describe_topics([topic])
        equal(len(described[0]["partitions"]), 3, "partitions")
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.bytes": "777"})
        await client.alter_configs([resource])
        if "777" not in str(await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])):
            raise AssertionError("the altered config is not described")
        await _fill(broker, topic, 1, 20)
        zero = TopicPartition(topic, 0)
        equal((await client.delete_records({zero: RecordsToDelete(6)}))[zero], 6, "low watermark")
        equal(len((await client.describe_cluster())["brokers"]), 1, "brokers")
        await client.delete_topics([topic])
        if topic in await client.list_topics():
            raise AssertionError("the topic is listed after its deletion")
    finally:
        await client.close()


async def transactions(broker: Broker) -> None:
    """Commit, abort, fencing; a transforming loop whose first producer is left within a transaction."""
    topic = broker.name("aiokafka-transactions")
    await _create(broker, topic, 2)
    async with (
        _transactional(broker, broker.name("aiokafka-tx")) as producer,
        _reader(broker, topic, 2) as reader,
    ):
        for number in range(4):
            await producer.begin_transaction()
            values = [b"%d-%d" % (number, record) for record in range(20)]
            sent = [
                await producer.send(topic, each, partition=index % 2) for index, each in enumerate(values)
            ]
            await asyncio.gather(*sent)
            await _nothing_comes(reader)
            if number % 2:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
                equal(sorted(each.value for each in await _take(reader, 20)), sorted(values), "committed")
        await _nothing_comes(reader)
    await _transforms_once(broker)


async def _transforms_once(broker: Broker) -> None:
    source, target = broker.name("aiokafka-source"), broker.name("aiokafka-target")
    group, name = broker.name("aiokafka-transformers"), broker.name("aiokafka-tx")
    await _fill(broker, source, 1, 60)
    await _create(broker, target, 1)
    zero = TopicPartition(source, 0)

    async def transform(producer: AIOKafkaProducer, records: list[Any]) -> None:
        await producer.begin_transaction()
        for record in records:
            await producer.send_and_wait(target, b"%d" % (int(record.value) * 2), partition=0)
        await producer.send_offsets_to_transaction({zero: records[-1].offset + 1}, group)

    async with _consumer(broker, group_id=group) as consumer:
        consumer.assign([zero])
        left = _transactional(broker, name)
        await left.start()
        try:
            await transform(left, await _take(consumer, 20))
            await left.commit_transaction()
            await transform(left, await _take(consumer, 20))  # and is never heard of again
            async with _transactional(broker, name) as producer:
                start = await consumer.committed(zero)
                equal(start, 20, "committed by the one that was left")
                consumer.seek(zero, start)
                await transform(producer, await _take(consumer, 40))
                await producer.commit_transaction()
        finally:
            with suppress(KafkaError, AssertionError):
                await asyncio.wait_for(left.stop(), 10)
    async with _reader(broker, target, 1) as reader:
        seen = [int(each.value) for each in await _take(reader, 60)]
        equal(seen, [2 * number for number in range(60)], "transformed, each once")
        await _nothing_comes(reader)


# --- details -----------------------------------------------------------------------------------------------


def _consumer(broker: Broker, **settings: Any) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        bootstrap_servers=broker.address,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=200,
        **settings,
    )


def _transactional(broker: Broker, name: str) -> AIOKafkaProducer:
    return AIOKafkaProducer(bootstrap_servers=broker.address, transactional_id=name)


@asynccontextmanager
async def _reader(broker: Broker, topic: str, partitions: int) -> AsyncIterator[AIOKafkaConsumer]:
    async with _consumer(broker, isolation_level="read_committed", fetch_max_wait_ms=100) as consumer:
        consumer.assign([TopicPartition(topic, partition) for partition in range(partitions)])
        await consumer.seek_to_beginning()
        yield consumer


async def _nothing_comes(consumer: AIOKafkaConsumer) -> None:
    came = await consumer.getmany(timeout_ms=400)
    equal([each.value for records in came.values() for each in records], [], "records that are not committed")


async def _create(broker: Broker, topic: str, partitions: int) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=broker.address)
    await client.start()
    try:
        await client.create_topics([NewTopic(topic, partitions, 1)])
    finally:
        await client.close()


async def _fill(broker: Broker, topic: str, partitions: int, records: int) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=broker.address)
    await client.start()
    try:
        if topic not in await client.list_topics():
            await client.create_topics([NewTopic(topic, partitions, 1)])
    finally:
        await client.close()
    async with AIOKafkaProducer(bootstrap_servers=broker.address) as producer:
        sent = [
            await producer.send(
                topic, b"%d" % number, partition=number % partitions, timestamp_ms=BASE_MS + number * 1000
            )
            for number in range(records)
        ]
        await asyncio.gather(*sent)


async def _take(consumer: AIOKafkaConsumer, wanted: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < wanted:
            found.append(await consumer.getone())
    return found


async def _until(fact: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not fact():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not in {PATIENCE_SECONDS} s: {what}") from None


def _run(check: Callable[[Broker], Awaitable[None]], broker: Broker) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(check(broker), PATIENCE_SECONDS)

    asyncio.run(bounded())


CLIENT = Client(
    f"aiokafka {aiokafka.__version__}",
    {check.__name__: partial(_run, check) for check in (produce, consume, groups, admin, transactions)},
)
