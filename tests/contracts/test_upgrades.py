"""The previous version against this one: its agent with our sequencer, our agent with its sequencer, its databases.

`golden/` has what version 0.1.0 wrote (see `conversation.py`). Each later version adds its own recording.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from struct import pack
from typing import Any

import cramjam
import msgspec
import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from fastcrc.crc32 import iscsi as crc32c

from agent.groups.stored_group import StoredGroup, restored
from cache.chunk_cache import ChunkCache
from cache.peer import ChunkRequest, ChunkStatus, PeerServer
from cache.ring import ZoneRing
from cache.settings import CacheSettings
from sequencer.api.agents import Ring
from sequencer.api.commits import CommitRequest, SessionRef
from sequencer.api.groups import GroupState
from sequencer.api.reads import RunBatch
from sequencer.api.topics import MetadataRequest
from sequencer.methods import METHODS
from sequencer.store.batch_table import decode_table
from sequencer.store.memory import MemoryRowStore
from sequencer.store.sql.schema import metadata as schema
from tailrace.batches.mixed_object import InvalidObject, read_footer
from tailrace.object_store.memory import MemoryStore
from tailrace.parquet_object.header import METADATA_KEY, InvalidParquetObject, unpack_header
from tailrace.rpc import HelloRefused, KnownCluster
from tailrace.rpc.frames import Header, decode_body, decode_frame, encode_body, encode_frame
from tailrace.rpc.hello import VERSIONS, Hello, answer_hello, check_welcome, make_hello
from tailrace.turns import at_once
from tests.contracts.conversation import (
    GOLDEN,
    NOW,
    SECRET,
    Pipe,
    client,
    frames_of,
    local,
    plain,
    reads,
    script,
    served,
    sql_store,
)
from tests.fuzz.rpc import structs
from tests.support.clocks import ManualClock
from tests.support.patience import PATIENCE_SECONDS
from tests.support.schemas import upgrade_to
from tests.support.servers import PostgresServer

BEFORE = "0.1.0"
REVISION = "0020"
"""The schema of the previous version's databases."""


def golden(suffix: str) -> bytes:
    return (GOLDEN / f"{BEFORE}.{suffix}").read_bytes()


def assert_extends(new: Any, old: Any, where: str = "") -> None:
    """Assert that arrays have only grown at their ends, and that nothing else differs."""
    if isinstance(old, list):
        assert isinstance(new, list) and len(new) >= len(old), f"{where}: {new!r} in place of {old!r}"
        for number, (one, another) in enumerate(zip(new, old, strict=False)):
            assert_extends(one, another, f"{where}[{number}]")
    elif isinstance(old, dict):
        assert isinstance(new, dict) and new.keys() == old.keys(), where
        for key in old:
            assert_extends(new[key], old[key], f"{where}.{key}")
    else:
        assert new == old, f"{where}: {new!r} in place of {old!r}"


# --- stored and sent structs -------------------------------------------------------------------------------


def module_before(module: str) -> str:
    """Return the module of the version before: `sequencer.api` was one, and `tailrace` had no rooms."""
    return re.sub(r"^sequencer\.api\..*", "sequencer.api", module).replace("tailrace.batches.", "tailrace.")


def struct_named(name: str) -> type[Any]:
    from agent.groups.stored_group import StoredGroup
    from tailrace.batches.mixed_object import Footer
    from tailrace.parquet_object.header import ParquetHeader

    kinds: list[type[Any]] = [*structs(), Header, Footer, ParquetHeader, StoredGroup, RunBatch]
    return {f"{module_before(kind.__module__)}.{kind.__name__}": kind for kind in kinds}[name]


@pytest.mark.parametrize("name", sorted(msgspec.msgpack.decode(golden("values"))))
def test_a_struct_of_the_version_before_is_read_and_only_appended_to(name: str) -> None:
    kind = struct_named(name)
    for data in msgspec.msgpack.decode(golden("values"))[name]:
        value = decode_body(data, kind)
        assert_extends(plain(value), msgspec.msgpack.decode(data), name)
        added = kind.__struct_fields__[len(msgspec.msgpack.decode(data)) :]
        for field in msgspec.structs.fields(kind):
            if field.name in added:
                default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
                assert getattr(value, field.name) == default, f"{name}.{field.name} has a default"


