"""Prometheus's text of a registry, written in turns of the loop: topics and clients can have thousands of metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from tailrace.turns import Turns, in_parts

SAMPLES_IN_A_TURN = 1_000
_HEAD_LINES = 2


class _Part(Collector):
    """A part of a metric family's samples."""

    def __init__(self, family: Metric, samples: Sequence[Sample]) -> None:
        self._part = Metric(family.name, family.documentation, family.type)
        self._part.samples = list(samples)

    def collect(self) -> Iterable[Metric]:
        """Yield the family with only these samples."""
        yield self._part


async def exposition(registry: CollectorRegistry) -> bytes:
    """Return the same text as `generate_latest`, in turns of the loop."""
    turns = Turns(SAMPLES_IN_A_TURN)
    written: list[bytes] = []
    for family in registry.collect():
        for number, part in enumerate(_parts(family)):
            text = generate_latest(_Part(family, part))
            written.append(text.split(b"\n", _HEAD_LINES)[_HEAD_LINES] if number else text)
            await turns.did(1 + len(part))
    return b"".join(written)


def _parts(family: Metric) -> Iterator[Sequence[Sample]]:
    """Yield the family's samples in parts. A family with several sample names has few samples, in one part."""
    if len({sample.name for sample in family.samples}) == 1:
        yield from in_parts(family.samples, SAMPLES_IN_A_TURN)
    else:
        yield family.samples
