"""A scripted conversation between an agent and the sequencer, which one version records and the next one replays.

`python -m tests.contracts.conversation NAME`, run in a checkout of the version to be recorded, writes into `golden/`:

    NAME.rpc       every frame of the script over RPC, in order: '>' (client) or '<' (server), length uint32, frame
    NAME.values    MessagePack: name of each struct that is sent or stored, to samples of its bytes
    NAME.reads     MessagePack: the answers to `reads` after the script
    NAME.sqlite    the SQLite database after the script, as SQL
    NAME.postgresql  the PostgreSQL database after the script: per table a line `COPY name (columns)`, rows, `\\.`
                     (if PostgreSQL is available)
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from struct import Struct
from typing import Any
from uuid import UUID

import msgspec

from sequencer.api.agents import AgentInfo, AgentRef, RenewAgent
from sequencer.api.commits import (
    CommitRequest,
    ObjectDescription,
    ObjectKind,
    OpenSession,
    RunProposal,
    SessionRef,
)
from sequencer.api.compaction import CompactionRequest, ReplacementRun, SwapRequest, TakeLease
from sequencer.api.errors import SequencerError
from sequencer.api.groups import (
    CommitOffsets,
    DeleteOffsets,
    FetchOffsets,
    GroupRef,
    GroupState,
    LagsRequest,
    ListGroups,
    LoadGroup,
    LocateGroup,
    OffsetPosition,
    SaveGroup,
)
from sequencer.api.interface import Sequencer
from sequencer.api.objects import ObjectRef, ObjectsRequest, SizesRequest
from sequencer.api.producers import InitProducer, ProducerQuery
from sequencer.api.reads import (
    EpochQuery,
    EpochRequest,
    FeedRequest,
    FindPartition,
    FindRequest,
    OffsetQuery,
    OffsetSpec,
    OffsetsRequest,
)
from sequencer.api.retention import (
    DeleteRecords,
    DeleteRecordsPartition,
    ForgetObjects,
    GarbageRequest,
    KnownKeys,
    SweptSession,
)
from sequencer.api.topics import (
    AlterConfig,
    BrokerConfigsRequest,
    ConfigChange,
    ConfigOperation,
    ConfigScope,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    MetadataRequest,
)
from sequencer.api.values import Empty
from sequencer.client import SequencerClient
from sequencer.engine.committer import Committer
from sequencer.rpc_handler import RpcHandler
from sequencer.store.memory import MemoryRowStore
from sequencer.store.sql.store import SqlRowStore
from tailrace.batches.mixed_object import BatchCoordinates
from tailrace.rpc import Link, RpcSecurity, RpcServer
from tailrace.rpc.link import Receiver, RpcConnection
from tests.support.clocks import ManualClock, SeededEntropy

GOLDEN = Path(__file__).parent / "golden"
SECRET = b"golden"
NOW = 1_700_000_000_000
_FRAME = Struct(">cI")

Frames = list[tuple[bool, bytes]]
"""(whether the client sent it, the frame without its length)."""


# --- the script --------------------------------------------------------------------------------------------


def _batch(count: int, producer: int = -1, sequence: int = -1, at: int = NOW) -> BatchCoordinates:
    epoch = 0 if producer >= 0 else -1
    return BatchCoordinates(100, count, at, at + count, producer, epoch, sequence, 0)


def _object(number: int, prefix: str, kind: ObjectKind = ObjectKind.MIXED) -> ObjectDescription:
    return ObjectDescription(UUID(int=number), kind, f"{prefix}{number}", 5000, 77, 4000, NOW)


async def script(sequencer: Sequencer) -> list[Any]:
    """Call every method at least once, including calls that are refused. Returns the answers in order (a refusal's code
    and message)."""
    answers: list[Any] = []

    async def ask(method: Callable[[Any], Awaitable[Any]], request: Any) -> Any:
        try:
            answer = await method(request)
        except SequencerError as error:
            answers.append((error.code, str(error)))
            return None
        answers.append(answer)
        return answer

    agent = await ask(
        sequencer.register_agent,
        # With a fixed id: the client draws the hello's nonce first, as in every recording.
        AgentInfo(
            "host-a", 9092, "10.0.0.1", 9093, 9644, "zone-a", "0.1.0", UUID(int=1), request_id=UUID(int=3)
        ),
    )
    await ask(sequencer.renew_agent, RenewAgent(agent.broker_id, agent.epoch))
    twin = await ask(
        sequencer.register_agent,
        AgentInfo("host-b", 9092, "10.0.0.2", 9093, 9644, "zone-b", "0.1.0", UUID(int=2)),
    )
    flights = await ask(sequencer.create_topic, CreateTopic("flights", 2, {"retention.ms": "604800000"}))
    weather = await ask(sequencer.create_topic, CreateTopic("weather", 1, {}))
    gone = await ask(sequencer.create_topic, CreateTopic("gone", 1, {}))
    await ask(sequencer.create_topic, CreateTopic("flights", 2, {}))  # it exists
    await ask(sequencer.create_topic, CreateTopic("not made", 1, {}, validate_only=True))
    await ask(sequencer.create_partitions, CreatePartitions(flights.topic_id, 3))
    change = ConfigChange("max.message.bytes", ConfigOperation.SET, "2000000")
    await ask(sequencer.alter_config, AlterConfig(ConfigScope.TOPIC, "flights", [change]))
    change = ConfigChange("log.retention.ms", ConfigOperation.SET, "1000000000")
    await ask(sequencer.alter_config, AlterConfig(ConfigScope.BROKER, "", [change]))
    await ask(sequencer.broker_configs, BrokerConfigsRequest(""))
    producer = await ask(sequencer.init_producer, InitProducer())
    session = await ask(sequencer.open_session, OpenSession(agent.broker_id, agent.epoch, None))
    await ask(sequencer.renew_session, SessionRef(session.session_id))
    first = CommitRequest(
        session.session_id,
        0,
        0,
        _object(101, session.prefix),
        [
            RunProposal(
                flights.topic_id, 0, 8, 300, [_batch(3), _batch(2, producer.producer_id, 0), _batch(1)]
            ),
            RunProposal(flights.topic_id, 1, 308, 100, [_batch(5, at=NOW + 50)]),
            RunProposal(weather.topic_id, 0, 408, 100, [_batch(1)]),
            RunProposal(gone.topic_id, 0, 508, 100, [_batch(4)]),
        ],
    )
    await ask(sequencer.commit, first)
    await ask(sequencer.commit, first)  # a retry
    repeated = [_batch(2, producer.producer_id, 0), _batch(7, producer.producer_id, 2)]
    await ask(
        sequencer.commit,
        CommitRequest(
            session.session_id,
            1,
            1,
            _object(102, session.prefix),
            [RunProposal(flights.topic_id, 0, 8, 200, repeated)],
        ),
    )
    await ask(sequencer.commit, CommitRequest(session.session_id, 2, 1, None, []))  # an upload that failed
    await ask(sequencer.commit, CommitRequest(UUID(int=404), 0, 0, None, []))  # no such session
    await ask(sequencer.delete_topic, DeleteTopic(gone.topic_id))
    await ask(sequencer.metadata, MetadataRequest())
    await ask(
        sequencer.find_batches,
        FindRequest([FindPartition(flights.topic_id, 0, 4, 1 << 20), FindPartition(UUID(int=404), 0, 0, 1)]),
    )
    await ask(
        sequencer.list_offsets,
        OffsetsRequest(
            [
                OffsetQuery(flights.topic_id, 0, OffsetSpec.LATEST),
                OffsetQuery(flights.topic_id, 0, OffsetSpec.EARLIEST),
                OffsetQuery(flights.topic_id, 1, OffsetSpec.MAX_TIMESTAMP),
                OffsetQuery(flights.topic_id, 1, NOW + 51, True),
            ]
        ),
    )
    await ask(sequencer.offsets_for_epochs, EpochRequest([EpochQuery(flights.topic_id, 0, 0)]))
    await ask(sequencer.feed, FeedRequest(0, [(flights.topic_id, 0), (weather.topic_id, 0)], 0))
    await ask(sequencer.describe_producers, ProducerQuery(flights.topic_id, 0))
    await ask(sequencer.locate_group, LocateGroup("readers", [agent.broker_id, twin.broker_id]))
    await ask(sequencer.load_group, LoadGroup("readers", agent.broker_id, agent.epoch))
    group = GroupState("readers", 4, "Stable", "consumer", ["m-1"], b"\x94\x01\xa5range\xa3m-1\x90")
    await ask(sequencer.save_group, SaveGroup(agent.broker_id, agent.epoch, group))
    positions = [
        OffsetPosition(flights.topic_id, 0, 5, 0, "half-way"),
        OffsetPosition(flights.topic_id, 1, 5, -1, ""),
        OffsetPosition(UUID(int=404), 0, 1, 0, ""),
    ]
    await ask(
        sequencer.commit_offsets,
        CommitOffsets("readers", agent.broker_id, agent.epoch, 4, "m-1", positions),
    )
    await ask(
        sequencer.commit_offsets, CommitOffsets("readers", agent.broker_id, agent.epoch, 3, "m-1", positions)
    )  # an old generation
    await ask(sequencer.commit_offsets, CommitOffsets("by hand", -1, 0, -1, "", positions[:2]))
    await ask(sequencer.delete_offsets, DeleteOffsets("by hand", [(flights.topic_id, 1)]))
    await ask(sequencer.fetch_offsets, FetchOffsets("readers", None))
    await ask(sequencer.locate_group, LocateGroup("brief", [agent.broker_id]))
    await ask(sequencer.load_group, LoadGroup("brief", agent.broker_id, agent.epoch))
    brief = GroupState("brief", 1, "Empty", "consumer", [], b"")
    await ask(sequencer.save_group, SaveGroup(agent.broker_id, agent.epoch, brief))
    await ask(sequencer.delete_group, GroupRef("brief"))
    await ask(sequencer.delete_group, GroupRef("brief"))  # already deleted
    await ask(sequencer.list_groups, ListGroups())
    await ask(sequencer.lags, LagsRequest())
    await ask(sequencer.delete_records, DeleteRecords([DeleteRecordsPartition(flights.topic_id, 0, 3)]))
    lease = await ask(sequencer.take_lease, TakeLease("compactor", "me", 0, 60_000))
    await ask(sequencer.compaction_candidates, CompactionRequest(0, 0, 10))
    other = await ask(sequencer.open_session, OpenSession(twin.broker_id, twin.epoch, None))
    replacement = ReplacementRun(weather.topic_id, 0, 0, 1, NOW + 1, 90, [(0, UUID(int=101))])
    swap = SwapRequest(
        UUID(int=900),
        lease.epoch,
        other.session_id,
        _object(201, other.prefix, ObjectKind.PARQUET),
        [replacement],
    )
    await ask(sequencer.swap, swap)
    await ask(sequencer.swap, swap)  # a retry
    await ask(sequencer.close_session, SessionRef(other.session_id))
    await ask(sequencer.release_agent, AgentRef(twin.broker_id, twin.epoch))
    await ask(sequencer.apply_retention, Empty())
    await ask(sequencer.garbage, GarbageRequest(10))
    await ask(sequencer.forget_objects, ForgetObjects([UUID(int=404)]))
    await ask(sequencer.known_keys, KnownKeys([f"{session.prefix}101", "nothing"]))
    await ask(sequencer.session_swept, SweptSession(other.session_id, False))
    await ask(sequencer.objects, ObjectsRequest("", 10))
    await ask(sequencer.object_runs, ObjectRef(UUID(int=101)))
    await ask(sequencer.sizes, SizesRequest(None))
    await ask(sequencer.statistics, Empty())
    return answers


async def reads(sequencer: Sequencer) -> list[Any]:
    """Read everything that the script left behind."""
    known = await sequencer.metadata(MetadataRequest())
    topics = sorted(known.topics or [], key=lambda topic: topic.name)
    found: list[Any] = [topics, known.ring]
    for topic in topics:
        for partition in range(topic.partitions):
            place = FindPartition(
                topic.topic_id, partition, 3 if topic.name == "flights" and not partition else 0, 1 << 20
            )
            found.append((await sequencer.find_batches(FindRequest([place]))).partitions)
            found.append(await sequencer.describe_producers(ProducerQuery(topic.topic_id, partition)))
            specs = (OffsetSpec.EARLIEST, OffsetSpec.LATEST, OffsetSpec.MAX_TIMESTAMP, NOW + 2)
            queries = [OffsetQuery(topic.topic_id, partition, spec) for spec in specs]
            found.append((await sequencer.list_offsets(OffsetsRequest(queries))).results)
    found.append(sorted((await sequencer.list_groups(ListGroups())).groups, key=repr))
    for group in ("readers", "by hand"):
        found.append(sorted((await sequencer.fetch_offsets(FetchOffsets(group, None))).positions, key=repr))
    found.append(sorted((await sequencer.lags(LagsRequest())).lags, key=repr))
    found.append(await sequencer.broker_configs(BrokerConfigsRequest("")))
    found.append(await sequencer.objects(ObjectsRequest("", 100)))
    found.append(sorted((await sequencer.sizes(SizesRequest(None))).sizes, key=repr))
    ring = known.ring
    assert ring is not None
    member = ring.members[0]
    group = await sequencer.load_group(LoadGroup("readers", member.broker_id, member.epoch))
    found.append(msgspec.structs.replace(group, term=0))  # which this call itself has raised
    return found


# --- the transport -------------------------------------------------------------------------------------------


class Pipe(Link):
    """A link within a loop that remembers every frame."""

    def __init__(self, accept: Callable[[RpcConnection], Receiver]) -> None:
        self.frames: Frames = []
        self._accept = accept

    @property
    def address(self) -> str:
        return "pipe:1"

    async def connect(self, receiver: Receiver) -> RpcConnection:
        near, far = PipeEnd(self, True), PipeEnd(self, False)
        near.other, far.other = far, near
        near.receiver = receiver
        far.receiver = self._accept(far)
        return near


class PipeEnd(RpcConnection):
    """One end of a Pipe."""

    is_encrypted = False
    peer_host = ""
    heard = queued = unsent = 0
    other: PipeEnd
    receiver: Receiver

    def __init__(self, pipe: Pipe, is_client: bool) -> None:
        self._pipe = pipe
        self._is_client = is_client
        self._is_over = False

    def send(self, frame: Sequence[Any]) -> None:
        data = b"".join(frame)[4:]
        self._pipe.frames.append((self._is_client, data))
        asyncio.get_running_loop().call_soon(self.other._deliver, data)

    def _deliver(self, data: bytes) -> None:
        if not self._is_over:
            self.heard += len(data)
            self.receiver.received(memoryview(data))

    def room(self) -> asyncio.Future[None] | None:
        return None

    def close(self) -> None:
        if not self._is_over:
            self._is_over = self.other._is_over = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self.receiver.lost, "closed")
            loop.call_soon(self.other.receiver.lost, "closed")

    abort = close


async def served(sequencer: Committer) -> RpcServer:
    """Create the server's side, with the same nonces in every recording."""
    service = RpcHandler(sequencer.call)
    return RpcServer(
        service.handle, clock=ManualClock(), entropy=SeededEntropy(11), security=RpcSecurity((SECRET,))
    )


