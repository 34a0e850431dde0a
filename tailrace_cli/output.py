"""Output of the commands: tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from tailrace.printable import printable
from tailrace_cli.flags import switch

JsonFlag = Annotated[bool, switch("--json", "Print JSON.")]


def print_json(value: Any) -> None:
    """Print one document to stdout."""
    print(json.dumps(value, indent=2, default=str))


def print_rows(
    columns: Mapping[str, str],
    rows: Sequence[Mapping[str, object]],
    *,
    as_json: bool = False,
    if_none: str | None = None,
) -> None:
    """Print rows as JSON or as a table. `columns`: the table's headings, each with the key of its values."""
    if as_json:
        print_json(rows)
        return
    cells = [[row[key] for key in columns.values()] for row in rows]
    print_table(list(columns), cells, if_none=if_none)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str | None = None,
    if_none: str | None = None,
) -> None:
    """Print a table as wide as the terminal, with numbers aligned right. In a pipe, no cell is cut off.

    A cell without a value is `-`. `if_none` is printed in place of a table without rows.
    """
    if not rows and if_none is not None:
        print(if_none)
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 10_000
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for index, column in enumerate(columns):
        cells = [row[index] for row in rows if row[index] is not None]
        is_number = bool(cells) and all(isinstance(cell, int | float) for cell in cells)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if cell is None else printable(str(cell))) for cell in row))
    console.print(table)