@pytest.mark.parametrize("name", sorted(msgspec.msgpack.decode(golden("values"))))
def test_the_version_before_reads_our_structs_by_ignoring_what_was_appended(name: str) -> None:
    """The previous version does this because msgspec skips values behind the fields that a decoder knows."""
    kind = struct_named(name)
    for data in msgspec.msgpack.decode(golden("values"))[name]:
        known = len(msgspec.msgpack.decode(data))
        fields = [(field, Any) for field in kind.__struct_fields__[:known]]
        before = msgspec.defstruct("Before", fields, array_like=True)
        read = decode_body(encode_body(decode_body(data, kind)), before)
        assert len(plain(read)) == known
        assert_extends(plain(read), msgspec.msgpack.decode(data), name)


# --- RPC ---------------------------------------------------------------------------------------------------


def _is_id(value: Any) -> bool:
    """Return whether the value is a UUID or a session's prefix."""
    return (isinstance(value, bytes) and len(value) == 16) or (isinstance(value, str) and value.endswith("/"))


class Identities:
    """Maps ids, and keys made of ids, that the previous version was given to those that we give."""

    def __init__(self) -> None:
        self.ours: dict[Any, Any] = {}

    def learn(self, old: Any, new: Any) -> None:
        """Compare two answers. If both have an id at the same place, ours stands for the other from now on."""
        if isinstance(old, list) and isinstance(new, list):
            for one, another in zip(old, new, strict=False):
                self.learn(one, another)
        elif _is_id(old) and _is_id(new):
            self.ours.setdefault(old, new)

    def translated(self, old: Any) -> Any:
        """Return the value with our ids."""
        if isinstance(old, list):
            return [self.translated(part) for part in old]
        if isinstance(old, dict):
            return {key: self.translated(part) for key, part in old.items()}
        if isinstance(old, str) and "/" in old:
            head, _, tail = old.rpartition("/")
            return self.ours.get(head + "/", head + "/") + tail
        return self.ours.get(old, old) if isinstance(old, bytes) else old


