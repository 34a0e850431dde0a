"""The agent's lease: renewed in time, taken again if it lapsed, lost if another process has taken it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from agent.produce.sealing import Share
from agent.services import Services
from sequencer.api.agents import AgentLease, RenewAgent
from sequencer.api.errors import IncarnationChanged, LeaseLost, SequencerError
from tailrace.background_tasks import log_and_continue
from tailrace.rpc import ClusterIdentity, HelloRefused, KnownCluster

log = structlog.get_logger("agent.lease")


class LeaseKeeper:
    """Keeps the lease of one agent, with its share of the cluster's budgets.

    Args:
        known: the cluster, as the agent knows it.
        on_renewed: called after each renewal, when the catalog is current.
        on_lost: called when the agent must not answer from its state any more; its owner ends the process.
    """

    def __init__(
        self,
        services: Services,
        *,
        known: KnownCluster,
        is_draining: Callable[[], bool],
        on_renewed: Callable[[], Awaitable[None]],
        on_lost: Callable[[str], None] | None,
    ) -> None:
        self._services = services
        self._sequencer = services.sequencer
        self._clock = services.clock
        self._catalog = services.catalog
        self._identity = services.identity
        self._known = known
        self._is_draining = is_draining
        self._on_renewed = on_renewed
        self._on_lost = on_lost

    async def run(self, lease: AgentLease) -> None:
        """Renew the lease before the sequencer counts the agent as dead. Return when it is lost."""
        pause = min(lease.lease_ms, lease.silence_ms or lease.lease_ms) / 3000
        is_ending, began = False, self._clock.monotonic()
        while not is_ending:
            # Count from request to request: after a slow answer the next renewal is due at once.
            await self._clock.sleep(max(0.0, began + pause - self._clock.monotonic()))
            began = self._clock.monotonic()
            with log_and_continue(log, "the agent's lease could not be renewed", SequencerError):
                is_ending = await self.renew()
            if self._clock.monotonic() >= self._identity.valid_until:
                self._services.lanes.lose_share()

    async def renew(self) -> bool:
        """Renew the lease once. Return whether the process is to end."""
        identity, asked_at = self._identity, self._clock.monotonic()
        wanted = self._services.lanes.demand()
        try:
            renewed = await self._sequencer.renew_agent(
                RenewAgent(
                    broker_id=identity.broker_id,
                    epoch=identity.lease_epoch,
                    draining=self._is_draining(),
                    early_puts=wanted.early_puts,
                    rows=wanted.rows,
                )
            )
            self._check_incarnation(renewed.incarnation)
            identity.renew(renewed, asked_at)
            self._take_share(Share(renewed.early_puts, renewed.rows))
            if not self._catalog.is_current(renewed.newest):
                await self._catalog.refresh()
        except IncarnationChanged as error:
            identity.lapse(self._clock.monotonic())
            self._lose(f"the cluster's database is not the one that this agent knew: {error}")
            return True
        except LeaseLost as error:
            identity.lapse(self._clock.monotonic())
            if await self._is_taken():
                info = identity.info
                self._lose(
                    f"another agent has taken the lease of {info.host}:{info.port}; two agents can't be advertised "
                    f"at one address, give each its own (--advertise): {error}"
                )
                return True
            await self._register_again()
            return False
        await self._on_renewed()
        return False

    def _take_share(self, share: Share) -> None:
        self._services.lanes.take_share(share)
        for of, per_second in (("early_puts", share.early_puts), ("rows", share.rows)):
            if per_second >= 0:
                self._services.telemetry.cluster_share.labels(of).set(per_second)

    def _check_incarnation(self, incarnation: int) -> None:
        """Raise IncarnationChanged if the database was lost and recovered: the agent's state belongs to the old one."""
        try:
            self._known.check(ClusterIdentity("", incarnation))
        except HelloRefused as error:
            raise IncarnationChanged(str(error)) from error

    def _lose(self, reason: str) -> None:
        log.error("ending", reason=reason)
        if self._on_lost is not None:
            self._on_lost(reason)

    async def _is_taken(self) -> bool:
        """Whether another process has registered at this agent's address."""
        try:
            ring = (await self._catalog.refresh()).ring
        except SequencerError:
            return False  # registering will fail as well, and the next renewal checks again
        mine = self._identity.info
        return any(
            (member.info.host, member.info.port) == (mine.host, mine.port)
            and member.info.instance != mine.instance
            for member in ring.members
        )

    async def _register_again(self) -> None:
        """Register again, under a higher epoch, after the lease lapsed (a pause, a partition). Groups start over."""
        identity, asked_at = self._identity, self._clock.monotonic()
        try:
            lease = await self._sequencer.register_agent(identity.info)
        except SequencerError as error:
            log.warning("the agent's lapsed lease could not be taken again", error=str(error))
            return
        if lease.broker_id != identity.broker_id:
            log.warning("the agent has another broker id now", before=identity.broker_id, now=lease.broker_id)
        identity.renew(lease, asked_at)
        log.warning(
            "the agent's lease had lapsed and was taken again", broker_id=lease.broker_id, epoch=lease.epoch
        )
