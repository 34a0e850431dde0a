"""Names, times and texts at their bounds."""

from __future__ import annotations

from tailrace.limits import LAST_MS, MAX_NAME_BYTES, cut, is_name, later


def test_a_name_is_bounded_in_bytes_not_in_characters() -> None:
    assert is_name("g") and is_name("x" * MAX_NAME_BYTES) and is_name("é" * (MAX_NAME_BYTES // 2))
    assert not is_name("")
    assert not is_name("x" * (MAX_NAME_BYTES + 1))
    assert not is_name("é" * (MAX_NAME_BYTES // 2 + 1))


def test_a_time_past_the_last_is_the_last() -> None:
    assert later(1_000, 5) == 1_005
    assert later(1_700_000_000_000, LAST_MS) == LAST_MS


def test_a_text_is_cut_between_characters() -> None:
    assert cut("short", 1_000) == "short"
    assert cut("x" * 2_000, 1_000) == "x" * 1_000
    assert cut("é" * 2_000, 999) == "é" * 499
    assert cut("é" * 400, 1_000) == "é" * 400
