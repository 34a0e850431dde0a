"""A sequencer server: one of several that share a database. One is the committer; the others forward calls to it.

The server that gets the committer's lease loads the state and answers calls. When the lease has ended (by the server's
own monotonic clock, less a margin), the server answers nothing more from memory: waiting calls fail with
SequencerUnavailable, and their callers retry at the next committer with the same ids. Independently of this, the store
fences writes by the epoch of the lease.

The committer's server also does the housekeeping: retention, garbage collection and checkpoints.

A server that finds a different database in place of its own (recovered in the meantime, or an older copy) is lost: from
then on it answers IncarnationChanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

import structlog

from sequencer.api.errors import IncarnationChanged, SequencerError, SequencerUnavailable
from sequencer.api.interface import Sequencer
from sequencer.api.values import Empty, Value
from sequencer.checkpoint.checkpointer import Checkpointer, forget_checkpoints
from sequencer.client import SequencerClient
from sequencer.collector import collect
from sequencer.engine.committer import Committer
from sequencer.engine.follower import Follower
from sequencer.methods import FOLLOWED, METHODS, FunctionSequencer, Method, NotCommitter
from sequencer.observer import SequencerObserver
from sequencer.reading.journal import NOTHING_KNOWN, JournalGap
from sequencer.rpc_handler import RpcHandler
from sequencer.rules.topics import ValidateConfig, accept_any_config
from sequencer.settings import SequencerSettings, ServerSettings
from sequencer.store.row_store import DatabaseIdentity, RowStore
from sequencer.store.state import HotState
from tailrace.background_tasks import cancel_and_wait, log_and_continue
from tailrace.buffers import Buffer
from tailrace.clock import Clock, Entropy, wait_for
from tailrace.object_store.api import ObjectStore, StoreError
from tailrace.rpc import ClusterIdentity, HelloRefused, KnownCluster, Link, RpcSecurity, RpcServer, TcpLink

_log = structlog.get_logger(__name__)
_OVER = "the committer's lease has ended; retry with the same ids"


class NotConfirmed(SequencerUnavailable):
    """The database has not yet answered whether the committer still holds its lease."""


class SequencerServer:
    """One sequencer server. Call `start`, use it by RPC or in the same process through `sequencer`, then `close`.

    The caller closes the row store and the object store. Without an object store this server collects no garbage and
    writes no checkpoints. `reads`, `observer`: see Committer. `link` makes a connection to another server (TCP, except
    in a simulation). `on_lost` is called when the server is lost: the process should end.
    """

    def __init__(
        self,
        store: RowStore,
        clock: Clock,
        entropy: Entropy,
        *,
        settings: ServerSettings | None = None,
        sequencer_settings: SequencerSettings | None = None,
        validate_config: ValidateConfig = accept_any_config,
        object_store: ObjectStore | None = None,
        reads: RowStore | None = None,
        observer: SequencerObserver | None = None,
        security: RpcSecurity | None = None,
        link: Callable[[str], Link] | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self._store = store
        self._reads = reads or store
        self._observer = observer or SequencerObserver()
        self._clock = clock
        self._entropy = entropy
        self._settings = settings or ServerSettings()
        self._sequencer_settings = sequencer_settings or SequencerSettings()
        self._validate_config = validate_config
        self._object_store = object_store
        self._security = security if security is not None else RpcSecurity()
        self._link: Callable[[str], Link] = (
            link if link is not None else lambda address: TcpLink(address, self._security.tls)
        )
        self._known = KnownCluster()
        self._address = self._settings.advertise
        self._on_lost = on_lost
        self._checkpointer: Checkpointer | None = None
        self._lost: IncarnationChanged | None = None
        self._is_closing = False
        self._is_without_committer = False
        self._local: Committer | None = None
        self._last_numbers = NOTHING_KNOWN
        self._follower: Follower | None = None
        self._following: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._housekeeping: list[asyncio.Task[None]] = []
        self._leading: asyncio.Task[None] | None = None
        self._doubt: asyncio.Future[None] | None = None
        self._waiting: dict[object, asyncio.Task[object]] = {}
        self._committer = ""
        self._no_committer = ""
        self._forwarder: tuple[str, SequencerClient] | None = None
        self._routed = FunctionSequencer(self._call_or_forward)
        self._handler = RpcHandler(
            self._call_here, forward=self._call_or_forward, read=self._read, number=self._number
        )
        self.server = RpcServer(
            self._serve,
            clock=clock,
            entropy=entropy,
            known=self._known,
            security=self._security,
            max_connections=self._settings.max_rpc_connections,
        )

    # --- start and stop

    async def start(self, *, listen: bool = True) -> None:
        """Open the store, serve, and try to become the committer. Raises SequencerUnavailable, OSError."""
        identity = await self._store.open()
        self._learn(identity)
        if listen:
            await self.server.listen(self._settings.host, self._settings.port)
            self._address = self._address or f"{self._settings.host}:{self.server.port}"
        with log_and_continue(_log, "a sequencer server's first turn failed"):
            await self._try_to_lead()
        self._leading = asyncio.create_task(self._lead(), name="sequencer server")

    async def close(self) -> None:
        """Answer the calls in progress, release the lease, and close the connections."""
        self._is_closing = True
        await self.server.close(self._settings.drain_s)
        await cancel_and_wait(self._leading)
        await self._step_down("this server is closing")
        await self._stop_following()
        if self._ending is not None:
            await asyncio.gather(self._ending, return_exceptions=True)
        await self._forward_by(None)

    @property
    def sequencer(self) -> Sequencer:
        """The sequencer for callers in this process: this server answers if it is the committer, else it forwards the
        call."""
        return self._routed

    @property
    def address(self) -> str:
        """The address at which others reach this server; known after `start`."""
        return self._address

    @property
    def is_committer(self) -> bool:
        """Whether this server may answer now."""
        return self._local is not None and self._local.lease_left_s > self._settings.margin_s

    @property
    def checkpoint_age_s(self) -> float:
        """Seconds since this committer's newest durable checkpoint; -1 if there is none."""
        head = None if self._checkpointer is None else self._checkpointer.last_head
        return -1.0 if head is None else max(0, self._clock.wall_ms() - head.created_ms) / 1000

    @property
    def copy_number(self) -> int:
        """The journal number up to which this server has the rows in memory, as committer or follower. It is -1 if it
        has no rows and would have to load them all to take over."""
        if self._local is not None:
            return self._local.journal_number
        return -1 if self._follower is None else self._follower.number

    @property
    def lost(self) -> IncarnationChanged | None:
        """The reason why this server permanently answers nothing more; None if it does answer."""
        return self._lost

    @property
    def committer_address(self) -> str:
        """The committer's address when this server last looked; '' if there was none."""
        return self._address if self.is_committer else self._committer

    @property
    def no_committer(self) -> str:
        """The reason why no committer is known if `committer_address` is ''; '' before the first look."""
        if self._local is not None:
            return "the database does not confirm this server's lease as the committer"
        return self._no_committer

    # --- the lease

    async def _lead(self) -> None:
        while self._lost is None:
            self._doubt = asyncio.get_running_loop().create_future()
            if self._local is None:
                pause = self._settings.poll_s if self._committer else self._settings.empty_poll_s
            elif self.is_committer:
                pause = max(0.01, self._local.lease_left_s - self._settings.margin_s)
            else:  # confirmed by a read only: see Term.confirm
                pause = self._settings.poll_s
            await wait_for(self._clock, self._doubt, pause)
            with log_and_continue(_log, "a sequencer server's turn failed"):
                await self._take_turn()

    async def _take_turn(self) -> None:
        """Mark this server lost, step down, or try to lead, as the state demands."""
        local = self._local
        if local is not None and local.lost is not None:
            await self._mark_lost(str(local.lost))
            return
        if local is not None and not self.is_committer:
            try:
                await self._confirm_at_length(local)
            except SequencerUnavailable as error:
                await self._step_down(
                    f"the committer's lease has ended ({error}); retry at the next committer"
                )
        if self._local is None:
            await self._try_to_lead()

    async def _confirm(self, local: Committer, patience_s: float) -> None:
        """Return when the lease is certain to hold. If it has expired because this process was busy or stopped, or the
        database was slow, this renews it first.

        Raises SequencerUnavailable: another server has the lease. NotConfirmed: the database did not answer in time.
        """
        confirmed = asyncio.ensure_future(local.confirm(self._settings.margin_s))
        try:
            if not await wait_for(self._clock, confirmed, patience_s):
                raise NotConfirmed("the database did not confirm the committer's lease in time")
            await confirmed
        finally:
            await cancel_and_wait(confirmed)

    async def _confirm_at_length(self, local: Committer) -> None:
        """Like `_confirm`, but with more patience: after the usual time waiting calls fail, but the state is kept."""
        try:
            await self._confirm(local, self._patience_s(local))
        except NotConfirmed:
            self._refuse_waiting()
            await self._confirm(local, self._settings.silence_s)

    def _patience_s(self, local: Committer) -> float:
        return max(self._settings.confirm_s, 2 * local.round_trip_s)

    async def _try_to_lead(self) -> None:
        try:
            if not await self._finds_committer():
                # Waiting for a copy that is already being loaded is faster than loading one in a new term. A committer
                # that was only late may continue until then.
                if self._follower is not None and await self._follower.will_have_copy():
                    raise SequencerUnavailable(
                        "this server loads its copy of the rows before it takes the lease"
                    )
                await self._begin_term()
                return
        except (IncarnationChanged, HelloRefused) as error:
            await self._mark_lost(str(error))
            return
        except (SequencerError, StoreError) as error:
            await self._look_for_committer(error)
        self._follow(None)

    async def _finds_committer(self) -> bool:
        """Whether another server holds the committer's lease. This takes two reads; an attempt to take the lease is a
        write."""
        found = await self._store.committer_address()
        if not found or found == self._address:
            return False
        self._learn(await self._store.identity())
        self._note_committer(found)
        return True

    def _learn(self, identity: DatabaseIdentity) -> None:
        """Raise IncarnationChanged or HelloRefused if this server knew another database, which is lost."""
        self._known.learn(ClusterIdentity(identity.cluster_id, identity.incarnation))

    def _note_committer(self, address: str) -> None:
        self._committer = address
        self._is_without_committer = False

    async def _begin_term(self) -> None:
        checkpointer = self._make_checkpointer()
        if self._follower is not None:
            self._last_numbers = self._last_numbers.newest(self._follower.known)
        local = Committer(
            store=self._store,
            clock=self._clock,
            entropy=self._entropy,
            settings=self._sequencer_settings,
            validate_config=self._validate_config,
            holder=self._address,
            address=self._address,
            checkpointer=checkpointer,
            known=self._last_numbers,
            reads=self._reads,
            observer=self._observer,
            keeps_journal=self._settings.keeps_journal,
            follower=self._follower,
        )
        try:
            await self._begin(local, checkpointer)
        except BaseException:
            await self._end(local)
            if self._follower is not None and self._follower.is_handed_over:
                await self._stop_following()  # the copy was handed over: the next follower loads a new one
            raise

    async def _begin(self, local: Committer, checkpointer: Checkpointer | None) -> None:
        await local.start(self._learn)
        if checkpointer is not None:
            await self._begin_checkpoints(checkpointer)
        elif self._object_store is not None:
            await forget_checkpoints(self._object_store, local.identity.cluster_id)
        self._local, self._checkpointer = local, checkpointer
        self._committer = ""
        self._is_without_committer = False
        await self._stop_following()
        await self._forward_by(None)
        self._housekeeping.append(asyncio.create_task(self._apply_retention(local), name="retention"))
        if self._object_store is not None:
            self._housekeeping.append(
                asyncio.create_task(self._collect(local, self._object_store), name="collection")
            )
        _log.info("this server is the committer", address=self._address)

    async def _begin_checkpoints(self, checkpointer: Checkpointer) -> None:
        """Reserve offsets before the first commit. If it takes long, because there are very many partitions, only
        commits wait for it; reads and leases are served."""
        reserving = asyncio.create_task(_open(checkpointer), name="checkpoints: first head")
        exporting = asyncio.create_task(_export(checkpointer, reserving), name="checkpoints")
        self._housekeeping.append(exporting)
        if await wait_for(self._clock, reserving, self._settings.first_head_s):
            await reserving

    async def _end(self, local: Committer) -> None:
        """End a term completely, even if the caller is cancelled."""
        housekeeping, self._housekeeping = self._housekeeping, []
        await cancel_and_wait(*housekeeping)
        self._last_numbers = self._last_numbers.newest(local.known)
        self._ending = asyncio.create_task(local.close(), name="sequencer: end of a term")
        await asyncio.shield(self._ending)
        state = local.give_back()
        if state is not None:
            await self._stop_following()
            self._follow(state)

    def _follow(self, state: HotState | None) -> None:
        """Follow the committer while it is another server. Start from `state`, or load the rows if it is None."""
        settings = self._settings
        if not (settings.follows and settings.keeps_journal) or self._follower is not None:
            return
        if self._is_closing or self._lost is not None:
            return
        self._follower = Follower(
            self._reads,
            self._clock,
            pause_s=settings.follow_pause_s,
            settings=self._sequencer_settings,
            state=state,
        )
        self._following = asyncio.create_task(self._follower.run(), name="sequencer: following")

    async def _stop_following(self) -> None:
        following, follower = self._following, self._follower
        self._following = self._follower = None
        await cancel_and_wait(following)
        if follower is not None:
            self._last_numbers = self._last_numbers.newest(follower.known)
            follower.drop()

    def _make_checkpointer(self) -> Checkpointer | None:
        settings = self._sequencer_settings
        if self._object_store is None or settings.checkpoint_interval_ms <= 0:
            return None
        return Checkpointer(
            self._object_store,
            self._reads,
            self._clock,
            interval_ms=settings.checkpoint_interval_ms,
            reservation=settings.checkpoint_reservation,
        )

    async def _mark_lost(self, reason: str) -> None:
        """Answer nothing from now on: this process knows another database."""
        self._lost = IncarnationChanged(reason)
        _log.error("this server's database is not the one it knew, or not the newest; it ends", reason=reason)
        await self._step_down(reason)
        await self._stop_following()
        if self._on_lost is not None:
            self._on_lost(reason)

    async def _look_for_committer(self, error: Exception) -> None:
        try:
            found = await self._store.committer_address() or ""
        except SequencerError as other:
            _log.warning("the sequencer's database is unreachable", reason=str(other))
            self._committer, self._no_committer = "", str(other)
            return
        self._committer = "" if found == self._address else found
        self._no_committer = str(error)
        if self._committer:
            self._is_without_committer = False
            return
        # At the first look the committer may just have released its lease.
        log = _log.warning if self._is_without_committer else _log.info
        self._is_without_committer = True
        log("there is no committer", reason=str(error))

    async def _step_down(self, reason: str) -> None:
        """Stop answering from memory, fail the waiting calls, and drop the state."""
        local, self._local = self._local, None
        self._checkpointer = None
        if local is None:
            return
        log = _log.info if self._is_closing else _log.warning
        log("this server is no longer the committer", reason=reason)
        self._refuse_waiting()
        await self._end(local)

    def _refuse_waiting(self) -> None:
        """Fail the waiting calls; their callers retry at the next committer (see `_call_here`)."""
        waiting, self._waiting = self._waiting, {}
        for task in waiting.values():
            task.cancel()

    def _ask_to_confirm(self) -> None:
        if self._doubt is not None and not self._doubt.done():
            self._doubt.set_result(None)

    # --- answering

    async def _serve(self, method: str, body: memoryview) -> tuple[bytes, Sequence[Buffer]]:
        """Answer one RPC call, and report how long it took."""
        began = self._clock.monotonic()
        try:
            return await self._handler.handle(method, body)
        finally:
            name = method.rpartition(".")[2]
            if name in METHODS:
                self._observer.call_answered("server", name, self._clock.monotonic() - began)

    async def _call_here(self, method: Method, request: Value) -> Value:
        """Answer from this server's own state if the lease holds before, during and after the call."""
        if self._lost is not None:
            raise self._lost
        local = self._local
        if local is None:
            raise NotCommitter(self._committer)
        task = cast("asyncio.Task[object] | None", asyncio.current_task())
        assert task is not None, "called in a task"
        ticket = object()
        self._waiting[ticket] = task
        try:
            if not self.is_committer:
                await self._confirm_or_refuse(local, NotCommitter(""))
            answer = await local.call(method, request)
            if local is not self._local or not self.is_committer:
                # If the lease is confirmed now, the answer was true when it was read: no other server has committed
                # since.
                await self._confirm_or_refuse(local, SequencerUnavailable(_OVER))
        except asyncio.CancelledError:
            if ticket in self._waiting:
                raise  # the caller was cancelled; `_refuse_waiting` did not do it
            if task.uncancel() > 0:
                raise
            raise SequencerUnavailable(_OVER) from None
        except IncarnationChanged:
            self._ask_to_confirm()
            raise
        finally:
            self._waiting.pop(ticket, None)
            if not self.is_committer:
                self._ask_to_confirm()
        return answer

    async def _confirm_or_refuse(self, local: Committer, refusal: SequencerUnavailable) -> None:
        try:
            await self._confirm(local, self._patience_s(local))
        except SequencerUnavailable:
            raise refusal from None

    async def _read(self, seen: int, method: Method, request: Value) -> Value:
        """Answer from this server's copy, at a journal number of at least `seen`, or forward the call. Only the
        committer refuses a call."""
        follower, is_read = self._follower, method.name in FOLLOWED
        if follower is not None and is_read and self._local is None and self._lost is None:
            with suppress(SequencerError, JournalGap):
                return await follower.answer(method, request, seen)
        return await self._call_or_forward(method, request)

    def _number(self) -> int:
        """Return the journal number that an answer given now reflects, whether it is this server's own or a forwarded
        one."""
        own = self._local.journal_number if self._local is not None else -1
        copied = self._follower.number if self._follower is not None else -1
        passed_on = self._forwarder[1].seen if self._forwarder is not None else -1
        return max(own, copied, passed_on)

    async def _call_or_forward(self, method: Method, request: Value) -> Value:
        try:
            return await self._call_here(method, request)
        except NotCommitter as error:
            address = str(error)
            if not address:
                raise SequencerUnavailable("there is no committer now; retry with the same ids") from None
        try:
            return await (await self._forward_to(address)).call(method, request)
        except NotCommitter:
            raise SequencerUnavailable(f"{address} is no longer the committer; retry") from None

    async def _forward_to(self, address: str) -> SequencerClient:
        if self._forwarder is not None and self._forwarder[0] == address:
            return self._forwarder[1]
        forwarder = SequencerClient(
            [address],
            clock=self._clock,
            entropy=self._entropy,
            known=self._known,
            security=self._security,
            patience_s=0,
            timeout_s=self._settings.forward_timeout_s,
            follow_hints=False,
            link=self._link,
        )
        await self._forward_by((address, forwarder))
        return forwarder

    async def _forward_by(self, forwarder: tuple[str, SequencerClient] | None) -> None:
        """Replace the forwarder. Calls that the old one forwarded fail: its server is no longer the committer."""
        old, self._forwarder = self._forwarder, forwarder
        if old is not None:
            await old[1].close()

    # --- housekeeping

    async def _apply_retention(self, local: Committer) -> None:
        while True:
            await self._clock.sleep(self._settings.retention_interval_s)
            with log_and_continue(_log, "retention is put off", SequencerError):
                await local.apply_retention(Empty())

    async def _collect(self, local: Committer, objects: ObjectStore) -> None:
        while True:
            await self._clock.sleep(self._settings.collection_interval_s)
            with log_and_continue(_log, "garbage collection is put off", SequencerError, StoreError):
                done = await collect(local, objects, self._clock)
                if done.objects_deleted or done.orphans_deleted:
                    _log.info(
                        "garbage is collected", objects=done.objects_deleted, orphans=done.orphans_deleted
                    )


async def _open(checkpointer: Checkpointer) -> None:
    """Reserve offsets. If the bucket is unreachable, `Checkpointer.run` tries again later."""
    try:
        await checkpointer.open()
    except StoreError as error:
        _log.warning("no checkpoint can be written; commits wait for one", reason=str(error))


async def _export(checkpointer: Checkpointer, reserving: asyncio.Task[None]) -> None:
    await asyncio.gather(reserving, return_exceptions=True)  # the checkpointer remembers a refusal
    await checkpointer.run()
