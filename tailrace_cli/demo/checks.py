"""The demo's checks. Each has a name, is counted, and is described if it fails."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console


@dataclass
class Checks:
    """Collects the results of checks. `failed` has a sentence for each check that does not hold."""

    console: Console
    held: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def that(self, holds: bool, name: str, seen: str = "") -> None:
        """Record one check; `seen` says what was found if it does not hold."""
        if holds:
            self.held.append(name)
            self.console.print(f"  [green]holds[/] {name}", highlight=False)
        else:
            self.failed.append(f"{name}: {seen}" if seen else name)
            self.console.print(f"  [red]fails[/] {self.failed[-1]}", highlight=False)
