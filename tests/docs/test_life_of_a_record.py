"""docs/life-of-a-record.md names files, classes, functions and methods: each of them exists.

The names are looked up in the syntax trees of the files; nothing is imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "life-of-a-record.md").read_text()
FRAME = re.compile(r"`([\w/]+\.py)(?::([\w.]+))?`")


def names_of(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[str]:
    """Functions, classes, methods (`Class.method`) and assigned names."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield prefix + statement.name
            case ast.ClassDef():
                yield prefix + statement.name
                yield from names_of(statement.body, f"{prefix}{statement.name}.")
            case ast.Assign():
                yield from (
                    prefix + target.id for target in statement.targets if isinstance(target, ast.Name)
                )
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name


def missing_frames(page: str) -> list[str]:
    """The frames of the page that do not exist, as they are written there."""
    missing = []
    for path, name in FRAME.findall(page):
        file = ROOT / path
        if not file.is_file():
            missing.append(path)
        elif name and name not in set(names_of(ast.parse(file.read_text()).body)):
            missing.append(f"{path}:{name}")
    return missing


def test_every_frame_of_the_page_exists() -> None:
    assert len(FRAME.findall(PAGE)) > 80

    assert missing_frames(PAGE) == []


def test_a_file_a_function_or_a_method_that_does_not_exist_is_found() -> None:
    page = (
        "`agent/connection.py` `agent/connection.py:KafkaConnection` `agent/connection.py:KafkaConnection.drain`"
        " `agent/handlers/__init__.py:HANDLERS` `agent/conection.py` `agent/connection.py:drain`"
        " `agent/connection.py:KafkaConnection.no_such_method`"
    )

    assert missing_frames(page) == [
        "agent/conection.py",
        "agent/connection.py:drain",
        "agent/connection.py:KafkaConnection.no_such_method",
    ]
