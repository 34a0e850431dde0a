"""Client quotas at one agent: each request is charged to its client, and a client above its quota must wait.

As in Kafka, a quota is per broker: each agent counts only its own requests, so N agents allow a client N times its
quota.

A request above a quota is still served. Its answer tells the client how long to wait (`throttle_time_ms`), and until
then its connection is neither read nor served (KIP-219). A fetch by a client that is already above its quota is
answered at once without records, before anything is read for it.
"""

from __future__ import annotations

import math
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from operator import itemgetter
from typing import Any, Protocol, TypeVar

import msgspec

from agent.quotas.precedence import Bound, Holder, QuotaBook
from agent.quotas.rates import FULL_SECONDS, SAMPLE_MS, SlidingRate, TokenBucket
from tailrace.clock import Clock
from tailrace.kafka.api_keys import ApiKey
from tailrace.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    DEFAULT,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from tailrace.tenants import Tenant

T = TypeVar("T")

MAX_HOLDERS = 10_000
"""The most holders whose usage is kept. Above it those are dropped that used nothing; if there are none, the half that
used least of its quotas. A client above its quota must not be forgotten because it invents client ids."""
MAX_SHORT_WAIT_MS = SAMPLE_MS
"""Kafka's limit of one wait for request_percentage and connection_creation_rate."""
MAX_WAIT_MS = 2**31 - 1
"""The longest wait that an answer can state."""
PERCENT = 100.0
_QUOTA_OF: dict[int, str] = {
    ApiKey.PRODUCE: PRODUCER_BYTE_RATE,
    ApiKey.FETCH: CONSUMER_BYTE_RATE,
    ApiKey.SHARE_FETCH: CONSUMER_BYTE_RATE,
    ApiKey.METADATA: CONTROLLER_MUTATION_RATE,
    ApiKey.CREATE_TOPICS: CONTROLLER_MUTATION_RATE,
    ApiKey.CREATE_PARTITIONS: CONTROLLER_MUTATION_RATE,
    ApiKey.DELETE_TOPICS: CONTROLLER_MUTATION_RATE,
}
"""The quota that an API's requests count towards, in addition to their time."""


