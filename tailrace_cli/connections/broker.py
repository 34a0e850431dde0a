"""How commands reach a broker: default address, client id, time-out, and the errors for one that does not answer."""

from __future__ import annotations

import re

from tailrace.rpc.link import split_address
from tailrace_cli.errors import CommandFailed, WrongUsage

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
CLIENT_ID = "tailrace-cli"
PATIENCE_SECONDS = 30.0
"""The size of a Kafka response whose first bytes are those of an HTTP response."""


def no_broker(bootstrap: str, seen: object) -> CommandFailed:
    """Return the error for a broker that doesn't answer. `seen` is the cause."""
    return CommandFailed(
        f"no broker answers at {bootstrap} ({seen}); start one with `tailrace serve`, "
        "or name one with --bootstrap HOST:PORT"
    )


def speaks_http(bootstrap: str) -> CommandFailed:
    """Return the error for an HTTP address that was given as a broker's."""
    return CommandFailed(
        f"{bootstrap} is an HTTP server, not a Kafka broker; give the address for Kafka clients (`listen`, port 9092 "
        "by default) with --bootstrap HOST:PORT"
    )


def split_bootstrap(bootstrap: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of the brokers that --bootstrap names. Raises WrongUsage."""
    try:
        addresses = [split_address(each.strip()) for each in bootstrap.split(",") if each.strip()]
    except ValueError:
        addresses = []
    if not addresses:
        raise WrongUsage(
            f"--bootstrap {bootstrap!r}: expected HOST:PORT, such as 127.0.0.1:9092, or several with commas"
        )
    return addresses


def check_utf8(what: str, text: str) -> None:
    """Raise WrongUsage for text that UTF-8 can't encode, because names in Kafka are UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise WrongUsage(
            f"{what} {text!r} is not UTF-8, as names and SQL must be; give other characters"
        ) from None


def check_topic_name(name: str) -> None:
    """Raise WrongUsage for a name that no topic can have."""
    if re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name) is None or name in (".", ".."):
        raise WrongUsage(
            f"topic {name!r}: a name has 1 to 249 letters, digits, '.', '_' or '-', and is neither '.' nor '..'"
        )
