"""The faults: what each scenario does to the stand under load, and the longest gap that it may cause."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.stand import Stand, StoreKind
from tests.faults.store_proxy import StoreProxy
from tests.support.cluster import Part
from tests.support.history.workload import Run

PAUSE_SECONDS = 13.0
"""Longer than an agent's lease (10 s) and, with the scenario's settings, than its upload session's."""
IMPATIENT_CLIENTS = {"socket.timeout.ms": 3_000, "api.version.request.timeout.ms": 3_000}
"""A client gives up a request to a silent agent after 3 s, not 60; the first one of a connection after 3 s, not 10."""
SHORT_SESSIONS = {"TAILRACE_SEQUENCER__SESSION_LEASE_MS": "8000"}


@dataclass
class Trial:
    """One run of a scenario: the stand, the load, and the scenario's remarks."""

    stand: Stand
    run: Run
    notes: dict[str, float] = field(default_factory=dict)
    back_at: float | None = None
    """When the database or the store was back for good, on the history's clock."""

    def observe(self, seconds: float) -> None:
        """Let the load continue."""
        time.sleep(seconds)

    def is_back(self, away_seconds: float) -> None:
        """Note that the database or the store serves again, after it was unavailable for this long."""
        self.back_at = self.run.now()
        self.notes["away_seconds"] = round(away_seconds, 2)

    def restart(self, part: Part) -> None:
        self.stand.restart(part)
        self.stand.wait_until_ready([part])


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fault. `target_seconds`: the longest time that any client may be without an acknowledgement at any partition,
    counted from the return of the database or the store if one was unavailable; None: only reported."""

    name: str
    about: str
    act: Callable[[Trial], None]
    target_seconds: float | None = None
    kind: StoreKind = "folder"
    environ: Mapping[str, str] = field(default_factory=dict)
    clients: Mapping[str, Any] = field(default_factory=dict)
    """librdkafka settings of every client; all others are at their defaults."""


def kill_agents(trial: Trial) -> None:
    for agent in list(trial.stand.agents):
        trial.stand.kill(agent)
        trial.observe(2)
        trial.restart(agent)
        trial.observe(2)


def kill_an_agent(trial: Trial) -> None:
    agent = trial.stand.agents[0]
    trial.stand.kill(agent)
    trial.observe(3)
    trial.restart(agent)


def drain_agents(trial: Trial) -> None:
    for agent in list(trial.stand.agents):
        trial.stand.drain(agent)
        trial.restart(agent)


def pause_an_agent(trial: Trial) -> None:
    agent = trial.stand.agents[-1]
    trial.stand.pause(agent)
    trial.observe(PAUSE_SECONDS)
    trial.stand.resume(agent)
    trial.observe(3)


def freeze_an_agent(trial: Trial) -> None:
    agent = trial.stand.agents[-1]
    trial.stand.pause(agent)
    trial.stand.be_watchdog(agent)
    trial.observe(1)
    trial.restart(agent)
    trial.observe(3)


def kill_the_committer(trial: Trial) -> None:
    for _ in range(2):  # one after the other: each must take over once
        committer = trial.stand.wait_for_committer()
        trial.stand.kill(committer)
        trial.observe(5)
        trial.restart(committer)
        trial.observe(1)


def pause_the_committer(trial: Trial) -> None:
    committer = trial.stand.wait_for_committer()
    trial.stand.pause(committer)
    trial.observe(8)
    trial.stand.resume(committer)
    trial.observe(5)


def kill_the_database(trial: Trial) -> None:
    killed_at = time.monotonic()
    trial.stand.kill_database()
    trial.observe(10)
    trial.notes["restart_seconds"] = round(trial.stand.restart_database(), 2)
    trial.is_back(time.monotonic() - killed_at)
    trial.observe(4)


def freeze_the_database(trial: Trial) -> None:
    frozen_at = time.monotonic()
    trial.stand.freeze_database()
    trial.observe(10)
    trial.stand.thaw_database()
    trial.is_back(time.monotonic() - frozen_at)
    trial.observe(4)


def cut_the_database(trial: Trial) -> None:
    until = time.monotonic() + 8
    while time.monotonic() < until:
        trial.stand.cut_database_connections()
        trial.observe(0.2)
    trial.is_back(8.0)
    trial.observe(2)


def make_the_database_read_only(trial: Trial) -> None:
    trial.stand.set_database("default_transaction_read_only", "on")
    trial.stand.cut_database_connections()
    trial.observe(8)
    trial.stand.set_database("default_transaction_read_only", "off")
    trial.is_back(8.0)
    trial.observe(2)


def take_all_connections(trial: Trial) -> None:
    with trial.stand.all_connections_taken():
        trial.observe(8)
    trial.is_back(8.0)
    trial.observe(2)


def lock_the_tables(trial: Trial) -> None:
    locked_at = time.monotonic()
    with trial.stand.tables_locked():
        trial.observe(8)
    trial.is_back(time.monotonic() - locked_at)
    trial.observe(2)


def store_busy(trial: Trial) -> None:
    proxy = _proxy(trial)
    proxy.be("503")
    trial.observe(6)
    proxy.be("503", 0.5)
    trial.observe(5)
    proxy.be("pass")
    trial.is_back(6.0)


def store_hangs(trial: Trial) -> None:
    proxy = _proxy(trial)
    proxy.be("hang")
    trial.observe(6)
    proxy.be("hang", 0.2)
    trial.observe(5)
    proxy.be("pass")
    trial.is_back(6.0)


def store_cuts(trial: Trial) -> None:
    proxy = _proxy(trial)
    proxy.be("cut", 0.5)
    trial.observe(8)
    proxy.be("cut")
    trial.observe(3)
    proxy.be("pass")
    trial.is_back(3.0)


def store_slow(trial: Trial) -> None:
    proxy = _proxy(trial)
    proxy.be("slow", 0.3)
    trial.observe(10)
    proxy.be("pass")


def fill_the_disk(trial: Trial) -> None:
    folder = trial.stand.folder
    assert folder is not None
    ballast = folder / "ballast"
    filled_at = time.monotonic()
    _fill(ballast)
    while time.monotonic() < filled_at + 6:
        trial.observe(0.5)
        _fill(ballast)  # including what was released meanwhile
    ballast.unlink()
    trial.is_back(time.monotonic() - filled_at)


def skew_clocks(trial: Trial) -> None:
    stand, hour = trial.stand, 3_600_000
    for agent, shift in zip(stand.agents, (-hour, 40 * 365 * 24 * hour), strict=True):
        stand.shift_clock(agent, shift)
    stand.shift_clock(stand.sequencers[0], 2 * hour)
    stand.shift_clock(stand.sequencers[1], -2 * hour)
    trial.observe(4)
    stand.kill(stand.wait_for_committer())  # a server whose clock is hours off takes over
    trial.observe(5)
    for part in (*stand.agents, *stand.sequencers):
        stand.shift_clock(part, 0)  # the clocks jump back
    for sequencer in stand.sequencers:
        if not sequencer.is_running:
            trial.restart(sequencer)
    trial.observe(3)


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("agent-kill", "kill -9 of each agent in turn, restarted after 2 s", kill_agents, 5.0),
    Scenario("agent-drain", "SIGTERM to each agent in turn, restarted at once", drain_agents, 5.0),
    Scenario(
        "agent-pause",
        f"SIGSTOP of an agent for {PAUSE_SECONDS:.0f} s, past its leases; SIGCONT",
        pause_an_agent,
    ),
    Scenario(
        "agent-pause-short-timeout",
        "the same for clients whose requests time out after 3 s",
        pause_an_agent,
        clients=IMPATIENT_CLIENTS,
    ),
    Scenario(
        "agent-freeze",
        "SIGSTOP of an agent; its service manager's watchdog ends it after 3 s",
        freeze_an_agent,
        5.0,
    ),
    Scenario("sequencer-kill", "kill -9 of the committer, twice", kill_the_committer, 5.0),
    Scenario(
        "sequencer-pause",
        "SIGSTOP of the committer for 8 s, past its lease; SIGCONT",
        pause_the_committer,
        5.0,
    ),
    Scenario("database-kill", "kill -9 of PostgreSQL, started again after 10 s", kill_the_database, 2.0),
    Scenario(
        "database-freeze",
        "SIGSTOP of PostgreSQL with all its processes for 10 s; SIGCONT",
        freeze_the_database,
        2.0,
    ),
    Scenario(
        "database-cut",
        "all connections to PostgreSQL are ended five times a second, for 8 s",
        cut_the_database,
        2.0,
    ),
    Scenario(
        "database-read-only",
        "PostgreSQL refuses writes for 8 s, as a standby that connections reach too early does",
        make_the_database_read_only,
        2.0,
    ),
    Scenario(
        "database-full",
        "all connections are ended, and others take all places of PostgreSQL for 8 s",
        take_all_connections,
        2.0,
    ),
    Scenario(
        "database-locked",
        "an administrator locks all tables of PostgreSQL for 8 s, as VACUUM FULL does",
        lock_the_tables,
        2.0,
    ),
    Scenario(
        "store-503",
        "the store answers 503 for 6 s, then to half of the requests for 5 s",
        store_busy,
        2.0,
        kind="s3",
    ),
    Scenario(
        "store-hang",
        "the store answers nothing for 6 s, then to a fifth nothing for 5 s",
        store_hangs,
        2.0,
        kind="s3",
    ),
    Scenario(
        "store-cut",
        "the store cuts half of the connections for 8 s, then all for 3 s",
        store_cuts,
        2.0,
        kind="s3",
    ),
    Scenario(
        "store-slow", "a third of the store's answers come 2 s late, for 10 s", store_slow, 5.0, kind="s3"
    ),
    Scenario("disk-full", "the folder's disk is full for 6 s", fill_the_disk, 2.0, kind="small-disk"),
    Scenario(
        "clock-skew",
        "clocks hours and years apart, the committer killed meanwhile, then all jump back",
        skew_clocks,
        5.0,
    ),
)


def _proxy(trial: Trial) -> StoreProxy:
    assert trial.stand.proxy is not None
    return trial.stand.proxy


def _fill(ballast: Path) -> None:
    block = b"\0" * 4096
    with open(ballast, "ab", buffering=0) as file:
        try:
            while file.write(block) == len(block):
                pass
        except OSError as error:
            if error.errno != 28:  # ENOSPC
                raise
