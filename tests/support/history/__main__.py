"""`python -m tests.support.history`: check a history; or put a load on any Kafka, write its history and check that."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.support.history.availability import find_gaps
from tests.support.history.checker import check
from tests.support.history.files import BadHistory, read_history


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if no fault was found, 1 if there are faults, 2 if there is nothing to check."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.history", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="check a history of JSON lines")
    checking.add_argument("file", type=Path)
    checking.add_argument("--most", type=int, default=10, help="faults shown of each kind")
    running = commands.add_parser("run", help="load a cluster, write down what clients see, check it")
    running.add_argument("--bootstrap", required=True, metavar="HOST:PORT")
    running.add_argument("--seconds", type=float, default=20.0)
    running.add_argument("--file", type=Path, default=None, help="where to write the history")
    running.add_argument("--partitions", type=int, default=4)
    running.add_argument("--rate", type=float, default=100.0, help="records a second of each producer")
    running.add_argument("--replication", type=int, default=1)
    running.add_argument(
        "--topic", default=f"history-{time.time_ns() // 1_000_000:x}", help="prefix of topics, groups"
    )
    running.add_argument("--without-transactions", action="store_true")
    running.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a librdkafka setting of every client",
    )
    running.add_argument("--most", type=int, default=10)
    chosen = parser.parse_args(arguments)
    return _check(chosen) if chosen.command == "check" else _run(chosen)


def _check(chosen: argparse.Namespace) -> int:
    try:
        began = time.monotonic()
        report = check(read_history(chosen.file))
    except (BadHistory, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    seconds = time.monotonic() - began
    print(report.text(chosen.most))
    print(f"{seconds:.1f} s, {report.events / max(seconds, 1e-6):,.0f} events/s")
    return 0 if report.is_clean else 1


def _run(chosen: argparse.Namespace) -> int:
    # Imported here, so that a history can be checked where no Kafka client is installed.
    from tests.support.history.workload import Workload, WorkloadFailed, running_workload

    workload = Workload(
        partitions=chosen.partitions,
        records_per_second=chosen.rate,
        replication=chosen.replication,
        topic=chosen.topic,
        loops=0 if chosen.without_transactions else 1,
    )
    settings = dict(each.split("=", 1) for each in chosen.set)
    try:
        with running_workload(chosen.bootstrap, workload, path=chosen.file, settings=settings) as run:
            began = run.now()
            time.sleep(chosen.seconds)
            ended = run.now()
            events = run.finish()
    except WorkloadFailed as error:
        print(error, file=sys.stderr)
        return 2
    report, gaps = check(events), find_gaps(events, began, ended)
    for remark in run.remarks:
        print("remark:", remark)
    print(report.text(chosen.most))
    print(
        json.dumps(
            {
                "acks": gaps.acks,
                "longest_gap_seconds": round(gaps.any.seconds, 3),
                "longest_gap_of_a_partition_seconds": round(gaps.worst_partition.seconds, 3),
                "longest_gap_of_transactions_seconds": round(gaps.transactions.seconds, 3),
            }
        )
    )
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
