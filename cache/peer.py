"""Cache peers: the agents of a zone read each other's chunks.

The protocol has one method, `chunk`. A live owner answers before the caller's time-out: with the bytes, or with PENDING
while it waits for the store; the caller then retries. So a caller can tell a slow store from a dead peer, and does not
read a slow store twice. A peer that fails several times in a row is bypassed for a while, then a single call tries it
again.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar
from uuid import UUID

import msgspec

from cache.chunk import ChunkBytes, ChunkId, ChunkRef
from cache.chunk_cache import ChunkCache, PeerUnavailable
from cache.observer import CacheObserver
from cache.settings import CacheSettings
from sequencer.api.agents import Member, Ring
from tailrace.buffers import Buffer
from tailrace.clock import Clock
from tailrace.object_store.api import ObjectMissing, StoreError
from tailrace.rpc import CallFailed, RpcError, decode_body, encode_body

METHOD = "chunk"
VERSION = 1
_ANSWER_WITHIN = 0.6
"""Fraction of the caller's time-out after which an owner answers PENDING; the rest is for the way back."""

T = TypeVar("T")


class ChunkRequest(msgspec.Struct, array_like=True, frozen=True):
    """Request for bytes [start, start + length) of `key`. Both sides must number them as chunk `number`."""

    version: int
    key: str
    number: int
    start: int
    length: int
    is_catch_up: bool
    timeout_ms: int


class ChunkStatus(enum.IntEnum):
    """Outcome of a request; only FOUND comes with a tail."""

    FOUND = 0
    PENDING = 1
    MISSING = 2
    FAILED = 3
    REFUSED = 4


class ChunkAnswer(msgspec.Struct, array_like=True, frozen=True):
    """Answer to a ChunkRequest. `detail` explains a failure to people. The chunk's bytes follow as the frame's tail."""

    version: int
    status: ChunkStatus
    detail: str = ""


class PeerLink(Protocol):
    """A connection to one peer; `tailrace.rpc.RpcClient` is one."""

    async def call(
        self, method: str, request: Any, response_type: type[T], timeout_s: float
    ) -> tuple[T, memoryview]:
        """Send a request and wait for the answer. Raises RpcError."""

    async def close(self) -> None:
        """Close the connection."""


class PeerServer:
    """Answers peers from this agent's cache. It does not check that it owns the chunk: rings may differ for a
    moment."""

    def __init__(self, cache: ChunkCache) -> None:
        self._cache = cache

    async def handle(self, method: str, body: memoryview) -> tuple[bytes, Sequence[Buffer]]:
        """Handle a call of `tailrace.rpc.RpcServer`."""
        if method != METHOD:
            raise CallFailed("unknown_method", f"{method!r}; cache peers answer {METHOD!r}")
        answer, tail = await self.chunk(decode_body(body, ChunkRequest))
        return encode_body(answer), tail

    async def chunk(self, request: ChunkRequest) -> tuple[ChunkAnswer, list[memoryview]]:
        """Return the requested chunk as views, or the reason why not."""
        refusal = self._refusal(request)
        if refusal:
            return ChunkAnswer(VERSION, ChunkStatus.REFUSED, refusal), []
        chunk = ChunkRef(ChunkId(request.key, request.number), request.start, request.length)
        served = self._cache.serve(chunk, is_catch_up=request.is_catch_up)
        if isinstance(served, ChunkBytes):
            return _found(request, served)
        await asyncio.wait({served}, timeout=request.timeout_ms / 1000 * _ANSWER_WITHIN)
        if not served.done():
            return ChunkAnswer(VERSION, ChunkStatus.PENDING), []
        try:
            loaded, _ = await asyncio.shield(served)
        except ObjectMissing as error:
            return ChunkAnswer(VERSION, ChunkStatus.MISSING, str(error)), []
        except StoreError as error:
            return ChunkAnswer(VERSION, ChunkStatus.FAILED, str(error)), []
        return _found(request, loaded)

    def _refusal(self, request: ChunkRequest) -> str:
        size = self._cache.settings.chunk_bytes
        if request.version != VERSION:
            return f"request version {request.version}; this agent speaks {VERSION}"
        if request.number < 0 or request.start != request.number * size or not 0 < request.length <= size:
            return (
                f"chunk {request.number} as {request.length} bytes from {request.start}; "
                f"this agent's chunk_bytes is {size}"
            )
        return ""


def _found(request: ChunkRequest, chunk: ChunkBytes) -> tuple[ChunkAnswer, list[memoryview]]:
    if chunk.size != request.length:
        detail = f"chunk has {chunk.size} bytes here, {request.length} were requested"
        return ChunkAnswer(VERSION, ChunkStatus.REFUSED, detail), []
    return ChunkAnswer(VERSION, ChunkStatus.FOUND), chunk.frozen()


