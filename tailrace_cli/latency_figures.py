"""The latency and cost of each `tailrace.latency` on a modelled S3, for `tailrace topic describe`.

The figures come from `python -m bench.latency` for 1 MiB/s of 16 KiB batches. A test compares them with its JSON in
bench/results/.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.cost import MONTH_SECONDS, Usage, bill_of, read_prices


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """PUTs per second of an agent that stores 1 MiB/s, and milliseconds until the acknowledgement."""

    puts_per_second: float
    p50_ms: int
    p99_ms: int


FIGURES = {
    "cost": LatencyFigures(4.0, 300, 600),
    "balanced": LatencyFigures(5.4, 260, 540),
    "fast": LatencyFigures(25.2, 230, 470),
}


def in_words(latency: str) -> str:
    """Describe the latency and cost of a `tailrace.latency` in one line."""
    figures, prices = FIGURES[latency], read_prices()
    dollars = bill_of(Usage(puts=figures.puts_per_second * MONTH_SECONDS), prices).put
    return (
        f"{latency}: at 1 MiB/s an agent makes {figures.puts_per_second:g} PUTs a second (${dollars:,.0f} a month on "
        f"{prices.name}) and acknowledges in {figures.p50_ms} ms, p99 {figures.p99_ms} ms (modelled S3)"
    )
