"""Prints the figures of a bench at its end."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Describe the machine on which figures are measured."""
    return {"platform": platform.platform(), "cores": os.cpu_count(), "load_at_the_end": os.getloadavg()}


def report(figures: Mapping[str, Any], file: Path | None) -> None:
    """Print the figures with a description of the machine as JSON, and write them to `file`, if any."""
    text = json.dumps({**figures, "machine": machine()}, indent=1)
    if file is not None:
        file.write_text(text + "\n")
    print(text)
