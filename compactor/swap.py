"""A rewritten object put in the place of its runs, exactly once, or left as an orphan."""

from __future__ import annotations

from uuid import UUID

from compactor.rewrite import RewriteResult
from sequencer.api import (
    Sequencer,
    SequencerOverloaded,
    SequencerUnavailable,
    SwapRefused,
    SwapRequest,
)
from tailrace.clock import Clock

PATIENCE_S = 60.0
PAUSE_S = 0.2


async def swap_in(
    sequencer: Sequencer, result: RewriteResult, *, session_id: UUID, lease_epoch: int, clock: Clock
) -> str | None:
    """Swap the result in; None when readers see it, else why the sequencer refused.

    The object's id is the swap's id: asked again after a lost answer, the sequencer gives its first. A refused
    object stays where it is, under a session that ends with the job, and is swept as an orphan.
    Raises SequencerUnavailable when nobody answered for `PATIENCE_S`, SessionClosed.
    """
    request = SwapRequest(result.object.object_id, lease_epoch, session_id, result.object, result.runs)
    give_up = clock.monotonic() + PATIENCE_S
    while True:
        try:
            await sequencer.swap(request)
            return None
        except SwapRefused as error:
            return str(error)
        except (SequencerUnavailable, SequencerOverloaded):
            if clock.monotonic() >= give_up:
                raise
            await clock.sleep(PAUSE_S)
