"""The sequencer's metrics: each reported event is on the scraped page."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from sequencer.api.objects import Statistics
from sequencer.metrics import SequencerMetrics, StatisticsGauges
from sequencer.observer import SequencerObserver


def test_every_event_is_counted_under_its_name() -> None:
    registry = CollectorRegistry()
    metrics: SequencerObserver = SequencerMetrics(registry)
    metrics.queue_changed(7)
    metrics.group_performed(3, 0.02)
    metrics.database_answered("lease", 0.004)
    metrics.request_failed_alone("commit_offsets")
    metrics.term_began()
    metrics.call_answered("server", "commit", 0.001)
    metrics.call_answered("client", "commit", 0.2)

    lines = generate_latest(registry).decode().splitlines()
    for line in (
        "tailrace_sequencer_queued_requests 7.0",
        'tailrace_sequencer_group_commit_requests_bucket{le="4.0"} 1.0',
        'tailrace_sequencer_group_commit_duration_seconds_bucket{le="0.025"} 1.0',
        'tailrace_sequencer_database_duration_seconds_bucket{le="0.005",work="lease"} 1.0',
        'tailrace_sequencer_request_failures_total{request="commit_offsets"} 1.0',
        "tailrace_sequencer_terms_total 1.0",
        'tailrace_rpc_server_duration_seconds_count{method="commit"} 1.0',
        'tailrace_rpc_client_duration_seconds_count{method="commit"} 1.0',
    ):
        assert line in lines


def test_every_statistic_is_a_gauge() -> None:
    no_gauge = {"commit_number", "uncompacted_bytes"}  # the latter is tailrace_compactor_backlog_bytes
    numbers = {name: 1_000 + place for place, name in enumerate(Statistics.__struct_fields__)}
    registry = CollectorRegistry()
    StatisticsGauges(registry).show(Statistics(**numbers))

    values = {sample.value for family in registry.collect() for sample in family.samples}
    missing = {name for name, number in numbers.items() if not values & {number, number / 1_000}}
    assert missing == no_gauge
