"""Checks that a transactional batch belongs to the producer of its request's transactional id.

A batch names its producer only by a number. Without this check, a client that may write under one transactional id
could name the producer of another id's open transaction and add records to that transaction.
"""

from __future__ import annotations

from collections import OrderedDict

from sequencer.api.interface import Sequencer
from sequencer.pages import all_transactions

MAX_KNOWN = 10_000
"""The most transactional ids whose producer is remembered."""


class TransactionalProducers:
    """The producer of each transactional id, as last answered by the sequencer."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        self._known: OrderedDict[str, int] = OrderedDict()

    async def has(self, transactional_id: str, producer_id: int) -> bool:
        """Whether the transactional id has this producer. Asks the sequencer unless the cached producer matches: an id
        gets another producer when the epochs of the first are used up. Raises SequencerError.
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
