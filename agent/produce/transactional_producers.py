"""Whose records may be part of a transaction: those of the producer that its transactional id has.

A batch names its producer by a number alone, so who may write under one transactional id could name the producer of
another's open transaction; its records would then be part of that transaction.
"""

from __future__ import annotations

from collections import OrderedDict

from sequencer.api import Sequencer
from sequencer.pages import all_transactions

MAX_KNOWN = 10_000
"""Transactional ids whose producer is remembered."""


class TransactionalProducers:
    """The producer of each transactional id, as the sequencer last said."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        self._known: OrderedDict[str, int] = OrderedDict()

    async def has(self, transactional_id: str, producer_id: int) -> bool:
        """Whether the transactional id has this producer. Asks the sequencer unless it is the producer that the id
        was last known to have: an id gets another one when the epochs of the first are used up. Raises SequencerError.
        """
        if self._known.get(transactional_id) == producer_id:
            self._known.move_to_end(transactional_id)
            return True
        for transaction in await all_transactions(self._sequencer, [transactional_id]):
            self._known[transactional_id] = transaction.producer_id
            self._known.move_to_end(transactional_id)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return self._known.get(transactional_id) == producer_id
