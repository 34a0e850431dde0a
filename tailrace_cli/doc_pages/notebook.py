"""Generate docs/lakehouse.ipynb from docs/lakehouse.md. Python and shell blocks become cells, the rest is text.

A block that begins with `sh terminal` needs a separate terminal, and remains text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

PAGE, NOTEBOOK = Path("docs/lakehouse.md"), Path("docs/lakehouse.ipynb")
_BLOCK = re.compile(r"^```(python|sh)\n(.+?)^```$\n?", flags=re.M | re.S)


class Cell(NamedTuple):
    """A part of a page. `kind`: "python", "sh" or "text"."""

    kind: str
    source: str


def cells_of(page: str) -> Iterator[Cell]:
    """Yield the page's parts in order."""
    at = 0
    for block in _BLOCK.finditer(page):
        if text := page[at : block.start()].strip():
            yield Cell("text", text)
        yield Cell(block[1], block[2].rstrip())
        at = block.end()
    if text := page[at:].strip():
        yield Cell("text", text)


def notebook(page: str) -> str:
    """Return the page as a Jupyter notebook, format 4.5."""
    made = {
        "cells": [_cell(number, cell) for number, cell in enumerate(cells_of(page))],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(made, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _cell(number: int, cell: Cell) -> dict[str, Any]:
    source = f"%%bash\n{cell.source}" if cell.kind == "sh" else cell.source
    made = {
        "id": hashlib.sha256(f"{number} {source}".encode()).hexdigest()[:12],
        "metadata": {},
        "source": source.splitlines(keepends=True),
    }
    if cell.kind == "text":
        return {"cell_type": "markdown", **made}
    return {"cell_type": "code", "execution_count": None, "outputs": [], **made}


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(PAGE.read_text()))
