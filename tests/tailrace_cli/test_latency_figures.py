"""The figures of `tailrace topic describe` are the bench's, and the bench's are the model's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.latency import run_open
from tailrace.configs.topic_config import TOPIC_CONFIGS, Latency
from tailrace_cli.latency_figures import FIGURES, LatencyFigures, in_words
from tailrace_cli.workload import Workload, objects_per_second

RESULTS = json.loads(Path("bench/results/2026-11-22-latency.json").read_text())


@pytest.mark.parametrize("latency", TOPIC_CONFIGS["tailrace.latency"].choices or ())
def test_the_shown_cost_of_a_topic_is_what_the_bench_counted(latency: str) -> None:
    (row,) = (row for row in RESULTS if row["load"] == "1 MiB/s of 16 KiB" and row["policy"] == latency)
    counted = LatencyFigures(
        round(row["puts_per_second"], 1), round(row["p50_ms"], -1), round(row["p99_ms"], -1)
    )
    assert FIGURES[latency] == counted
    assert f"${row['dollars_a_month']:,.0f}"[:3] in in_words(latency)


def test_stricter_policies_cost_more_and_answer_sooner() -> None:
    cost, balanced, fast = (FIGURES[latency.name.lower()] for latency in Latency)
    assert cost.puts_per_second < balanced.puts_per_second < fast.puts_per_second
    assert cost.p50_ms > balanced.p50_ms > fast.p50_ms


@pytest.mark.parametrize(
    ("latency", "early_puts"), [(Latency.COST, 0.0), (Latency.BALANCED, 5.0), (Latency.FAST, 23.15)]
)
def test_the_model_of_a_workload_agrees_with_counted_puts(latency: Latency, early_puts: float) -> None:
    counted = run_open(latency, 64, 16, seconds=60.0)
    modelled = objects_per_second(Workload(mib_per_second=1, puts_per_second=early_puts)) * 1.05
    assert counted.puts_per_second == pytest.approx(modelled, rel=0.05)
