"""Hostile clients of the gateway: cases for `make hostile CASES=gateway`, in addition to those in cases.

They speak HTTP, and mostly valid HTTP: every route with names of what exists and values at their bounds, bodies of
records that are expensive to parse, heads and bodies that do not end, answers and events that nobody reads.
"""

from __future__ import annotations

import asyncio
import base64
import random
import re
from contextlib import suppress
from urllib.parse import quote

from agent.gateway.routes import ROOTS, ROUTES, Route
from tests.compat.broker import ADMIN
from tests.hostile.cases import LARGE_PER_SECOND, PATIENCE_SECONDS, Case, Stage
from tests.hostile.known import QUIET_GROUP, QUIET_TOPIC
from tests.hostile.values import CONFIG_VALUES, CONFIGS, TEXTS

TOPICS, GROUPS = tuple(f"hostile-{number}" for number in range(4)), ("hostile-group", "no-such-group")
NUMBERS = ("0", "1", "-1", "2147483647", "2147483648", "9" * 19, "9" * 4_000, "1e9", "²", "%00", "")
WORDS = ("earliest", "latest", "binary", "string", "json", "read_committed", "0,1", "0," * 2_000)
QUERY = (
    "offset", "key_format", "value_format", "isolation", "max_records", "max_bytes", "timeout_ms", "partitions",
)  # fmt: skip
JSON_VALUES = (
    "null", "true", "-1", "0", "2147483648", "9223372036854775808", "1e400", "9" * 5_000, '""', '"x"', "{}", "[]",
    "[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900, '"' + "x" * 40_000 + '"', '"\\ud800"', '"\\u0000"',
    "[" + ",".join(["1"] * 5_000) + "]", '"9999-12-31T23:59:59.999Z"', '"0001-01-01T00:00:00+23:59"',
)  # fmt: skip
HOSTS = ("localhost", "localhost:1", "127.0.0.1", "[::1]", "tailrace.example", "a@localhost", "x" * 8_000)
LOGINS = (f"Basic {base64.b64encode(ADMIN.encode()).decode()}",)
WRONG_LOGINS = (
    "Basic",
    "Basic eDp4",
    "Bearer x.y.z",
    f"Basic {'A' * 8_000}",
    "Digest x",
    "Bearer " + "." * 4_000,
)
LARGE_BYTES = 512 * 1024
HELD, HELD_SECONDS = 30, 2.0
PIPELINED = 50
STREAMS = 20
READ_BYTES = 1 << 20
_PART = re.compile(r"\{(\w+)\}")
_STORED = b'{"value":{"type":"STRING","data":"x"}}'


class Web:
    """The requests of one client, each on its own connection."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.cluster = "unknown"

    async def ask(self, head: str, body: bytes = b"", *, about: str = "") -> bytes:
        """Send a request; returns the answer, or as much of it as arrives before the time-out. `head`: without the
        empty line at its end."""
        await self._stage.turn()
        self._stage.note(f"HTTP {about or head.split()[0]}", head)
        data = head.encode("latin-1", "replace") + b"\r\nConnection: close\r\n\r\n" + body
        answer = bytearray()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._stage.gateway)
        except OSError:
            return b""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                writer.write(data)
                while chunk := await reader.read(READ_BYTES):
                    answer += chunk
        except (TimeoutError, OSError):
            pass
        finally:
            writer.transport.abort()
        if answer.startswith(b"HTTP/1.1 500"):
            self._stage.unforeseen.append(f"{head:.300} {body[:200]!r}: {bytes(answer[:500])!r}")
        return bytes(answer)

    async def set_the_stage(self) -> None:
        """Learn the cluster's id, and create topics, because they may have been deleted."""
        found = re.search(rb'"cluster_id":"([^"]+)"', await self.ask(head("GET", "/v3/clusters")))
        self.cluster = found[1].decode() if found else self.cluster
        for topic in TOPICS:
            body = b'{"topic_name":"%s","partitions_count":2}' % topic.encode()
            await self.ask(*with_body("POST", self.path("topics"), body))

    def path(self, *parts: str) -> str:
        """Return a path below the cluster."""
        return "/".join((f"/v3/clusters/{self.cluster}", *parts))


def head(method: str, path: str, *more: str, login: str = LOGINS[0], host: str = "localhost") -> str:
    """Return a request's head, without the empty line at its end."""
    return "\r\n".join((f"{method} {path} HTTP/1.1", f"Host: {host}", f"Authorization: {login}", *more))


def with_body(method: str, path: str, body: bytes) -> tuple[str, bytes]:
    """Return a head and the body that it announces."""
    return head(method, path, f"Content-Length: {len(body)}", "Content-Type: application/json"), body


async def every_route(stage: Stage, rng: random.Random) -> None:
    """Every route in random order, with values at their bounds and names of what exists."""
    web, left, count = Web(stage), list[Route](), 0
    while not stage.is_over.is_set():
        if count % len(ROUTES) == 0:
            await web.set_the_stage()
        left = left or rng.sample(ROUTES, len(ROUTES))
        route = left.pop()
        path = rng.choice(ROOTS) + _path(route, web, rng)
        asked = {
            rng.choice(QUERY): quote(rng.choice((*NUMBERS, *WORDS))[:4_000]) for _ in range(rng.randrange(4))
        }
        query = "&".join(f"{name}={value}" for name, value in asked.items())
        body = b"" if route.method in ("GET", "DELETE") else _body(route, rng)
        await web.ask(*with_body(route.method, f"{path}?{query}", body))
        count += 1


