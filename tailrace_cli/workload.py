"""Model of what a described workload uses in a month; `tailrace.cost` bills it. Pure.

Figures that a workload does not set are measured: they are the fields of `UnitCosts`, each with its source in
docs/figures.md, docs/performance.md or docs/scale.md. The table in docs/scale.md is generated from this model.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from agent.produce.sealing import MAX_STRETCH
from agent.settings import PUTS_PER_SECOND_ON_S3, AgentSettings
from cache.settings import CacheSettings
from tailrace.cost import GIB, MONTH_SECONDS, Usage

MIB = 1 << 20
_HOUR = 3600
Count = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class BadWorkload(ValueError):
    """The description of a workload is invalid; the message says why."""


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What producers and consumers do, and how large the cluster is.

    mib_per_second: rate of all producers together, as stored (compressed).
    batch_kib: size of one record batch, as producers send it.
    partitions: how many partitions are written to.
    consumers: how many groups read everything.
    catch_up: share of their reads that is old and comes from the store.
    retention_hours: how long records are kept.
    parquet_ratio: bytes of compacted records divided by bytes as produced; 0 without compaction.
    agents, zones: how many the cluster has.
    is_zone_aware: clients name their zone, so no client talks to another zone.
    puts_per_second: early PUTs of each agent; 0 means that buffers are sealed by linger only.
    max_object_mib: agent.flush_bytes.
    databases: how many databases are paid for, with the replicas that their price does not include.
    """

    mib_per_second: Amount = 1.0
    batch_kib: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 16.0
    partitions: Count = 16
    consumers: Amount = 1.0
    catch_up: Share = 0.0
    retention_hours: Amount = 168.0
    parquet_ratio: Share = 1.0
    agents: Count = 1
    zones: Annotated[int, msgspec.Meta(ge=1, le=10)] = 1
    is_zone_aware: bool = True
    puts_per_second: Amount = PUTS_PER_SECOND_ON_S3
    linger_ms: Annotated[float, msgspec.Meta(ge=1, le=60_000)] = float(AgentSettings().linger_ms)
    max_object_mib: Annotated[float, msgspec.Meta(gt=0, le=256)] = AgentSettings().flush_bytes / MIB
    databases: Amount = 1.0


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """CPU seconds and requests per unit of work, the same for every workload."""

    produce_cpu_per_gib: float = 1.8
    """In addition to the batches' cost. The sum is within 60 % of the produce loads on a folder in docs/performance.md
    (batches of 1, 16, 64 and 480 KiB). A store that does not copy into a page cache needs less."""
    produce_cpu_per_batch: float = 1 / 19_000
    """One batch per request."""
    fetch_cpu_per_gib: float = 0.45
    """Records in the agents' memory: the hot fetches on a folder in docs/performance.md."""
    catch_up_cpu_per_gib: float = 1.15
    """Records from the store: the cold fetch of 16 KiB batches there."""
    sequencer_cpu_per_object: float = 0.002
    """An object with four runs, committed alone (docs/scale.md)."""
    sequencer_cpu_per_row: float = 0.00003
    """A commit of 320 partitions takes 12.3 ms of CPU of the committer and the database, 10 ms of it for its rows
    (docs/performance.md)."""
    compactor_cpu_per_gib: float = 8.0
    """128 MiB per CPU-second for reading, encoding and checking, without typed columns and the start of Spark
    (docs/performance.md)."""
    compactor_get_mib: float = 1.0
    """A GET of the compactor reads this much, or a whole smaller object (docs/decisions/0033)."""
    compacted_object_mib: float = 128.0
    """Source bytes of one item of compaction (compactor.plan)."""
    hedged_puts: float = 0.05
    """One PUT in twenty is sent twice (docs/decisions/0020)."""
    hedged_gets: float = 0.05
    """At most one GET in twenty is sent twice (docs/decisions/0030)."""
    gets_per_chunk: float = 1.05
    """GETs per chunk of a consumer that reads old records in order, with hedges (docs/performance.md)."""


UNIT_COSTS = UnitCosts()


@dataclass(frozen=True, slots=True)
class Load:
    """What the cluster does for a workload, per second."""

    objects: float
    object_bytes: float
    rows: float
    tail_gets: float
    catch_up_gets: float
    compaction_gets: float
    compaction_puts: float
    agent_cpu: float
    sequencer_cpu: float
    compactor_cpu: float


def read_workload(text: str, changes: Mapping[str, str]) -> Workload:
    """Parse a workload from TOML and apply single changes. Raises BadWorkload."""
    try:
        named: dict[str, Any] = tomllib.loads(text)
        for name, value in changes.items():
            named |= tomllib.loads(f"{name} = {value}")
        return msgspec.convert(named, Workload)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        names = ", ".join(Workload.__struct_fields__)
        raise BadWorkload(f"workload: {error}; a workload says: {names}") from None


