"""`bench.consumer_groups` in its smallest form: what rests is not stored, and a take-over tells nobody anything new."""

from __future__ import annotations

import asyncio

from bench.consumer_groups import run


def test_small_groups_form_rest_and_are_taken_over() -> None:
    figures = asyncio.run(run(groups=3, members=4, partitions=6))
    assert figures["form_writes"] >= 12
    assert figures["rest_writes"] == figures["rest_told_something_new"] == 0
    assert figures["take_over_writes"] == figures["take_over_told_something_new"] == 0
