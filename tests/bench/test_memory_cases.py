"""The cases of `make overload` in their small form: everybody is served, and memory stays within what is allowed."""

from __future__ import annotations

import pytest

from bench.support.memory_cases import CASES, SMALL, run_case


@pytest.mark.parametrize("name", CASES)
def test_everybody_is_served_within_the_memory_that_is_allowed(name: str) -> None:
    result = run_case(name, SMALL)

    assert result.is_served, result
    assert result.is_within, result
