"""Whether the records of a transaction are from the producer of its transactional id.

A batch names its producer by a number alone, and the numbers are the cluster's. So a tenant's client could name the
producer of another's open transaction; its records would then be part of that transaction.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from struct import Struct

from sequencer.api import Sequencer
from sequencer.pages import all_transactions
from tailrace.buffers import Buffer
from tailrace.kafka.messages.produce import ProduceRequest

MAX_KNOWN = 10_000
"""Transactional ids whose producer is remembered."""
_LENGTH = Struct(">8xi")
_LENGTH_END = 12
_PRODUCER = Struct(">43xq")


def producers_of(request: ProduceRequest) -> set[int]:
    """The producers whom the batches of a request name."""
    return {
        producer_id
        for topic in request.topic_data
        for partition in topic.partition_data
        for producer_id in _of_batches(partition.records or b"")
    }


def _of_batches(records: Buffer) -> Iterator[int]:
    """Of whole batches only; the handler refuses others."""
    view = memoryview(records)
    while len(view) >= _PRODUCER.size:
        yield _PRODUCER.unpack_from(view)[0]
        length = _LENGTH.unpack_from(view)[0]
        if length <= 0:
            return
        view = view[_LENGTH_END + length :]


class KnownProducers:
    """The producer of each transactional id, as the sequencer last said."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, int] = OrderedDict()

    async def fits(self, sequencer: Sequencer, transactional_id: str, producers: set[int]) -> bool:
        """Whether these are the producer of the transactional id, a stored name. Raises SequencerError."""
        if producers <= {self._known.get(transactional_id)}:
            return True
        for found in await all_transactions(sequencer, [transactional_id]):
            self._known[transactional_id] = found.producer_id
            self._known.move_to_end(transactional_id)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return producers <= {self._known.get(transactional_id)}
