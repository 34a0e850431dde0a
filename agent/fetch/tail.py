"""The tail: windows of the partitions that clients read, kept current by one subscription, and the fetches that wait.

A fetch at the end of a partition is answered, and waits, without a call to the sequencer. This module makes the calls
and waits; agent.fetch.windows has the rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import structlog

from agent.fetch.window import SubscriptionEnded, Window, WindowOutOfSync
from agent.fetch.windows import FRESH_S, MAX_WINDOWS, EmptyAnswer, Windows
from agent.telemetry import AgentTelemetry
from sequencer.api.errors import SequencerError, SequencerUnavailable
from sequencer.api.interface import Sequencer
from sequencer.api.reads import FoundPartition, WatchAnswer, WatchRequest
from tailrace.background_tasks import cancel_and_wait, log_and_continue
from tailrace.clock import Clock, Entropy
from tailrace.ids import TopicPartition
from tailrace.turns import Turns

log = structlog.get_logger("agent.tail")

BEAT_MS = 500
"""How long a call of the subscription waits for changes."""
PACE_S = 0.02
"""The shortest pause between an answer and the next call, so that one answer carries several changes."""
MAX_PACE_S = 0.75
"""The longest time between two calls that the sequencer may ask for. The windows stay fresh until the next answer, even
if one of two calls is cancelled to add partitions."""
LATE_S = 6.0
"""How long windows are kept if the subscription gets no answer."""
ASK_AGAIN_S = 0.5
"""A fetch that waits for a partition without a window asks the sequencer again after this time. A fetch of more than
MAX_WINDOWS partitions waits for that many only."""
PARTITIONS_IN_A_TURN = 2_000
WOKEN_IN_A_TURN = 100


class Tail:
    """The windows of an agent and their subscription. `start`, then `close`. Owned by one event loop."""

    def __init__(
        self, sequencer: Sequencer, clock: Clock, entropy: Entropy, telemetry: AgentTelemetry
    ) -> None:
        self._sequencer = sequencer
        self._clock = clock
        self._entropy = entropy
        self._telemetry = telemetry
        self._windows = Windows(entropy.uuid())
        self._waiting: dict[TopicPartition, dict[asyncio.Future[None], None]] = {}
        self._additions: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._pace_s = PACE_S
        telemetry.windows.set_function(lambda: self._windows.count)

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow(), name="tail: subscription")

    async def close(self) -> None:
        await cancel_and_wait(self._task)

    # --- for fetches

    def find(
        self, partition: TopicPartition, offset: int, max_bytes: int, *, is_last: bool = False
    ) -> tuple[FoundPartition, int] | None:
        """Return the window's answer and its commit number; None if the sequencer must be asked. `is_last`: the fetch
        waits no longer."""
        answer = self._windows.find(partition, offset, max_bytes, self._clock.monotonic(), is_last=is_last)
        (self._telemetry.window_misses if answer is None else self._telemetry.window_hits).inc(1)
        return answer

    def note_stored(self, partition: TopicPartition, end_offset: int) -> None:
        """Note that this agent has stored batches up to `end_offset`, before their producers are answered."""
        self._windows.note_stored(partition, end_offset)

    def note_deleted(self, partition: TopicPartition, log_start_offset: int) -> None:
        """Note that records below this offset were deleted through this agent, before the client is answered."""
        self._windows.note_deleted(partition, log_start_offset)

    def note_found(
        self,
        partition: TopicPartition,
        offset: int,
        found: FoundPartition,
        *,
        number: int,
        asked_at: float,
        is_at_end: bool,
    ) -> None:
        """Note the sequencer's answer to a request sent at `asked_at` (monotonic). `number`: its commit number.
        `is_at_end`: its runs reach the partition's end."""
        self._windows.note_sent(partition, number)
        if is_at_end:
            nothing = EmptyAnswer.of(offset, found, number, asked_at=asked_at)
            self._windows.want(partition, self._clock.monotonic(), nothing)
            if self._windows.has_additions and self._additions is not None and not self._additions.done():
                self._additions.set_result(None)

    async def wait(self, seen: Mapping[TopicPartition, int], seconds: float) -> None:
        """Return when a partition may have changed since the commit of its last answer, or after `seconds`."""
        now = self._clock.monotonic()
        deadline = now + seconds
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waited: list[TopicPartition] = []
        turns = Turns(PARTITIONS_IN_A_TURN)
        try:
            for partition, number in seen.items():
                if self._windows.is_changed(partition, number, now):
                    return
                if len(waited) == MAX_WINDOWS or not self._windows.is_live(partition, now):
                    deadline = min(deadline, now + ASK_AGAIN_S)
                if len(waited) < MAX_WINDOWS:
                    self._waiting.setdefault(partition, {})[woken] = None
                    self._windows.count_reader(partition, 1)
                    waited.append(partition)
                if turns.fills():
                    await turns.give()
                    now = self._clock.monotonic()
            timer = asyncio.ensure_future(self._clock.sleep(deadline - self._clock.monotonic()))
            try:
                await asyncio.wait((woken, timer), return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
        finally:
            woken.cancel()
            ended = 0
            try:
                async for some in turns.parts(waited):
                    self._forget(some, woken)
                    ended += len(some)
            finally:  # the fetch may be cancelled in a turn of others
                self._forget(waited[ended:], woken)

    def _forget(self, partitions: Iterable[TopicPartition], woken: asyncio.Future[None]) -> None:
        """Note that a fetch no longer waits for these partitions."""
        for partition in partitions:
            self._windows.count_reader(partition, -1)
            waiters = self._waiting[partition]
            del waiters[woken]
            if not waiters:
                del self._waiting[partition]

    def live(self) -> tuple[int, dict[TopicPartition, Window]]:
        """Return the commit number up to which the windows are complete, and the windows."""
        return self._windows.commit_number, self._windows.live()

    # --- the subscription

    async def _follow(self) -> None:
        while True:
            if not self._windows.count:
                await self._until_additions()
                self._windows.restart(self._entropy.uuid())
            is_sound = False
            began = self._clock.monotonic()
            with log_and_continue(
                log,
                "the subscription failed: windows are dropped, and fetches call the sequencer",
                SequencerError,
                WindowOutOfSync,
            ):
                is_sound = await self._take_turn()
            if not is_sound:
                self._telemetry.window_resets.inc(1)
                self._windows.restart(self._entropy.uuid())
                await self._wake(list(self._waiting))
            pause_s = max(PACE_S, began + self._pace_s - self._clock.monotonic())
            await self._clock.sleep(pause_s if is_sound else ASK_AGAIN_S * self._entropy.fraction())

    async def _until_additions(self) -> None:
        self._additions = asyncio.get_running_loop().create_future()
        await self._additions

    async def _take_turn(self) -> bool:
        """Make one call of the subscription. Return whether the windows are current. Raises SequencerError,
        WindowOutOfSync."""
        sent_at = self._clock.monotonic()
        request = self._windows.next_request(sent_at, BEAT_MS)
        call = asyncio.ensure_future(self._sequencer.watch(request))
        try:
            if await self._is_answered(call, request):
                answer = call.result()
                self._pace_s = min(max(PACE_S, answer.pause_ms / 1000), MAX_PACE_S)
                if request.added:
                    self._windows.note_added(self._clock.monotonic() - sent_at)
                await self._wake(self._windows.apply(answer, sent_at))
            return True
        except SubscriptionEnded as over:
            log.info("the subscription is over: windows are dropped and subscribed again", cause=str(over))
            return False
        finally:
            await cancel_and_wait(call)

    async def _is_answered(self, call: asyncio.Future[WatchAnswer], request: WatchRequest) -> bool:
        """Wait for the answer. Return False if the call can be cancelled because partitions must be added.

        After FRESH_S the windows answer no more, and fetches ask the sequencer. But the windows are kept until LATE_S:
        if all agents dropped them and subscribed to everything again, a busy sequencer that answers late would be
        busier still.
        """
        additions = self._additions = asyncio.get_running_loop().create_future()
        if self._windows.has_additions:
            additions.set_result(None)
        is_only_waiting = not request.added and not request.removed
        awaited: list[asyncio.Future[Any]] = [call, *([additions] if is_only_waiting else [])]
        for patience_s in (FRESH_S, LATE_S - FRESH_S):
            late = asyncio.ensure_future(self._clock.sleep(patience_s))
            try:
                await asyncio.wait([*awaited, late], return_when=asyncio.FIRST_COMPLETED)
            finally:
                late.cancel()
            if call.done():
                return True
            if is_only_waiting and additions.done():
                return False
            await self._wake(list(self._waiting))
        raise SequencerUnavailable("the subscription got no answer in time")

    async def _wake(self, partitions: Iterable[TopicPartition]) -> None:
        """Wake the fetches that wait for these partitions, a few per turn of the loop: each then makes an answer."""
        turns = Turns(WOKEN_IN_A_TURN)
        for partition in partitions:
            for waiter in list(self._waiting.get(partition, ())):
                if not waiter.done():
                    waiter.set_result(None)
                    await turns.did()
