"""A committer's term: one lease of the database, under one fencing epoch that no other term has.

The lease is valid for as long as the last renewal that the database confirmed says, counted from before it was asked.
It is renewed three times in its length by a task of its own (`keep`), whatever else the process is doing.

A lease that ran out is not a term that is over. The database may still have it under this epoch: then nobody else has
committed since, and one late renewal (`confirm`) makes the term valid again. The term is over when the database says
that another committer has the lease, or when this process ends it.
"""

from __future__ import annotations

import asyncio

import structlog

from sequencer.api import SequencerError, SequencerUnavailable
from sequencer.observer import SequencerObserver, timed
from sequencer.rows import RowStore
from tailrace.clock import Clock
from tailrace.keepers import outlived

_log = structlog.get_logger(__name__)


class Term:
    """See the module. `begin`, then `keep` as a task; `release` at the end.

    Args:
        holder: a name that no other term has, in this process or another.
        address: where others reach this committer.
    """

    def __init__(
        self,
        store: RowStore,
        clock: Clock,
        *,
        holder: str,
        address: str,
        lease_ms: int,
        observer: SequencerObserver,
    ) -> None:
        self._store = store
        self._clock = clock
        self._holder = holder
        self._address = address
        self._lease_ms = lease_ms
        self._observer = observer
        self._valid_until = 0.0
        self._turn = asyncio.Lock()
        self._is_held = False
        self.over: str | None = None
        """Why this term is over, for good."""
        self.epoch = 0

    async def begin(self) -> None:
        """Take the lease. Raises SequencerUnavailable while another committer holds it."""
        asked_at = self._clock.monotonic()
        epoch = await self._store.take_committer_lease(self._holder, self._address, self._lease_ms)
        if epoch is None:
            address = await self._store.committer_address()
            raise SequencerUnavailable(f"another committer holds the lease: {address or 'address unknown'}")
        self.epoch = epoch
        self._is_held = True
        self._valid_until = asked_at + self._lease_ms / 1000

    @property
    def left_s(self) -> float:
        """Seconds for which nobody else can be the committer; 0 when this is not known."""
        if self.over is not None or not self._is_held:
            return 0.0
        return max(0.0, self._valid_until - self._clock.monotonic())

    async def keep(self) -> None:
        """Renew the lease in time until the term is over."""
        pause = self._lease_ms / 3000
        while self.over is None:
            await self._clock.sleep(pause)
            pause = self._lease_ms / 10_000  # after a failure: several times in what is left of the lease
            with outlived(_log, "the committer's lease could not be renewed", SequencerError):
                async with self._turn:
                    await self._renew()
                pause = self._lease_ms / 3000

    async def confirm(self, margin_s: float = 0.0) -> None:
        """Return once the lease is valid for more than `margin_s`: at once, or after a renewal.

        Raises SequencerUnavailable: the term is over, or the database does not answer.
        """
        if self.left_s > margin_s:
            return
        async with self._turn:
            if self.left_s <= margin_s:
                await self._renew()
        self.check()
        if self.left_s <= margin_s:
            raise SequencerUnavailable("the committer's lease was renewed too late; ask again")

    async def _renew(self) -> None:
        if self.over is not None:
            return
        asked_at = self._clock.monotonic()
        renewed = self._store.renew_committer_lease(self.epoch, self._lease_ms)
        if await timed(self._observer, self._clock, "lease", renewed):
            self._valid_until = max(self._valid_until, asked_at + self._lease_ms / 1000)
        else:
            self.end(f"another committer has taken the lease from epoch {self.epoch}")

    def check(self) -> None:
        """Raise SequencerUnavailable when the term is over."""
        if self.over is not None:
            raise SequencerUnavailable(f"this committer's term is over: {self.over}")

    def end(self, reason: str) -> None:
        """Nothing is answered or renewed under this term any more."""
        if self.over is None:
            self.over = reason

    async def release(self) -> None:
        """Let the next committer begin at once. The write of this term must have ended."""
        self.end("it was given back")
        if not self._is_held:
            return
        self._is_held = False
        with outlived(_log, "the committer's lease was not given back; it runs out", SequencerError):
            await self._store.release_committer_lease(self.epoch)
