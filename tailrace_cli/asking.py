"""How commands ask a broker: `--bootstrap`, one connection, one event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tailrace_cli.failures import CommandFailed

if TYPE_CHECKING:
    from tailrace_cli.kafka_client import KafkaClient

T = TypeVar("T")

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
CLIENT_ID = "tailrace-cli"
PATIENCE_SECONDS = 30.0

BootstrapFlag = Annotated[
    str | None,
    typer.Option("--bootstrap", "-b", metavar="HOST:PORT", help=f"A broker. Default: {DEFAULT_BOOTSTRAP}"),
]

PartitionsFlag = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", min=0, help="Only this one. More than once."),
]
ExecuteFlag = Annotated[bool, typer.Option("--execute", help="Do it. Without: show what would be done.")]


def no_broker(bootstrap: str, seen: object) -> CommandFailed:
    """That nobody answers there, what was seen instead, and what to do."""
    return CommandFailed(
        f"no broker answers at {bootstrap} ({seen}); start one with `tailrace serve`, "
        "or name one with --bootstrap HOST:PORT"
    )


def ask_broker(bootstrap: str | None, question: Callable[[KafkaClient], Awaitable[T]]) -> T:
    """What `question` finds out by a connected client."""
    from tailrace_cli.kafka_client import KafkaClient
    from tailrace_cli.loop import run

    async def asked() -> T:
        async with KafkaClient(bootstrap or DEFAULT_BOOTSTRAP) as client:
            return await question(client)

    return run(asked())


def parse_pairs(given: Sequence[str], flag: str) -> dict[str, str]:
    """NAME=VALUE, each. Raises CommandFailed."""
    pairs: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name.strip():
            raise CommandFailed(f"{flag} {one!r}: allowed is NAME=VALUE, such as retention.ms=3600000")
        pairs[name.strip()] = value
    return pairs
