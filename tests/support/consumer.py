"""A consumer like Java's: turns fetched bytes and the list of aborted transactions into records and a position.

It follows Kafka's CompletedFetch: a producer counts as aborted from its first offset in the list until its abort
marker; the consumer skips control batches; its next position is the end of the last batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sequencer.api.reads import AbortedTransaction
from tailrace.batches.record_batch import MarkerKind, check_crc, split
from tailrace.batches.records import Record, decode_records
from tailrace.buffers import Buffer


@dataclass(slots=True)
class JavaLikeConsumer:
    """`records`: the application's records, in order. `position`: the next offset to fetch."""

    position: int
    is_read_committed: bool = True
    records: list[Record] = field(default_factory=list)

    def take(self, data: Buffer, aborted: Iterable[AbortedTransaction]) -> None:
        """Process the answer to one fetch."""
        waiting = sorted(aborted, key=lambda each: each.first_offset)
        now_aborted: set[int] = set()
        for header, batch in split(memoryview(data)):
            check_crc(batch)
            if self.is_read_committed and header.producer_id >= 0:
                while waiting and waiting[0].first_offset < header.end_offset:
                    now_aborted.add(waiting.pop(0).producer_id)
                if header.is_control:
                    if is_abort(batch):
                        now_aborted.discard(header.producer_id)
                elif header.is_transactional and header.producer_id in now_aborted:
                    self.position = header.end_offset
                    continue
            if not header.is_control:
                self.records += [each for each in decode_records(batch) if each.offset >= self.position]
            self.position = max(self.position, header.end_offset)


def is_abort(control: Buffer) -> bool:
    """Return whether a control batch's first record says that its transaction was aborted."""
    [record] = decode_records(control)
    assert record.key is not None
    return int.from_bytes(record.key[2:4], "big") == MarkerKind.ABORT
