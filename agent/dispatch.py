"""Dispatch: frames to handlers and responses back. This one module decides what is served and how errors are answered.

What a client may send wrong, and the answer:
- an unknown API or version: the connection is closed, as Kafka does. ApiVersions gets UNSUPPORTED_VERSION in a version
  0 body (KIP-511);
- a declared API without a handler: UNSUPPORTED_VERSION if the response has a top-level error code;
- bytes that are not the message they claim to be: a log line, a metric, a closed connection;
- a valid message that asks for something impossible: the handler's error codes;
- a produce request with acks=0 that is refused: a closed connection, as in Kafka, because it has no answer;
- a request that needs the sequencer while it is unreachable, and whose handler does not handle that: the sequencer's
  error code if the response has a top-level error code, else a closed connection, after which clients retry.
An unexpected exception is logged with its stack, counted, and closes the connection.

Long requests are decoded, and long answers encoded, in several turns of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog
from msgspec import structs

from agent.answer_memory import AnswerReservation
from agent.connection import KafkaConnection
from agent.decoding_threads import CLIENT
from agent.errors import AnswerMemoryExhausted, AnswerTooLarge, RequestMemoryExhausted, code_of
from agent.handlers import AT_ONCE, HANDLERS, LARGE
from agent.handlers.accepted_batches import answer_of_one
from agent.leadership import KnownLeadership
from agent.long_work import LONG_FRAME_BYTES
from agent.memory_budget import Grant, release
from agent.produce.active_buffer import BatchResult
from agent.produce.request_memory import FREE_ELEMENTS
from agent.produce_fast_path import FastPathReply, ProduceFastPath
from agent.replies import FastPath, Reply
from agent.security.access import Access
from agent.services import (
    MUST_WAIT,
    Deferred,
    EncodedResponse,
    Handler,
    HandlerAtOnce,
    HeldResponse,
    LongAnswer,
    RequestContext,
    Services,
    zone_of_client,
)
from sequencer.api.errors import SequencerError
from tailrace.buffers import Buffer
from tailrace.kafka import (
    ApiKey,
    MalformedRequest,
    RequestHeader,
    UnsupportedVersion,
    decode_request,
    decode_request_in_steps,
    encode_response,
    encode_response_in_steps,
    parse_request_header,
)
from tailrace.kafka.answers import produce_answer, sent_again, with_throttle_time
from tailrace.kafka.apis import APIS, ApiSpec
from tailrace.kafka.encoder_source import Parts
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.api_versions import ApiVersion, ApiVersionsResponse
from tailrace.kafka.messages.produce import ProduceRequest, ProduceResponse, TopicProduceData
from tailrace.kafka.produce_elements import elements_of
from tailrace.kafka.produce_shape import ProduceShape, ProduceShapes, shape_of
from tailrace.kafka.schema import fields_of
from tailrace.kafka.source_writer import STEP
from tailrace.limits import MAX_NAME_BYTES, cut
from tailrace.turns import Steps, Turns, at_once, done_in_a_step, in_turns

READ_AT_ONCE_BYTES = 32 * 1024
"""A longer request may have so many elements that it is decoded in several turns of the loop."""

log = structlog.get_logger("agent.requests")

_PRODUCE = APIS[ApiKey.PRODUCE]


class Requester(Protocol):
    """The sender of a frame: a connection, or a request of the gateway."""

    access: Access
    client_software: str
    deferred: int
    leadership: KnownLeadership
    muted_until: float
    peer_host: str
    produce_shapes: ProduceShapes | None
    sees_all_groups: bool

    def mute(self, until: float, wait: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Read and handle no requests until `wait` has ended."""


class _RefusedUnanswered(Exception):
    """A batch of a produce request with acks=0 was refused; the message is the error's name."""


class _Call(msgspec.Struct, frozen=True):
    """A decoded request and its origin. `started`: monotonic seconds. `held`: its objects' memory until the answer.
    `shape`: of a produce request with one batch; `is_known`: earlier requests had it."""

    header: RequestHeader
    spec: ApiSpec
    context: RequestContext
    request: Any
    started: float
    held: Grant | None = None
    shape: ProduceShape | None = None
    is_known: bool = False


