"""`make faults`: injects one fault after the other into real processes under load, and checks what the clients saw.

Prints a line as each scenario ends, then a table and JSON. Exit status: 0 if the checker found nothing and every gap is
within its target; 1 if the checker found something, or a cluster did not recover; 2 if only gaps were too long. A busy
machine makes gaps longer, so the load average is printed with them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.faults.scenarios import SCENARIOS, Scenario, Trial
from tests.faults.stand import Stand, StandFailed, can_mount, running_stand
from tests.support.cluster import ClusterFailed
from tests.support.history.availability import Availability, Flow, find_gaps, flows_served
from tests.support.history.checker import Report, check
from tests.support.history.events import Ended
from tests.support.history.workload import Run, Workload, WorkloadFailed, running_workload

BASELINE_SECONDS = 4.0
AFTERWARDS_SECONDS = 2.0
FLOW_SECONDS = 60.0


@dataclass
class Result:
    """A scenario's results. Gaps are the longest times without an acknowledgement, in seconds."""

    scenario: str
    about: str
    seconds: float = 0.0
    acked: int = 0
    transactions: int = 0
    baseline_gap: float = 0.0
    gap: float = 0.0
    """The longest gap between acknowledgements of any producer."""
    partition_gap: float = 0.0
    """The longest gap of the worst partition."""
    transaction_gap: float = 0.0
    """The longest gap between ends of transactions."""
    recovery: float = 0.0
    """The figure that has a target: the longest gap of the worst flow, since the database or store was back; if neither
    was unavailable, since the fault."""
    worst: str = ""
    """The worst flow: its client and partition."""
    target: float | None = None
    notes: dict[str, float] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    failure: str = ""
    history: str = ""
    remarks: list[str] = field(default_factory=list)
    load_average: float = 0.0
    """The machine's, over the last minute: other work makes gaps longer."""

    @property
    def is_clean(self) -> bool:
        return not self.faults and not self.failure

    @property
    def is_within_target(self) -> bool:
        return self.target is None or self.recovery <= self.target

    @property
    def exit_status(self) -> int:
        if not self.is_clean:
            return 1
        return 0 if self.is_within_target else 2


def try_scenario(stand: Stand, scenario: Scenario, histories: Path, *, transactions: bool = True) -> Result:
    """Put a load on the stand, run the scenario, wait until everything is served again, read everything, and check."""
    began = time.monotonic()
    result = Result(scenario.name, scenario.about, target=scenario.target_seconds)
    topic = f"{scenario.name}-{os.getpid()}-{time.monotonic_ns() // 1_000_000}"
    path = histories / f"{topic}.jsonl"
    result.history = str(path)
    workload = Workload(topic=topic, loops=1 if transactions else 0, partitions=3, records_per_second=60)
    try:
        with running_workload(stand.bootstrap, workload, path=path, settings=dict(scenario.clients)) as run:
            result.remarks = run.remarks
            _wait_until_served(run, _some_client_everywhere(run), "before the fault")
            steady_at = run.now()
            time.sleep(BASELINE_SECONDS)
            fault_at = run.now()
            trial = Trial(stand, run, result.notes)
            scenario.act(trial)
            _wait_until_served(run, _all_of(flows_served(run.events, steady_at)), "after the fault")
            trial.observe(AFTERWARDS_SECONDS)
            ended_at = run.now()
            report = check(run.finish())
            _fill_in(
                result,
                report,
                find_gaps(run.events, steady_at, fault_at),
                find_gaps(run.events, fault_at, ended_at),
                find_gaps(run.events, fault_at if trial.back_at is None else trial.back_at, ended_at),
            )
            if not report.is_clean:
                print(report.text(), file=sys.stderr)
    except (WorkloadFailed, ClusterFailed, StandFailed) as error:
        result.failure = str(error)
        print(f"{scenario.name}: {error}\n{stand.report()}", file=sys.stderr)
    result.seconds = round(time.monotonic() - began, 1)
    result.load_average = round(os.getloadavg()[0], 1)
    if result.exit_status == 0:
        path.unlink(missing_ok=True)
    return result


def run_all(scenarios: Sequence[Scenario], histories: Path, *, transactions: bool = True) -> list[Result]:
    """Run the scenarios one after the other, on one cluster if possible, and on a new one after a scenario that
    failed."""
    results: list[Result] = []
    stack, stand = ExitStack(), None
    with stack:
        for scenario in scenarios:
            if scenario.kind == "small-disk" and not can_mount():
                print(
                    f"{scenario.name}: skipped, no file system can be mounted here (it wants root)",
                    file=sys.stderr,
                )
                continue
            if stand is None or (stand.kind, stand.environ) != (scenario.kind, scenario.environ):
                stack.close()
                stand = stack.enter_context(running_stand(scenario.kind, environ=scenario.environ))
            result = try_scenario(stand, scenario, histories, transactions=transactions)
            results.append(result)
            print(_line(result), file=sys.stderr)
            if not result.is_clean:
                stack.close()
                stand = None
    return results


