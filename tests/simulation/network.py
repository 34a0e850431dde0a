"""The network of a simulated cluster: RPC links between processes by address, and Kafka connections of clients.

Each RPC frame may be lost, late or repeated independently. A Kafka connection is a TCP stream: its bytes arrive in
order or the connection ends. Messages to a stopped process wait there. A crashed process refuses connections. Its open
connections are reset a moment later, or never (if its machine is gone).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Protocol

from agent.connection import KafkaConnection
from tailrace.buffers import Buffer
from tailrace.clock import Entropy
from tailrace.kafka import decode_response, encode_request
from tailrace.rpc import Link, NotConnected, RpcServer
from tailrace.rpc.link import Receiver, RpcConnection
from tests.simulation.loop import SimulatedClock, SimulatedLoop, SimulatedProcess
from tests.support.frames import frames_of
from tests.support.simulated_link import SimulatedLink, Weather

FULL_S = 0.6


class NoAnswer(Exception):
    """The connection could not be opened, has ended, or was silent too long; the request may have been carried out."""


@dataclass(slots=True)
class KafkaWeather:
    """The faults of clients' connections: seconds of delay, and the chance per message that the connection ends.

    `full`: the chance per write that the client takes nothing for up to FULL_S.
    """

    min_delay_s: float = 0.0005
    max_delay_s: float = 0.005
    cut: float = 0.0
    full: float = 0.0


class Accepts(Protocol):
    """An agent's listener."""

    process: SimulatedProcess

    def accept(self) -> KafkaConnection: ...


class Network:
    """Which process listens at which address, and the faults between them."""

    def __init__(self, loop: SimulatedLoop, entropy: Entropy) -> None:
        self._loop = loop
        self._entropy = entropy
        self._clock = SimulatedClock(loop)
        self.weather = Weather(min_delay_s=0.0002, max_delay_s=0.003)
        self.peer_weather = Weather(min_delay_s=0.0002, max_delay_s=0.003, looks_again=True)
        self.kafka = KafkaWeather()
        self._servers: dict[str, tuple[SimulatedProcess, RpcServer]] = {}
        self._listeners: dict[str, Accepts] = {}
        self._links: dict[str, list[SimulatedLink]] = {}
        self._links_of: dict[tuple[str, str], list[SimulatedLink]] = {}
        self._blocked: dict[tuple[str, str], None] = {}
        self._streams: dict[str, list[KafkaStream]] = {}

    # --- RPC

    def serve(self, address: str, process: SimulatedProcess, server: RpcServer) -> None:
        """Make a process answer RPC at this address."""
        self._servers[address] = (process, server)

    def link(self, address: str, weather: Weather | None = None, caller: str = "") -> Link:
        """Return a link to whichever process answers there when it is used. `caller`: the process that uses it."""
        return _AddressLink(self, address, weather or self.weather, caller)

    async def connect(self, address: str, weather: Weather, caller: str, receiver: Receiver) -> RpcConnection:
        found = self._servers.get(address)
        if found is None or found[0].is_dead or (caller, address) in self._blocked:
            await self._clock.sleep(0.001)
            raise NotConnected(f"{address}: connection refused")
        process, server = found
        link = SimulatedLink(
            server,
            clock=self._clock,
            entropy=self._entropy,
            weather=weather,
            address=address,
            far=process.context,
            later=self._later,
        )
        self._links.setdefault(process.name, []).append(link)
        self._links_of.setdefault((caller, address), []).append(link)
        return await link.connect(receiver)

    def block(self, caller: str, address: str) -> None:
        """Cut the path between these two from now on; others reach both."""
        self._blocked[caller, address] = None
        for link in self._links_of.pop((caller, address), []):
            link.cut()

    def unblock(self, caller: str, address: str) -> None:
        """Restore the path."""
        self._blocked.pop((caller, address), None)

    def _later(self, delay: float, arrive: Callable[..., None], context: Context, frame: bytes) -> None:
        self._loop.call_later(delay, arrive, frame, context=context)

    # --- Kafka

    def listen(self, address: str, listener: Accepts) -> None:
        self._listeners[address] = listener

    def stop_listening(self, address: str) -> None:
        self._listeners.pop(address, None)

    def open_stream(self, address: str, client: SimulatedProcess) -> KafkaStream:
        """Open a client's connection. Raises NoAnswer if no process listens."""
        listener = self._listeners.get(address)
        if listener is None or listener.process.is_dead:
            raise NoAnswer(f"{address}: connection refused")
        stream = KafkaStream(self._loop, self._entropy, self.kafka, client, listener)
        self._streams.setdefault(listener.process.name, []).append(stream)
        return stream

    # --- the end of a process

    def reset(self, process: SimulatedProcess) -> None:
        """Notify the peers that this process's connections have ended, as its kernel does."""
        for link in self._links.pop(process.name, []):
            link.cut()
        for stream in self._streams.pop(process.name, []):
            stream.cut()


