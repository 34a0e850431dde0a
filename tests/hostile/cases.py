"""What hostile clients do, as a table of cases. All cases run at once, each over its own connections, until the end.

A case is a coroutine that opens and closes its connections on the stage; a new kind of hostile client is one more row.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from agent.handlers import HANDLERS
from tailrace.kafka import ApiKey, decode_response, encode_request
from tailrace.kafka.apis import APIS
from tailrace.kafka.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tailrace.kafka.messages.create_acls import AclCreation, CreateAclsRequest
from tailrace.kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tailrace.kafka.messages.init_producer_id import InitProducerIdRequest
from tailrace.kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tailrace.kafka.messages.metadata import MetadataRequest
from tailrace.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tailrace.kafka.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tailrace.kafka.schema import Field, MessageType
from tests.hostile.known import WIDE_GROUP, WIDE_TOPIC, Known, parts_of
from tests.hostile.values import (
    Count,
    array_fields,
    hostile_request,
    request_at_an_end,
    request_of_many,
    wide_fields,
)

PATIENCE_SECONDS = 1.0
"""How long a client waits for an answer before it closes the connection."""
REMEMBERED = 30
SETTING_THE_STAGE = 40
"""After this many requests a client recreates what they have deleted."""

SERVED = sorted(
    (ApiKey(key), version)
    for key in HANDLERS
    for version in range(APIS[key].served.first, APIS[key].served.last + 1)
)
"""Every API and version that is served."""
STORING = frozenset({
    ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.INIT_PRODUCER_ID,
    ApiKey.JOIN_GROUP, ApiKey.CREATE_TOPICS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.PRODUCE, ApiKey.WRITE_TXN_MARKERS,
    ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS, ApiKey.CREATE_ACLS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
})  # fmt: skip
"""The broker stores what these requests contain, so they are sent more often."""
ORDER = SERVED + [served for served in SERVED if served[0] in STORING] * 4
WIDE = (
    sorted({api for api, _ in SERVED if wide_fields(api)}) + sorted(STORING & {api for api, _ in SERVED}) * 2
)
"""APIs with fields of 64 bits; those that the broker stores are sent more often."""
APIS_WITH_ARRAYS = sorted({api for api, _ in SERVED if array_fields(api)})
LARGE, VERY_LARGE = 5_000, 20_000
"""Elements of one array; all other arrays of its request have one."""
LARGE_PER_SECOND, ONE_IN_SO_MANY = 2, 6
"""At least one request in each slice is very large. Every array gets its turn within a minute."""
WIDTH = 200
UNKNOWN_SERVER_ERROR = -1


@dataclass(slots=True)
class Stage:
    """Where the cases run: the broker's ports, how fast requests may be sent, and what was sent last."""

    port: int
    seed: int
    rate: float
    login_port: int = 0
    """The port of the listener with logins, if there is one."""
    gateway: int = 0
    """The gateway's port, if it is served."""
    operator_port: int = 0
    """The port of the listener without a tenant, if `port` belongs to a tenant."""
    secrets: tuple[bytes, ...] = ()
    """Texts that are in no request, and may be in no answer."""
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    may_send: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared during a quiet slice: all senders wait."""
    sent: Counter[str] = field(default_factory=Counter)
    last: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    unforeseen: list[str] = field(default_factory=list)
    """Requests that were answered with an error that no handler foresaw."""
    told: list[str] = field(default_factory=list)
    """Requests whose answer contained a secret."""
    _next_at: float = 0.0

    async def turn(self) -> None:
        """Wait until one more request may be sent; all cases together share the rate."""
        await self.may_send.wait()
        now = asyncio.get_running_loop().time()
        self._next_at = max(self._next_at + 1 / self.rate, now)
        await asyncio.sleep(self._next_at - now)

    def note(self, what: str, request: Any = "") -> None:
        """Note one more request."""
        self.sent[what] += 1
        self.last.append(f"{what} {request!r:.2000}")


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of hostile client. `clients` of it run at once, each with its own random numbers."""

    name: str
    about: str
    clients: int
    play: Callable[[Stage, random.Random], Awaitable[None]]