class _Caller:
    """The receiver of a peer that replays a recording."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.reason = ""

    def frame_limit(self) -> int:
        return 1 << 20

    def makes_room(self, length: int) -> bool:
        return True

    def received(self, frame: memoryview) -> None:
        self.answers.put_nowait(bytes(frame))

    def lost(self, reason: str) -> None:
        self.reason = reason
        self.answers.put_nowait(b"")


def test_the_agent_of_the_version_before_is_served_by_our_sequencer() -> None:
    """Its frames are byte for byte the recorded ones except for ids from our sequencer; our answers are its answers
    with fields appended."""

    async def conversation() -> int:
        clock = ManualClock(NOW)
        ours = await local(MemoryRowStore(clock), clock)
        server = await served(ours)
        pipe, caller, ids = Pipe(server.accept), _Caller(), Identities()
        wire = await pipe.connect(caller)
        frames = frames_of(golden("rpc"))
        asked = 0
        for (is_client, sent), (is_server, expected) in zip(frames[::2], frames[1::2], strict=True):
            assert is_client and not is_server
            request, old = decode_frame(memoryview(sent)), decode_frame(memoryview(expected))
            method = request.header.method
            body = bytes(request.body)
            if method in METHODS:
                body = msgspec.msgpack.encode(ids.translated(msgspec.msgpack.decode(body)))
            wire.send(encode_frame(request.header, body))
            said = await asyncio.wait_for(caller.answers.get(), PATIENCE_SECONDS)
            assert said, f"{method}: our server ended the connection: {caller.reason}"
            new = decode_frame(memoryview(said))
            assert (new.header.correlation, new.header.flags) == (old.header.correlation, old.header.flags), (
                method,
                bytes(new.body),
            )
            before, now = msgspec.msgpack.decode(old.body), msgspec.msgpack.decode(new.body)
            ids.learn(before, now)
            if new.header.flags & 2:
                assert now[0] == before[0], f"{method}: the error's code"
            elif method != "statistics":
                expected = ids.translated(before)
                if method in ("lags", "sizes"):  # their order was never promised
                    expected[0], now[0] = sorted(expected[0]), sorted(now[0])
                assert_extends(now, expected, method)
            asked += 1
        await server.close(grace_s=0)
        await ours.close()
        return asked

    assert asyncio.run(conversation()) > 50


class _Before:
    """The previous version's sequencer: it expects the recorded requests and returns the recorded answers."""

    def __init__(self) -> None:
        self.frames = frames_of(golden("rpc"))
        self.wire: Any = None
        self.asked: list[str] = []
        self.greeting: list[Any] = []

    def accept(self, wire: Any) -> _Before:
        self.wire = wire
        return self

    def frame_limit(self) -> int:
        return 1 << 20

    def makes_room(self, length: int) -> bool:
        return True

    def received(self, frame: memoryview) -> None:
        (_, expected), (_, answer) = self.frames[:2]
        del self.frames[:2]
        old, new = decode_frame(memoryview(expected)), decode_frame(frame)
        self.asked.append(new.header.method)
        assert new.header == old.header
        recorded = decode_frame(memoryview(answer))
        answered = bytes(recorded.body)
        if new.header.method == "proof":
            assert msgspec.msgpack.decode(new.body) == [self._proof("client")]
        else:
            assert_extends(
                msgspec.msgpack.decode(new.body), msgspec.msgpack.decode(old.body), old.header.method
            )
        if new.header.method == "hello":
            welcome = msgspec.msgpack.decode(answered)
            self.greeting = [msgspec.msgpack.decode(new.body)[:5], [*welcome[:4], b""]]
            answered = msgspec.msgpack.encode([*welcome[:4], self._proof("server")])
        self.wire.send(encode_frame(recorded.header, answered))

    def _proof(self, role: str) -> bytes:
        """Compute the proof as that version does, over the hello as it reads it. The recorded proof doesn't match,
        because the hello offers more now."""
        said = msgspec.msgpack.encode([role, *self.greeting])
        return hmac.digest(SECRET, said, "sha256")

    def lost(self, reason: str) -> None:
        return


def test_our_agent_is_served_by_the_sequencer_of_the_version_before() -> None:
    """Today's client sends what the previous version understands, and understands that version's answers."""

    async def conversation() -> tuple[_Before, list[Any]]:
        before = _Before()
        remote = client(Pipe(before.accept))
        answers = await script(remote)
        await remote.close()
        return before, answers

    before, answers = asyncio.run(conversation())

    assert before.frames == []
    said = [
        (frame.header.flags, msgspec.msgpack.decode(frame.body))
        for is_client, data in frames_of(golden("rpc"))
        if not is_client
        for frame in [decode_frame(memoryview(data))]
    ][2:]
    for answer, (flags, old), method in zip(answers, said, before.asked[2:], strict=True):
        if flags & 2:
            assert answer[0] == old[0], method
        else:
            assert_extends(plain(answer), old, method)


def test_a_peer_without_a_common_version_gets_the_list_of_ours() -> None:
    nonce = bytes(16)
    theirs = Hello("tailrace", [9, 10], "", 0, nonce)
    with pytest.raises(
        HelloRefused, match=r"client speaks versions \[9, 10\], the server \[1, 2\]"
    ) as refused:
        answer_hello(theirs, KnownCluster(), (SECRET,), nonce)
    assert refused.value.code == "version"

    ours = make_hello(KnownCluster().identity, nonce, (SECRET,))
    welcome, _ = answer_hello(ours, KnownCluster(), (SECRET,), nonce)
    with pytest.raises(HelloRefused, match=r"server chose version 9, offered were \[1, 2\]"):
        check_welcome(ours, msgspec.structs.replace(welcome, version=9), (SECRET,))