class _Peer:
    """A link and the health of its peer. Owned by PeerClients."""

    __slots__ = ("bypass_until", "failures", "is_probing", "link", "member")

    def __init__(self, member: Member, link: PeerLink) -> None:
        self.member = member
        self.link = link
        self.failures = 0
        self.bypass_until = 0.0
        self.is_probing = False


class PeerClients:
    """The links to the other agents of the zone; each is created on first use.

    Args:
        connect: creates a link to a member's peer address without waiting (the link connects on its first call).
    """

    def __init__(
        self,
        connect: Callable[[Member], PeerLink],
        clock: Clock,
        settings: CacheSettings,
        observer: CacheObserver | None = None,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._settings = settings
        self._observer = observer or CacheObserver()
        self._peers: dict[UUID, _Peer] = {}

    async def read(self, member: Member, chunk: ChunkRef, *, is_catch_up: bool) -> Buffer:
        """Read the whole chunk from `member`. Raises PeerUnavailable, ObjectMissing."""
        peer = self._peer(member)
        self._check_health(peer)
        is_alive = False
        try:
            data = await self._ask_until_available(peer, chunk, is_catch_up)
            is_alive = True
            return data
        except ObjectMissing:
            is_alive = True
            raise
        except _PeerRefused as error:
            is_alive = error.is_alive
            raise PeerUnavailable(f"agent {member.broker_id}: {error}") from error
        finally:
            self._note(peer, is_alive)

    async def retain(self, ring: Ring) -> None:
        """Close the links to agents that are no longer in the ring."""
        live = {member.info.instance for member in ring.members}
        gone = [self._peers.pop(instance) for instance in list(self._peers) if instance not in live]
        for peer in gone:
            await peer.link.close()

    async def close(self) -> None:
        peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            await peer.link.close()

    def _peer(self, member: Member) -> _Peer:
        peer = self._peers.get(member.info.instance)
        if peer is None:
            peer = _Peer(member, self._connect(member))
            self._peers[member.info.instance] = peer
        return peer

    def _check_health(self, peer: _Peer) -> None:
        if peer.failures < self._settings.peer_failures:
            return
        if peer.is_probing or self._clock.monotonic() < peer.bypass_until:
            self._observer.peer_bypassed(peer.member.broker_id)
            raise PeerUnavailable(
                f"agent {peer.member.broker_id} is bypassed after {peer.failures} failures in a row"
            )
        peer.is_probing = True

    def _note(self, peer: _Peer, is_alive: bool) -> None:
        peer.is_probing = False
        if is_alive:
            peer.failures = 0
            return
        peer.failures += 1
        peer.bypass_until = self._clock.monotonic() + self._settings.peer_bypass_s

    async def _ask_until_available(self, peer: _Peer, chunk: ChunkRef, is_catch_up: bool) -> Buffer:
        timeout_s = self._settings.peer_timeout_s
        (key, number), start, length = chunk
        request = ChunkRequest(
            version=VERSION,
            key=key,
            number=number,
            start=start,
            length=length,
            is_catch_up=is_catch_up,
            timeout_ms=round(timeout_s * 1000),
        )
        give_up = self._clock.monotonic() + self._settings.peer_patience_s
        while True:
            answer, tail = await self._call(peer, request, timeout_s)
            if answer.status == ChunkStatus.FOUND:
                return tail
            if answer.status == ChunkStatus.MISSING:
                raise ObjectMissing(answer.detail)
            if answer.status != ChunkStatus.PENDING:
                raise _PeerRefused(f"{answer.status.name}: {answer.detail}", is_alive=True)
            if self._clock.monotonic() >= give_up:
                raise _PeerRefused(
                    f"still waits for the store after {self._settings.peer_patience_s} s", is_alive=True
                )

    async def _call(self, peer: _Peer, request: ChunkRequest, timeout_s: float) -> tuple[ChunkAnswer, Buffer]:
        try:
            async with asyncio.timeout(timeout_s):
                return await peer.link.call(METHOD, request, ChunkAnswer, timeout_s)
        except TimeoutError as error:
            raise _PeerRefused(f"no answer within {timeout_s} s", is_alive=False) from error
        except RpcError as error:
            raise _PeerRefused(str(error), is_alive=False) from error


class _PeerRefused(Exception):
    def __init__(self, message: str, *, is_alive: bool) -> None:
        super().__init__(message)
        self.is_alive = is_alive
