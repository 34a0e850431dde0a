"""Group configs whose values have a form of their own."""

from __future__ import annotations

import pytest

from tailrace.configs.group_config import reset_seconds


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [
        ("latest", None),
        ("earliest", None),
        ("by_duration:P7D", 604_800),
        ("by_duration:P1DT2H3M4.5S", 93_784.5),
        ("by_duration:pt0.25s", 0.25),
        ("by_duration:PT0S", 0),
    ],
)
def test_a_duration_is_read_as_java_reads_it(reset: str, seconds: float | None) -> None:
    assert reset_seconds(reset) == seconds


@pytest.mark.parametrize("duration", ["", "P", "PT", "P1DT", "-P1D", "P-1D", "P1M", "1D", "PT1H1H", "P1D "])
def test_other_durations_are_refused(duration: str) -> None:
    with pytest.raises(ValueError, match="allowed are"):
        reset_seconds(f"by_duration:{duration}")