def objects_per_second(workload: Workload) -> float:
    """Return the PUTs of sealed buffers per second, of all agents.

    An agent seals a buffer by size, by linger, or early within its budget of PUTs. It never seals more often than
    batches arrive, and seals less often when its budget of rows is used up.
    """
    each_bytes = workload.mib_per_second * MIB / workload.agents
    batches = each_bytes / (workload.batch_kib * 1024)
    if not batches:
        return 0.0
    linger = workload.linger_ms / 1000
    by_time = max(min(workload.puts_per_second, batches), 1 / (linger + 1 / batches))
    by_size = each_bytes / (workload.max_object_mib * MIB)
    sealed = max(by_time, by_size)
    rows = sealed * _partitions_of_object(workload, batches / sealed)
    least = max(by_size, 1 / (MAX_STRETCH * linger + 1 / batches))
    return workload.agents * max(
        sealed * min(1.0, AgentSettings().max_rows_per_second / rows), min(sealed, least)
    )


def load_of(workload: Workload) -> Load:
    """Return what the cluster does for this workload, per second."""
    data = workload.mib_per_second * MIB
    batches = data / (workload.batch_kib * 1024)
    objects = objects_per_second(workload)
    object_bytes = data / objects if objects else 0.0
    rows = objects * _partitions_of_object(workload, batches / objects) if objects else 0.0
    chunk = CacheSettings().chunk_bytes
    read = data * workload.consumers
    compacted = data if workload.parquet_ratio else 0.0
    return Load(
        objects=objects,
        object_bytes=object_bytes,
        rows=rows,
        tail_gets=objects * max(1.0, object_bytes / chunk) * _reading_zones(workload),
        catch_up_gets=read * workload.catch_up / chunk * UNIT_COSTS.gets_per_chunk,
        compaction_gets=max(objects, data / (UNIT_COSTS.compactor_get_mib * MIB)) if compacted else 0.0,
        compaction_puts=compacted / (UNIT_COSTS.compacted_object_mib * MIB),
        agent_cpu=data / GIB * UNIT_COSTS.produce_cpu_per_gib
        + batches * UNIT_COSTS.produce_cpu_per_batch
        + read / GIB * (1 - workload.catch_up) * UNIT_COSTS.fetch_cpu_per_gib
        + read / GIB * workload.catch_up * UNIT_COSTS.catch_up_cpu_per_gib,
        sequencer_cpu=objects * UNIT_COSTS.sequencer_cpu_per_object + rows * UNIT_COSTS.sequencer_cpu_per_row,
        compactor_cpu=compacted / GIB * UNIT_COSTS.compactor_cpu_per_gib,
    )


def usage_of(workload: Workload) -> Usage:
    """Return what the workload uses in a month. Storage is that of a log that has reached its retention."""
    load, data = load_of(workload), workload.mib_per_second * MIB
    kept = data * workload.retention_hours * _HOUR * (workload.parquet_ratio or 1.0)
    crossing = 0.0 if workload.is_zone_aware else (workload.zones - 1) / workload.zones
    gets = load.tail_gets * (1 + UNIT_COSTS.hedged_gets) + load.catch_up_gets + load.compaction_gets
    per_second = Usage(
        puts=load.objects * (1 + UNIT_COSTS.hedged_puts) + load.compaction_puts,
        gets=gets,
        put_bytes=data * (1 + workload.parquet_ratio),
        got_bytes=data * (_reading_zones(workload) + workload.consumers * workload.catch_up)
        + (data if workload.parquet_ratio else 0.0),
        cross_zone_bytes=data * (1 + workload.consumers) * crossing,
        cpu_seconds=load.agent_cpu + load.sequencer_cpu + load.compactor_cpu,
        sql_rows=load.rows + load.objects,
    )
    return per_second * MONTH_SECONDS + Usage(
        storage_gib_months=kept / GIB, database_months=workload.databases
    )


def _reading_zones(workload: Workload) -> int:
    """Return how many zones read every object once from the store: all but the one whose agent wrote it."""
    return workload.zones - 1 if workload.consumers else 0


def _partitions_of_object(workload: Workload, batches: float) -> float:
    """Return the expected number of partitions in one object, if every batch picks its partition at random."""
    partitions = workload.partitions / workload.agents if workload.is_zone_aware else workload.partitions
    if partitions <= 1:
        return 1.0
    return float(partitions * (1 - (1 - 1 / partitions) ** batches))
