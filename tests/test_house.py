"""The house's rules that a linter does not know: one class for one name, and arguments by name where many follow."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("tailrace", "sequencer", "cache", "agent", "compactor", "tailrace_cli")
MOST_BY_POSITION = 4

BY_POSITION = {
    "BatchCoordinates": "one for each batch of each commit",
    "BufferedBatch": "one for each batch",
    "ConfigDefinition": "a table: one row, one line",
    "ProduceShape": "in the order of the bytes",
    "Record": "one for each record",
    "RequestHeader": "one for each request; in the order of the bytes",
    "RequestedPartition": "one for each partition of each fetch",
    "Run": "one for each run of each answer",
    "RunBatch": "one for each batch of each commit",
    "RunRow": "one for each run of each commit",
    "StoredBatch": "one for each batch that is decoded",
    "_Call": "one for each request",
    "copy_bytes": "numba passes arguments by position",
    "decode": "numba passes arguments by position",
    "pack": "the standard library's",
    "_digits": "numba passes arguments by position",
    "_is_key": "numba passes arguments by position",
    "_unescaped": "numba passes arguments by position",
    "_decide_commit_in_turn": "one for each commit",
    "_rounds": "numba passes arguments by position",
}
"""Calls that are made too often for keywords, or where order is what the reader knows."""

WITHOUT_A_NET = {
    "agent/connection.py:_handle_frames": "a connection's; an error closes it",
    "agent/gateway/events.py:run": "a stream's",
    "agent/groups/coordinator.py:close": "ends with the groups that are left",
    "sequencer/checkpoint/checkpointer.py:run": "has one that knows refusals",
    "sequencer/client.py:call": "a call's",
    "sequencer/engine/group_commit.py:run": "an error ends the term; another begins",
    "tailrace/rpc/client.py:_ring": "sets and cancels what is not done; nothing else",
    "tailrace/rpc/client.py:call": "a call's",
    "tailrace/rpc/client.py:close": "ends with the calls that are left",
    "tailrace/rpc/client.py:listen": "a connection's",
    "tailrace/rpc/server.py:_answer": "a call's",
    "tailrace_cli/commands/compact.py:keep_current": "a command's bar of progress",
    "tailrace_cli/running/service_manager.py:_keep_notifying": "without it the service manager restarts the process",
}
"""Tasks that loop and that an error may end."""


@cache
def trees() -> dict[Path, ast.Module]:
    """Our modules by path."""
    paths = [path.relative_to(ROOT) for part in PARTS for path in sorted((ROOT / part).rglob("*.py"))]
    return {path: ast.parse((ROOT / path).read_text()) for path in paths if "migrations" not in path.parts}


def named_twice(modules: dict[Path, ast.Module]) -> dict[str, list[str]]:
    """Public classes of one name. Messages have Kafka's names, one module for one API, and are left out."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in modules.items():
        if path.parts[:3] != ("tailrace", "kafka", "messages"):
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path))
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def fixed_parameters(modules: dict[Path, ast.Module]) -> set[str]:
    """Names of our functions and classes, without those that take `*arguments`."""
    names, variadic = set(), set()
    for tree in modules.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                (variadic if node.args.vararg else names).add(node.name)
    return names - variadic


def name_of(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def long_calls(modules: dict[Path, ast.Module]) -> dict[str, list[str]]:
    """Calls of our own functions with more than MOST_BY_POSITION arguments by position."""
    ours = fixed_parameters(modules)
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in modules.items():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and len(node.args) > MOST_BY_POSITION
                and name_of(node) in ours
                and not any(isinstance(argument, ast.Starred) for argument in node.args)
            ):
                found[name_of(node)].append(f"{path}:{node.lineno}")
    return found


def loops_of_tasks(modules: dict[Path, ast.Module]) -> dict[str, bool]:
    """Coroutines of ours that are started as tasks and that loop by themselves, and whether a round that fails leaves
    the task alive."""
    started = {
        name_of(node.args[0])
        for tree in modules.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and name_of(node) == "create_task"
        and node.args
        and isinstance(node.args[0], ast.Call)
    }
    found: dict[str, bool] = {}
    for path, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.AsyncFunctionDef) and node.name in started:
                loops = outermost_loops(node)
                if loops:
                    found[f"{path}:{node.name}"] = all(has_net(loop) for loop in loops)
    return found


def outermost_loops(node: ast.AST) -> list[ast.While]:
    if isinstance(node, ast.While):
        return [node]
    return [loop for child in ast.iter_child_nodes(node) for loop in outermost_loops(child)]


def has_net(loop: ast.While) -> bool:
    return any(
        isinstance(node, ast.Call) and name_of(node).endswith("log_and_continue") for node in ast.walk(loop)
    )


def test_a_task_that_loops_outlives_a_round_that_fails() -> None:
    found = loops_of_tasks(trees())
    assert {name for name, is_safe in found.items() if not is_safe} - set(WITHOUT_A_NET) == set()
    assert {name for name in WITHOUT_A_NET if found.get(name, True)} == set(), "no longer needed"


def test_a_task_without_a_net_is_found() -> None:
    module = ast.parse(
        "async def bare():\n while True: await sleep()\n"
        "async def safe():\n while True:\n  with log_and_continue(log): await look()\n"
        "create_task(bare())\ncreate_task(self.safe(), name='x')\n"
    )
    assert loops_of_tasks({Path("one.py"): module}) == {"one.py:bare": False, "one.py:safe": True}


def test_a_name_is_one_public_class() -> None:
    assert named_twice(trees()) == {}


def test_more_than_four_arguments_are_passed_by_name() -> None:
    found = long_calls(trees())
    assert {name: places for name, places in found.items() if name not in BY_POSITION} == {}
    assert set(BY_POSITION) - set(found) == set(), "no longer needed"


def test_classes_of_one_name_and_long_calls_are_found() -> None:
    module = ast.parse("class A: ...\ndef f(a, b, c, d, e): ...\nf(1, 2, 3, 4, 5)\nf(1, 2, 3, 4, e=5)\n")
    other = ast.parse("class A: ...\nclass _B: ...\n")
    modules = {Path("one.py"): module, Path("two.py"): other}
    assert named_twice(modules) == {"A": ["one.py", "two.py"]}
    assert long_calls(modules) == {"f": ["one.py:3"]}
