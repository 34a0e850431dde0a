"""Runs the command line over a store that only benches have: `python -m bench.serve_over STORE serve --data FOLDER ...`

null    drops mixed objects and keeps the rest in memory, to measure producers without a store
s3      the folder with the latencies of S3 Standard: PUT 150 ms at the median and 400 at p99, GET 30 and 120
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tailrace.buffers import Buffer
from tailrace.clock import Clock, SystemClock, SystemEntropy
from tailrace.object_store.api import ObjectStore
from tailrace.object_store.memory import MemoryStore
from tailrace.object_store.open import open_store
from tailrace_cli import app
from tailrace_cli.running import runtime
from tests.support.faulty_store import S3_STANDARD, FaultyStore

MIXED = "/mixed/"


class NullStore(MemoryStore):
    """Drops mixed objects, so reads of them must be served from the cache."""

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        await super().put(key, () if MIXED in f"/{key}" else parts, if_absent=if_absent)


def open_null(url: str, *, clock: Clock, repeats_requests: bool = True) -> ObjectStore:
    """Open a NullStore in place of the store at `url`."""
    return NullStore(clock)


def open_modelled_s3(url: str, *, clock: Clock, repeats_requests: bool = True) -> ObjectStore:
    """Open the store at `url` with S3's latencies."""
    inner = open_store(url, clock=clock, repeats_requests=repeats_requests)
    return FaultyStore(inner, SystemClock(), SystemEntropy(), S3_STANDARD)


STORES = {"null": open_null, "s3": open_modelled_s3}


def main() -> None:
    """Run the command line over the store that the first argument names."""
    setattr(runtime, "open_store", STORES[sys.argv.pop(1)])  # noqa: B010 - a bench's stores have no URL
    app.main()


if __name__ == "__main__":
    main()
