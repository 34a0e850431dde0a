"""docs/simulation.md lists the planted bugs: those that there are, each once."""

from __future__ import annotations

import re
from pathlib import Path

from tests.simulation.mutations import MUTATIONS

PAGE = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()


def test_the_planted_bugs_that_are_listed_are_those_that_there_are() -> None:
    table = PAGE.partition("| planted bug |")[2].partition("\n\n")[0]

    listed = re.findall(r"^\| ([^|]+?) \|", table.partition("|---|---|---|\n")[2], re.MULTILINE)

    assert sorted(listed) == sorted(mutation.name for mutation in MUTATIONS)
