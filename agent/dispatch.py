"""From a frame to a handler and back: the one place that decides what is served and how errors are answered.

What a client may send wrong, by how it is answered:
- an unknown API or version: the connection is closed, as Kafka does, but ApiVersions, which gets UNSUPPORTED_VERSION
  in a version 0 body (KIP-511);
- an API that is declared and has no handler: UNSUPPORTED_VERSION where the response has an error code of its own;
- bytes that are not the message they claim to be: a log line, a metric, a closed connection;
- anything the message says that can't be done: error codes, by the handler;
- a sequencer that can't be asked now, where no handler said so: its error code where the response has one of its own,
  else a closed connection, after which clients try again.
An exception that no handler foresaw is logged with its stack, counted, and closes the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog
from msgspec import structs

from agent.connection import KafkaConnection, LikeBefore, Reply
from agent.errors import code_of
from agent.handlers import AT_ONCE, HANDLERS
from agent.handlers.produce import answer_of_one
from agent.leadership import KnownLeadership
from agent.produce.active_buffer import BatchResult
from agent.security.access import Access
from agent.services import (
    MUST_WAIT,
    Deferred,
    EncodedResponse,
    Handler,
    HandlerAtOnce,
    HeldResponse,
    RequestContext,
    Services,
    zone_of_client,
)
from agent.usual_produce import UsualReply, UsualRequests
from sequencer.api import SequencerError
from tailrace.buffers import Buffer
from tailrace.kafka import (
    ApiKey,
    MalformedRequest,
    RequestHeader,
    UnsupportedVersion,
    decode_request,
    encode_response,
    parse_request_header,
)
from tailrace.kafka.answers import produce_answer, sent_again, with_throttle_time
from tailrace.kafka.apis import APIS, ApiSpec
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.api_versions import ApiVersion, ApiVersionsResponse
from tailrace.kafka.messages.produce import TopicProduceData
from tailrace.kafka.produce_shape import ProduceShape, shape_of
from tailrace.kafka.schema import fields_of
from tailrace.limits import MAX_NAME_BYTES, cut

log = structlog.get_logger("agent.requests")

_PRODUCE = APIS[ApiKey.PRODUCE]


class Requester(Protocol):
    """Who sent a frame, as its handling sees it: a connection, or a request of the gateway."""

    access: Access
    client_software: str
    deferred: int
    leadership: KnownLeadership
    muted_until: float
    peer_host: str
    produce_shape: ProduceShape | None
    sees_all_groups: bool

    def mute(self, until: float, wait: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Read and handle nothing more until `wait` has ended."""
        ...


class _Asked(msgspec.Struct, frozen=True, gc=False):
    """A request that could be read. `started`: monotonic seconds."""

    header: RequestHeader
    spec: ApiSpec
    context: RequestContext
    request: Any
    started: float


