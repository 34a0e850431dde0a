"""docs/operations.md quotes log lines and reasons: the code contains each of them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALERTS = (
    (ROOT / "docs" / "operations.md").read_text().partition("\n## Woken at night\n")[2].partition("\n## ")[0]
)
PACKAGES = ("agent", "cache", "compactor", "sequencer", "tailrace", "tailrace_cli")
NOT_OURS = {"repaired"}
"""The value of a label."""


def quoted(text: str) -> list[str]:
    """Log lines in quotation marks, and reasons of several words in backticks that are no commands."""
    lines = [" ".join(line.split()) for line in re.findall(r'"([^"`]{8,})"', text)]
    reasons = [
        " ".join(reason.split())
        for reason in re.findall(r"`(an? [a-z\s]+|[a-z]+ are [a-z\s]+|no [a-z\s]+)`", text)
    ]
    return [text for text in lines + reasons if text not in NOT_OURS]


@cache
def strings_of_the_product() -> str:
    """All string literals but docstrings, a line each."""
    found: list[str] = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            nodes = list(ast.walk(ast.parse(path.read_text())))
            docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
            found += [
                node.value
                for node in nodes
                if isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in docstrings
            ]
    return "\n".join(found)


def unknown(text: str) -> list[str]:
    return [line for line in quoted(text) if line not in strings_of_the_product()]


def test_every_log_line_that_the_page_quotes_is_in_the_code() -> None:
    assert len(quoted(ALERTS)) > 8

    assert unknown(ALERTS) == []


def test_a_log_line_that_nothing_logs_is_found() -> None:
    assert unknown('the log says "a flush failed" and "a line that nothing\nlogs"') == [
        "a line that nothing logs"
    ]
