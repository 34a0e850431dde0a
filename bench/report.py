"""What a bench says at its end."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """What figures are of."""
    return {"platform": platform.platform(), "cores": os.cpu_count(), "load_at_the_end": os.getloadavg()}


def report(figures: Mapping[str, Any], file: Path | None) -> None:
    """Print the figures with the machine they are of, as JSON, and write them into `file`, if any."""
    text = json.dumps({**figures, "machine": machine()}, indent=1)
    if file is not None:
        file.write_text(text + "\n")
    print(text)
