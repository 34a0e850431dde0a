"""The client of one HTTP request. Its requests go through the dispatcher of its listener, as a connection's frames do.
So the gateway has the same authorization, quotas, limits and errors as Kafka's protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from agent.answer_memory import AnswerReservation
from agent.connection import ADMISSION_SECONDS
from agent.errors import AnswerMemoryExhausted, AnswerTooLarge
from agent.framing import DECODED_FACTOR, REQUEST_BYTES
from agent.gateway.context import GatewayContext
from agent.gateway.errors import HttpRefusal, refusal_of
from agent.leadership import KnownLeadership
from agent.replies import Reply
from agent.security.access import Access
from tailrace.clock import Clock, wait_for
from tailrace.kafka import ApiKey, decode_response_in_steps, encode_request_in_steps
from tailrace.kafka.apis import APIS
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.errors import UnencodableMessage
from tailrace.kafka.produce_shape import ProduceShapes
from tailrace.kafka.source_writer import STEP
from tailrace.turns import Turns, in_turns

CLIENT_ID = "tailrace-gateway"
MAX_THROTTLE_SECONDS = 30.0
"""The longest wait of an answer for its client's quota. Beyond that the client is told to retry later."""
ANSWER_SECONDS = 120.0
"""The longest wait for a deferred answer: more than a produce request takes up to its deadlines."""
_SIZE_BYTES = 4
_BY_NAME = {ApiKey.PRODUCE: 12, ApiKey.FETCH: 12, ApiKey.OFFSET_FETCH: 9}
"""The last versions that name topics instead of their ids."""


RESPONSE_FACTOR = 12
"""The cost of a response's byte while it is decoded and converted to JSON."""


def _version_of(key: ApiKey) -> int:
    return _BY_NAME.get(key, APIS[key].served.last)


async def _frame_of(key: ApiKey, version: int, request: Any) -> memoryview:
    """Encode the request. Raises HttpRefusal for a value that Kafka's requests can't hold."""
    encoding = encode_request_in_steps(0, key, version, request, client_id=CLIENT_ID)
    try:
        parts = await in_turns(encoding, Turns(STEP))
    except UnencodableMessage as error:
        raise HttpRefusal(400, f"The request has a value that Kafka can't take: {error}.") from None
    return memoryview(b"".join(parts))[_SIZE_BYTES:]


class Answer:
    """The response to a request. `release` gives back the agent's memory that it holds."""

    def __init__(self, response: Any, reply: Reply) -> None:
        self.response = response
        self._reply = reply

    def release(self) -> None:
        """Give back the memory: the response is no longer needed."""
        _give_back(self._reply)


def _give_back(reply: Reply) -> None:
    """Give back the agent's memory that a reply holds; a second call does nothing."""
    on_sent, reply.on_sent = reply.on_sent, None
    if on_sent is not None:
        on_sent()


