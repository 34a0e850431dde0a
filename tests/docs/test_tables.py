"""Tables that come out of a bench's figures or of the model are on the pages as they are made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.latency import Outcome, table
from tailrace.configs.topic_config import Latency
from tailrace_cli.doc_pages import scale_table

LATENCIES = json.loads(Path("bench/results/2026-11-22-latency.json").read_text())


def test_the_extrapolation_is_what_the_model_says() -> None:
    page = Path("docs/scale.md").read_text()
    assert scale_table.table() in page, "run: python -m tailrace_cli.doc_pages.scale_table"


@pytest.mark.parametrize("is_java", [False, True])
def test_clients_get_what_the_bench_wrote(is_java: bool) -> None:
    rows = [
        (row.pop("load"), Latency[row.pop("policy").upper()], Outcome(**row))
        for row in (dict(row) for row in LATENCIES if ("batch.size" in row["load"]) is is_java)
    ]
    assert table(rows) in Path("docs/clients.md").read_text()