class Dispatcher:
    """Handles the frames of all connections of a listener, by handlers that check what a client may do or don't."""

    def __init__(
        self,
        services: Services,
        handlers: Mapping[int, Handler] = HANDLERS,
        at_once: Mapping[int, HandlerAtOnce] = AT_ONCE,
    ) -> None:
        self._services = services
        self._handlers = handlers
        self._at_once = at_once
        self._quotas = services.quotas

    async def __call__(self, frame: memoryview, connection: Requester) -> Reply:
        asked = self._read(frame, connection)
        if isinstance(asked, Reply):
            return asked
        try:
            handled = self._handlers[asked.spec.key](self._services, asked.context, asked.request)
            charge = asked.context.charge
            response = await (handled if charge is None else charge.timed(handled))
            return self._replied(asked, response)
        except SequencerError as error:
            return self._sequencer_failed(asked, error)
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request
            self._failed(asked, error)
            return Reply(close=True)

    def usual(self, connection: KafkaConnection) -> LikeBefore | None:
        """What the connection's next requests lead to if they are like its last one, as far as that still holds."""
        requests = connection.usual
        if requests is not None and not requests.begin():
            requests = connection.usual = None
        return requests

    def at_once(self, frame: memoryview, connection: KafkaConnection) -> Reply | None:
        """The reply where nothing has to be waited for, and it is of an API that is worth a try; None elsewhere."""
        requests = self.usual(connection)
        if requests is not None and (reply := requests.take(frame, 0, len(frame), is_kept=True)) is not None:
            return reply
        if int.from_bytes(frame[:2], "big") not in self._at_once:
            return None
        shape = connection.produce_shape
        asked = self._read(frame, connection)
        if isinstance(asked, Reply):
            return asked
        try:
            response = self._at_once[asked.spec.key](self._services, asked.context, asked.request)
            if response is MUST_WAIT:
                return None
            if asked.context.charge is not None:
                asked.context.charge.timed_at_once(self._services.clock.monotonic() - asked.started)
            if shape is not None and shape is connection.produce_shape and isinstance(response, Deferred):
                self._learn(asked, shape, connection)
            return self._replied(asked, response)
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request
            self._failed(asked, error)
            return Reply(close=True)

    def _learn(self, asked: _Asked, shape: ProduceShape, connection: KafkaConnection) -> None:
        """The second request of a shape was admitted: take those like it without looking at the rest again."""
        if asked.context.access.tenant is not None:
            return  # its names are translated on the way to the handler
        (named,) = asked.request.topic_data
        kept = structs.replace(
            asked, request=TopicProduceData(named.name, named.topic_id)
        )  # without its records
        connection.usual = UsualRequests.like(
            self._services, asked.context, shape=shape, named=kept.request, acks=asked.request.acks,
            on_unusual=partial(self._unusual, kept),
        )  # fmt: skip

    def _unusual(self, asked: _Asked, reply: UsualReply, result: BatchResult) -> None:
        """Make the answer to a request to the topic of `asked` whose batch was not simply stored."""
        header = structs.replace(asked.header, correlation_id=reply.correlation_id)
        deferred = Deferred(
            lambda _: answer_of_one(
                self._services, header.api_version, topic=asked.request, index=reply.index, result=result
            )
        )
        deferred.is_ready()
        self._answer(structs.replace(asked, header=header, started=reply.started), reply, deferred)

    def _read(self, frame: memoryview, connection: Requester) -> _Asked | Reply:
        """The request, or the reply to what is none."""
        started = self._services.clock.monotonic()
        shape = connection.produce_shape
        if shape is not None and (read := shape.read(frame)) is not None:
            header, request = read
            return _Asked(header, _PRODUCE, self._context(header, frame, connection), request, started)
        try:
            header = parse_request_header(frame)
            spec = APIS.get(header.api_key)
            if spec is None:
                raise UnsupportedVersion(header.api_key, header.api_version)
            if header.api_key == ApiKey.API_VERSIONS and header.api_version not in spec.listed:
                return Reply(_api_versions_too_new(header))
            request = decode_request(header.api_key, header.api_version, frame, header.body_offset)
        except (MalformedRequest, UnsupportedVersion) as error:
            self._services.telemetry.bad_requests.labels(type(error).__name__).inc()
            log.warning(
                "closed a connection: a request that can't be read",
                peer=connection.peer_host,
                error=str(error),
            )
            return Reply(close=True)
        if header.api_key == ApiKey.PRODUCE:
            connection.produce_shape = shape_of(frame, header, request)
        context = self._context(header, frame, connection)
        if header.api_key == ApiKey.API_VERSIONS and header.api_version >= 3:
            named = f"{request.client_software_name}/{request.client_software_version}"
            connection.client_software = cut(named, MAX_NAME_BYTES)
        return _Asked(header, spec, context, request, started)

    def _context(self, header: RequestHeader, frame: memoryview, connection: Requester) -> RequestContext:
        client_id = cut(header.client_id or "", MAX_NAME_BYTES)
        charge = None
        if self._quotas.is_on:
            charge = self._quotas.charge(
                api=header.api_key,
                principal=connection.access.principal,
                client_id=client_id,
                connection=connection,
                tenant=connection.access.tenant,
                received_bytes=len(frame),
            )
        return RequestContext(
            api_version=header.api_version,
            client_id=client_id,
            client_host=connection.peer_host,
            zone=zone_of_client(header.client_id, self._services.identity.zone),
            client_software=connection.client_software,
            leadership=connection.leadership,
            is_first_waiting=connection.deferred == 0,
            sees_all_groups=connection.sees_all_groups,
            access=connection.access,
            charge=charge,
            connection=connection,
        )

    def _replied(self, asked: _Asked, response: Any) -> Reply:
        if asked.context.charge is not None:
            asked.context.charge.handled()
        if isinstance(response, Deferred):
            reply = Reply.deferred()
            response.then(partial(self._answer, asked, reply))
            return reply
        if isinstance(response, HeldResponse):
            return self._held(asked, response)
        return Reply(self._encoded(asked, response))

    def _held(self, asked: _Asked, held: HeldResponse) -> Reply:
        try:
            return Reply(self._encoded(asked, held.response), on_sent=held.release)
        except BaseException:
            held.release()
            raise

    def _sequencer_failed(self, asked: _Asked, error: SequencerError) -> Reply:
        header, spec = asked.header, asked.spec
        log.warning(
            "a request got no answer from the sequencer",
            api=spec.key.name, peer=asked.context.client_host, client_id=header.client_id, error=str(error),
        )  # fmt: skip
        if not _has_error_code(spec, header.api_version):
            return Reply(close=True)
        response = spec.response(error_code=code_of(error))
        return Reply(encode_response(header.correlation_id, header.api_key, header.api_version, response))

    def _answer(self, asked: _Asked, reply: Reply, deferred: Deferred) -> None:
        """Make the deferred answer. An unforeseen error is logged and counted, and ends the connection."""
        try:
            response = deferred.response()
            if isinstance(response, Deferred):
                response.then(partial(self._answer, asked, reply))
                return
            parts = self._encoded(asked, response)
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request
            self._failed(asked, error)
            reply.failed()
        else:
            reply.made(parts)

    def _encoded(self, asked: _Asked, response: Any) -> Sequence[Buffer] | None:
        header = asked.header
        self._services.telemetry.request_served(
            asked.spec.key, self._services.clock.monotonic() - asked.started
        )
        if response is None:
            return None
        charge = asked.context.charge
        if charge is None:
            return self._parts(header, response)
        if hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = charge.throttle_time_ms
        parts = self._parts(header, response)
        charge.sent(sum(map(len, parts)))
        return with_throttle_time(parts, header.api_key, header.api_version, charge.throttle_time_ms)

    def _parts(self, header: RequestHeader, response: Any) -> Sequence[Buffer]:
        if isinstance(response, EncodedResponse):
            return sent_again(header.correlation_id, response.body)
        if header.api_key == ApiKey.PRODUCE:
            return produce_answer(header.correlation_id, header.api_version, response)
        return encode_response(header.correlation_id, header.api_key, header.api_version, response)

    def _failed(self, asked: _Asked, error: Exception) -> None:
        header, api = asked.header, asked.spec.key.name
        self._services.telemetry.request_failures.labels(api).inc()
        log.error(
            "a request failed in a way that no handler foresaw; its connection is closed",
            api=api, version=header.api_version, peer=asked.context.client_host,
            client_id=header.client_id, correlation_id=header.correlation_id, exc_info=error,
        )  # fmt: skip


def _has_error_code(spec: ApiSpec, version: int) -> bool:
    return any(field.name == "error_code" and version in field.versions for field in fields_of(spec.response))


def _api_versions_too_new(header: RequestHeader) -> Sequence[Buffer]:
    spec = APIS[ApiKey.API_VERSIONS]
    response = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(ApiKey.API_VERSIONS, spec.listed.first, spec.listed.last)],
    )
    return encode_response(header.correlation_id, ApiKey.API_VERSIONS, 0, response)
