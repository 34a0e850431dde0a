"""From a described workload to what it uses in a month (`tailrace.cost` bills it). Pure.

The figures that are not counted or set are measured ones, from docs/figures.md, docs/performance.md and docs/scale.md:
they are fields of `UnitCosts`, each with its source. docs/scale.md's table is made from this model.
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
    """A workload can't be understood; the message says why."""


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What producers and consumers do, and on how many agents.

    mib_per_second: of all producers, as stored (compressed).
    batch_kib: of one record batch, as producers send it.
    partitions: that are written to.
    consumers: groups that each read everything.
    catch_up: the share of what they read that is old, so that it comes from the store.
    retention_hours: how long records are kept.
    parquet_ratio: bytes of compacted records to bytes as produced; 0 where nothing is compacted.
    agents, zones: of the cluster. is_zone_aware: clients name their zone, so that none talks to another.
    puts_per_second: early PUTs of an agent; 0 seals by linger alone. max_object_mib: agent.flush_bytes.
    databases: that are paid for, replicas included where their price is not.
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
    """CPU seconds, and requests that depend on nothing that a workload says."""

    produce_cpu_per_gib: float = 5.5
    """librdkafka's batches of 1 KiB records on a folder (docs/figures.md, the almost idle machine: 181-194 MiB per
    CPU-second); less on a store that copies nothing into a page cache."""
    produce_cpu_per_batch: float = 1 / 4_700
    """16 KiB batches, a request each (docs/performance.md)."""
    fetch_cpu_per_gib: float = 1.0
    """Raw fetches (docs/figures.md)."""
    sequencer_cpu_per_object: float = 0.002
    """An object with four runs, in a commit of its own (docs/scale.md)."""
    sequencer_cpu_per_row: float = 0.00005
    """A commit of 320 partitions: 21 to 24 ms, 18 of them for its rows (docs/scale.md)."""
    compactor_cpu_per_gib: float = 15.0
    """70 MiB per CPU-second of reading, encoding and checking; without the start of Spark."""
    compactor_get_mib: float = 1.0
    """A GET of the compactor brings this much, or what a smaller object has (docs/decisions/0033)."""
    compacted_object_mib: float = 128.0
    """What an item of compaction has of source bytes (compactor.plan)."""
    hedged_puts: float = 0.05
    """One PUT in twenty is sent twice (docs/decisions/0020)."""
    hedged_gets: float = 0.05
    """At most one GET in twenty is sent twice (docs/decisions/0030)."""
    gets_per_chunk: float = 1.05
    """Of one that reads old records in order, hedges included (docs/performance.md)."""


UNIT_COSTS = UnitCosts()


@dataclass(frozen=True, slots=True)
class Load:
    """What a workload makes the cluster do, per second."""

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
    """A workload out of TOML, with single values changed. Raises BadWorkload."""
    try:
        named: dict[str, Any] = tomllib.loads(text)
        for name, value in changes.items():
            named |= tomllib.loads(f"{name} = {value}")
        return msgspec.convert(named, Workload)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        names = ", ".join(Workload.__struct_fields__)
        raise BadWorkload(f"workload: {error}; a workload says: {names}") from None


def objects_per_second(workload: Workload) -> float:
    """PUTs of sealed buffers by all agents. An agent seals by size, or early within its budget, or by linger; never
    more often than batches come, and less often where its budget of rows is used up."""
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


def load_of(workload: Workload, units: UnitCosts = UNIT_COSTS) -> Load:
    """What the cluster does for this workload, per second."""
    data = workload.mib_per_second * MIB
    batches = data / (workload.batch_kib * 1024)
    objects = objects_per_second(workload)
    object_bytes = data / objects if objects else 0.0
    rows = objects * _partitions_of_object(workload, batches / objects) if objects else 0.0
    chunk = CacheSettings().chunk_bytes
    read = data * workload.consumers
    compacted = data if workload.parquet_ratio else 0.0
    other_zones = (workload.zones - 1) if workload.consumers else 0
    return Load(
        objects=objects,
        object_bytes=object_bytes,
        rows=rows,
        tail_gets=objects * max(1.0, object_bytes / chunk) * other_zones,
        catch_up_gets=read * workload.catch_up / chunk * units.gets_per_chunk,
        compaction_gets=max(objects, data / (units.compactor_get_mib * MIB)) if compacted else 0.0,
        compaction_puts=compacted / (units.compacted_object_mib * MIB),
        agent_cpu=max(data / GIB * units.produce_cpu_per_gib, batches * units.produce_cpu_per_batch)
        + read / GIB * units.fetch_cpu_per_gib,
        sequencer_cpu=objects * units.sequencer_cpu_per_object + rows * units.sequencer_cpu_per_row,
        compactor_cpu=compacted / GIB * units.compactor_cpu_per_gib,
    )


def usage_of(workload: Workload, units: UnitCosts = UNIT_COSTS) -> Usage:
    """What the workload uses in a month. Storage is that of a log as old as its retention."""
    load, data = load_of(workload, units), workload.mib_per_second * MIB
    kept = data * workload.retention_hours * _HOUR * (workload.parquet_ratio or 1.0)
    crossing = 0.0 if workload.is_zone_aware else (workload.zones - 1) / workload.zones
    gets = load.tail_gets * (1 + units.hedged_gets) + load.catch_up_gets + load.compaction_gets
    per_second = Usage(
        puts=load.objects * (1 + units.hedged_puts) + load.compaction_puts,
        gets=gets,
        put_bytes=data * (1 + workload.parquet_ratio),
        got_bytes=data * (workload.zones - 1) + data * workload.consumers * workload.catch_up + data,
        cross_zone_bytes=data * (1 + workload.consumers) * crossing,
        cpu_seconds=load.agent_cpu + load.sequencer_cpu + load.compactor_cpu,
        sql_rows=load.rows + load.objects,
    )
    return per_second * MONTH_SECONDS + Usage(
        storage_gib_months=kept / GIB, database_months=workload.databases
    )


def _partitions_of_object(workload: Workload, batches: float) -> float:
    """How many of the partitions the batches of one object are in, if each is as likely as any."""
    partitions = workload.partitions / workload.agents if workload.is_zone_aware else workload.partitions
    if partitions <= 1:
        return 1.0
    return float(partitions * (1 - (1 - 1 / partitions) ** batches))
