"""How a command meets a broker: where, under which name, for how long, and what it says when none answers."""

from __future__ import annotations

from tailrace_cli.errors import CommandFailed

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
CLIENT_ID = "tailrace-cli"
PATIENCE_SECONDS = 30.0


def no_broker(bootstrap: str, seen: object) -> CommandFailed:
    """The error for a broker that doesn't answer. `seen` is the cause."""
    return CommandFailed(
        f"no broker answers at {bootstrap} ({seen}); start one with `tailrace serve`, "
        "or name one with --bootstrap HOST:PORT"
    )
