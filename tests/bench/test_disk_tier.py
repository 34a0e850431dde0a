"""The bench of the disk tier reads what it says, and the tier keeps it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.cold_reads import Case
from bench.disk_tier import figures

CASE = Case(mib=4, cache_mib=1, batch_kib=16, chunk_kib=64)


def test_with_a_disk_the_third_pass_needs_hardly_a_get(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    with_disk = asyncio.run(figures(CASE, 3, tmp_path / "disk", url))
    without = asyncio.run(figures(CASE, 3, None, url))
    assert with_disk[0]["gets_per_chunk"] >= 0.9
    assert with_disk[2]["gets_per_chunk"] < 0.1
    assert without[2]["gets_per_chunk"] >= 0.9