def _path(route: Route, web: Web, rng: random.Random) -> str:
    return _PART.sub(lambda part: _name(part[1], route, web, rng), route.path)


def _name(part: str, route: Route, web: Web, rng: random.Random) -> str:
    """Return one part of a path. Whatever belongs to the bystanders is only read."""
    if part == "cluster_id":
        return web.cluster if rng.random() < 0.95 else "other"
    if rng.random() < 0.2:
        return quote(rng.choice(TEXTS)[:1_500], safe="")
    is_read = route.method == "GET"
    names = {
        "topic_name": (*TOPICS, QUIET_TOPIC) if is_read else TOPICS,
        "group_id": (*GROUPS, QUIET_GROUP),
        "name": CONFIGS,
    }
    return rng.choice(names.get(part, NUMBERS))


def _body(route: Route, rng: random.Random) -> bytes:
    """Return a body of the shape that the route takes, in which any value may be replaced by another."""
    topic, config = f'"{rng.choice(TOPICS)}"', f'"{rng.choice(CONFIGS)}"'
    value = f'"{rng.choice(CONFIG_VALUES)}"'
    change = _object(rng, name=config, value=value, operation=rng.choice(('"SET"', '"DELETE"', '"x"')))
    data = _object(rng, type=rng.choice(('"BINARY"', '"STRING"', '"JSON"')), data='"eA=="')
    fields = {
        "topics": {"topic_name": topic, "partitions_count": "2", "replication_factor": "1",
                   "configs": f"[{change}]", "validate_only": "true"},
        "{topic_name}": {"partitions_count": "3"},
        "configs:alter": {"data": f"[{change}]", "validate_only": "true"},
        "{name}": {"value": value},
        "records": {"partition_id": "0", "key": data, "value": data, "timestamp": '"2026-01-31T12:00:00Z"',
                    "headers": '[{"name":"h","value":"eA=="}]'},
    }  # fmt: skip
    return _object(rng, **fields[route.path.rpartition("/")[2]]).encode()


def _object(rng: random.Random, **fields: str) -> str:
    """Return a JSON object; some of its values are replaced by others."""
    said = (
        f'"{name}":{rng.choice(JSON_VALUES) if rng.random() < 0.15 else value}'
        for name, value in fields.items()
    )
    return "{" + ",".join(said) + "}"


