"""A command that only groups others: without a subcommand it prints its help and exits with 0."""

from __future__ import annotations

import typer


def group_of_commands(help_text: str, name: str | None = None) -> typer.Typer:
    """A Typer for commands to be registered in; `help_text` is its help's first line."""
    return typer.Typer(
        name=name,
        help=help_text,
        callback=print_help_when_bare,
        invoke_without_command=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def print_help_when_bare(context: typer.Context) -> None:
    """The callback of a command that only groups others."""
    if context.invoked_subcommand is None:
        print(context.get_help())