def test_a_peer_that_speaks_our_version_and_newer_ones_is_answered_in_ours() -> None:
    theirs = msgspec.structs.replace(
        make_hello(KnownCluster().identity, bytes(16), (SECRET,)), versions=[*VERSIONS, 99]
    )

    assert answer_hello(theirs, KnownCluster(), (SECRET,), bytes(16))[0].version == max(VERSIONS)


def test_a_method_that_the_other_side_does_not_have_is_an_error_that_reports_it() -> None:
    async def ask() -> bytes:
        clock = ManualClock(NOW)
        ours = await local(MemoryRowStore(clock), clock)
        server = await served(ours)
        caller = _Caller()
        wire = await Pipe(server.accept).connect(caller)
        for is_client, sent in frames_of(golden("rpc"))[:4]:
            if is_client:
                wire.send([pack(">I", len(sent)), sent])
                await caller.answers.get()
        wire.send(encode_frame(Header(1, 9, "method_of_a_later_version", 0), b"\x90"))
        said = await caller.answers.get()
        await server.close(grace_s=0)
        await ours.close()
        return said

    code, message = msgspec.msgpack.decode(decode_frame(memoryview(asyncio.run(ask()))).body)
    assert code == "unknown_method"
    assert "is this server older?" in message


def test_a_cache_peer_of_another_version_is_refused_and_bypassed() -> None:
    async def ask() -> Any:
        cache = ChunkCache(MemoryStore(ManualClock()), CacheSettings(), lambda: ZoneRing(Ring(1, []), "a", 1))
        try:
            return await PeerServer(cache).chunk(ChunkRequest(99, "k", 0, 0, 10, False, 100))
        finally:
            await cache.close()

    answer, tail = asyncio.run(ask())
    assert answer.status is ChunkStatus.REFUSED
    assert "version 99; this agent speaks" in answer.detail
    assert tail == []


# --- databases -----------------------------------------------------------------------------------------------


def sqlite_of_before(tmp_path: Path) -> str:
    path = tmp_path / "rows.db"
    connection = sqlite3.connect(path)
    connection.executescript(golden("sqlite").decode())
    connection.close()
    return f"sqlite:///{path}"


def postgresql_of_before(server: PostgresServer) -> str:
    """Create a database with that version's migration and the rows that COPY wrote."""
    url = server.create_database()
    with engine(url).begin() as connection:
        upgrade_to(connection, REVISION)
    with psycopg.connect(url.replace("+asyncpg", "")) as connection:
        for table, columns, rows in re.findall(
            r"COPY (\w+) \((.*?)\)\n(.*?)\\\.\n", golden("postgresql").decode(), re.DOTALL
        ):
            connection.execute(f'DELETE FROM "{table}"')
            with connection.cursor().copy(f'COPY "{table}" ({columns}) FROM STDIN') as copy:
                copy.write(rows)
    return url


def engine(url: str) -> sa.Engine:
    return sa.create_engine(url.replace("+asyncpg", "+psycopg"), poolclass=sa.NullPool)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        yield sqlite_of_before(tmp_path)
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    made = postgresql_of_before(server)
    yield made
    server.drop_database(made)


def on_database(url: str, scenario: Callable[[Any], Awaitable[Any]]) -> Any:
    """Run a scenario on the database after an upgrade, with the clock in the minute in which it was left."""

    async def run() -> Any:
        clock = ManualClock(NOW)
        store = sql_store(url, clock)
        try:
            ours = await local(store, clock)
            try:
                return await scenario(ours)
            finally:
                await ours.close()
        finally:
            await store.close()

    return asyncio.run(run())


def test_a_database_of_the_version_before_is_brought_up_to_date_and_read_whole(url: str) -> None:
    with engine(url).connect() as connection:
        assert MigrationContext.configure(connection).get_current_revision() == REVISION

    read = on_database(url, reads)

    assert_extends(plain(read), msgspec.msgpack.decode(golden("reads")))
    with engine(url).connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema) == []


