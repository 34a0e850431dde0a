"""`bench.day_of_traffic` in its smallest form: what is written is removed again, and the tables are measured."""

from __future__ import annotations

import asyncio

from bench.day_of_traffic import growth, run
from tests.support.patience import PATIENCE_SECONDS
from tests.support.servers import PostgresServer


def test_a_short_day_is_written_cleaned_and_measured(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    result = asyncio.run(asyncio.wait_for(run(url, commits=6_400, seconds=0.01), PATIENCE_SECONDS))
    (sample,) = result["samples"]
    assert sample["commits"] == 640
    assert sample["tables"]["runs"]["bytes"] > 0 and sample["tables"]["partitions"]["updates"] > 0


def test_growth_is_the_end_by_the_middle() -> None:
    sizes = [1_000, 2_000, 2_500, 3_000]
    samples = [{"tables": {"runs": {"bytes": size, "index_bytes": size}}} for size in sizes]
    assert growth(samples) == {"runs": 1.5}
