"""Commands that only group other commands: without a subcommand they print their help and exit with 0."""

from __future__ import annotations

import typer


def group_of_commands(help_text: str, name: str | None = None) -> typer.Typer:
    """Return a Typer to register commands in; `help_text` is the first line of its help."""
    return typer.Typer(
        name=name,
        help=help_text,
        callback=print_help_when_bare,
        invoke_without_command=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def print_help_when_bare(context: typer.Context) -> None:
    """Print the help if the user gave no subcommand."""
    if context.invoked_subcommand is None:
        print(context.get_help())
