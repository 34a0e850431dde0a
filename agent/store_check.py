"""A check, before an agent joins, that its object store is the cluster's.

With another bucket, prefix or folder the agent would store and acknowledge records that no other agent finds. All keys
of a cluster begin with its id. So a store without such keys is refused if the sequencer knows objects.
"""

from __future__ import annotations

import asyncio

import structlog

from sequencer.api.interface import Sequencer
from sequencer.api.values import Empty
from tailrace.background_tasks import cancel_and_wait
from tailrace.clock import Clock, wait_for
from tailrace.object_store.api import ObjectStore, StoreError

CHECK_SECONDS = 10.0
"""How long the store may take to answer. An agent also starts while the store is away, and is not checked then."""

log = structlog.get_logger("agent")


class WrongStore(Exception):
    """The object store has none of the cluster's objects."""


async def check_store(store: ObjectStore, sequencer: Sequencer, cluster_id: str, clock: Clock) -> None:
    """Raise WrongStore if the cluster has objects and the store has none of its keys. Raises SequencerError."""
    looking = asyncio.ensure_future(_has_keys(store, f"{cluster_id}/"))
    try:
        if not await wait_for(clock, looking, CHECK_SECONDS):
            raise TimeoutError(f"no answer in {CHECK_SECONDS:.0f} s")
        if await looking:
            return
    except (StoreError, TimeoutError) as error:
        log.warning("the object store is not checked: whether it is the cluster's", error=str(error))
        return
    finally:
        await cancel_and_wait(looking)
    objects = (await sequencer.statistics(Empty())).objects
    if objects:
        raise WrongStore(
            f"the object store has nothing of cluster {cluster_id}, which has {objects:,} objects: it is another "
            "bucket, prefix or folder than the cluster's; give the --store of its other processes"
        )


async def _has_keys(store: ObjectStore, prefix: str) -> bool:
    async for _ in store.list(prefix):
        return True
    return False
