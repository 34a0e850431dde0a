"""The tables in a round of compaction: decides which topics have one, and when each is compared with its log.

If a table fails, compaction continues. The failure is reported, and the next comparison repairs the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

import structlog

from compactor.columns.derive import ValueFormat
from compactor.tables.sync import DesiredTable, SyncResult, TableSync
from compactor.tables.table import CatalogSilent
from compactor.tables.values import Deriver
from sequencer.api.compaction import TablePin
from sequencer.api.errors import SequencerError
from sequencer.api.interface import Sequencer
from sequencer.api.topics import BrokerConfigsRequest, MetadataRequest, Topic
from sequencer.pages import all_pins
from tailrace.clock import Clock
from tailrace.configs.topic_config import effective, known_value

SNAPSHOT_MS = "tailrace.table.snapshot.ms"
SHARE_OF_TIME = 5
"""After a swap, a table is compared at once, unless its comparisons would take more than one fifth of the time."""
COMPARED_EVERY_S = 3_600.0
"""A table of an unchanged log is compared again after this time, because another program may have changed the
table."""
MAX_TABLE_FAILURES = 1_000
MOST_SILENCES = 3
"""If the catalog is silent for this many tables in a row, the round leaves the others to the next one: compaction waits
meanwhile."""

log = structlog.get_logger("tailrace.tables")


class _Settled(NamedTuple):
    """A table that needs no comparison until a time of the clock, if it stays wanted like this and `TableSync.listing`
    stays the same."""

    table: DesiredTable
    listing: bytes
    until: float


class TableSchedule:
    """Brings tables up to date. `failures`: one line for each failure of the round."""

    def __init__(self, sequencer: Sequencer, syncing: TableSync, clock: Clock) -> None:
        self._sequencer = sequencer
        self._syncing = syncing
        self._clock = clock
        self._tables: dict[UUID, DesiredTable] = {}
        self._behind: set[UUID] = set()
        self._not_before: dict[UUID, float] = {}
        self._settled: dict[UUID, _Settled] = {}
        self._silences = 0
        self.failures: list[str] = []

    def derive_by(self, deriver: Deriver) -> None:
        """Derive typed columns with this deriver from now on, not in this process."""
        self._syncing.derive_by(deriver)

    async def begin_round(self) -> None:
        """Compare the tables whose logs may have changed, and repair differences, such as after a crash between a swap
        and its table's update."""
        self.failures = []
        self._silences = 0
        self._behind.clear()
        self._tables = {table.topic_id: table for table in await wanted_tables(self._sequencer)}
        self._settled = {key: settled for key, settled in self._settled.items() if key in self._tables}
        self._not_before = {key: until for key, until in self._not_before.items() if key in self._tables}
        for known_table in list(self._tables.values()):
            if not await self._is_settled(known_table):
                await self._sync(known_table)

    async def swapped(self, topic_ids: Iterable[UUID]) -> None:
        """Bring the tables of these topics up to date, at once or at the end of the round."""
        for topic_id in dict.fromkeys(topic_ids):
            table = self._tables.get(topic_id)
            if table is None:
                continue
            if self._clock.monotonic() < self._not_before.get(topic_id, 0.0):
                self._behind.add(topic_id)
            else:
                await self._sync(table)

    async def end_round(self) -> None:
        """Bring the postponed tables up to date."""
        for topic_id in sorted(self._behind):
            await self._sync(self._tables[topic_id])

    async def _is_settled(self, table: DesiredTable) -> bool:
        settled = self._settled.get(table.topic_id)
        if settled is None or settled.table != table or self._clock.monotonic() >= settled.until:
            return False
        try:
            return settled.listing == await self._syncing.listing(table.topic_id)
        except SequencerError:
            return False  # the comparison meets the same error, and reports it

    async def _sync(self, table: DesiredTable) -> SyncResult | None:
        self._behind.discard(table.topic_id)
        self._settled.pop(table.topic_id, None)
        if self._silences >= MOST_SILENCES:
            self._fail(table, "left to the next round, because the catalog does not answer")
            return None
        began = self._clock.monotonic()
        try:
            done = await self._syncing.sync(table)
            self._silences = 0
            if table.is_wanted:
                settled_s = min(COMPARED_EVERY_S, done.settled_ms / 1000)
                self._settled[table.topic_id] = _Settled(table, done.listing, began + settled_s)
            return done
        except Exception as error:  # noqa: BLE001 - a catalog raises what its drivers raise
            self._silences = self._silences + 1 if isinstance(error, CatalogSilent) else 0
            self._fail(table, f"{type(error).__name__}: {' '.join(str(error).split())}")
            return None
        finally:
            ended = self._clock.monotonic()
            self._not_before[table.topic_id] = ended + (SHARE_OF_TIME - 1) * (ended - began)

    def _fail(self, table: DesiredTable, reason: str) -> None:
        line = f"table {table.topic_name!r}: {reason}"
        log.warning("a table is behind its log; the next round repairs it", failure=line)
        if len(self.failures) < MAX_TABLE_FAILURES:
            self.failures.append(line)


async def wanted_tables(sequencer: Sequencer) -> list[DesiredTable]:
    """Return the tables that topics ask for by their configs, and the existing tables that no topic asks for any
    more."""
    topics = (await sequencer.metadata(MetadataRequest())).topics or []
    cluster = (await sequencer.broker_configs(BrokerConfigsRequest(""))).configs
    pins = await all_pins(sequencer)
    return list(choose_tables(topics, cluster, pins))


def choose_tables(
    topics: Iterable[Topic], cluster: dict[str, str], pins: Iterable[TablePin]
) -> Iterator[DesiredTable]:
    """Choose the tables for `wanted_tables`. Pure."""
    chosen: set[UUID] = set()
    snapshot_ms: dict[UUID, int] = {}
    for topic in topics:
        snapshot_ms[topic.topic_id] = _snapshot_ms(topic.configs, cluster)
        if effective("tailrace.table", topic.configs, cluster) == "iceberg":
            chosen.add(topic.topic_id)
            yield DesiredTable(
                topic.topic_id,
                topic.name,
                snapshot_ms[topic.topic_id],
                values=_values_of(topic, cluster),
            )
    default_ms = _snapshot_ms({}, cluster)
    for pin in pins:
        if pin.topic_id not in chosen:
            life_ms = snapshot_ms.get(pin.topic_id, default_ms)
            yield DesiredTable(pin.topic_id, pin.topic_name, life_ms, is_wanted=False)


def _snapshot_ms(configs: Mapping[str, str], cluster: Mapping[str, str]) -> int:
    return int(known_value(SNAPSHOT_MS, effective(SNAPSHOT_MS, configs, cluster)))


def _values_of(topic: Topic, cluster: dict[str, str]) -> ValueFormat | None:
    kind = effective("tailrace.schema", topic.configs, cluster)
    if kind == "raw":
        return None
    return ValueFormat(kind, effective("tailrace.schema.columns", topic.configs, cluster))
