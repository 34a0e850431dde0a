"""Clients of other languages, each tried by a program of its own, in go/, node/ and rust/; and franz-go's own tests.

A program is called with an area, the broker and a name; it exits with 1 and says why if something does not hold.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.compat.areas import AREAS, Client
from tests.compat.broker import Broker

HERE = Path(__file__).parent
BUILT = Path.home() / ".cache" / "tailrace" / "compat"
BUILD_SECONDS = 600
"""The first time, cargo compiles librdkafka and zstd: some minutes of one core."""
AREA_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Program:
    """`tool` builds it out of `source` by `build`; then `run` is its command line."""

    client: str
    tool: str
    source: Path
    build: Sequence[str]
    run: Sequence[str]
    areas: Sequence[str] = AREAS


def _go(client: str, name: str, areas: Sequence[str] = AREAS) -> Program:
    built = str(BUILT / name)
    return Program(client, "go", HERE / "go", ("go", "build", "-o", built, f"./{name}"), (built,), areas)


FRANZ_TESTS = {"groups": "TestGroupETL|TestShareGroup", "transactions": "TestTxnEtl"}
"""franz-go's own tests: records go through three topics and groups, exactly once, while members come, leave and die;
with its balancers, with KIP-848, with static members; and through share groups."""

NODE = BUILT / "node"
"""Modules are looked up beside the program: it runs in a copy of its folder."""

PROGRAMS = (
    _go("franz-go (Go)", "franz"),
    _go("sarama (Go)", "sarama"),
    _go("kafka-go (Go)", "kafkago", tuple(area for area in AREAS if area != "transactions")),
    Program(
        "kafkajs (Node)",
        "npm",
        HERE / "node",
        ("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(NODE)),
        ("node", str(NODE / "kafkajs.js")),
    ),
    Program(
        "rust-rdkafka (Rust)",
        "cargo",
        HERE / "rust",
        ("cargo", "build", "--quiet", "--locked", "--release", "--target-dir", str(BUILT / "rust")),
        (str(BUILT / "rust" / "release" / "rust"),),
    ),
)


def clients() -> list[Client]:
    """Each of them, skipped where it can't be built."""
    return [
        *(
            Client(
                program.client,
                {area: partial(_try, program, area) for area in program.areas},
                _built(program),
            )
            for program in PROGRAMS
        ),
        _franz_tests(),
    ]


def _franz_tests() -> Client:
    built = str(BUILT / "franz-tests")
    build = ("go", "test", "-c", "-o", built, "github.com/twmb/franz-go/pkg/kgo")
    program = Program("franz-go's own tests", "go", HERE / "go", build, (built,), tuple(FRANZ_TESTS))
    checks = {area: partial(_test, program, tests) for area, tests in FRANZ_TESTS.items()}
    return Client(program.client, checks, _built(program))


def _built(program: Program) -> str | None:
    """Why the program can't be run here; None: it can."""
    if shutil.which(program.tool) is None:
        return f"not on PATH: {program.tool}"
    if program.tool == "npm":
        shutil.copytree(program.source, NODE, dirs_exist_ok=True)
    try:
        built = subprocess.run(
            program.build,
            cwd=program.source,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not built within {BUILD_SECONDS} s; what was compiled is kept for the next run"
    return None if built.returncode == 0 else f"not built: {built.stderr.strip()[-300:]}"


def _try(program: Program, area: str, broker: Broker) -> None:
    _run(*program.run, area, broker.address, broker.name(f"{program.tool}-{area}"))


def _test(program: Program, tests: str, broker: Broker) -> None:
    few = {
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": "3000",
        "KGO_TEST_MAX_TOPIC_PARTS": "7",
        "KGO_LOG_LEVEL": "none",
    }
    said = _run(*program.run, "-test.v", "-test.run", tests, KGO_SEEDS=broker.address, **few)
    if "--- SKIP" in said or "no tests to run" in said:
        raise AssertionError(said[-2000:])


def _run(*command: str, **environment: str) -> str:
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=AREA_SECONDS,
        check=False,
        env={**os.environ, **environment},
    )
    if ran.returncode:
        raise AssertionError(f"{ran.stdout}{ran.stderr}"[-2000:])
    return ran.stdout + ran.stderr
