"""A coverage-guided target: `python -m tests.fuzz.guided TARGET [libFuzzer's options]`, where atheris is installed.

atheris is no dependency of the project (it is large, and not for every Python): `pip install atheris` beside it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

MODULES = (
    "tailrace.batches.compression",
    "tailrace.messagepack",
    "tailrace.batches.mixed_object",
    "tailrace.parquet_object.header",
    "tailrace.batches.record_batch",
    "tailrace.batches.records",
    "tailrace.rpc.frames",
    "tailrace.kafka.headers",
    "tailrace.kafka.varints",
)
"""The instrumented modules: those that decode formats. (Instrumenting the whole project takes minutes.)"""


def main(arguments: list[str]) -> int:
    """Run libFuzzer on one target, from its seeds."""
    try:
        atheris: Any = import_module("atheris")
    except ImportError:
        print("atheris is not installed: pip install atheris", file=sys.stderr)
        return 2
    if len(arguments) < 1:
        print(__doc__, file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=list(MODULES)):
        from tests.fuzz.run import all_targets, quiet

    quiet()
    target = next(target for target in all_targets() if target.name == arguments[0])
    folder = Path(tempfile.mkdtemp(prefix="tailrace-fuzz-"))
    for number, seed in enumerate(target.seeds):
        (folder / str(number)).write_bytes(seed)

    def one(data: bytes) -> None:
        target.check(data)

    findings = f"-artifact_prefix={os.getcwd()}/{target.name.replace(' ', '-')}~"
    atheris.Setup([sys.argv[0], "-rss_limit_mb=4096", findings, *arguments[1:], str(folder)], one)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