class Dispatcher:
    """Handles the frames of all connections of a listener, with handlers that check permissions or without."""

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
        self._answering: set[asyncio.Task[None]] = set()

    async def __call__(self, frame: memoryview, connection: Requester) -> Reply:
        client = (connection.access.principal, connection.access.host)
        CLIENT.set(client)
        is_long = len(frame) > LONG_FRAME_BYTES
        if int.from_bytes(frame[:2], "big") != ApiKey.PRODUCE:
            handling = self._read_and_handled(frame, connection)
        elif _read_by_shape(frame, connection) is not None:
            handling, is_long = self._read_and_handled(frame, connection), False
        else:
            counting = elements_of(frame)
            elements = done_in_a_step(counting)
            handling = self._produced(frame, connection, elements, counting)
            # A request with few elements is short, however many bytes of records it has.
            is_long = is_long and elements is None
        return await self._services.long_work.shared(client, handling, is_long=is_long)

    async def _produced(
        self, frame: memoryview, connection: Requester, elements: int | None, counting: Steps[int]
    ) -> Reply:
        """Return the reply to a produce request. `elements` is None if counting them takes several turns."""
        if elements is None:
            elements = await in_turns(counting, Turns(STEP))
        if elements <= FREE_ELEMENTS:
            return await self._read_and_handled(frame, connection)
        return await self._in_request_memory(frame, connection, elements)

    async def _in_request_memory(self, frame: memoryview, connection: Requester, elements: int) -> Reply:
        """Return the reply to a produce request of many elements; wait for memory before decoding it."""
        try:
            held = await self._services.request_memory.take(elements)
        except RequestMemoryExhausted as error:
            log.warning(
                "closed a connection: no memory for its objects", peer=connection.peer_host, error=str(error)
            )
            return Reply(close=True)
        is_deferred = False
        try:
            reply = await self._read_and_handled(frame, connection, held)
            is_deferred = not reply.is_made
            return reply
        finally:
            if not is_deferred:
                held.release()

    async def _read_and_handled(
        self, frame: memoryview, connection: Requester, held: Grant | None = None
    ) -> Reply:
        if len(frame) > READ_AT_ONCE_BYTES:
            call = await self._read_in_turns(frame, connection)
        else:
            call = self._read(frame, connection)
        if isinstance(call, Reply):
            return call
        if call.spec.key in LARGE:
            return await self._in_room(call)
        return await self._handled(call if held is None else structs.replace(call, held=held))

    async def _in_room(self, call: _Call) -> Reply:
        """As `_handled`, for an answer that may be large: it holds its part of the answer memory until it is sent."""
        reservation = AnswerReservation(self._services.answer_memory)
        try:
            reply = await self._handled(
                structs.replace(call, context=structs.replace(call.context, reservation=reservation))
            )
        except BaseException:
            reservation.release()
            raise
        if reply.on_sent is None and reservation.written(sum(map(len, reply.parts or ()))):
            reply.on_sent = reservation.release
        return reply

    async def _handled(self, call: _Call) -> Reply:
        try:
            handled = self._handlers[call.spec.key](self._services, call.context, call.request)
            charge = call.context.charge
            response = await (handled if charge is None else charge.timed(handled))
            if isinstance(response, Deferred):
                return self._replied(call, response)
            return await self._replied_in_turns(call, response)
        except SequencerError as error:
            return self._refused(call, error, "a request got no answer from the sequencer")
        except (AnswerMemoryExhausted, AnswerTooLarge) as error:
            return self._refused(call, error, "a request's answer takes more memory than there is")
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request
            self._failed(call, error)
            return Reply(close=True)

    def fast_path(self, connection: KafkaConnection) -> FastPath | None:
        """Return the handler of requests that look like earlier ones of the connection, if its decisions still hold."""
        requests = connection.fast_path
        if requests is not None and not requests.begin():
            requests = connection.fast_path = None
        return requests

    def at_once(self, frame: memoryview, connection: KafkaConnection) -> Reply | None:
        """Return the reply if the API has an immediate handler and this request needs no wait, else None."""
        requests = self.fast_path(connection)
        if requests is not None and (reply := requests.take(frame, 0, len(frame), is_kept=True)) is not None:
            return reply
        if int.from_bytes(frame[:2], "big") not in self._at_once:
            return None
        if len(frame) > READ_AT_ONCE_BYTES and _is_long(frame):
            return None
        call = self._read(frame, connection)
        if isinstance(call, Reply):
            return call
        if call.shape is None and call.spec.key == ApiKey.PRODUCE:
            elements = _count(call.request)
            if elements > FREE_ELEMENTS:
                return self._at_once_in_request_memory(call, elements, connection)
        return self._handled_at_once(call, connection)

    def _handled_at_once(self, call: _Call, connection: KafkaConnection) -> Reply | None:
        try:
            response = self._at_once[call.spec.key](self._services, call.context, call.request)
            if response is MUST_WAIT:
                return None
            if call.context.charge is not None:
                call.context.charge.timed_at_once(self._services.clock.monotonic() - call.started)
            if call.is_known and isinstance(response, Deferred):
                self._learn(call, connection)
            return self._replied(call, response)
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request
            self._failed(call, error)
            return Reply(close=True)

    def _at_once_in_request_memory(
        self, call: _Call, elements: int, connection: KafkaConnection
    ) -> Reply | None:
        """As `at_once`, for a produce request of many elements; also None if it has to wait for memory."""
        held = self._services.request_memory.try_take(elements)
        if held is None:
            return None
        reply = self._handled_at_once(structs.replace(call, held=held), connection)
        if reply is None or reply.is_made:
            held.release()
        return reply

    def _learn(self, call: _Call, connection: KafkaConnection) -> None:
        """The second request of a shape was admitted: from now on take requests like it without the other checks."""
        shape, shapes = call.shape, connection.produce_shapes
        if call.context.access.tenant is not None or shape is None or shapes is None:
            return  # a tenant's topic names are translated before the handler sees them
        (named,) = call.request.topic_data
        kept = structs.replace(  # without the records
            call, request=TopicProduceData(named.name, named.topic_id)
        )
        path = connection.fast_path
        if not isinstance(path, ProduceFastPath):
            path = ProduceFastPath(self._services, call.context, shapes)
        if path.learn(
            call.context, shape=shape, named=kept.request, acks=call.request.acks,
            on_not_stored=partial(self._leave_fast_path, kept),
        ):  # fmt: skip
            connection.fast_path = path

    def _leave_fast_path(self, call: _Call, reply: FastPathReply, result: BatchResult) -> None:
        """Make the answer to a request for the topic of `call` whose batch was not simply stored."""
        header = structs.replace(call.header, correlation_id=reply.correlation_id)
        deferred = Deferred(
            lambda _: answer_of_one(
                self._services, header.api_version, topic=call.request, index=reply.index, result=result
            )
        )
        deferred.is_ready()
        self._answer(structs.replace(call, header=header, started=reply.started), reply, deferred)

    def _read(self, frame: memoryview, connection: Requester) -> _Call | Reply:
        """Decode the request; return a reply instead if that is not possible."""
        started = self._services.clock.monotonic()
        if (read := _read_by_shape(frame, connection)) is not None:
            shape, header, request = read
            context = self._context(header, frame, connection)
            return _Call(header, _PRODUCE, context, request, started, shape=shape, is_known=True)
        try:
            header = parse_request_header(frame)
            if (refusal := _refusal(header)) is not None:
                return refusal
            request = decode_request(header.api_key, header.api_version, frame, header.body_offset)
        except (MalformedRequest, UnsupportedVersion) as error:
            return self._unreadable(error, connection)
        return self._call_of(frame, header, connection, request=request, started=started)

    async def _read_in_turns(self, frame: memoryview, connection: Requester) -> _Call | Reply:
        """As `_read`, for a request that may be long."""
        started = self._services.clock.monotonic()
        try:
            header = parse_request_header(frame)
            if (refusal := _refusal(header)) is not None:
                return refusal
            reading = decode_request_in_steps(header.api_key, header.api_version, frame, header.body_offset)
            request = await in_turns(reading, Turns(STEP))
        except (MalformedRequest, UnsupportedVersion) as error:
            return self._unreadable(error, connection)
        return self._call_of(frame, header, connection, request=request, started=started)

    def _unreadable(self, error: Exception, connection: Requester) -> Reply:
        self._services.telemetry.bad_requests.labels(type(error).__name__).inc()
        log.warning(
            "closed a connection: a request that can't be read", peer=connection.peer_host, error=str(error)
        )
        return Reply(close=True)

    def _call_of(
        self, frame: memoryview, header: RequestHeader, connection: Requester, *, request: Any, started: float
    ) -> _Call:
        shape = shape_of(frame, header, request) if header.api_key == ApiKey.PRODUCE else None
        if shape is not None:
            if connection.produce_shapes is None:
                connection.produce_shapes = ProduceShapes()
            connection.produce_shapes.add(shape)
        context = self._context(header, frame, connection)
        if header.api_key == ApiKey.API_VERSIONS and header.api_version >= 3:
            named = f"{request.client_software_name}/{request.client_software_version}"
            connection.client_software = cut(named, MAX_NAME_BYTES)
        return _Call(header, APIS[header.api_key], context, request, started, shape=shape)

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

    async def _replied_in_turns(self, call: _Call, response: Any) -> Reply:
        """As `_replied`, for an answer that is complete and may be long."""
        if call.context.charge is not None:
            call.context.charge.handled()
        if not isinstance(response, HeldResponse):
            return Reply(await self._encoded_in_turns(call, response))
        try:
            parts = await self._encoded_in_turns(call, response.response)
            return Reply(parts, on_sent=response.release, has_records=True)
        except BaseException:
            response.release()
            raise

    def _replied(self, call: _Call, response: Any) -> Reply:
        if call.context.charge is not None:
            call.context.charge.handled()
        if isinstance(response, Deferred):
            reply = Reply.deferred()
            response.then(partial(self._answer, call, reply))
            return reply
        return Reply(self._encoded(call, response))

    def _refused(self, call: _Call, error: Exception, event: str) -> Reply:
        """Return the reply to a request that can't be answered, now or ever."""
        header, spec = call.header, call.spec
        log.warning(
            event,
            api=spec.key.name, peer=call.context.client_host, client_id=header.client_id, error=str(error),
        )  # fmt: skip
        if not _has_error_code(spec, header.api_version):
            return Reply(close=True)
        response = spec.response(error_code=code_of(error))
        return Reply(encode_response(header.correlation_id, header.api_key, header.api_version, response))

    def _answer(self, call: _Call, reply: Reply, deferred: Deferred) -> None:
        """Make the deferred answer. An unexpected error is logged and counted, and ends the connection."""
        try:
            response = deferred.response()
            if isinstance(response, Deferred):
                response.then(partial(self._answer, call, reply))
                return
            if isinstance(response, LongAnswer):
                self._hold(asyncio.ensure_future(self._answer_in_turns(call, reply, response)))
                return
            parts = self._encoded(call, response)
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request
            self._failed(call, error)
            reply.failed()
        else:
            reply.made(parts)
        release(call.held)

    def _hold(self, answering: asyncio.Task[None]) -> None:
        """Keep a reference to the task until it ends, because the loop keeps none."""
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)

    async def _answer_in_turns(self, call: _Call, reply: Reply, answer: LongAnswer) -> None:
        """Make a long deferred answer, in turns shared between clients."""
        access = call.context.access
        making = self._long_answer(call, answer)
        try:
            parts = await self._services.long_work.shared(
                (access.principal, access.host), making, is_long=True
            )
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request
            self._failed(call, error)
            reply.failed()
        else:
            reply.made(parts)
        release(call.held)

    async def _long_answer(self, call: _Call, answer: LongAnswer) -> Sequence[Buffer] | None:
        return await self._encoded_in_turns(call, await answer.making)

    def _encoded(self, call: _Call, response: Any) -> Sequence[Buffer] | None:
        self._is_served(call, response)
        if _wants_no_answer(call):
            return at_once(_no_answer(response))
        header = call.header
        if header.api_key == ApiKey.PRODUCE:
            return self._charged(call, produce_answer(header.correlation_id, header.api_version, response))
        parts = encode_response(header.correlation_id, header.api_key, header.api_version, response)
        return self._charged(call, parts)

    async def _encoded_in_turns(self, call: _Call, response: Any) -> Sequence[Buffer] | None:
        self._is_served(call, response)
        if _wants_no_answer(call):
            return await in_turns(_no_answer(response), Turns(STEP))
        header = call.header
        if isinstance(response, EncodedResponse):
            return self._charged(call, sent_again(header.correlation_id, response.body))
        writing = encode_response_in_steps(
            header.correlation_id, header.api_key, header.api_version, response
        )
        return self._charged(call, await in_turns(writing, Turns(STEP)))

    def _is_served(self, call: _Call, response: Any) -> None:
        self._services.telemetry.request_served(
            call.spec.key, self._services.clock.monotonic() - call.started
        )
        charge = call.context.charge
        if charge is not None and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = charge.throttle_time_ms

    def _charged(self, call: _Call, parts: Parts) -> Parts:
        """Charge the answer to its client's quotas and return it with the throttle time."""
        charge = call.context.charge
        if charge is None:
            return parts
        charge.sent(sum(map(len, parts)))
        header = call.header
        return with_throttle_time(parts, header.api_key, header.api_version, charge.throttle_time_ms)

    def _failed(self, call: _Call, error: Exception) -> None:
        if isinstance(error, _RefusedUnanswered):
            log.warning(
                "closed a connection: its batch was refused, and it wants no answers (acks=0)",
                peer=call.context.client_host, client_id=call.header.client_id, error=str(error),
            )  # fmt: skip
        else:
            self._failed_unexpectedly(call, error)

    def _failed_unexpectedly(self, call: _Call, error: Exception) -> None:
        header, api = call.header, call.spec.key.name
        self._services.telemetry.request_failures.labels(api).inc()
        log.error(
            "a request failed unexpectedly; its connection is closed",
            api=api, version=header.api_version, peer=call.context.client_host,
            client_id=header.client_id, correlation_id=header.correlation_id, exc_info=error,
        )  # fmt: skip