def test_its_sessions_continue_and_its_commits_are_answered_as_they_were(url: str) -> None:
    frames = [decode_frame(memoryview(data)) for _, data in frames_of(golden("rpc"))]
    pairs = [
        (decode_body(asked.body, CommitRequest), msgspec.msgpack.decode(answered.body))
        for asked, answered in zip(frames[::2], frames[1::2], strict=True)
        if asked.header.method == "commit"
    ]

    async def scenario(ours: Any) -> tuple[Any, Any]:
        second, answer = pairs[2]
        again = await ours.commit(second)
        assert_extends(plain(again), answer, "a commit asked again after the upgrade")
        await ours.renew_session(SessionRef(second.session_id))
        known = await ours.metadata(MetadataRequest())
        following = msgspec.structs.replace(second, number=3, object=None, runs=[])
        return await ours.commit(following), known

    following, known = on_database(url, scenario)
    assert following.commit_number > 0
    assert {topic.name for topic in known.topics} == {"flights", "weather"}


def test_a_second_upgrade_changes_nothing(url: str) -> None:
    first = on_database(url, reads)
    assert plain(on_database(url, reads)) == plain(first)


# --- formats that are too new ----------------------------------------------------------------------------------


def test_a_mixed_object_of_a_later_format_is_refused_by_its_version() -> None:
    data = bytearray((GOLDEN / "mixed_object_v1.bin").read_bytes())
    data[-12:-10] = pack(">H", 2)
    packed = int.from_bytes(data[-20:-16], "big")
    data[-8:-4] = pack(">I", crc32c(bytes(data[-20 - packed : -8])))

    with pytest.raises(InvalidObject, match="format version 2; this one reads"):
        read_footer(bytes(data), len(data))


def test_a_parquet_object_of_a_later_format_is_refused_by_its_version() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    value = pq.read_metadata(pa.BufferReader((GOLDEN / "parquet_object_v1.parquet").read_bytes())).metadata
    ours = value[METADATA_KEY]

    with pytest.raises(InvalidParquetObject, match=r"begins with b'9:.*this version reads"):
        unpack_header(b"9:" + ours[2:])
    assert unpack_header(ours).version == 1


def test_a_parquet_header_of_a_later_version_inside_is_refused() -> None:
    import base64

    import pyarrow as pa
    import pyarrow.parquet as pq

    value = pq.read_metadata(pa.BufferReader((GOLDEN / "parquet_object_v1.parquet").read_bytes())).metadata
    packed = base64.b64decode(value[METADATA_KEY][2:])
    unpacked = bytearray(int.from_bytes(packed[:4], "big"))
    cramjam.zstd.decompress_into(packed[8:], unpacked)
    fields = msgspec.msgpack.decode(unpacked)
    fields[0] = 9
    again = msgspec.msgpack.encode(fields)
    body = bytes(cramjam.zstd.compress(again))

    with pytest.raises(InvalidParquetObject, match="header version 9; this one reads"):
        unpack_header(b"1:" + base64.b64encode(pack(">II", len(again), crc32c(body)) + body))


def test_a_group_stored_by_a_later_version_is_refused_by_its_version() -> None:
    blob = msgspec.msgpack.encode(StoredGroup(9, "range", "m-1", []))
    with pytest.raises(ValueError, match="stored in version 9; this agent reads 1"):
        at_once(restored(GroupState("g", 1, "Stable", "consumer", ["m-1"], blob), 0.0, 3.0, 10, 1 << 20))


def test_a_batch_table_of_the_version_before_is_read() -> None:
    rows = msgspec.msgpack.decode(golden("values"))["sequencer.api.RunBatch"]
    table = b"\x93" + b"".join(rows)

    assert plain(decode_table(table)) == [msgspec.msgpack.decode(row) for row in rows]