def large_bodies() -> dict[str, bytes]:
    """Return bodies of records that are expensive to parse, by their kind."""
    size = LARGE_BYTES
    return {
        "braces": b"{" * size,
        "empty objects": b"{}" * (size // 2),
        "quotes": b'{"a":' + b'""' * (size // 2),
        "escapes": b'{"a":"' + b"\\\\" * (size // 2),
        "deep": b'{"value":{"type":"JSON","data":' + b"[" * size,
        "numbers": b'{"value":{"type":"JSON","data":[' + b"1e9," * (size // 4) + b"1]}}",
        "digits": b'{"partition_id":' + b"9" * size + b"}",
        "headers": b'{"headers":[' + b'{"name":"a"},' * (size // 13) + b'{"name":"a"}]}',
        "long text": b'{"value":{"type":"STRING","data":"' + b"\\u00e9" * (size // 6) + b'"}}',
        "long key": b'{"key":{"type":"STRING","data":"' + b"k" * (3 * size) + b'"}}',
        "records": _STORED * (size // len(_STORED)),
    }


async def record_streams(stage: Stage, rng: random.Random) -> None:
    """Bodies of records that are expensive to parse, whole and in chunks of few bytes."""
    web, bodies = Web(stage), large_bodies()
    await web.set_the_stage()
    while not stage.is_over.is_set():
        name = rng.choice(list(bodies))
        path = web.path("topics", rng.choice(TOPICS), "records")
        if rng.random() < 0.5:
            await web.ask(*with_body("POST", path, bodies[name]), about=name)
        else:
            body = in_chunks(bodies[name][: LARGE_BYTES // 8], rng.choice((1, 7, 4_096)))
            await web.ask(head("POST", path, "Transfer-Encoding: chunked"), body, about=f"{name} in chunks")
        await asyncio.sleep(1 / LARGE_PER_SECOND)


async def large_requests(stage: Stage, rng: random.Random) -> None:
    """Bodies of other requests that name thousands of configs, deep and long."""
    web = Web(stage)
    await web.set_the_stage()
    one = b'{"name":"retention.ms","value":"1"},'
    many = b'"configs":[' + one * (LARGE_BYTES // len(one)) + b'{"name":"x"}]'
    bodies = (
        (web.path("topics"), b'{"topic_name":"hostile-0",' + many + b"}"),
        (
            web.path("topics", TOPICS[0], "configs:alter"),
            b'{"data":' + many.removeprefix(b'"configs":') + b"}",
        ),
        (web.path("topics"), b'{"topic_name":' + b"[" * LARGE_BYTES),
        (web.path("topics"), b'{"topic_name":"' + b"x" * LARGE_BYTES + b'"}'),
    )
    while not stage.is_over.is_set():
        path, body = rng.choice(bodies)
        await web.ask(*with_body("POST", path, body), about="large request")
        await asyncio.sleep(1 / LARGE_PER_SECOND)


def in_chunks(body: bytes, size: int) -> bytes:
    """Encode a body with `Transfer-Encoding: chunked`."""
    parts = (body[at : at + size] for at in range(0, len(body), size))
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


async def never_ending(stage: Stage, rng: random.Random) -> None:
    """Connections whose head or body does not end: silent, or with a byte now and then."""
    web = Web(stage)
    await web.set_the_stage()
    records = web.path("topics", TOPICS[0], "records")
    begun = (
        b"",
        b"GET /v3/clusters HTTP/1.1\r\nHost",
        head("POST", records, "Content-Length: 1000000").encode() + b'\r\n\r\n{"value":',
        head("POST", records, "Transfer-Encoding: chunked").encode() + b"\r\n\r\n26\r\n" + _STORED + b"\r\n",
        head("POST", web.path("topics"), "Transfer-Encoding: chunked", "Expect: 100-continue").encode()
        + b"\r\n\r\n",
    )
    while not stage.is_over.is_set():
        held = [await _sent(stage, rng.choice(begun)) for _ in range(HELD)]
        with suppress(TimeoutError):
            async with asyncio.timeout(HELD_SECONDS):
                while not stage.is_over.is_set():
                    await stage.turn()
                    rng.choice(held).write(b"1")
        for writer in held:
            writer.transport.abort()


async def _sent(stage: Stage, data: bytes) -> asyncio.StreamWriter:
    """Open a connection and send this on it; its answers are not read."""
    await stage.turn()
    stage.note("HTTP not read", data[:200])
    _, writer = await asyncio.open_connection("127.0.0.1", stage.gateway)
    writer.write(data)
    return writer


async def pipelined(stage: Stage, rng: random.Random) -> None:
    """Many requests at once; the client reads none of the answers and closes."""
    web = Web(stage)
    await web.set_the_stage()
    paths = (
        "/v3/clusters",
        web.path("topics"),
        web.path("topics", QUIET_TOPIC, "configs"),
        "/",
        web.path("nowhere"),
    )
    while not stage.is_over.is_set():
        data = (head("GET", rng.choice(paths)) + "\r\n\r\n").encode() * PIPELINED
        for _ in range(PIPELINED):
            await stage.turn()
        writer = await _sent(stage, data)
        await asyncio.sleep(rng.random() / 2)
        writer.transport.abort()


async def long_polls(stage: Stage, rng: random.Random) -> None:
    """Reads and event streams that wait for records; the client reads nothing and soon closes."""
    web = Web(stage)
    await web.set_the_stage()
    polls = (
        web.path("topics", TOPICS[0], "partitions", "0", "records") + "?timeout_ms=30000",
        web.path("topics", QUIET_TOPIC, "events"),
        web.path("topics", QUIET_TOPIC, "events") + "?offset=earliest&value_format=json",
    )
    while not stage.is_over.is_set():
        held = [
            await _sent(stage, (head("GET", rng.choice(polls)) + "\r\n\r\n").encode()) for _ in range(STREAMS)
        ]
        await asyncio.sleep(rng.random())
        for writer in held:
            writer.transport.abort()


async def bad_heads(stage: Stage, rng: random.Random) -> None:
    """Heads that are long, have many fields, name other hosts, or carry invalid logins."""
    web = Web(stage)
    while not stage.is_over.is_set():
        count, size = rng.choice(((0, 0), (120, 10), (20_000, 4), (10, 8_000), (1, 100_000)))
        fields = [f"X-{number}: {'x' * size}" for number in range(count)]
        path = rng.choice(
            ("/v3/clusters", "http://other.example/v3/clusters", "/" + "x" * 9_000, "*", "//", "/%00")
        )
        login = rng.choice((*LOGINS, *WRONG_LOGINS))
        method = rng.choice(("GET", "GET", "POST", "OPTIONS", "CONNECT", "X" * 50))
        await web.ask(head(method, path, *fields, login=login, host=rng.choice(HOSTS)), about="bad head")


GATEWAY = (
    Case(
        "every route", "every route over HTTP, values at their bounds, names of what exists", 3, every_route
    ),
    Case("record streams", "bodies of records that cost much to look at", 1, record_streams),
    Case("large requests", "other bodies with thousands of configs, deep and long", 1, large_requests),
    Case("never ending", "heads and bodies that do not end", 1, never_ending),
    Case("pipelined", "many requests in one, whose answers nobody reads", 1, pipelined),
    Case(
        "long polls", "reads and event streams of clients that read nothing and are soon gone", 1, long_polls
    ),
    Case("bad heads", "long heads, many fields, other hosts, logins that are none", 1, bad_heads),
)
