"""The bounded form of `make fuzz`: the same targets with a few thousand inputs of one seed, and earlier findings."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import structlog

from tailrace.kafka.messages.fetch import FetchRequest
from tests.fuzz.live import aimed
from tests.fuzz.run import REGRESSIONS, Tally, all_targets, one, quiet, run_target, shares
from tests.fuzz.target import Target

INPUTS = 8000
NAMES = (
    "Kafka-request", "Kafka-response", "consumer-subscription", "pushed-metrics", "JSON-records",
    "batch", "batch-behind-its-CRC", "codec",
    "mixed-object", "mixed-footer-behind-its-CRC", "Parquet-header-behind-its-CRC", "Parquet-metadata",
    "RPC-frame", "RPC-connection", "RPC-values", "compiled-decoder-against-plain", "Parquet-object", "agent",
    "sequencer",
)  # fmt: skip


@cache
def targets() -> dict[str, Target]:
    """By name. Their seeds take seconds to make: not while tests are collected."""
    found = {target.name.replace(" ", "-"): target for target in all_targets()}
    assert tuple(found) == NAMES
    return found


@pytest.fixture(scope="module", autouse=True)
def opened() -> Iterator[None]:
    """Targets stay open from test to test: the process that reads Parquet objects takes seconds to start."""
    quiet()
    yield
    for target in targets().values():
        target.close()
    structlog.reset_defaults()


@pytest.mark.parametrize("name", NAMES)
def test_hostile_bytes_are_taken_or_refused(name: str) -> None:
    inputs = dict(zip(NAMES, shares(list(targets().values()), INPUTS), strict=True))[name]
    tally = run_target(targets()[name], inputs, seed=1)

    assert [finding.what for finding in tally.findings] == []
    assert tally.taken and tally.refused, "inputs that are all taken, or all refused, reach nothing"


@pytest.mark.parametrize("path", sorted(REGRESSIONS.glob("*~*")), ids=lambda path: path.name)
def test_an_earlier_finding_is_no_finding_now(path: Path) -> None:
    name = path.name.partition("~")[0]
    tally = Tally(name)
    one(targets()[name], path.read_bytes(), tally)

    assert [finding.what for finding in tally.findings] == []


def test_aiming_a_request_leaves_the_defaults_that_all_requests_share() -> None:
    before = FetchRequest().replica_state
    for seed in range(50):
        aimed(FetchRequest(), 18, random.Random(seed))
    assert (before.replica_id, before.replica_epoch) == (-1, -1)
