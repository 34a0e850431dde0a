"""A check, before a process writes, that its object store is the cluster's.

With another bucket, prefix or folder an agent would acknowledge records that no other agent finds, a Spark job would
write such records, and a sequencer server would write checkpoints that `tailrace recover` does not find. All keys of a
cluster begin with its id. So a store without such keys is refused if the database has objects. If the database has none
but the store has another cluster, the log warns: the cluster's database may be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from sequencer.api.interface import Sequencer
from sequencer.api.values import Empty
from tailrace.background_tasks import cancel_and_wait, log_and_continue
from tailrace.clock import Clock, wait_for
from tailrace.object_store.api import BucketMissing, ObjectStore, StoreError

CHECK_SECONDS = 10.0
"""How long the store may take to answer. Processes also start while the store is away; it is not checked then."""
MAX_OTHERS = 20
"""How many other prefixes of the store are searched for clusters."""

log = structlog.get_logger(__name__)


class WrongStore(Exception):
    """The object store has none of the cluster's objects, or is a bucket that does not exist."""


async def check_store(
    store: ObjectStore, cluster_id: str, has_objects: Callable[[], Awaitable[bool]], clock: Clock
) -> None:
    """Raise WrongStore if the bucket is missing, or if the cluster has objects and the store has none of its keys.

    `has_objects`: whether the database has objects. It is asked only if the store has no key; its errors are raised.
    """
    looking = asyncio.ensure_future(_has_keys(store, f"{cluster_id}/"))
    try:
        if not await wait_for(clock, looking, CHECK_SECONDS):
            raise TimeoutError(f"no answer in {CHECK_SECONDS:.0f} s")
        if await looking:
            return
    except BucketMissing as error:
        raise WrongStore(
            f"the object store has no such bucket ({error}); create it, or give another --store"
        ) from error
    except (StoreError, TimeoutError) as error:
        log.warning("the object store is not checked: whether it is the cluster's", error=str(error))
        return
    finally:
        await cancel_and_wait(looking)
    if await has_objects():
        raise WrongStore(
            f"the object store has nothing of cluster {cluster_id}, whose database has objects: it is another bucket, "
            "prefix or folder than the cluster's, or a folder that is not mounted; give the --store of its other "
            "processes"
        )
    with log_and_continue(log, "the object store is not checked for other clusters", StoreError):
        prefixes = (await store.list_prefixes(""))[:MAX_OTHERS]
        others = [prefix for prefix in prefixes if await _has_keys(store, f"{prefix}cluster.json")]
        if others:
            log.warning(
                "the database is new, but the object store has other clusters; if one of them is this one, stop, and "
                "rebuild its database with `tailrace recover`",
                cluster_id=cluster_id, others=others,
            )  # fmt: skip


async def has_objects(sequencer: Sequencer) -> bool:
    """Whether the database of a sequencer has objects. Raises SequencerError."""
    return (await sequencer.statistics(Empty())).objects > 0


async def _has_keys(store: ObjectStore, prefix: str) -> bool:
    async for _ in store.list(prefix):
        return True
    return False