def client(pipe: Pipe) -> SequencerClient:
    """Create the agent's side, with the same nonces in every recording."""
    return SequencerClient(
        ["pipe:1"],
        clock=ManualClock(),
        entropy=SeededEntropy(12),
        security=RpcSecurity((SECRET,)),
        patience_s=0,
        link=lambda _: pipe,
    )


async def local(store: Any, clock: ManualClock) -> Committer:
    """Open a sequencer over a row store, with the same ids in every recording."""
    sequencer = Committer(store, clock, SeededEntropy(1))
    await sequencer.start()
    return sequencer


def sql_store(url: str, clock: ManualClock) -> SqlRowStore:
    """Create a row store in SQL that uses the test's clock."""
    return SqlRowStore(url, clock=clock, entropy=SeededEntropy(2), postgres_clock=clock)


def frames_of(data: bytes) -> Frames:
    """Split a recording into frames."""
    found: Frames = []
    at = 0
    while at < len(data):
        way, length = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        found.append((way == b">", data[at : at + length]))
        at += length
    return found


def plain(value: Any) -> Any:
    """Convert a value to nested lists, maps and numbers: the content of its MessagePack."""
    return msgspec.msgpack.decode(msgspec.msgpack.Encoder(uuid_format="bytes").encode(value))


# --- recording ------------------------------------------------------------------------------------------------


