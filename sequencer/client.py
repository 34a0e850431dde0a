"""A client of the sequencer over RPC: it calls any of several servers and retries until one answers.

Every call is safe to retry. Commits and swaps carry ids. So do changes that would have a different effect the second
time (creating a topic, fencing a producer): all attempts of one call have the same `request_id` and get the first
answer, even an attempt that arrives late. Most other requests set something to a value. Sometimes a refusal does not
tell whether the first attempt was carried out: the end of a transaction that another producer has followed, or offsets
of a generation that is over. The caller then learns that the outcome is unknown. A session or a broker id granted in a
lost answer is never used; it expires.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from sequencer.api.errors import (
    ERRORS,
    IncarnationChanged,
    InvalidRequest,
    LeaseLost,
    LimitReached,
    SequencerError,
    SequencerOverloaded,
    SequencerUnavailable,
)
from sequencer.api.reads import FeedRequest, WatchRequest
from sequencer.api.values import Empty, Value
from sequencer.methods import FOLLOWED, FORWARD, NUMBER_BYTES, READ, Method, NotCommitter, SequencerMethods
from sequencer.observer import SequencerObserver
from tailrace.clock import Clock, Entropy
from tailrace.rpc import (
    CallFailed,
    CallTimedOut,
    FrameTooLarge,
    HelloRefused,
    KnownCluster,
    Link,
    LinkDown,
    NotConnected,
    RpcClient,
    RpcSecurity,
    TcpLink,
)

V = TypeVar("V", bound=Value)

_SLOW_METHODS = frozenset(
    {
        "apply_retention",
        "garbage",
        "forget_objects",
        "compaction_candidates",
        "swap",
        "statistics",
        "sizes",
        "objects",
        "delete_group",
    }
)
_REFUSED_WHEN_STALE = frozenset({"end_transaction", "commit_offsets"})
"""Methods whose retry may be refused because of what happened after the first attempt was carried out."""
_HINT_PENALTY_S = 5.0
_READS_ELSEWHERE_S = 60.0
"""After this time a client whose server for reads did not answer chooses a new one at random. Otherwise all clients
would end up at the servers that never fail; with two servers, a fail-over would leave them all at the committer."""
_OVERLOAD_PAUSE_S = 0.5
"""Average pause before a call is retried at an overloaded sequencer."""
_MIN_PAUSE_S = 0.05
_MAX_PAUSE_S = 0.5


class SequencerClient(SequencerMethods):
    """A `Sequencer` behind one or more addresses ('host:port').

    A call that finds no committer is retried at other addresses, with pauses, for up to `patience_s`; then it raises
    SequencerUnavailable. A follower names the committer, and the client then calls the committer directly. If the
    committer can't be reached from here, followers forward the calls.

    `timeout_s` limits one attempt (`slow_timeout_s` for retention, garbage, compaction and the deletion of a group; for
    feeds the wait is added). It is long because a committer over a slow database answers late, and a retry would not
    help. The connection detects by itself that a server is dead or stopped.
    `known` is what this process knows of its cluster: a server of another incarnation raises IncarnationChanged.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        clock: Clock,
        entropy: Entropy,
        known: KnownCluster | None = None,
        security: RpcSecurity | None = None,
        patience_s: float = 10.0,
        timeout_s: float = 20.0,
        slow_timeout_s: float = 120.0,
        follow_hints: bool = True,
        link: Callable[[str], Link] | None = None,
        observer: SequencerObserver | None = None,
    ) -> None:
        if not addresses:
            raise ValueError("no address of a sequencer was given")
        self.known = known if known is not None else KnownCluster()
        self._addresses = tuple(addresses)
        self._clock = clock
        self._entropy = entropy
        self._security = security if security is not None else RpcSecurity()
        self._patience_s = patience_s
        self._timeout_s = timeout_s
        self._slow_timeout_s = slow_timeout_s
        self._follow_hints = follow_hints
        self._link: Callable[[str], Link] = (
            link if link is not None else lambda address: TcpLink(address, self._security.tls)
        )
        self._clients: dict[str, RpcClient] = {}
        self._current = self._addresses[0]
        self._unreachable: dict[str, float] = {}
        self._forward_until = 0.0
        self._is_closed = False
        self._observer = observer or SequencerObserver()
        self._reads_from = -1
        self._reads_chosen_until = math.inf
        self._reads_at_committer_until = 0.0
        self.seen = 0
        """The largest journal number of any answer so far: no later answer may reflect an earlier number."""

    async def close(self) -> None:
        """Close the connections; waiting calls fail with SequencerUnavailable."""
        self._is_closed = True
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.close()

    async def call(self, method: Method, request: Value) -> Value:
        """Call servers until a committer answers or `patience_s` is over. All attempts count as one request."""
        request = self._with_id(request)
        if method.name in FOLLOWED:
            answered = await self._ask_follower(method, request)
            if answered is not None:
                return answered
        give_up = self._clock.monotonic() + self._patience_s
        may_have_happened = False
        attempts = 0
        while True:
            address, least_pause = self._current, 0.0
            failure: SequencerError
            attempts += 1
            try:
                return await self._attempt(address, method, request)
            except NotCommitter as error:
                named = f"names {error}" if str(error) else "knows of none"
                failure = SequencerUnavailable(f"{method.name}: {address} is not the committer, and {named}")
                if self._take_hint(address, str(error)) and attempts % 4:
                    continue
            except NotConnected as error:
                failure = SequencerUnavailable(f"{method.name}: {error}")
                self._leave(address)
            except (LinkDown, CallTimedOut) as error:
                failure = SequencerUnavailable(f"{method.name}: {error}; it may have been carried out")
                may_have_happened = True
                self._leave(address)
            except SequencerUnavailable as error:
                failure = error
                may_have_happened = True
                self._leave(address)
            except SequencerOverloaded as error:
                # No other server could answer, so wait for this one.
                failure, least_pause = error, _OVERLOAD_PAUSE_S
            except SequencerError as error:
                if may_have_happened:
                    return self._settle(method, error)
                raise
            if self._is_closed:
                raise SequencerUnavailable("this client is closed")
            pause = max(self._pause(attempts), least_pause * (0.5 + self._entropy.fraction()))
            if self._clock.monotonic() + pause >= give_up:
                raise failure
            await self._clock.sleep(pause)

    def _with_id(self, request: V) -> V:
        """Set the request's id if it takes one and has none, so that all attempts are one request."""
        if getattr(request, "request_id", request) is not None:
            return request
        with_id: V = msgspec.structs.replace(request, request_id=self._entropy.uuid())
        return with_id

    async def _ask_follower(self, method: Method, request: Value) -> Value | None:
        """Return the answer of any one server; None if the committer must be called."""
        now = self._clock.monotonic()
        if len(self._addresses) < 2 or not self._follow_hints or now < self._reads_at_committer_until:
            return None
        if self._reads_from < 0 or now >= self._reads_chosen_until:
            self._reads_chosen_until = math.inf
            self._reads_from = int(self._entropy.fraction() * len(self._addresses))
        address = self._addresses[self._reads_from]
        try:
            return await self._ask(address, f"{READ}{self.seen}.{method.name}", method, request)
        except InvalidRequest:
            return None  # an older server does not know these calls; if the request is invalid, the committer says so
        except (LinkDown, CallTimedOut, SequencerUnavailable, SequencerOverloaded):
            self._reads_from = (self._reads_from + 1) % len(self._addresses)
            self._reads_chosen_until = now + _READS_ELSEWHERE_S
            self._reads_at_committer_until = now + _HINT_PENALTY_S
            return None

    async def _attempt(self, address: str, method: Method, request: Value) -> Value:
        is_forwarded = self._follow_hints and self._clock.monotonic() < self._forward_until
        name = FORWARD + method.name if is_forwarded else method.name
        return await self._ask(address, name, method, request)

    async def _ask(self, address: str, name: str, method: Method, request: Value) -> Value:
        began, seen = self._clock.monotonic(), self.seen
        try:
            client, timeout_s = self._client(address), self._timeout(method, request)
            answer, tail = await client.call(name, request, method.answer, timeout_s)
        except HelloRefused as error:
            if error.code == "incarnation":
                raise IncarnationChanged(f"{address}: {error}") from error
            raise
        except FrameTooLarge as error:
            raise InvalidRequest(str(error)) from error
        except CallFailed as error:
            raise _rebuild(method.name, error) from error
        finally:
            self._observer.call_answered("client", method.name, self._clock.monotonic() - began)
        if len(tail) == NUMBER_BYTES:
            number = int.from_bytes(tail, "big")
            if number < seen and method.name in FOLLOWED:
                # A replaced committer that doesn't know it yet: the database's clock has jumped past the end of its
                # lease.
                raise SequencerUnavailable(f"{method.name}: {address} is at {number}, and {seen} was seen")
            self.seen = max(self.seen, number)
        return answer

    def _timeout(self, method: Method, request: Value) -> float:
        if method.name in _SLOW_METHODS:
            return self._slow_timeout_s
        if isinstance(request, FeedRequest | WatchRequest):
            return self._timeout_s + max(0, request.max_wait_ms) / 1000
        return self._timeout_s

    def _client(self, address: str) -> RpcClient:
        if self._is_closed:
            raise SequencerUnavailable("this client is closed")
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = RpcClient(
                self._link(address),
                clock=self._clock,
                entropy=self._entropy,
                known=self.known,
                security=self._security,
            )
        return client

    # --- which address is next

    def _take_hint(self, address: str, hint: str) -> bool:
        """Switch to the committer that a follower named, or let the follower forward. Return False if neither is
        possible."""
        if not hint or hint == address or not self._follow_hints:
            self._leave(address)
            return False
        if self._clock.monotonic() < self._unreachable.get(hint, 0.0):
            self._forward_until = self._unreachable[hint]
        elif self._current == address:
            self._current = hint
        return True

    def _leave(self, address: str) -> None:
        """Switch from an address that did not help to the next configured one."""
        now = self._clock.monotonic()
        self._unreachable = {other: until for other, until in self._unreachable.items() if until > now}
        self._unreachable[address] = now + _HINT_PENALTY_S
        if self._current != address:
            return  # another call has already switched
        at = self._addresses.index(address) + 1 if address in self._addresses else 0
        self._current = self._addresses[at % len(self._addresses)]

    def _pause(self, attempts: int) -> float:
        if attempts < len(self._addresses):
            return 0.0
        rounds = attempts // len(self._addresses)
        return min(_MAX_PAUSE_S, _MIN_PAUSE_S * (1 << min(rounds, 8))) * (
            0.5 + 0.5 * self._entropy.fraction()
        )

    # --- retries after a first success

    def _settle(self, method: Method, error: SequencerError) -> Value:
        """Return the answer to a repeated request whose first attempt seems to have succeeded.

        Raises the error, or SequencerUnavailable if the first attempt may have succeeded nevertheless.
        """
        if method.name == "release_agent" and isinstance(error, LeaseLost):
            return Empty()
        if method.name in _REFUSED_WHEN_STALE and not isinstance(error, InvalidRequest | LimitReached):
            raise SequencerUnavailable(
                f"{method.name}: it may have been carried out; its repeat: {error}"
            ) from error
        raise error


def _rebuild(method: str, failure: CallFailed) -> SequencerError:
    """Return the error that the server raised."""
    if failure.code == NotCommitter.code:
        return NotCommitter(failure.message)
    if failure.code in ("closing", "internal"):
        return SequencerUnavailable(f"{method}: {failure.message}")
    if failure.code in ("unknown_method", "bad_request", "too_large"):
        return InvalidRequest(failure.message)
    return ERRORS.get(failure.code, SequencerError)(failure.message)