def show(results: Sequence[Result]) -> None:
    """Print the table."""
    table = Table(title="Faults under load: the longest time without an acknowledgement, in seconds")
    for column in ("scenario", "found", "acked", "txns"):
        table.add_column(column, justify="left" if column in ("scenario", "found") else "right")
    for column in ("before", "any", "partition", "txn", "away", "recovery", "target", "load"):
        table.add_column(column, justify="right")
    for each in results:
        table.add_row(
            each.scenario,
            "nothing" if each.is_clean else ", ".join(each.faults) or "failed",
            str(each.acked),
            str(each.transactions),
            f"{each.baseline_gap:.2f}",
            f"{each.gap:.2f}",
            f"{each.partition_gap:.2f}",
            f"{each.transaction_gap:.2f}",
            f"{each.notes['away_seconds']:.1f}" if "away_seconds" in each.notes else "",
            f"{each.recovery:.2f}" + ("" if each.is_within_target else " !"),
            "" if each.target is None else f"{each.target:.0f}",
            f"{each.load_average:.1f}",
        )
    Console(width=130).print(table)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.run", description=__doc__)
    parser.add_argument("--only", default="", help="scenarios, by comma")
    parser.add_argument(
        "--json", type=Path, default=None, help="where to write the results; standard output without"
    )
    parser.add_argument(
        "--histories",
        type=Path,
        default=Path("/tmp/tailrace-faults"),
        help="of scenarios that failed or took too long",
    )
    parser.add_argument("--without-transactions", action="store_true")
    parser.add_argument("--list", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.list:
        for scenario in SCENARIOS:
            print(f"{scenario.name:18} {scenario.about}")
        return 0
    names = [name for name in chosen.only.split(",") if name]
    unknown = set(names) - {scenario.name for scenario in SCENARIOS}
    if unknown:
        parser.error(f"no scenario is named {sorted(unknown)}; see --list")
    scenarios = [scenario for scenario in SCENARIOS if not names or scenario.name in names]
    chosen.histories.mkdir(parents=True, exist_ok=True)
    results = run_all(scenarios, chosen.histories, transactions=not chosen.without_transactions)
    show(results)
    written = json.dumps([_as_json(result) for result in results], indent=2)
    if chosen.json is None:
        print(written)
    else:
        chosen.json.write_text(written + "\n")
    return exit_status(results)


def exit_status(results: Sequence[Result]) -> int:
    """Return the exit status: faults outweigh gaps that were too long."""
    statuses = {result.exit_status for result in results}
    return 1 if 1 in statuses or not results else max(statuses)


# -- below: details ------------------------------------------------------------------------------------


def _some_client_everywhere(run: Run) -> Callable[[set[Flow]], object]:
    """Return a function that returns the input partitions that no client has been served yet."""
    inputs = {(run.workload.inputs, partition) for partition in range(run.workload.partitions)}
    return lambda served: inputs - {flow[1:] for flow in served}


def _all_of(wanted: set[Flow]) -> Callable[[set[Flow]], object]:
    """Return a function that returns those of these flows that are not served yet."""
    return lambda served: wanted - served


def _wait_until_served(run: Run, missing: Callable[[set[Flow]], object], when: str) -> None:
    """Wait until `missing` is empty for records sent from now on, and a transaction that began after that has ended."""
    since, deadline = run.now(), time.monotonic() + FLOW_SECONDS
    while True:
        left = missing(flows_served(run.events, since))
        has_ended = run.workload.loops == 0 or any(
            isinstance(event, Ended) and event.at > since and event.outcome == "committed"
            for event in run.events
        )
        if not left and has_ended:
            return
        if time.monotonic() > deadline:
            raise WorkloadFailed(
                f"{when}: not all is served within {FLOW_SECONDS:.0f} s: no acknowledgement of {left}, "
                f"transactions: {'fine' if has_ended else 'none ended'}; {run.remarks[-3:]}"
            )
        time.sleep(0.5)


def _fill_in(
    result: Result, report: Report, before: Availability, after: Availability, judged: Availability
) -> None:
    result.faults = {str(kind): number for kind, number in report.kinds.items()}
    result.acked = report.records_acked
    result.transactions = report.transactions_committed
    result.baseline_gap = round(before.any.seconds, 3)
    result.gap = round(after.any.seconds, 3)
    result.partition_gap = round(after.worst_partition.seconds, 3)
    result.transaction_gap = round(after.transactions.seconds, 3)
    seconds = {flow: gap.seconds for flow, gap in judged.by_flow.items()}
    worst = max(seconds, key=lambda flow: seconds[flow], default=None)
    if worst is not None:
        client, topic, partition = worst
        result.recovery = round(seconds[worst], 3)
        result.worst = f"{client} at {topic.rpartition('-')[2]}-{partition}"


def _line(result: Result) -> str:
    found = "nothing found" if result.is_clean else f"FAULTS {result.faults} {result.failure}"
    return (
        f"{result.scenario}: {found}; {result.acked} acked, longest gap {result.gap:.2f} s "
        f"(a partition: {result.partition_gap:.2f} s); {result.worst} had {result.recovery:.2f} s"
        f"{'' if result.is_within_target else ', TOO LONG'}; "
        f"{result.seconds:.0f} s, load {result.load_average}"
    )


def _as_json(result: Result) -> dict[str, Any]:
    values = asdict(result)
    values["is_clean"], values["is_within_target"] = result.is_clean, result.is_within_target
    return values


if __name__ == "__main__":
    sys.exit(main())