async def _record_rpc() -> bytes:
    clock = ManualClock(NOW)
    sequencer = await local(MemoryRowStore(clock), clock)
    server = await served(sequencer)
    pipe = Pipe(server.accept)
    remote = client(pipe)
    await script(remote)
    await remote.close()
    await sequencer.close()
    return b"".join(_FRAME.pack(b">" if mine else b"<", len(data)) + data for mine, data in pipe.frames)


async def _record_sql(url: str) -> bytes:
    clock = ManualClock(NOW)
    store = sql_store(url, clock)
    sequencer = await local(store, clock)
    await script(sequencer)
    read = msgspec.msgpack.encode(plain(await reads(sequencer)))
    await sequencer.close()
    await store.close()
    return read


def _values() -> dict[str, list[bytes]]:
    from agent.groups.stored_group import StoredGroup
    from sequencer.api.commits import CommitAnswer
    from sequencer.api.reads import RunBatch
    from tailrace.batches.mixed_object import Footer
    from tailrace.parquet_object.header import ParquetHeader
    from tailrace.rpc.frames import Header
    from tests.fuzz.rpc import structs, value_of

    rng = random.Random(7)
    encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
    kinds: list[type[Any]] = [*structs(), Header, Footer, ParquetHeader, StoredGroup, RunBatch, CommitAnswer]
    return {
        f"{kind.__module__}.{kind.__name__}": [encoder.encode(value_of(kind, rng)) for _ in range(3)]
        for kind in kinds
    }


