"""SQL over a whole topic whose Parquet files are on S3."""

from __future__ import annotations

import asyncio
from typing import Any

import duckdb
import pytest

from compactor.tables.query import add_topic
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.engine.committer import Committer
from sequencer.store.memory import MemoryRowStore
from tailrace.clock import SystemClock
from tailrace.object_store.open import open_store
from tests.support.clocks import SeededEntropy
from tests.support.compaction import T0, Log, batch_of, compacted_here
from tests.support.servers import S3Server


async def files_and_tail(database: Any, store_url: str) -> None:
    """Topic `t`: three files, of which one is partly live, and a tail."""
    clock = SystemClock()
    sequencer = Committer(MemoryRowStore(clock), clock, SeededEntropy(3))
    await sequencer.start()
    store = open_store(store_url, clock=clock)
    try:
        log = Log(sequencer, store, clock)
        topic = await log.topic("t", 2)
        for number in range(3):
            made = [b'{"n": %d}' % (10 * number + each) for each in range(4)]
            at = T0 + 1_000 * number
            await log.produce(("t", 0, batch_of(made, at=at)), ("t", 1, batch_of(made[:1], at=at)))
            await compacted_here(log)
        await log.produce(("t", 1, batch_of([b"tail"])))
        await log.sequencer.delete_records(DeleteRecords([DeleteRecordsPartition(topic.topic_id, 0, 3)]))
        files = await add_topic(
            database, "t", topic.topic_id, sequencer=log.sequencer, store=store, store_url=store_url
        )
        assert len(files.files) == 3
    finally:
        await sequencer.close()
        await store.close()


def test_files_on_s3_and_the_tail_are_one_table_and_filters_reach_the_files(
    moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in moto.environ.items():
        monkeypatch.setenv(name, value)
    database = duckdb.connect()
    asyncio.run(files_and_tail(database, f"s3://{moto.create_bucket()}/a b?endpoint={moto.endpoint}"))
    of_partition = 'select "offset", decode(value) from t where "partition" = 1 order by 1'
    values = ['{"n": 0}', '{"n": 10}', '{"n": 20}', "tail"]
    assert database.execute(of_partition).fetchall() == list(enumerate(values))
    offsets = database.execute('select "offset" from t where "partition" = 0 order by 1').fetchall()
    assert offsets == [(offset,) for offset in range(3, 12)]
    late = f"from t where timestamp >= to_timestamp({T0 / 1000 + 2}) and key = 'k'::blob"
    assert database.execute(f"select count(*), max(headers[1].key) {late}").fetchall() == [(5, "h")]
    both = 'select count(*) from t a join t b using ("partition", "offset")'
    assert database.execute(both).fetchall() == [(13,)]
    ((_, plan),) = database.execute(f"explain select count(*) {late}").fetchall()
    scan = plan[plan.index("Python Arrow Scan") :]
    assert "timestamp" in scan and "Filters" in scan, plan
