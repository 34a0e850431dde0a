"""The `tailrace` command: it runs the processes and administers their data."""

from __future__ import annotations

import errno
import io
import os
import re
import select
import signal
import sys
from typing import Annotated

import typer

from tailrace.printable import printable
from tailrace.settings import BadSettings
from tailrace.telemetry.logs import name_process
from tailrace_cli.command_group import group_of_commands, print_help_when_bare
from tailrace_cli.commands import (
    acl,
    audit,
    cluster,
    config,
    consume,
    cost,
    erase,
    group,
    objects,
    processes,
    produce,
    query,
    recover,
    table,
    topic,
    transaction,
    user,
)
from tailrace_cli.errors import CommandFailed, WrongUsage
from tailrace_cli.flags import switch

CLOSED_PIPE = 128 + signal.SIGPIPE

app = group_of_commands(
    "A Kafka-protocol broker without disks: objects on S3, offsets in SQL, older data in Parquet.",
    name="tailrace",
)


@app.callback(invoke_without_command=True)
def _bare(
    context: typer.Context,
    version: Annotated[bool, switch("--version", "Print Tailrace's version.")] = False,
) -> None:
    if version:
        processes.version()
        raise typer.Exit
    print_help_when_bare(context)


processes.register(app)
audit.register(app)
recover.register(app)
app.command()(produce.produce)
app.command()(consume.consume)
app.command()(query.query)
app.command()(erase.erase)
app.command()(cost.cost)
app.command("cluster")(cluster.describe)
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(transaction.app, name="transaction")
app.add_typer(objects.app, name="object")
app.add_typer(table.app, name="table")
app.add_typer(config.app, name="config")
app.add_typer(user.app, name="user")
app.add_typer(acl.app, name="acl")


def main() -> None:
    """Run the command line and exit: with 0, with 1 if the command failed, with 2 for wrong usage.

    If nobody reads its output any more (`tailrace audit | head`), exit quietly with 141, like a program that SIGPIPE
    has ended.
    """
    _open_closed_streams()
    output = os.dup(1)  # rich puts the null device in the place of a closed pipe
    command = next(iter(sys.argv[1:]), "")
    name_process(lambda: command)
    try:
        code = app(prog_name="tailrace", standalone_mode=False)
        sys.stdout.flush()
    except typer.Abort:
        sys.exit(130)
    except typer.TyperException as error:  # wrong usage
        told = _message(error)
        _print_error(
            f"{told}{' See' if told[-1:] == '?' else '; see'} `tailrace --help`, or --help after the command"
        )
        sys.exit(getattr(error, "exit_code", 2))
    except BadSettings as error:
        for line in str(error).splitlines():
            _print_error(line)
        sys.exit(2)
    except CommandFailed as error:
        _print_error(str(error))
        sys.exit(2 if isinstance(error, WrongUsage) else 1)
    except (SystemExit, BrokenPipeError) as error:  # typer and rich exit with 1 at any broken pipe
        cause = error if isinstance(error, BrokenPipeError) else error.__context__
        if not isinstance(cause, BrokenPipeError):
            raise
        if _is_closed_pipe(output):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(CLOSED_PIPE)
        _print_error(str(cause))
        sys.exit(1)
    except Exception as error:
        explained = _explain(error)
        if explained is None:
            raise
        _print_error(explained)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _is_closed_pipe(output: int) -> bool:
    """Whether the file is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(output, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _open_closed_streams() -> None:
    """Open the null device for each standard stream that the caller closed (`>&-`).

    Otherwise the next file or socket gets the stream's number, and output goes into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # for characters that the terminal's encoding doesn't have


def _message(error: typer.TyperException) -> str:
    form = getattr(error, "format_message", None)
    return str(form() if form is not None else error).rstrip(".")


def _print_error(line: str) -> None:
    shown = re.sub(r"[^\s'\"]{400,}", lambda word: f"{word[0][:100]}...({len(word[0])} characters)", line)
    print(printable(f"tailrace: {shown}", keeps="\n"), file=sys.stderr)


def _explain(error: Exception) -> str | None:
    """Return one line for an error that a user can fix; None for a bug, which keeps its traceback."""
    from sequencer.api.errors import SequencerError
    from sequencer.store.sql.store import UnknownDatabase
    from tailrace.object_store.api import StoreError
    from tailrace.object_store.open import BadStoreUrl

    if isinstance(error, SequencerError):
        return f"the sequencer can't be used ({error.code}): {error}"
    if isinstance(error, StoreError):
        return f"the object store can't be used: {error}"
    if isinstance(error, BadStoreUrl | UnknownDatabase):
        return str(error)
    if isinstance(error, OSError):
        return _explain_address(error) or str(error)
    return None


def _explain_address(error: OSError) -> str | None:
    """Return one line for an address that can't be bound; None for any other error."""
    from tailrace.rpc.link import join_address

    match = re.search(r"\('([^']+)', (\d+)", str(error))
    if match is None or error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
        return None
    return (
        f"can't listen at {join_address(match[1], int(match[2]))}: {os.strerror(error.errno).lower()}; "
        "give another address with --listen, --http or --rpc"
    )


if __name__ == "__main__":
    main()
