"""docs/operations.md lists every metric by its full name, and the names follow Prometheus' conventions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric

from agent.gateway.telemetry import GatewayTelemetry
from agent.telemetry import AgentTelemetry
from agent.telemetry_observers import CacheMetrics, StoreMetrics
from compactor.cycle import CompactionSummary
from compactor.metrics import CompactorPages
from compactor.rounds import Rounds
from sequencer.api.interface import Sequencer
from sequencer.engine.committer import Committer
from sequencer.http import SequencerPages
from sequencer.metrics import SequencerMetrics
from sequencer.store.memory import MemoryRowStore
from tailrace.clock import SystemClock
from tailrace.http.http_connections import HttpTelemetry
from tailrace.rpc.telemetry import count_refused
from tailrace_cli.running.loop_watch import LoopWatch
from tailrace_cli.running.process_metrics import add_process_metrics
from tests.support.clocks import SeededEntropy

TABLE, ADVICE = Path("docs/operations.md").read_text().split("## Metrics")[1].split("## Stopping")
METRIC = re.compile(r"\b(?:tailrace_)?([a-z_]+)(?:\{(\w+)=)?")
OF_TLS = {"tailrace_tls_certificate_expiry_timestamp_seconds", "tailrace_security_reload_failures"}
"""Registered where certificates are opened."""


def never_asked() -> Sequencer:
    return Committer(MemoryRowStore(SystemClock()), SystemClock(), SeededEntropy(1))


async def no_round(_: CompactionSummary) -> None:
    """Nothing."""


def families() -> Iterator[Metric]:
    agent = AgentTelemetry()
    count_refused(lambda: None, agent.registry)
    GatewayTelemetry(agent.registry)
    CacheMetrics(agent.registry)
    StoreMetrics(agent.registry)
    SequencerMetrics(agent.registry)
    LoopWatch(SystemClock(), agent.registry)
    process = CollectorRegistry()
    add_process_metrics(process, version="1", kind="agent")
    HttpTelemetry(process)
    compactor = CollectorRegistry()
    CompactorPages(Rounds(no_round, SystemClock()), never_asked(), SystemClock(), compactor)
    for registry in (agent.registry, SequencerPages().registry, compactor, process):
        yield from (family for family in registry.collect() if family.name.startswith("tailrace_"))


def exposed(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def test_the_page_lists_every_metric_and_no_other() -> None:
    listed = set(re.findall(r"`(tailrace_\w+)`", TABLE))
    assert listed - OF_TLS == {exposed(family) for family in families()}


def unknown_metrics(text: str) -> list[tuple[str, str]]:
    """Metrics in backticks, and labels of their series, that the table lacks. `tailrace_` may be left out."""
    rows = re.findall(r"^\| (`tailrace_.+?) \| (.*?) \|", TABLE, re.MULTILINE)
    labels = {name: of.split(", ") for names, of in rows for name in re.findall(r"`tailrace_(\w+)`", names)}
    used = [match for span in re.findall(r"`([^`]+)`", text) for match in METRIC.finditer(span)]
    return [
        (match[1], match[2] or "")
        for match in used
        if match[0].startswith("tailrace_") or match[1].endswith("_total") or match[2]
        if match[1] not in labels or (match[2] and match[2] not in labels[match[1]])
    ]


def test_alerts_and_advice_name_metrics_and_labels_of_the_table() -> None:
    assert unknown_metrics(ADVICE.replace("tailrace_az=", "")) == []


def test_an_unknown_metric_or_label_is_found() -> None:
    text = (
        '`rate(tailrace_flushes_total[5m]) > 0`, `flushes_total{cause="size"}`, `no_total`, `tailrace_none`'
    )
    assert unknown_metrics(text) == [("flushes_total", "cause"), ("no_total", ""), ("none", "")]


def test_only_counters_end_in_total_and_histograms_in_what_they_measure() -> None:
    for family in families():
        assert not family.name.endswith("_total"), family.name
        if family.type == "histogram":
            assert family.name.endswith(("_seconds", "_bytes", "_requests")), family.name
        assert not re.search(r"_(ms|millis|kib|mib|percent)\b", family.name), family.name