class MutedConnection(Protocol):
    """A connection, as quotas see it. `muted_until`: monotonic seconds; 0.0 if it is not muted."""

    muted_until: float

    def mute(self, until: float, wait: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Read and handle no requests until `wait` has ended."""


class Meter(msgspec.Struct, eq=False):
    """One holder's use of one quota."""

    key: str
    holder: Holder
    limit: float
    rate: SlidingRate | TokenBucket


Observe = Callable[[str, Holder, float], None]
"""Called with the quota key, the holder that is above it, and for how many ms the client waits."""


class Quotas:
    """All quotas of an agent, and their use. `is_on`: whether any client quota exists. A changed quota makes a new
    `book`."""

    def __init__(self, clock: Clock, observe: Observe = lambda key, holder, ms: None) -> None:
        self._clock = clock
        self._observe = observe
        self.book = QuotaBook({})
        self._meters: dict[tuple[str, Holder], Meter] = {}
        self.is_on = False

    def take(self, book: QuotaBook) -> None:
        """Replace the quotas. What was used so far still counts."""
        self.book = book
        self.is_on = book.has_client_quotas

    def charge(
        self,
        api: int,
        principal: str,
        client_id: str,
        connection: MutedConnection,
        received_bytes: int,
        tenant: Tenant | None = None,
    ) -> Charge | None:
        """Return the account of one request; None if no quota applies to it."""
        user = principal.partition(":")[2]
        key = _QUOTA_OF.get(api)
        moved = () if key is None else self._meters_of(key, user, client_id, tenant)
        taken = self._meters_of(REQUEST_PERCENTAGE, user, client_id, tenant)
        if not moved and not taken:
            return None
        return Charge(
            quotas=self, connection=connection, moved=moved, taken=taken, received_bytes=received_bytes
        )

    def opened(self, address: str) -> float:
        """Count a connection from this address. Return in how many seconds to close it; 0.0 if it may stay."""
        bound = self.book.of_address(CONNECTION_CREATION_RATE, address)
        if bound is None:
            return 0.0
        meter = self._meter(CONNECTION_CREATION_RATE, bound)
        wait_ms = self.record(meter, 1.0, MAX_SHORT_WAIT_MS)
        if wait_ms:
            meter.rate.record(self.now_ms, -1.0)  # only connections that may stay count
        return wait_ms / 1_000

    async def unmuted(self, connection: MutedConnection) -> None:
        """Wait until the connection may be served again."""
        while (left := connection.muted_until - self._clock.monotonic()) > 0:
            await self._clock.sleep(left)
        connection.muted_until = 0.0

    @property
    def now_ms(self) -> float:
        return self._clock.monotonic() * 1_000

    def record(self, meter: Meter, amount: float, longest_ms: float = MAX_WAIT_MS) -> float:
        """Add to a holder's use. Return for how many ms it must wait."""
        now_ms = self.now_ms
        meter.rate.record(now_ms, amount)
        wait_ms = float(round(min(longest_ms, meter.rate.excess_ms(now_ms, meter.limit))))
        if wait_ms:
            self._observe(meter.key, meter.holder, wait_ms)
        return wait_ms

    def _meters_of(self, key: str, user: str, client_id: str, tenant: Tenant | None) -> tuple[Meter, ...]:
        """Return the meters of a client, and of all clients of its tenant together."""
        if tenant is None:
            bound = self.book.of_client(key, user, client_id)
            return () if bound is None else (self._meter(key, bound),)
        stored_id, default = tenant.stored(client_id), tenant.stored(DEFAULT)
        bounds = (
            self.book.of_client(key, user, stored_id, default),
            self.book.of_tenant(key, tenant),
        )
        return tuple(self._meter(key, bound) for bound in bounds if bound is not None)

    def _meter(self, key: str, bound: Bound) -> Meter:
        meter = self._meters.get((key, bound.holder))
        if meter is None:
            if len(self._meters) >= MAX_HOLDERS:
                self._make_room()
            rate = TokenBucket() if key == CONTROLLER_MUTATION_RATE else SlidingRate()
            meter = self._meters[key, bound.holder] = Meter(key, bound.holder, bound.limit, rate)
        meter.limit = bound.limit
        return meter

    def _make_room(self) -> None:
        now_ms = self.now_ms
        shares = [(meter.rate.used(now_ms) / meter.limit, meter) for meter in self._meters.values()]
        kept = [share for share in shares if share[0]]
        if len(kept) >= MAX_HOLDERS:
            kept.sort(key=itemgetter(0))
            del kept[: MAX_HOLDERS // 2]
        self._meters = {(meter.key, meter.holder): meter for _, meter in kept}


class Charge:
    """One request's use of its client's quotas, and how long the client must wait for it."""

    __slots__ = ("_connection", "_moved", "_quotas", "_received_bytes", "_seconds", "_taken", "_until")

    def __init__(
        self,
        quotas: Quotas,
        connection: MutedConnection,
        moved: tuple[Meter, ...],
        taken: tuple[Meter, ...],
        received_bytes: int,
    ) -> None:
        self._quotas = quotas
        self._connection = connection
        self._moved = moved
        self._taken = taken
        self._received_bytes = received_bytes
        self._seconds = 0.0
        self._until = 0.0

    @property
    def window_bytes(self) -> float:
        """The most bytes of one answer: with more, a client could never get below its quota."""
        return min((max(1.0, meter.limit * FULL_SECONDS) for meter in self._moved), default=math.inf)

    @property
    def throttle_time_ms(self) -> int:
        """The rest of the wait; at least 1 if there was a wait."""
        if not self._until:
            return 0
        return min(MAX_WAIT_MS, max(1, math.ceil(self._until * 1_000 - self._quotas.now_ms)))

    def is_over(self) -> bool:
        """Whether the client has already moved too many bytes. If so, it must wait, and its answer does not count."""
        self._record(self._moved, 0.0)
        if not self._until:
            return False
        self._moved = ()
        return True

    async def timed(self, work: Awaitable[T]) -> T:
        """Run the work, and add up how long it holds the loop."""
        if not self._taken:
            return await work
        return await self._steps(work.__await__())

    @types.coroutine
    def _steps(self, work: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        step = partial(work.send, None)
        while True:
            began_ms = self._quotas.now_ms
            try:
                awaited = step()
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._seconds += (self._quotas.now_ms - began_ms) / 1_000
            try:
                value = yield awaited
            except BaseException as error:  # noqa: BLE001 - for the work to handle
                step = partial(work.throw, error)
            else:
                step = partial(work.send, value)

    def timed_at_once(self, seconds: float) -> None:
        """Add the seconds that immediate work held the loop."""
        self._seconds += seconds

    def handled(self) -> None:
        """Count the bytes and the time of a handled request."""
        self._record(self._moved_of(PRODUCER_BYTE_RATE), self._received_bytes)
        self._record(self._taken, self._seconds * PERCENT, MAX_SHORT_WAIT_MS)

    def may_change(self, partitions: int, *, is_strict: bool) -> bool:
        """Whether `partitions` may be created or deleted; if so, they count. A client that does not know the refusal
        (not strict) always may, and waits afterwards."""
        meters = self._moved_of(CONTROLLER_MUTATION_RATE)
        if is_strict and (wait_ms := max((self._quotas.record(meter, 0.0) for meter in meters), default=0.0)):
            self._wait(wait_ms)
            return False
        for meter in meters:
            wait_ms = self._quotas.record(meter, partitions)
            if not is_strict:
                self._wait(wait_ms)
        return True

    def sent(self, count: int) -> None:
        """Count the bytes of an answer, if it is a fetch's."""
        self._record(self._moved_of(CONSUMER_BYTE_RATE), count)

    def _moved_of(self, key: str) -> tuple[Meter, ...]:
        return self._moved if self._moved and self._moved[0].key == key else ()

    def _record(self, meters: tuple[Meter, ...], amount: float, longest_ms: float = MAX_WAIT_MS) -> None:
        """Count an amount, and wait for the longest time that one of the quotas requires."""
        for meter in meters:
            self._wait(self._quotas.record(meter, amount, longest_ms))

    def _wait(self, ms: float) -> None:
        if not ms:
            return
        self._until = max(self._until, (self._quotas.now_ms + ms) / 1_000)
        connection = self._connection
        if self._until > connection.muted_until:
            connection.mute(self._until, lambda: self._quotas.unmuted(connection))
