"""Where a command that works on a stopped (or any) cluster finds its bucket and its database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tailrace_cli.data_folder import DATABASE, OBJECTS
from tailrace_cli.failures import CommandFailed

if TYPE_CHECKING:
    from tailrace_cli.settings import Settings


def places_of(settings: Settings) -> tuple[str, str]:
    """The URLs of the object store and of the database: both as given, or both of `serve`'s data folder.

    Raises CommandFailed.
    """
    if settings.store is None and settings.database is None:
        data = settings.data.expanduser().absolute()
        return str(data / OBJECTS), f"sqlite:///{data / DATABASE}"
    if settings.store is None or settings.database is None:
        raise CommandFailed(
            f"--{'store' if settings.store is None else 'database'} was not given; give both, or the --data folder of"
            " `tailrace serve`"
        )
    return settings.store, settings.database


def check_exists(store: str, database: str | None) -> None:
    """Raise CommandFailed where a folder or a file is named that isn't there: opening it would make it."""
    if "://" not in store and not store.startswith("memory:") and not Path(store).expanduser().is_dir():
        raise CommandFailed(
            f"--store {store!r}: there is no such folder; give the --store that the agents use"
        )
    if database is not None and database.startswith("sqlite:///"):
        path = Path(database.removeprefix("sqlite:///"))
        if not path.exists():
            raise CommandFailed(
                f"--database {database!r}: there is no such file; give the sequencer's database"
            )