class _AddressLink:
    """A Link that looks up at each connection which process listens."""

    def __init__(self, network: Network, address: str, weather: Weather, caller: str) -> None:
        self._network = network
        self._address = address
        self._weather = weather
        self._caller = caller

    @property
    def address(self) -> str:
        return self._address

    async def connect(self, receiver: Receiver) -> RpcConnection:
        return await self._network.connect(self._address, self._weather, self._caller, receiver)


class _Direction:
    """Bytes in transfer to one end, in order."""

    def __init__(self, loop: SimulatedLoop, to: SimulatedProcess, deliver: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._to = to
        self._deliver = deliver
        self._travelling: deque[bytes] = deque()
        self._last_arrival = 0.0

    def send(self, data: bytes, delay: float) -> None:
        self._last_arrival = max(self._last_arrival, self._loop.time() + delay)
        self._travelling.append(data)
        self._loop.call_at(self._last_arrival, self._arrive, context=self._to.context.copy())

    def _arrive(self) -> None:
        if self._travelling:
            self._deliver(self._travelling.popleft())

    def drop(self) -> None:
        self._travelling.clear()


class _ServerTransport:
    """The transport that an agent's connection writes to. While the client takes nothing, it keeps the written views,
    which must not change."""

    def __init__(self, stream: KafkaStream) -> None:
        self._stream = stream
        self._is_closing = False
        self._unsent: list[Buffer] = []
        self._as_written = b""

    def writelines(self, parts: Sequence[Buffer]) -> None:
        if self._is_closing:
            return
        if not self._unsent:
            if not self._stream.is_full():
                self._leave(b"".join(parts))
                return
            self._stream.take_later(self._leave_late)
        self._unsent += parts
        self._as_written += b"".join(parts)

    def _leave_late(self) -> None:
        """The client takes the bytes that have waited."""
        if not self._unsent or self._stream.is_over:
            return
        unsent, written = b"".join(self._unsent), self._as_written
        self._unsent, self._as_written = [], b""
        assert unsent == written, "an answer changed while it waited to be sent"
        self._leave(unsent)
        if self._is_closing:
            self._stream.closed_by_server()
        else:
            self._stream.resume_writing()

    def _leave(self, data: bytes) -> None:
        for frame in frames_of(data):
            self._stream.answer(frame)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self._unsent:
                self._stream.closed_by_server()

    def abort(self) -> None:
        self._unsent, self._as_written, self._is_closing = [], b"", False
        self.close()

    def pause_reading(self) -> None:
        self._stream.pause()

    def resume_reading(self) -> None:
        self._stream.resume()

    def set_write_buffer_limits(self, high: int) -> None:
        """Ignore the limit: the transport is full at random, however little was written."""

    def get_write_buffer_size(self) -> int:
        return len(self._as_written)

    def get_extra_info(self, name: str) -> Any:
        return ("client", 1) if name == "peername" else None


class KafkaStream:
    """One connection between a client and an agent: whole frames in both directions, real codecs at both ends."""

    def __init__(
        self,
        loop: SimulatedLoop,
        entropy: Entropy,
        weather: KafkaWeather,
        client: SimulatedProcess,
        listener: Accepts,
    ) -> None:
        self._loop = loop
        self._entropy = entropy
        self._weather = weather
        self._client = client
        self._agent = listener.process
        self._correlation = 0
        self._waiting: dict[int, tuple[int, int, asyncio.Future[Any]]] = {}
        self._there = _Direction(loop, self._agent, self._arrived_at_agent)
        self._back = _Direction(loop, client, self._arrived_at_client)
        self._unread: deque[bytes] = deque()
        self._is_paused = False
        self.is_over = False
        self.agent_knows = False
        """The agent was alive when the connection ended."""
        self._protocol = self._agent.context.copy().run(listener.accept)
        self._agent.context.copy().run(self._protocol.connection_made, _ServerTransport(self))  # type: ignore[arg-type]

    def send(self, api: int, version: int, request: Any, client_id: str) -> asyncio.Future[Any]:
        """Send a request now; the future gets its response, or NoAnswer."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self.is_over:
            answer.set_exception(NoAnswer("the connection has ended"))
            return answer
        self._correlation += 1
        self._waiting[self._correlation] = (api, version, answer)
        data = b"".join(encode_request(self._correlation, api, version, request, client_id))
        self._there.send(data, self._delay())
        self._maybe_cut()
        return answer

    def answer(self, data: bytes) -> None:
        if not self.is_over:
            self._back.send(data, self._delay())
            self._maybe_cut()

    def _delay(self) -> float:
        weather = self._weather
        return weather.min_delay_s + self._entropy.fraction() * (weather.max_delay_s - weather.min_delay_s)

    def _maybe_cut(self) -> None:
        if self._weather.cut and self._entropy.fraction() < self._weather.cut:
            self._loop.call_later(self._delay(), self.cut)

    def _arrived_at_agent(self, data: bytes) -> None:
        if self.is_over:
            return
        self._unread.append(data)
        self._read()

    def _read(self) -> None:
        while self._unread and not self._is_paused and not self.is_over:
            data = self._unread.popleft()
            room = self._protocol.get_buffer(-1)
            taken = min(len(room), len(data))
            room[:taken] = data[:taken]
            if taken < len(data):
                self._unread.appendleft(data[taken:])
            self._protocol.buffer_updated(taken)

    def is_full(self) -> bool:
        """Return whether the client takes nothing now."""
        return self._weather.full > 0.0 and self._entropy.fraction() < self._weather.full

    def take_later(self, leave: Callable[[], None]) -> None:
        """Make the agent's connection wait, and call `leave` after a while."""
        self._protocol.pause_writing()
        self._loop.call_later(FULL_S * self._entropy.fraction(), leave, context=self._agent.context.copy())

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._loop.call_soon(self._read, context=self._agent.context.copy())

    def _arrived_at_client(self, data: bytes) -> None:
        correlation = int.from_bytes(data[4:8], "big", signed=True)
        api, version, answer = self._waiting.pop(correlation)
        _, response = decode_response(api, version, memoryview(data)[4:])
        if not answer.done():
            answer.set_result(response)

    def closed_by_server(self) -> None:
        """The agent closes the connection; what it wrote before still arrives."""
        self._loop.call_later(
            self._delay() + self._weather.max_delay_s, self.cut, context=self._client.context.copy()
        )

    def cut(self) -> None:
        """End the connection for both sides."""
        if self.is_over:
            return
        self.is_over = True
        self.agent_knows = not self._agent.is_dead
        self._there.drop()
        self._back.drop()
        self._loop.call_soon(self._protocol.connection_lost, None, context=self._agent.context.copy())
        waiting, self._waiting = self._waiting, {}
        for _, _, answer in waiting.values():
            if not answer.done():
                answer.set_exception(NoAnswer("the connection has ended"))
                answer.exception()  # mark it as seen: the caller may have given up
