"""The bounded form of `make fuzz`: the same targets, a few thousand inputs of one seed; and what was once found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.fuzz.run import REGRESSIONS, Tally, all_targets, one, quiet, run_target, shares

INPUTS = 5000
TARGETS = {target.name.replace(" ", "-"): target for target in all_targets()}
SHARES = dict(zip(TARGETS, shares(list(TARGETS.values()), INPUTS), strict=True))


@pytest.fixture(scope="module", autouse=True)
def opened() -> Iterator[None]:
    """Targets stay open from test to test: the process that reads Parquet objects takes seconds to start."""
    quiet()
    yield
    for target in TARGETS.values():
        target.close()
    structlog.reset_defaults()


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_bytes_are_taken_or_refused(name: str) -> None:
    tally = run_target(TARGETS[name], SHARES[name], seed=1)

    assert [finding.what for finding in tally.findings] == []
    assert tally.taken and tally.refused, "inputs that are all taken, or all refused, reach nothing"


@pytest.mark.parametrize("path", sorted(REGRESSIONS.glob("*~*")), ids=lambda path: path.name)
def test_what_was_once_found_is_no_finding_now(path: Path) -> None:
    name = path.name.partition("~")[0]
    tally = Tally(name)
    one(TARGETS[name], path.read_bytes(), tally)

    assert [finding.what for finding in tally.findings] == []
