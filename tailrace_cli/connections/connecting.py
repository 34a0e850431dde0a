"""What a command connects to: a broker (`--bootstrap`), or a bucket and its database without a running broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from tailrace_cli.connections.broker import DEFAULT_BOOTSTRAP
from tailrace_cli.errors import CommandFailed, WrongUsage
from tailrace_cli.flags import flag, switch
from tailrace_cli.record_text import MAX_PARTITION
from tailrace_cli.running.data_folder import last_served

if TYPE_CHECKING:
    from tailrace_cli.connections.kafka_client import KafkaClient
    from tailrace_cli.settings import Settings

T = TypeVar("T")

BootstrapFlag = Annotated[
    str | None,
    flag(
        "--bootstrap -b",
        "HOST:PORT",
        "A broker, or several separated by commas. Default: bootstrap.servers in the file that TAILRACE_CLIENT"
        f" names, else {DEFAULT_BOOTSTRAP}",
    ),
]

PartitionsFlag = Annotated[
    list[int] | None,
    flag("--partition -p", "N", "Only this partition. Can be repeated.", min=0, max=MAX_PARTITION),
]
ExecuteFlag = Annotated[bool, switch("--execute", "Make the change. Without this flag, only show a preview.")]


def ask_broker(bootstrap: str | None, question: Callable[[KafkaClient], Awaitable[T]]) -> T:
    """Connect to a broker, call `question` with the client, and return its result."""
    from tailrace_cli.connections.kafka_client import KafkaClient
    from tailrace_cli.connections.login import bootstrap_of, client_properties
    from tailrace_cli.running.loop import run

    properties = client_properties()

    async def ask() -> T:
        async with KafkaClient(bootstrap_of(bootstrap, properties), properties) as client:
            return await question(client)

    return run(ask())


def store_urls(settings: Settings) -> tuple[str, str]:
    """Return the URLs of the object store and of its database: both as given, or both from `serve`'s data folder.

    Raises CommandFailed.
    """
    if settings.store is None and settings.database is None:
        served = last_served(settings.data.expanduser().absolute())
        return served.store, served.database
    if settings.store is None or settings.database is None:
        raise CommandFailed(
            f"--{'store' if settings.store is None else 'database'} was not given; give both, or the --data folder of"
            " `tailrace serve`"
        )
    return settings.store, settings.database


def check_exists(store: str, database: str | None) -> None:
    """Raise CommandFailed if a named folder or file is missing, because opening it would create it.

    Raises UnknownDatabase for an unsupported database URL.
    """
    if "://" not in store and not store.startswith("memory:") and not Path(store).expanduser().is_dir():
        raise CommandFailed(
            f"store {store!r}: there is no such folder; give the --store that the agents use, or the --data folder of"
            " `tailrace serve`"
        )
    if database is None:
        return
    from sequencer.store.sql.postgres_url import read_url

    url = read_url(database)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        raise CommandFailed(
            f"database {database!r}: there is no such file; give the sequencer's database by --database, or the"
            " --data folder of `tailrace serve`"
        )


def parse_pairs(given: Sequence[str], flag: str) -> dict[str, str]:
    """Return the values of a NAME=VALUE flag by name; the last one wins. Raises CommandFailed."""
    return dict(listed_pairs(given, flag, "retention.ms=3600000"))


def listed_pairs(given: Sequence[str], flag: str, example: str) -> list[tuple[str, str]]:
    """Return the names and values of a NAME=VALUE flag in the given order. Raises CommandFailed."""
    pairs: list[tuple[str, str]] = []
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise WrongUsage(f"{flag} {pair!r}: expected NAME=VALUE, such as {example}")
        pairs.append((name.strip(), value))
    return pairs