class Connection:
    """A Kafka connection that is opened when it is needed, and again after it was closed."""

    def __init__(self, stage: Stage, client_id: str, port: int = 0) -> None:
        self._stage = stage
        self._port = port or stage.port
        self._client_id = client_id
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, api: ApiKey, version: int, request: Any, *, about: str = "") -> Any:
        """Send a request. Returns the answer, or None if the broker closed the connection or took too long, in which
        case we close it. `about`: what to note in place of a request that is too long to print."""
        await self._stage.turn()
        frame = b"".join(encode_request(1, api, version, request, self._client_id))
        self._stage.note(f"{api.name} {version}", about or request)
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                writer.write(frame)
                await writer.drain()
                size = int.from_bytes(await reader.readexactly(4), "big")
                body = await reader.readexactly(size)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            self.close()
            return None
        if self._port == self._stage.port and any(secret in body for secret in self._stage.secrets):
            self._stage.told.append(f"{api.name} {version} {about or request!r:.500}: {body!r:.500}")
        answer = decode_response(api, version, body)[1]
        if UNKNOWN_SERVER_ERROR in codes_in(answer):
            self._stage.unforeseen.append(f"{api.name} {version} {about or request!r:.500}: {answer!r:.500}")
        return answer

    def close(self) -> None:
        """Close the connection, whatever is in transfer."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


def codes_in(answer: Any) -> set[int]:
    """Return every error code in an answer."""
    return {
        getattr(part, name)
        for part in parts_of(answer)
        for name in part.__struct_fields__
        if name.endswith("error_code")
    }


async def extreme_values(stage: Stage, rng: random.Random) -> None:
    """Every API and version in random order, with values at their bounds and names of what exists."""
    await values_of(stage, rng, Known(own_member=f"hostile-{rng.random()}"))


async def values_of(stage: Stage, rng: random.Random, known: Known) -> None:
    """Send the same requests as a client that knows these names."""
    connection = Connection(stage, "hostile")
    order: list[tuple[ApiKey, int]] = []
    count = 0
    while not stage.is_over.is_set():
        if count % SETTING_THE_STAGE == 0:
            await _set_the_stage(connection, known)
        if not order:
            order = rng.sample(ORDER, len(ORDER))
        api, version = order.pop()
        request = hostile_request(api, version, known, rng)
        known.learn(await connection.ask(api, version, request), request)
        count += 1
    connection.close()


async def ends_of_int64(stage: Stage, rng: random.Random) -> None:
    """Valid requests except for one field of 64 bits, at an end of its type: every such field in turn."""
    connection, known = Connection(stage, "hostile"), Known(own_member=f"hostile-{rng.random()}")
    places: list[tuple[ApiKey, tuple[MessageType, Field]]] = []
    count = 0
    while not stage.is_over.is_set():
        if count % SETTING_THE_STAGE == 0:
            await _set_the_stage(connection, known)
        if not places:
            fields = [(api, at) for api in WIDE for at in wide_fields(api)]
            places = rng.sample(fields, len(fields))
        api, at = places.pop()
        version = rng.choice([of for each, of in SERVED if each is api and of in at[1].versions])
        request = request_at_an_end(api, version, at, known, rng)
        known.learn(await connection.ask(api, version, request), request)
        count += 1
    connection.close()


async def _set_the_stage(connection: Connection, known: Known) -> None:
    """Create what hostile requests refer to, because it may have been deleted."""
    topics = [CreatableTopic(name, 2, 1) for name in known.topics]
    protocols = [JoinGroupRequestProtocol("range", b"")]
    group, transactional_id = known.groups[0], known.transactional_ids[0]
    position = [OffsetCommitRequestTopic(known.topics[0], partitions=[OffsetCommitRequestPartition(0, 1)])]
    for api, version, request in (
        (ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics)),
        (ApiKey.METADATA, 12, MetadataRequest(topics=None)),
        (ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(transactional_id, 60_000)),
        (ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(None, 0)),
        (ApiKey.OFFSET_COMMIT, 8, OffsetCommitRequest(known.groups[1], topics=position)),
        (ApiKey.JOIN_GROUP, 3, JoinGroupRequest(group, 6_000, 6_000, protocol_type="consumer", protocols=protocols)),
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, _joining_consumers(known)),
        (ApiKey.SHARE_GROUP_HEARTBEAT, 1, _joining_sharers(known)),
        (ApiKey.CREATE_ACLS, 3, CreateAclsRequest([AclCreation(2, known.topics[0], 3, "User:hostile", "*", 3, 3)])),
    ):  # fmt: skip
        known.learn(await connection.ask(api, version, request), request)


def _joining_consumers(known: Known) -> ConsumerGroupHeartbeatRequest:
    joining = ConsumerGroupHeartbeatRequest(known.groups[2], known.own_member, rebalance_timeout_ms=6_000)
    joining.subscribed_topic_names, joining.topic_partitions = known.topics, []
    return joining


def _joining_sharers(known: Known) -> ShareGroupHeartbeatRequest:
    return ShareGroupHeartbeatRequest(known.groups[3], known.own_member, subscribed_topic_names=known.topics)


async def large_counts(stage: Stage, rng: random.Random) -> None:
    """Every array of every API in turn, with one existing name 5,000 times, now and then more often."""
    connection, known = Connection(stage, "hostile"), Known(own_member=f"hostile-{rng.random()}")
    await _set_the_stage(connection, known)
    await _widen_the_stage(connection, known)
    arrays: list[tuple[ApiKey, tuple[MessageType, Field]]] = []
    count = 0
    while not stage.is_over.is_set():
        if not arrays:
            every = [(api, at) for api in APIS_WITH_ARRAYS for at in array_fields(api)]
            arrays = rng.sample(every, len(every))
        api, (kind, array) = arrays.pop()
        version = rng.choice([of for each, of in SERVED if each is api and of in array.versions])
        count += 1
        elements = VERY_LARGE if count % ONE_IN_SO_MANY == 0 else LARGE
        request = request_of_many(api, version, Count(kind, array, elements), known, rng)
        await connection.ask(api, version, request, about=f"{elements} x {array.name}")
        await asyncio.sleep(1 / LARGE_PER_SECOND)
    connection.close()


async def _widen_the_stage(connection: Connection, known: Known) -> None:
    """Create a topic and a group that make answers long."""
    topics = [CreatableTopic(WIDE_TOPIC, WIDTH, 1)]
    partitions = [OffsetCommitRequestPartition(partition, 1) for partition in range(WIDTH)]
    positions = [OffsetCommitRequestTopic(WIDE_TOPIC, partitions=partitions)]
    for api, version, request in (
        (ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics)),
        (ApiKey.METADATA, 12, MetadataRequest(topics=None)),
        (ApiKey.OFFSET_COMMIT, 8, OffsetCommitRequest(WIDE_GROUP, topics=positions)),
    ):
        known.learn(await connection.ask(api, version, request))


async def made_up_groups(stage: Stage, rng: random.Random) -> None:
    """Group after group with a new name: looked up and joined, never used."""
    connection = Connection(stage, "x" * 3_000)
    number = 0
    while not stage.is_over.is_set():
        number += 1
        group = f"made-up-{number}"
        protocols = [JoinGroupRequestProtocol("range", rng.randbytes(100))]
        joining = JoinGroupRequest(group, 6_000, 6_000, protocol_type="consumer", protocols=protocols)
        await connection.ask(ApiKey.JOIN_GROUP, 9, joining)
        for api, version in (
            (ApiKey.FIND_COORDINATOR, 4),
            (ApiKey.DESCRIBE_GROUPS, 5),
            (ApiKey.HEARTBEAT, 4),
        ):
            known = Known(groups=[group])
            await connection.ask(api, version, hostile_request(api, version, known, rng))
    connection.close()


async def hang_ups(stage: Stage, rng: random.Random) -> None:
    """A request, or half of one, and then the connection closes."""
    known = Known()
    while not stage.is_over.is_set():
        await stage.turn()
        api, version = rng.choice(SERVED)
        request = hostile_request(api, version, known, rng)
        frame = b"".join(encode_request(1, api, version, request, None))
        stage.note("hang-up", (api.name, version))
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", stage.port)
            writer.write(frame[: rng.choice((3, len(frame) // 2, len(frame)))])
            await asyncio.sleep(rng.choice((0, 0, 0.01)))
            writer.transport.abort()


CASES = (
    Case("extreme values", "every API and version, values at their bounds, names of what exists", 4, extreme_values),
    Case("ends of int64", "sound but for one field of 64 bits, at an end of its type", 1, ends_of_int64),
    Case("made-up groups", "groups that nobody has heard of, looked for and joined, never used", 1, made_up_groups),
    Case("hang-ups", "requests, whole and cut off, whose client is gone", 1, hang_ups),
)  # fmt: skip

COUNTS = (
    *CASES,
    Case("large counts", "sound but for one array that names the same thousands of times", 1, large_counts),
)


async def play(stage: Stage, cases: Sequence[Case] = CASES) -> None:
    """Run all of these cases, whenever the stage lets them send, until it is over.

    The same seed sends the same requests, except for ids that the broker assigns.
    """
    async with asyncio.TaskGroup() as tasks:
        for case in cases:
            for client in range(case.clients):
                luck = random.Random(f"{stage.seed} {case.name} {client}")
                tasks.create_task(_keep_on(case, stage, luck))


async def _keep_on(case: Case, stage: Stage, luck: random.Random) -> None:
    """Run a case to the end; after a refused connection try again, as a client would."""
    while not stage.is_over.is_set():
        try:
            await case.play(stage, luck)
        except OSError:
            await asyncio.sleep(0.1)
