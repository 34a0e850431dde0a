"""The comparison of two runs of a bench reports the figures that differ."""

from __future__ import annotations

from typing import Any

from bench.compare import is_moved, moves


def rows(*figures: float, load: str = "fetch", server: str = "Tailrace") -> list[dict[str, Any]]:
    return [
        {
            "server": server,
            "load": load,
            "mib_per_cpu_second": figure,
            "p99_ms": 1_000 / figure,
            "requests": 7,
        }
        for figure in figures
    ]


def test_rounds_that_overlap_are_noise() -> None:
    assert not is_moved([100, 200, 110], [150, 190, 300])
    assert not is_moved([100, 110], [110, 400])


def test_rounds_that_lie_apart_have_moved_if_their_medians_differ_enough() -> None:
    assert is_moved([100, 101, 102], [110, 111, 112])
    assert is_moved([110, 111, 112], [100, 101, 102])
    assert not is_moved([100, 101, 102], [103, 103, 104])
    assert is_moved([100, 101, 102], [103, 103, 104], least=0.01)


def test_one_round_must_differ_by_a_quarter() -> None:
    assert not is_moved([100], [120])
    assert is_moved([100], [126])
    assert is_moved([126, 127], [100])


def test_loads_are_reported_by_server_load_and_record_size_and_those_of_one_run_are_left_out() -> None:
    before = rows(100, 101) + rows(50, 51, server="Kafka") + rows(1, load="only before")
    after = rows(200, 201) + rows(50, 52, server="Kafka") + rows(1, load="only after")
    found = moves(before, after)
    assert [(move.load, move.is_moved) for move in found] == [
        (("Tailrace", "fetch"), True),
        (("Kafka", "fetch"), False),
    ]
    assert found[0].ratio > 1.9
    small = moves([{"record_bytes": 100, **rows(5)[0]}], [{"record_bytes": 1024, **rows(5)[0]}])
    assert small == []


def test_less_is_better_where_the_figure_is_a_latency() -> None:
    (rate, latency) = moves(rows(100, 101), rows(200, 201), ends=("_per_cpu_second", "_ms"))
    assert (rate.is_better, latency.is_better) == (True, True)
    assert latency.after < latency.before
