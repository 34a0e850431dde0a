"""`tailrace compact`: hands the settings to the Spark job, which is imported only here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tailrace.cli.failures import CommandFailed
from tailrace.cli.output import print_table
from tailrace.cli.settings import Settings


def run_compact(settings: Settings, master: str) -> None:
    """One round of compaction. Raises CommandFailed.

    `compactor.job.main(store=, database=, sequencers=, secret=, master=)` returns what it did, as figures by name.
    """
    if settings.store is None:
        raise CommandFailed("no object store was given; give --store URL, the one that the agents use")
    if bool(settings.database) == bool(settings.sequencers):
        raise CommandFailed(
            "give either --sequencer HOST:PORT of a running sequencer, or --database URL when none runs"
        )
    try:
        from compactor import job
    except ImportError as error:
        raise CommandFailed(
            f"the compactor can't be loaded ({error}); it needs `pip install 'tailrace[compactor]'`"
        ) from error
    main: Callable[..., dict[str, Any] | None] = job.main
    figures = main(
        store=settings.store,
        database=settings.database,
        sequencers=settings.sequencers,
        secret=settings.rpc_secret.get_secret_value().encode(),
        master=master,
    )
    if figures:
        print_table(("figure", "value"), list(figures.items()))
        sys.stdout.flush()
