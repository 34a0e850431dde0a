"""The bounded form of `make fuzz`: the same targets, a few thousand inputs of one seed; and what was once found."""

from __future__ import annotations

import pytest

from tests.fuzz.run import REGRESSIONS, Tally, all_targets, one, quiet, run_target, shares
from tests.fuzz.target import Target

INPUTS = 5000
TARGETS = {target.name.replace(" ", "-"): target for target in all_targets()}
SHARES = dict(zip(TARGETS, shares(list(TARGETS.values()), INPUTS), strict=True))


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_bytes_are_taken_or_refused(name: str) -> None:
    quiet()
    target = TARGETS[name]
    try:
        tally = run_target(target, SHARES[name], seed=1)
    finally:
        target.close()

    assert [finding.what for finding in tally.findings] == []
    assert tally.taken and tally.refused, "inputs that are all taken, or all refused, reach nothing"


@pytest.mark.parametrize("path", sorted(REGRESSIONS.glob("*~*")), ids=lambda path: path.name)
def test_what_was_once_found_is_no_finding_now(path: object) -> None:
    quiet()
    name = path.name.partition("~")[0]  # type: ignore[attr-defined]
    target: Target = TARGETS[name]
    tally = Tally(name)
    try:
        one(target, path.read_bytes(), tally)  # type: ignore[attr-defined]
    finally:
        target.close()

    assert [finding.what for finding in tally.findings] == []
