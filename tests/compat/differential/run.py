"""`make differential`: the same requests to Apache Kafka 4.3.1 and to `tailrace serve`; what their answers differ in.

    python -m tests.compat.differential.run [WORD ...] [--all] [--show]

    WORD     only the scripts whose names contain one of the words (make differential ONLY="topics configs")
    --all    print the known differences, too
    --show   print every answer of both

Both servers are fresh, and shared by the scripts of a module, so a script's topics, groups and ids have names of their
own. Scripts are in `scripts/`, one module for one subject, whose `SCRIPTS` are listed in MODULES below; `steps.py` says
how to write one. `plain.py` takes from the answers what differs between any two servers. The differences that are meant
stand beside the scripts (`known=`), with their reasons. Add only what is meant: mend the others.

Exit status 1: a difference that is not known, or a known one that is no longer there (looked at where all scripts run).
Needs Java and Maven, as `make compat`. Kafka takes some 7 seconds to start.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bench.support import kafka_peer
from tests.compat.differential import servers
from tests.compat.differential.compare import Difference, differences
from tests.compat.differential.connection import Connections
from tests.compat.differential.known import Known
from tests.compat.differential.plain import Ids, plain
from tests.compat.differential.scripts import (
    administration,
    classic_groups,
    client_settings,
    committed_offsets,
    configs,
    consumer_groups,
    no_auto_creation,
    producing,
    reading,
    rights,
    security,
    share_groups,
    topics,
    transactions,
)
from tests.compat.differential.servers import Server
from tests.compat.differential.steps import Ask, Script, Scripts

MODULES: dict[str, Scripts] = {
    "topics": topics.SCRIPTS,
    "no_auto_creation": no_auto_creation.SCRIPTS,
    "administration": administration.SCRIPTS,
    "producing": producing.SCRIPTS,
    "reading": reading.SCRIPTS,
    "transactions": transactions.SCRIPTS,
    "configs": configs.SCRIPTS,
    "classic_groups": classic_groups.SCRIPTS,
    "committed_offsets": committed_offsets.SCRIPTS,
    "consumer_groups": consumer_groups.SCRIPTS,
    "share_groups": share_groups.SCRIPTS,
    "open_security": security.OPEN,
    "security": security.SCRIPTS,
    "rights": rights.SCRIPTS,
    "client_settings": client_settings.SCRIPTS,
}


@dataclass(slots=True)
class Answer:
    """A step, and its answer as plain values."""

    step: Ask
    name: str
    value: Any


@dataclass(slots=True)
class Found:
    """What came out of all scripts."""

    steps: int = 0
    unknown: list[Difference] = field(default_factory=list)
    known: list[tuple[Known, Difference]] = field(default_factory=list)


def main(arguments: list[str] | None = None) -> int:
    """Run the scripts; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="only scripts whose names contain one of these")
    parser.add_argument("--all", action="store_true", help="print the known differences, too")
    parser.add_argument("--show", action="store_true", help="print every answer of both")
    options = parser.parse_args(arguments)
    missing = kafka_peer.unavailable()
    if missing is not None:
        print(f"without Kafka: {missing}")
        return 0
    found = Found()
    for name, module in MODULES.items():
        chosen = {
            f"{name}.{script}": start
            for script, start in module.by_name.items()
            if not options.words or any(word in f"{name}.{script}" for word in options.words)
        }
        if chosen:
            _run_module(module, chosen, found, options.show)
    return _report(found, options.all, is_whole=not options.words)


def _run_module(
    module: Scripts, chosen: dict[str, Callable[[], Script]], found: Found, is_shown: bool
) -> None:
    with (
        servers.kafka_server(module.needs_logins, module.kafka) as kafka,
        servers.tailrace_server(module.needs_logins, module.tailrace) as tailrace,
    ):
        for name, start in chosen.items():
            started = time.monotonic()
            try:
                new, steps = compared(name, start, kafka, tailrace, is_shown)
            except Exception as error:
                traceback.print_exc()
                new, steps = [Difference(name, "the script failed", "", repr(error), None)], 0
            found.steps += steps
            unknown = 0
            for difference in new:
                entry = next((known for known in module.known if known.covers(difference)), None)
                if entry is None:
                    found.unknown.append(difference)
                    unknown += 1
                else:
                    found.known.append((entry, difference))
            seconds = time.monotonic() - started
            print(
                f"{name}: {steps} requests, {len(new) - unknown} known differences, {unknown} others "
                f"({seconds:.1f} s)",
                flush=True,
            )


def compared(
    name: str, start: Callable[[], Script], kafka: Server, tailrace: Server, is_shown: bool = False
) -> tuple[list[Difference], int]:
    """What the two servers' answers to one script differ in, and how many answers were compared."""
    ones, others = list(answers(start(), kafka)), list(answers(start(), tailrace))
    found = []
    for one, other in zip(ones, others, strict=True):
        if is_shown:
            print(f"--- {name} | {one.name}\n{_shown(one.value)}\n   tailrace:\n{_shown(other.value)}")
        found += differences(name, one.name, one.value, other.value, one.step.unordered)
    return found, len(ones)


def answers(script: Script, server: Server) -> Iterator[Answer]:
    """The answers of one server to the steps that are compared."""
    connections, ids = Connections(server.port, server.login_port), Ids()
    try:
        answer = None
        while True:
            try:
                step = script.send(answer)
            except StopIteration:
                return
            answer = connections.ask(step)
            value = plain(answer, step, ids)
            if step.is_compared:
                yield Answer(step, f"{step.what} v{step.version}", value)
    finally:
        connections.close()


def _shown(value: Any) -> str:
    return json.dumps(value, indent=1, default=str)


def _report(found: Found, has_known: bool, is_whole: bool) -> int:
    if has_known:
        for entry, difference in found.known:
            print(f"known: {difference}\n       {entry.reason}")
    for difference in found.unknown:
        print(f"DIFFERENT: {difference}")
    used = {id(entry) for entry, _ in found.known}
    listed = [entry for module in MODULES.values() for entry in module.known]
    stale = [entry for entry in listed if id(entry) not in used] if is_whole else []
    for entry in stale:
        print(f"NO LONGER DIFFERENT: {entry}")
    print(
        f"differential: {found.steps} answers compared, {len(found.known)} known differences, "
        f"{len(found.unknown)} others, {len(stale)} no longer there"
    )
    return 1 if found.unknown or stale else 0


if __name__ == "__main__":
    sys.exit(main())