class GatewayClient:
    """The counterpart of a Kafka client's connection, for one HTTP request; see `agent.dispatch.Requester`."""

    def __init__(self, context: GatewayContext, access: Access, clock: Clock) -> None:
        self.access = access
        self.client_software = CLIENT_ID
        self.deferred = 0
        self.leadership = KnownLeadership()
        self.muted_until = 0.0
        self.peer_host = access.host
        self.produce_shapes: ProduceShapes | None = None
        self.sees_all_groups = True
        self._context = context
        self._reservation = AnswerReservation(context.memory)
        self._dispatch = context.dispatch_for(access)
        self._clock = clock

    def mute(self, until: float, wait: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Note that the client is above a quota: `throttled` waits."""
        self.muted_until = until

    def known_partitions(self, topic: str) -> int | None:
        """Return how many partitions the agent knows of a topic that the client may describe; None for others."""
        return self._context.partitions_of(self.access, topic)

    async def throttled(self) -> None:
        """Wait until the client is within its quotas. Raises HttpRefusal if that takes too long."""
        self._refuse_long_wait()
        await self.pause()

    def check_quota(self, api: ApiKey) -> None:
        """Raise HttpRefusal if the client is above its quota for the bytes of this API, and would have to wait for too
        long. A Kafka client's connection is not served then; an HTTP client's next request is another connection."""
        access, quotas = self.access, self._context.quotas
        charge = quotas.charge(
            api, access.principal, CLIENT_ID, connection=self, received_bytes=0, tenant=access.tenant
        )
        if charge is not None and charge.is_over():
            self._refuse_long_wait()
            self.muted_until = 0.0  # the wait of its last request was enough

    def _refuse_long_wait(self) -> None:
        seconds = self.muted_until - self._clock.monotonic()
        if seconds > MAX_THROTTLE_SECONDS:
            raise HttpRefusal(429, f"You are above your quota. Try again in {seconds:.0f} seconds.", 42901)

    async def pause(self) -> None:
        """As `throttled`, but wait for MAX_THROTTLE_SECONDS at most."""
        seconds = min(self.muted_until - self._clock.monotonic(), MAX_THROTTLE_SECONDS)
        if seconds > 0:
            await self._clock.sleep(seconds)

    async def ask(self, request: Any) -> Any:
        """Return the response to a request. Its memory is held until the next `ask`, or `release`. Raises
        HttpRefusal."""
        self.release()
        reply = await self._answered(request)
        self._reservation = AnswerReservation(self._context.memory)
        try:
            while not await self._has_memory(reply):
                reply = await self._answered(request)
            return await self._response(request, reply)
        except AnswerMemoryExhausted as error:
            raise HttpRefusal(503, f"{error}.") from None
        except AnswerTooLarge as error:
            raise HttpRefusal(413, f"{error}.") from None
        finally:
            _give_back(reply)

    @property
    def others_wait(self) -> bool:
        """Whether others wait for the gateway's memory of responses."""
        return self._context.memory.is_contended

    def release(self) -> None:
        """Give back the memory of the last `ask`'s response."""
        self._reservation.release()

    async def hold(self, request: Any) -> Answer:
        """Return the response and the agent's memory that it holds: for a fetch, its records. Raises HttpRefusal."""
        reply = await self._answered(request)
        try:
            return Answer(await self._response(request, reply), reply)
        except BaseException:
            _give_back(reply)
            raise

    async def _has_memory(self, reply: Reply) -> bool:
        """Reserve memory for what is made from a reply. Return False if a reply that holds the agent's memory had to be
        dropped to wait for the gateway's: the request, which only reads, is sent again."""
        size = RESPONSE_FACTOR * sum(map(len, reply.parts or ()))
        if reply.on_sent is not None and not self._reservation.has(size):
            reply.parts = None
            _give_back(reply)
            await self._reservation.needs(size)
            return False
        await self._reservation.needs(size)
        return True

    async def _answered(self, request: Any) -> Reply:
        key: ApiKey = request.api.key
        version = _version_of(key)
        frame = await _frame_of(key, version, request)
        factor = 1 if key is ApiKey.PRODUCE else DECODED_FACTOR
        charge = len(frame) * factor + REQUEST_BYTES
        self.leadership = KnownLeadership()  # it knows no ring, so no handler tells it to look for leaders
        await self._charge(charge)
        reply: Reply | None = None
        try:
            reply = await self._dispatch(frame, self)
            await self._made(reply)
        finally:
            self._give_back_when_made(reply, charge)
        if reply.parts is None:
            raise refusal_of(ErrorCode.UNKNOWN_SERVER_ERROR)
        return reply

    def _give_back_when_made(self, reply: Reply | None, charge: int) -> None:
        """Give back a request's memory once nothing refers to its bytes: a buffer does until a late reply is made."""
        budget = self._context.budget
        if reply is None or reply.is_made:
            budget.give(charge)
        else:
            reply.on_made = lambda _: budget.give(charge)

    async def _response(self, request: Any, reply: Reply) -> Any:
        key: ApiKey = request.api.key
        body = b"".join(reply.parts or ())
        decoding = decode_response_in_steps(key, _version_of(key), memoryview(body)[_SIZE_BYTES:])
        return await in_turns(decoding, Turns(STEP))

    async def _charge(self, size: int) -> None:
        """Take memory for a request, waiting as a connection would. Raises HttpRefusal."""
        budget = self._context.budget
        if size > budget.largest:
            raise HttpRefusal(413, "The request is larger than the agent has memory for.")
        if not await budget.take(size, self._clock, ADMISSION_SECONDS):
            raise HttpRefusal(503, "The agent has no memory for the request now. Try again.")

    async def _made(self, reply: Reply) -> None:
        """Wait for a deferred reply. Raises HttpRefusal if it takes too long."""
        if reply.is_made:
            return
        made: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(_: Reply) -> None:
            if not made.done():
                made.set_result(None)

        reply.on_made = tell
        if not await wait_for(self._clock, made, ANSWER_SECONDS):
            raise refusal_of(ErrorCode.REQUEST_TIMED_OUT)
