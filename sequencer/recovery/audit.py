"""The audit: do the database and the bucket agree in both directions, and is each of them consistent?

It only reads, needs no lease and may run while the cluster is live. Rows change while it reads, so it reports a finding
only if later looks show it again: two of them, or one for checkpoints and for objects that it reads whole.

Every run names an object that has a row. Every object row names bytes of that size and (sampled) of that CRC, whose
footer lists the runs as the rows do. Every object in the bucket is named by a row, or its session is open, or it is
garbage that the collector will delete. Anything else is a finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from uuid import UUID

import msgspec
from fastcrc.crc32 import iscsi as crc32c

from sequencer.api.commits import ObjectKind
from sequencer.api.reads import Run
from sequencer.checkpoint import format as checkpoint
from sequencer.checkpoint.checkpointer import read_cluster_file
from sequencer.checkpoint.format import InvalidCheckpoint
from sequencer.recovery.bucket_scan import FOLDERS, FoundCheckpoints, for_each, read_checkpoints, session_of
from sequencer.recovery.invariants import (
    Finding,
    check_counts,
    check_hot_rows,
    check_object,
    check_partition,
    check_positions,
    check_producers,
    partition_name,
)
from sequencer.rules.tables import kept_from_ms
from sequencer.store.row_store import DatabaseIdentity, ObjectRowMissing, RowStore
from sequencer.store.rows import (
    GroupOffsetRow,
    ObjectRow,
    PartitionRow,
    ProducerRow,
    Row,
    RunRow,
    SessionRow,
    TopicRow,
    key_of,
)
from sequencer.store.state import COMMIT_NUMBER, HotState
from tailrace.batches.mixed_object import InvalidObject, RunDescription, audit_data, read_footer
from tailrace.clock import Clock, Entropy
from tailrace.object_store.api import ObjectInfo, ObjectMissing, ObjectStore

R = TypeVar("R", bound=Row)

PAGE_ROWS = 2_000
LOOKS = 3
"""A finding is reported if this many consecutive looks show it (two for checkpoints and for objects that are read
whole)."""
PAUSE_S = 0.2
FEWEST_OPENED = 10
"""The audit reads at least this many objects whole, however small the sample is."""
MOST_DETAILS = 3
"""Limit of reported problems per object."""
DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """`sample`: the share of objects that are read whole, 1 for all. `overdue_ms`: older garbage is a finding."""

    sample: float = 0.01
    overdue_ms: int = 2 * DAY_MS
    fewest_opened: int = FEWEST_OPENED


class AuditReport(msgspec.Struct):
    """`checked` and `garbage` are counts by name; `notes` are remarks that are not findings."""

    cluster_id: str
    incarnation: int
    commit_number: int
    checked: dict[str, int]
    garbage: dict[str, int]
    findings: list[Finding]
    notes: list[str]

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


async def audit(
    rows: RowStore, store: ObjectStore, clock: Clock, entropy: Entropy, settings: AuditSettings | None = None
) -> AuditReport:
    """Check everything once, and check again what seems wrong.

    The caller has opened `rows`. Raises SequencerError and StoreError if they can't be read.
    """
    return await _Audit(
        rows=rows, store=store, clock=clock, entropy=entropy, settings=settings or AuditSettings()
    ).run()


class _Audit:
    def __init__(
        self, rows: RowStore, store: ObjectStore, clock: Clock, entropy: Entropy, settings: AuditSettings
    ) -> None:
        self._rows = rows
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._settings = settings
        self._state = HotState({})
        self._identity = DatabaseIdentity(cluster_id="", incarnation=0)
        self._now_ms = 0
        self._findings: list[Finding] = []
        self._notes: list[str] = []
        self._garbage = {"retired objects": 0, "of ended sessions": 0}
        self._checked = {
            "topics": 0,
            "partitions": 0,
            "runs": 0,
            "objects": 0,
            "objects in the bucket": 0,
            "objects opened": 0,
            "uploads under way": 0,
        }
        self._counts: dict[UUID, int] = {}
        self._chosen: list[ObjectRow] = []

    async def run(self) -> AuditReport:
        self._identity = await self._rows.identity()
        if self._identity.incarnation <= 0:
            self._find(
                "cluster", "the database", "it was being filled by `tailrace recover`, which did not end"
            )
        await self._look()
        await self._check_state()
        await self._check_partitions()
        await self._check_objects()
        await for_each(self._chosen, self._open)
        await self._check_runs_without_object()
        await self._check_checkpoints()
        return AuditReport(
            cluster_id=self._identity.cluster_id,
            incarnation=self._identity.incarnation,
            commit_number=self._state.counter(COMMIT_NUMBER),
            checked=self._checked,
            garbage=self._garbage,
            findings=sorted(set(self._findings)),
            notes=self._notes,
        )

    async def _look(self) -> None:
        self._state = HotState(await self._rows.load())
        self._now_ms = await self._rows.now_ms()

    async def _look_again(self) -> None:
        await self._clock.sleep(PAUSE_S)
        await self._look()

    # --- rows

    async def _check_state(self) -> None:
        findings = await self._findings_in_state()
        for _ in range(LOOKS - 1):
            if not findings:
                break
            await self._look_again()
            findings &= await self._findings_in_state()
        self._findings += findings
        self._checked["topics"] = self._state.count(TopicRow)
        self._checked["partitions"] = self._state.count(PartitionRow)

    async def _findings_in_state(self) -> set[Finding]:
        findings = set(check_hot_rows(self._state))
        async for producers in self._pages(ProducerRow):
            findings.update(check_producers(self._state, producers))
        counts = Counter[str]()
        async for positions in self._pages(GroupOffsetRow):
            findings.update(check_positions(self._state, positions))
            counts.update(row.group_id for row in positions)
        findings.update(check_counts(self._state, counts))
        return findings

    async def _pages(self, kind: type[R]) -> AsyncIterator[list[R]]:
        """Yield all rows of a kind that is looked up, page by page."""
        last: tuple[object, ...] | None = None
        while page := await self._rows.rows_after(kind, last, PAGE_ROWS):
            yield page
            last = key_of(page[-1])

    async def _check_partitions(self) -> None:
        """Read all runs page by page; read a partition again if it seems wrong."""
        seen: set[tuple[UUID, int]] = set()
        suspects: list[tuple[UUID, int]] = []
        async for key, runs in self._partitions():
            seen.add(key)
            self._checked["runs"] += len(runs)
            for run in runs:
                if run.kind is not ObjectKind.MARKERS:
                    self._counts[run.object_id] = self._counts.get(run.object_id, 0) + 1
            if check_partition(self._state, key, runs):
                suspects.append(key)
        for row in self._state.all(PartitionRow):
            key = (row.topic_id, row.partition)
            if key not in seen and check_partition(self._state, key, []):
                suspects.append(key)
        for key in suspects:
            await self._confirm(partial(self._partition_again, key))

    async def _partition_again(self, key: tuple[UUID, int]) -> set[Finding]:
        await self._look_again()
        return set(check_partition(self._state, key, await self._runs_of(key)))

    async def _partitions(self) -> AsyncIterator[tuple[tuple[UUID, int], list[RunRow]]]:
        gathered: list[RunRow] = []
        async for run in self._runs_after(None):
            if gathered and (run.topic_id, run.partition) != (gathered[0].topic_id, gathered[0].partition):
                yield (gathered[0].topic_id, gathered[0].partition), gathered
                gathered = []
            gathered.append(run)
        if gathered:
            yield (gathered[0].topic_id, gathered[0].partition), gathered

    async def _runs_of(self, key: tuple[UUID, int]) -> list[RunRow]:
        runs: list[RunRow] = []
        async for run in self._runs_after((*key, -1)):
            if (run.topic_id, run.partition) != key:
                break
            runs.append(run)
        return runs

    async def _runs_after(self, key: tuple[UUID, int, int] | None) -> AsyncIterator[RunRow]:
        while page := await self._rows.run_rows_after(key, PAGE_ROWS):
            for run in page:
                yield run
            key = (page[-1].topic_id, page[-1].partition, page[-1].base_offset)

    # --- objects and the bucket

    async def _check_objects(self) -> None:
        """Merge the rows and the listing, both in key order."""
        for folder in FOLDERS:
            prefix = f"{self._identity.cluster_id}/{folder}/"
            listed = self._store.list(prefix)
            named = self._object_rows(prefix)
            info, row = await anext(listed, None), await anext(named, None)
            while info is not None or row is not None:
                if row is None or (info is not None and info.key < row.key):
                    assert info is not None
                    await self._check_unnamed(info)
                    info = await anext(listed, None)
                elif info is None or row.key < info.key:
                    await self._check_row(row, None)
                    row = await anext(named, None)
                else:
                    await self._check_row(row, info.size)
                    self._checked["objects in the bucket"] += 1
                    info, row = await anext(listed, None), await anext(named, None)
        async for row in self._object_rows(""):
            if not row.key.startswith(tuple(f"{self._identity.cluster_id}/{folder}/" for folder in FOLDERS)):
                self._find("object_row", row.key, "it names a key outside the cluster's folders")

    async def _object_rows(self, prefix: str) -> AsyncIterator[ObjectRow]:
        key = prefix
        while page := await self._rows.objects_after(key, PAGE_ROWS):
            for row in page:
                if not row.key.startswith(prefix):
                    return
                yield row
            key = page[-1].key

    async def _check_row(self, row: ObjectRow, size: int | None) -> None:
        self._checked["objects"] += 1
        if self._row_findings(row, size, self._counts.get(row.object_id, 0)):
            await self._confirm(partial(self._row_again, row.object_id))
        elif row.live_runs and size is not None and self._is_chosen():
            self._chosen.append(row)
        self._counts.pop(row.object_id, None)
        if row.retired_ms is not None:
            self._garbage["retired objects"] += 1
            is_kept = row.kind is ObjectKind.PARQUET and row.retired_ms >= kept_from_ms(self._state)
            if row.retired_ms + self._settings.overdue_ms < self._now_ms and not is_kept:
                self._find("overdue_garbage", row.key, f"retired at {row.retired_ms}, and not deleted since")

    def _is_chosen(self) -> bool:
        settings = self._settings
        return len(self._chosen) < settings.fewest_opened or self._entropy.fraction() < settings.sample

    def _row_findings(self, row: ObjectRow, size: int | None, runs: int) -> list[Finding]:
        findings = check_object(row, runs)
        if row.live_runs and size is None:
            findings.append(
                Finding("missing_object", row.key, f"{row.live_runs} runs name it; it is not in the bucket")
            )
        elif row.live_runs and size != row.size:
            findings.append(Finding("wrong_size", row.key, f"{size} bytes; its row says {row.size}"))
        return findings

    async def _row_again(self, object_id: UUID) -> set[Finding]:
        await self._clock.sleep(PAUSE_S)
        rows = await self._rows.object_rows([object_id])
        if not rows:
            return set()
        try:
            size: int | None = (await self._store.head(rows[0].key)).size
        except ObjectMissing:
            size = None
        runs = await self._rows.runs_of_object(object_id)
        wrong = set(self._row_findings(rows[0], size, len(runs)))
        if size is None and wrong:
            wrong |= {
                Finding(
                    "missing_bytes",
                    partition_name(self._state, run.topic_id, run.partition),
                    f"offsets {run.base_offset} to {run.end_offset - 1} are in {run.key}, which is missing",
                )
                for run in runs
            }
        return wrong

    async def _check_runs_without_object(self) -> None:
        """Check the remaining counts, which belong to objects without a row."""
        for object_id, runs in self._counts.items():
            if await self._has_runs_and_no_row(object_id):
                self._find("object_row", str(object_id), f"{runs} runs name it; it has no row")

    async def _has_runs_and_no_row(self, object_id: UUID) -> bool:
        for _ in range(LOOKS - 1):
            await self._clock.sleep(PAUSE_S)
            try:
                await self._rows.runs_of_object(object_id)
            except ObjectRowMissing:
                continue
            return False  # its row was added, or its runs were deleted
        return True

    async def _check_unnamed(self, info: ObjectInfo) -> None:
        self._checked["objects in the bucket"] += 1
        finding: Finding | None = None
        for look in range(LOOKS):
            if look:
                await self._look_again()
            if await self._rows.keys_known([info.key]):
                return
            finding = self._unnamed_finding(info)
            if finding is None:
                return
        assert finding is not None
        try:
            await self._store.head(info.key)
        except ObjectMissing:
            return
        self._findings.append(finding)

    def _unnamed_finding(self, info: ObjectInfo) -> Finding | None:
        origin = session_of(self._identity.cluster_id, info.key)
        session = None if origin is None else self._state.get(SessionRow, origin[0])
        if session is None:
            return Finding(
                "stray_object", info.key, f"{info.size} bytes that no row names, of no session that is known:"
                " nobody will ever delete it"
            )  # fmt: skip
        if session.closed_ms is None:
            self._checked["uploads under way"] += 1
            return None
        due_ms = max(session.closed_ms, session.swept_ms) + self._settings.overdue_ms
        if due_ms < self._now_ms:
            return Finding(
                "overdue_garbage",
                info.key,
                f"its session ended at {session.closed_ms}, and nobody deleted it since",
            )
        self._garbage["of ended sessions"] += 1
        return None

    # --- inside of objects

    async def _open(self, row: ObjectRow) -> None:
        """Read an object whole and compare it with its rows."""
        self._checked["objects opened"] += 1
        problems = await self._problems_of(row)
        if problems:
            # While it was read, its runs may have been swapped, or it may have been collected.
            await self._clock.sleep(PAUSE_S)
            rows = await self._rows.object_rows([row.object_id])
            if rows and rows[0].live_runs:
                self._findings += set(problems) & set(await self._problems_of(rows[0]))

    async def _problems_of(self, row: ObjectRow) -> list[Finding]:
        runs = await self._rows.runs_of_object(row.object_id)
        try:
            data = await self._store.get(row.key)
        except ObjectMissing:
            return [Finding("missing_object", row.key, "it is not in the bucket")]
        corrupt: list[str] = []
        if (crc := crc32c(data)) != row.crc:
            corrupt.append(f"CRC {crc:#010x}, its row says {row.crc:#010x}")
        if row.kind is not ObjectKind.PARQUET:
            inside, wrong = _check_mixed(row, runs, data)
        elif corrupt:  # Parquet's footer has no checksum, and a corrupt one can crash Arrow
            inside, wrong = [], []
        else:
            inside, wrong = _check_parquet(row, runs, data)
        if corrupt or inside:  # any other difference is a consequence
            details = corrupt + inside
            more = f"; and {len(details) - MOST_DETAILS} more" if len(details) > MOST_DETAILS else ""
            return [Finding("corrupt_object", row.key, "; ".join(details[:MOST_DETAILS]) + more)]
        return [Finding("row_and_object", row.key, detail) for detail in wrong]

    # --- checkpoints

    async def _check_checkpoints(self) -> None:
        cluster_id = self._identity.cluster_id
        confirmed: set[Finding] | None = None
        for _ in range(LOOKS - 1):
            findings = await self._checkpoint_findings(await read_checkpoints(self._store, cluster_id))
            confirmed = findings if confirmed is None else confirmed & findings
            if not confirmed:
                break
            await self._look_again()
        self._findings += confirmed or ()
        try:
            cluster_file = await read_cluster_file(self._store, cluster_id)
        except InvalidCheckpoint as error:
            self._find("cluster", "cluster.json", str(error))
            return
        if cluster_file is not None and (cluster_file.cluster_id, cluster_file.incarnation) != (
            cluster_id,
            self._identity.incarnation,
        ):
            self._find(
                "cluster",
                "cluster.json",
                f"incarnation {cluster_file.incarnation} of {cluster_file.cluster_id!r}; the database is"
                f" {self._identity.incarnation} of {cluster_id!r}",
            )

    async def _checkpoint_findings(self, checkpoints: FoundCheckpoints) -> set[Finding]:
        wrong = {Finding("checkpoint", "the bucket", problem) for problem in checkpoints.problems}
        if not checkpoints.heads:
            if not wrong:
                self._note("there are no checkpoints: a lost database could not be rebuilt")
            return wrong
        if checkpoints.chain is None:
            wrong.add(
                Finding(
                    "checkpoint", "the bucket", "no checkpoint is complete: the database can't be rebuilt"
                )
            )
            return wrong
        last = checkpoints.chain.last
        name = checkpoint.head_key(last.cluster_id, last.head_id)
        if last.commit_number > self._state.counter(COMMIT_NUMBER):
            wrong.add(
                Finding(
                    "checkpoint",
                    name,
                    f"knows commit {last.commit_number}, the database only {self._state.counter(COMMIT_NUMBER)}",
                )
            )
        self._checked["checkpointed commit"] = last.commit_number
        self._checked["checkpoint age in ms"] = max(0, self._now_ms - last.created_ms)
        live = [row for row in checkpoints.rows.all(ObjectRow) if row.live_runs]
        for first in range(0, len(live), PAGE_ROWS):
            page = live[first : first + PAGE_ROWS]
            known = set(await self._rows.keys_known([row.key for row in page]))
            for row in page:
                if row.key in known:
                    continue  # the database names it too, so it is checked there
                try:
                    await self._store.head(row.key)
                except ObjectMissing:
                    wrong.add(
                        Finding(
                            "checkpoint", row.key, "the last checkpoint needs it, and it is not in the bucket"
                        )
                    )
        return wrong

    def _find(self, kind: str, subject: str, detail: str) -> None:
        self._findings.append(Finding(kind, subject, detail))

    async def _confirm(self, look: Callable[[], Awaitable[set[Finding]]]) -> None:
        """Keep the findings that each of the remaining looks shows again."""
        confirmed = await look()
        for _ in range(LOOKS - 2):
            confirmed &= await look()
        self._findings += confirmed

    def _note(self, note: str) -> None:
        if note not in self._notes:
            self._notes.append(note)


# --- one object against its rows --------------------------------------------------------------------------


def _check_mixed(row: ObjectRow, runs: Sequence[Run], data: bytes) -> tuple[list[str], list[str]]:
    """Return the problems inside a mixed object, and its contradictions with the rows."""
    try:
        footer = read_footer(data, len(data))
    except InvalidObject as error:
        return [str(error)], []
    inside = audit_data(data, footer)
    wrong: list[str] = []
    if footer.object_id != row.object_id:
        wrong.append(f"its footer names object {footer.object_id}; its row names {row.object_id}")
    if footer.data_length != row.index_start:
        wrong.append(f"its footer begins at {footer.data_length}; its row says {row.index_start}")
    described = {(run.topic_id, run.partition): run for run in footer.runs}
    for run in runs:
        subject = f"run at {run.base_offset} of {run.topic_id}-{run.partition}"
        listed = described.get((run.topic_id, run.partition))
        if listed is None:
            wrong.append(f"{subject}: its footer has no such partition")
        elif not _is_part_of(run, listed):
            wrong.append(
                f"{subject}: bytes {run.start} to {run.start + run.length} are no such batches by its footer"
            )
    return inside, wrong


def _is_part_of(run: Run, listed: RunDescription) -> bool:
    """Whether a run's batches are consecutive batches of those in the footer."""
    start = listed.start
    for index, batch in enumerate(listed.batches):
        if start == run.start:
            stretch = listed.batches[index : index + len(run.batches)]
            return [(one.length, one.record_count, one.max_timestamp) for one in stretch] == [
                (one.length, one.record_count, one.max_timestamp) for one in run.batches
            ]
        start += batch.length
    return False


def _check_parquet(row: ObjectRow, runs: Sequence[Run], data: bytes) -> tuple[list[str], list[str]]:
    """The same for a Parquet object."""
    # Imported only here, because a broker does not need Arrow.
    from tailrace.parquet_object.header import InvalidParquetObject
    from tailrace.parquet_object.read import read_index
    from tailrace.parquet_object.verify import audit_rows

    try:
        index = read_index(data, len(data))
    except InvalidParquetObject as error:
        return [str(error)], []
    if inside := audit_rows(data, index):
        return inside, []
    listed = {(run.topic_id, run.partition, run.base_offset): run.end_offset for run in index.header.runs}
    wrong = [
        f"run at {run.base_offset} of {run.topic_id}-{run.partition}: its index has no such run"
        for run in runs
        if listed.get((run.topic_id, run.partition, run.base_offset)) != run.end_offset
    ]
    if index.header.object_id != row.object_id:
        wrong.append(f"its header names object {index.header.object_id}; its row names {row.object_id}")
    return [], wrong
