"""The demo's checks: each is named, counted, and says what does not hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console


@dataclass
class Checks:
    """Collects what was checked. `failed` holds a sentence per check that does not hold."""

    console: Console
    held: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def that(self, holds: bool, name: str, seen: str = "") -> None:
        """Note one check; `seen` says what was there in its place."""
        if holds:
            self.held.append(name)
            self.console.print(f"  [green]holds[/] {name}", highlight=False)
        else:
            self.failed.append(f"{name}: {seen}" if seen else name)
            self.console.print(f"  [red]fails[/] {self.failed[-1]}", highlight=False)
