"""A running agent with little memory and a disk: a topic is read again and again, and the store hardly once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.serve import serve, tailrace
from tests.tailrace_cli.test_cost_of_serve import page_of, total

CHUNK_BYTES = 1 << 16
LITTLE_MEMORY = {
    "TAILRACE_CACHE__CHUNK_BYTES": str(CHUNK_BYTES),
    "TAILRACE_CACHE__MEMORY_BYTES": str(8 * CHUNK_BYTES),
    "TAILRACE_CACHE__FRAMED_BYTES": "0",
    "TAILRACE_CACHE__DISK_BYTES": str(1 << 26),
}


@pytest.mark.parametrize("age_ms", [0, 30_000], ids=["old", "young"])
def test_a_topic_larger_than_memory_is_read_twice_and_the_store_hardly_once(
    tmp_path: Path, age_ms: int
) -> None:
    lines = "".join(f"{number} {os.urandom(500).hex()}\n" for number in range(4_000))
    cache = {**LITTLE_MEMORY, "TAILRACE_CACHE__CATCH_UP_AGE_MS": str(age_ms)}
    folder = tmp_path / "cache"
    with serve(tmp_path / "data", **cache, TAILRACE_CACHE__DISK_PATH=str(folder)) as served:
        assert tailrace("produce", "orders", "-b", served.kafka, stdin=lines).returncode == 0
        before = page_of(served)
        for _ in range(2):
            read = tailrace("consume", "orders", "-b", served.kafka)
            assert read.returncode == 0 and read.stdout.count("\n") >= 4_000
        after = page_of(served)
    stored = total(after, "tailrace_object_store_sent_bytes_total")
    chunks = stored / CHUNK_BYTES
    gets = [total(page, "tailrace_object_store_requests_total", operation="get") for page in (before, after)]
    assert gets[1] - gets[0] < 1.1 * chunks
    assert total(after, "tailrace_cache_chunk_reads_total", tier="disk") > 0.5 * chunks
    assert total(after, "tailrace_cache_disk_reads_total", outcome="hit") > 0.5 * chunks
    assert total(after, "tailrace_cache_disk_written_bytes_total") > 0.5 * stored
    assert total(after, "tailrace_cache_disk_bytes") > 0.5 * stored
    assert total(after, "tailrace_cache_disk_is_off") == 0
    assert [path.name for path in folder.iterdir()] == ["lock"], "the end removes the file"


def test_a_second_process_with_the_folder_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    with serve(tmp_path / "a", **LITTLE_MEMORY, TAILRACE_CACHE__DISK_PATH=str(folder)):
        for name, value in {**LITTLE_MEMORY, "TAILRACE_CACHE__DISK_PATH": str(folder)}.items():
            monkeypatch.setenv(name, value)
        second = tailrace(
            "serve", "--data", str(tmp_path / "b"), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"
        )
    assert second.returncode == 1
    assert second.stderr.splitlines()[-1].startswith(
        f"tailrace: cache.disk_path {str(folder)!r} is in use by process "
    )
    assert second.stderr.splitlines()[-1].endswith("; give each agent a folder of its own")
