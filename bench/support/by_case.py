"""The command line of a bench that measures one case after another."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar


class Named(Protocol):
    @property
    def name(self) -> str: ...


C = TypeVar("C", bound=Named)


def run_cases(
    cases: Sequence[C], measured: Callable[[C, int], dict[str, Any]], *, about: str | None, mib: int
) -> None:
    """Measure the cases whose names contain `--only`, with `--mib` MiB each. Print their figures, and write all of them
    to the file of `--json`."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--mib", type=int, default=mib)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {}
    for case in cases:
        if options.only in case.name:
            found[case.name] = measured(case, options.mib)
            print(case.name, json.dumps({name: round(value, 3) for name, value in found[case.name].items()}))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
