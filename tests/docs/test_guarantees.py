"""docs/guarantees.md names tests and planted bugs: each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.simulation.mutations import MUTATIONS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`([a-z_/]+)::([a-z0-9_]+)`", PAGE)
    assert len(named) > 50
    missing = [
        f"{file}::{test}"
        for file, test in named
        if file != "contracts/test_sequencer" or test != "x"
        if f"def test_{test}(" not in (ROOT / "tests" / f"{file}.py").read_text()
    ]
    assert missing == []


def test_every_planted_bug_that_is_named_is_in_the_list() -> None:
    known = {mutation.name for mutation in MUTATIONS}
    named = [
        name.strip() for listed in re.findall(r"planted: ([^|]+?) \|", PAGE) for name in listed.split(", ")
    ]
    assert len(named) > 10
    assert [name for name in named if name not in known] == []
