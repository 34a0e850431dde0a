"""Clients of other languages, each tried by a program of its own, in go/, node/ and rust/.

A program is called with an area, the broker and a name; it exits with 1 and says why if something does not hold.
"""

from __future__ import annotations

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
        Client(
            program.client, {area: partial(_try, program, area) for area in program.areas}, _built(program)
        )
        for program in PROGRAMS
    ]


def _built(program: Program) -> str | None:
    """Why the program can't be run here; None: it can."""
    if shutil.which(program.tool) is None:
        return f"not on PATH: {program.tool}"
    if program.tool == "npm":
        shutil.copytree(program.source, NODE, dirs_exist_ok=True)
    built = subprocess.run(
        program.build,
        cwd=program.source,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    return None if built.returncode == 0 else f"not built: {built.stderr.strip()[-300:]}"


def _try(program: Program, area: str, broker: Broker) -> None:
    ran = subprocess.run(
        [*program.run, area, broker.address, broker.name(f"{program.tool}-{area}")],
        capture_output=True,
        text=True,
        timeout=AREA_SECONDS,
        check=False,
    )
    if ran.returncode:
        raise AssertionError(f"{ran.stdout}{ran.stderr}"[-2000:])