def _record(name: str) -> None:
    (GOLDEN / f"{name}.rpc").write_bytes(asyncio.run(_record_rpc()))
    (GOLDEN / f"{name}.values").write_bytes(msgspec.msgpack.encode(_values()))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.db"
        (GOLDEN / f"{name}.reads").write_bytes(asyncio.run(_record_sql(f"sqlite:///{path}")))
        with sqlite3.connect(path) as connection:
            (GOLDEN / f"{name}.sqlite").write_text("\n".join(connection.iterdump()) + "\n")
    from tests.support.servers import postgres_server

    with postgres_server() as server:
        url = server.create_database()
        read = asyncio.run(_record_sql(url))
        if read != (GOLDEN / f"{name}.reads").read_bytes():
            print("PostgreSQL and SQLite differ in what they read")
        (GOLDEN / f"{name}.postgresql").write_bytes(_copied_out(url))


def _copied_out(url: str) -> bytes:
    import psycopg

    out = bytearray()
    with psycopg.connect(url.replace("+asyncpg", "")) as connection:
        tables = [
            row[0]
            for row in connection.execute(
                "select c.relname from pg_class c where c.relnamespace = 'public'::regnamespace "
                "and c.relkind in ('r', 'p') and not c.relispartition order by 1"
            )
        ]
        for table in tables:
            columns = [
                row[0]
                for row in connection.execute(
                    "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 "
                    "and not attisdropped order by attnum",
                    (f'public."{table}"',),
                )
            ]
            names = ", ".join(f'"{column}"' for column in columns)
            out += f"COPY {table} ({names})\n".encode()
            with connection.cursor().copy(f'COPY (SELECT {names} FROM "{table}") TO STDOUT') as rows:
                for row in rows:
                    out += bytes(row)
            out += b"\\.\n"
    return bytes(out)


if __name__ == "__main__":
    _record(sys.argv[1])