def _read_by_shape(
    frame: memoryview, connection: Requester
) -> tuple[ProduceShape, RequestHeader, ProduceRequest] | None:
    """Return a produce request with its shape, if the connection has sent one like it before; else None."""
    shapes = connection.produce_shapes
    shape = None if shapes is None else shapes.of(frame, 0)
    read = None if shape is None else shape.read(frame)
    return None if shape is None or read is None else (shape, *read)


def _has_error_code(spec: ApiSpec, version: int) -> bool:
    return any(field.name == "error_code" and version in field.versions for field in fields_of(spec.response))


def _wants_no_answer(call: _Call) -> bool:
    return isinstance(call.request, ProduceRequest) and call.request.acks == 0


def _no_answer(response: ProduceResponse) -> Steps[None]:
    """Return in place of the answer to a request with acks=0. Raises _RefusedUnanswered."""
    for topic in response.responses:
        for row in topic.partition_responses:
            if row.error_code:
                raise _RefusedUnanswered(ErrorCode(row.error_code).name)
            yield 1


def _count(request: ProduceRequest) -> int:
    """Count the topics and partitions of a request."""
    return len(request.topic_data) + sum(len(topic.partition_data) for topic in request.topic_data)


def _is_long(frame: memoryview) -> bool:
    """Whether decoding a Produce request takes more than one turn of the loop. A malformed one doesn't."""
    return done_in_a_step(elements_of(frame)) is None


def _refusal(header: RequestHeader) -> Reply | None:
    """Return the reply to an ApiVersions request of an unserved version; None for all others. Raises UnsupportedVersion
    for an unknown API."""
    spec = APIS.get(header.api_key)
    if spec is None:
        raise UnsupportedVersion(header.api_key, header.api_version)
    if header.api_key == ApiKey.API_VERSIONS and header.api_version not in spec.listed:
        return Reply(_api_versions_too_new(header))
    return None


def _api_versions_too_new(header: RequestHeader) -> Sequence[Buffer]:
    spec = APIS[ApiKey.API_VERSIONS]
    response = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(ApiKey.API_VERSIONS, spec.listed.first, spec.listed.last)],
    )
    return encode_response(header.correlation_id, ApiKey.API_VERSIONS, 0, response)
