"""A database that is read directly, without a sequencer."""

from __future__ import annotations

import asyncio
from pathlib import Path

from compactor.spark_source.database_index import DatabaseIndex
from sequencer.api.groups import CommitOffsets, FetchOffsets, OffsetPosition
from sequencer.api.topics import CreateTopic
from sequencer.engine.committer import Committer
from sequencer.store.rows import Row
from sequencer.store.sql.store import SqlRowStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.patience import PATIENCE_SECONDS


class CountingIndex(DatabaseIndex):
    """Counts how often the whole state is loaded."""

    def __init__(self, url: str) -> None:
        super().__init__(url, ManualClock(), SeededEntropy(2))
        self.loads = 0
        self._store.load, self._load = self._counted, self._store.load  # type: ignore[method-assign]

    async def _counted(self) -> dict[type[Row], list[Row]]:
        self.loads += 1
        return await self._load()


async def test_the_positions_of_a_group_are_returned_after_one_read_of_the_database(tmp_path: Path) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        url, clock, entropy = f"sqlite:///{tmp_path}/rows.db", ManualClock(), SeededEntropy(1)
        rows = SqlRowStore(url, clock=clock, entropy=entropy)
        sequencer = Committer(rows, clock, entropy)
        await sequencer.start()
        index = CountingIndex(url)
        try:
            topic = await sequencer.create_topic(CreateTopic("t", 2, {}))
            position = OffsetPosition(topic.topic_id, 1, 7, 0, "")
            await sequencer.commit_offsets(CommitOffsets("g", -1, -1, -1, "", [position]))
            asked = FetchOffsets("g", [(topic.topic_id, partition) for partition in (0, 1)])
            found = (await index.fetch_offsets(asked)).positions
            assert [each.offset for each in found] == [-1, 7]
            assert index.loads == 1
        finally:
            await sequencer.close()
            await index.close()
            await rows.close()
