"""Groups of tests (tests/support/groups.py) stay together when two workers run them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from tests.support.groups import GROUPS, GroupScheduling, group_of

ROOT = Path(__file__).parents[1]
NOTE_WORKERS = """
import os

def pytest_runtest_logreport(report):
    if report.when == "setup" and hasattr(report, "worker_id"):
        with open(os.environ["WORKERS"], "a") as notes:
            print(report.worker_id, report.nodeid, file=notes)
"""
SINGLES = "tests/agent/security/test_authorize.py"


def workers_by_group(folder: Path, *paths: str) -> dict[str | None, list[str]]:
    """The worker of each test under `paths`, by group. No test's body runs. `folder` is for files of its own."""
    (folder / "note_workers.py").write_text(NOTE_WORKERS)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "--setup-plan"]
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment |= {"PYTHONPATH": str(folder), "WORKERS": str(folder / "workers")}
    done = subprocess.run(
        [*command, "-p", "note_workers", *paths],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    workers = defaultdict(list)
    for line in (folder / "workers").read_text().splitlines():
        worker, nodeid = line.split(" ", 1)
        workers[group_of(nodeid)].append(worker)
    return workers


def test_a_groups_modules_run_on_one_worker(tmp_path: Path) -> None:
    workers = workers_by_group(tmp_path, SINGLES, *GROUPS["compat"])

    assert len(workers["compat"]) > 40 and len(set(workers["compat"])) == 1
    assert len(workers[None]) > 40


@dataclass(eq=False)
class Worker:
    """What the scheduler needs of a worker: it notes the tests that it is sent, by their index."""

    sent: list[int] = field(default_factory=list)
    shutting_down: bool = False
    gateway: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(id="gw"))

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_while_one_worker_has_a_group_the_other_gets_single_tests() -> None:
    cluster, spark = (f"{GROUPS[group][-1]}::test_" for group in ("cluster", "spark"))
    tests = [*"abc", *(f"{spark}{n}" for n in range(4)), *(f"{cluster}{n}" for n in range(4))]
    option = SimpleNamespace(loadscopereorder=True)
    scheduling = GroupScheduling(SimpleNamespace(option=option, getvalue=lambda name: ["2*popen"]))
    first, second = Worker(), Worker()
    for worker in (first, second):
        scheduling.add_node(worker)
        scheduling.add_node_collection(worker, tests)

    scheduling.schedule()
    assert (first.sent, second.sent) == ([7, 8, 9, 10], [0, 1])
    scheduling.mark_test_complete(second, 0)
    assert second.sent == [0, 1, 2]
    scheduling.mark_test_complete(second, 1)
    assert (first.sent, second.sent) == ([7, 8, 9, 10], [0, 1, 2, 3, 4, 5, 6])
    for test in first.sent:
        scheduling.mark_test_complete(first, test)
    assert first.shutting_down and not second.shutting_down


def test_every_group_names_tests_that_exist() -> None:
    for paths in GROUPS.values():
        for path in paths:
            module, _, function = path.partition("::")
            assert f"def {function or 'test_'}" in (ROOT / module).read_text(), path


def test_no_module_is_marked_with_a_group_which_has_no_effect() -> None:
    mark = "xdist" + "_group"
    assert [path for path in (ROOT / "tests").rglob("*.py") if mark in path.read_text()] == []
