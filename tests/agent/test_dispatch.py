"""The dispatcher's answers to unknown, unserved and unreadable requests."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from agent.dispatch import Dispatcher
from agent.handlers import HANDLERS
from agent.handlers.api_versions import OF_TELEMETRY
from agent.long_work import LongWork
from agent.replies import Reply
from agent.security.access import Access
from agent.security.listener_contexts import ClientSecurity
from agent.services import Deferred, RequestContext, Services
from sequencer.api.errors import SequencerUnavailable
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.kafka import ApiKey, decode_response, encode_request
from tailrace.kafka.apis import APIS
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.api_versions import ApiVersionsRequest
from tailrace.kafka.messages.metadata import MetadataRequest
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.agents import AgentBench, agent_bench, connection, made


def frame(api: int, version: int, body: bytes = b"", correlation_id: int = 9) -> memoryview:
    return memoryview(struct.pack(">hhih", api, version, correlation_id, -1) + body)


async def dispatched(bench: AgentBench, sent: memoryview) -> Reply:
    return await Dispatcher(bench.services)(sent, connection())


def body_of(reply: Reply) -> memoryview:
    assert reply.parts is not None
    return memoryview(b"".join(reply.parts))[4:]


@pytest.mark.parametrize("version", [5, 99, -1])
async def test_an_unknown_version_of_api_versions_is_answered_in_version_0_with_error_35(
    version: int,
) -> None:
    async with agent_bench() as bench:
        reply = await dispatched(bench, frame(ApiKey.API_VERSIONS, version, b"\0\x04xyz\x04abc\0"))
        assert not reply.close
        correlation_id, response = decode_response(ApiKey.API_VERSIONS, 0, body_of(reply))
        assert correlation_id == 9
        assert response.error_code == 35
        assert [(row.api_key, row.min_version, row.max_version) for row in response.api_keys] == [(18, 0, 4)]


async def test_api_versions_lists_what_has_a_handler_and_remembers_the_software() -> None:
    async with agent_bench() as bench:
        client = connection()
        request = ApiVersionsRequest(client_software_name="probe", client_software_version="1.2")
        sent = b"".join(encode_request(1, ApiKey.API_VERSIONS, 3, request))
        reply = await Dispatcher(bench.services)(memoryview(sent)[4:], client)
        _, response = decode_response(ApiKey.API_VERSIONS, 3, body_of(reply))
        assert {row.api_key for row in response.api_keys} == {
            int(key) for key in HANDLERS.keys() - OF_TELEMETRY
        }
        assert client.client_software == "probe/1.2"


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (frame(999, 0), "UnsupportedVersion"),
        (frame(73, 0, b"\0\5"), "UnsupportedVersion"),
        (frame(ApiKey.END_TXN, 77, b"\0"), "UnsupportedVersion"),
        (frame(ApiKey.METADATA, 99, b"\0"), "UnsupportedVersion"),
        (frame(ApiKey.METADATA, -1), "UnsupportedVersion"),
        (frame(ApiKey.FETCH, 3), "UnsupportedVersion"),
        (frame(ApiKey.METADATA, 1, b"\0\0\0\5ab"), "MalformedRequest"),
        (frame(ApiKey.METADATA, 1, b"\x7f\xff\xff\xff"), "MalformedRequest"),
        (memoryview(b"\0\3"), "MalformedRequest"),
        (memoryview(b"GET / HTTP/1.1\r\n\r\n"), "MalformedRequest"),
    ],
)
async def test_an_unreadable_request_closes_the_connection_and_is_counted(
    sent: memoryview, kind: str
) -> None:
    async with agent_bench() as bench:
        reply = await dispatched(bench, sent)
        assert reply.close and reply.parts is None
        counted = bench.services.telemetry.registry.get_sample_value(
            "tailrace_bad_requests_total", {"kind": kind}
        )
        assert counted == 1


def test_every_declared_api_has_a_handler() -> None:
    assert HANDLERS.keys() == APIS.keys()


async def _bug(services: Services, context: RequestContext, request: Any) -> Any:
    raise ZeroDivisionError("a bug")


async def _late_bug(services: Services, context: RequestContext, request: Any) -> Any:
    def bug(given: object) -> None:
        raise ZeroDivisionError("a bug")

    deferred = Deferred(bug)
    asyncio.get_running_loop().call_soon(deferred.is_ready)
    return deferred


async def test_an_unforeseen_error_closes_the_connection_and_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(HANDLERS, ApiKey.METADATA, _bug)

    async with agent_bench() as bench:
        sent = memoryview(b"".join(encode_request(1, ApiKey.METADATA, 1, MetadataRequest())))[4:]
        assert (await dispatched(bench, sent)).close
        assert failures(bench) == 1


async def test_an_unforeseen_error_of_a_deferred_answer_is_counted_and_reaches_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(HANDLERS, ApiKey.METADATA, _late_bug)

    async with agent_bench() as bench:
        sent = memoryview(b"".join(encode_request(1, ApiKey.METADATA, 1, MetadataRequest())))[4:]
        reply = await dispatched(bench, sent)
        assert not reply.is_made and not reply.close
        assert await made(reply) is None and reply.close
        assert failures(bench) == 1


def failures(bench: AgentBench) -> float | None:
    return bench.services.telemetry.registry.get_sample_value(
        "tailrace_request_failures_total", {"api": "METADATA"}
    )


@pytest.mark.parametrize(("version", "is_closed"), [(13, False), (12, True)])
async def test_a_sequencer_that_is_away_is_answered_where_the_response_can_say_so(
    version: int, is_closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(services: Services, context: RequestContext, request: Any) -> Any:
        raise SequencerUnavailable("away (by the test)")

    async with agent_bench() as bench:
        monkeypatch.setitem(HANDLERS, ApiKey.METADATA, away)
        sent = b"".join(encode_request(1, ApiKey.METADATA, version, MetadataRequest(topics=None)))
        reply = await dispatched(bench, memoryview(sent)[4:])
        assert reply.close is is_closed
        if not is_closed:
            _, response = decode_response(ApiKey.METADATA, version, body_of(reply))
            assert response.error_code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize("api", [38, 39, 40, 41])
async def test_delegation_tokens_are_refused_as_by_a_kafka_without_them(api: int) -> None:
    async with agent_bench() as bench:
        bench.services.clients = ClientSecurity()
        spec = APIS[api]
        for version in range(spec.served.first, spec.served.last + 1):
            for principal, code in (
                ("User:ANONYMOUS", ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
                ("User:alice", ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED),
            ):
                client = connection()
                client.access = Access(principal=principal)
                sent = b"".join(encode_request(1, api, version, spec.request()))
                reply = await Dispatcher(bench.services)(memoryview(sent)[4:], client)
                _, response = decode_response(api, version, body_of(reply))
                assert response.error_code == code


@pytest.mark.parametrize(("partitions", "record_bytes", "is_long"), [(1, 400_000, False), (5_000, 1, True)])
async def test_a_produce_request_is_long_by_its_elements_and_not_by_its_records(
    monkeypatch: pytest.MonkeyPatch, partitions: int, record_bytes: int, is_long: bool
) -> None:
    batch = memoryview(encode_batch([NewRecord(None, bytes(record_bytes))], timestamps=[1_700_000_000_000]))
    data = [PartitionProduceData(index=index, records=batch) for index in range(partitions)]
    request = ProduceRequest(
        transactional_id="x", acks=-1, topic_data=[TopicProduceData(name="t", partition_data=data)]
    )
    sent = memoryview(b"".join(encode_request(1, ApiKey.PRODUCE, 9, request)))[4:]
    seen: list[bool] = []

    async def shared(self: LongWork, client: object, work: Any, *, is_long: bool = False) -> Any:
        seen.append(is_long)
        return await work

    monkeypatch.setattr(LongWork, "shared", shared)

    async with agent_bench() as bench:
        await dispatched(bench, sent)
        assert seen == [is_long]
