"""Kafka's own Java clients of version 3: java/Compat.java, compiled with them and run with nothing else."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache, partial
from pathlib import Path

from tests.compat.areas import AREAS, Client
from tests.compat.broker import Broker

HERE = Path(__file__).parent
VERSION = "3.9.1"
JARS = Path.home() / ".cache" / "tailrace" / f"kafka-clients-{VERSION}"
CLASSES = JARS / "classes"
SECONDS = 300
NEEDED = ("mvn", "java", "javac")


def client() -> Client:
    """Skipped where it can't be run."""
    checks = {area: partial(_holds, area) for area in AREAS}
    return Client(f"Kafka {VERSION} (Java)", checks, unavailable())


@cache
def unavailable() -> str | None:
    """Why they can't be run here; None: they can. Brings the jars that java3/pom.xml names, and compiles."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return f"not on PATH: {', '.join(missing)}"
    pom = str(HERE / "java3" / "pom.xml")
    brought = _run("mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={JARS}")
    if brought.returncode:
        return f"Maven could not bring the jars: {brought.stdout[-300:]}"
    compiled = _run("javac", "-cp", f"{JARS}/*", "-d", str(CLASSES), str(HERE / "java" / "Compat.java"))
    if compiled.returncode:
        raise AssertionError(f"Compat.java does not compile: {compiled.stderr}")
    return None


def _holds(area: str, broker: Broker) -> None:
    name = broker.name(f"java3-{area}")
    done = _run("java", "-Xmx512m", "-cp", f"{CLASSES}:{JARS}/*", "Compat", area, broker.address, name)
    if done.returncode:
        raise AssertionError(f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
