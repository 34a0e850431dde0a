"""What a run consists of, drawn from its seed, so that a thousand seeds are a thousand different worlds.

No run has every client and every fault. A history with little in it is checked as strictly as a crowded one, and runs
faster.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from agent.settings import AgentSettings
from cache.settings import CacheSettings
from sequencer.settings import SequencerSettings, ServerSettings
from tailrace.clock import Entropy
from tests.support.faulty_store import FaultPlan, Faults, Latency

AGENT_SETTINGS = AgentSettings(
    linger_ms=50,
    max_puts_per_second=50,
    flush_bytes=64 * 1024,
    upload_deadline_ms=1_000,
    commit_deadline_ms=3_000,
    gap_deadline_ms=1_500,
    session_rotation_seconds=4,
    drain_ms=3_000,
    auto_create_topics=False,
    group_min_session_timeout_ms=500,
    group_initial_rebalance_delay_ms=0,
    group_consumer_session_timeout_ms=1_500,
    group_share_session_timeout_ms=1_500,
    group_share_record_lock_duration_ms=2_000,
    group_share_delivery_count_limit=100,
    group_share_partition_max_record_locks=100,
    group_share_auto_offset_reset="earliest",
)
LITTLE_MEMORY = AGENT_SETTINGS.model_copy(update={"memory_budget_bytes": 40_000})
"""AnswerReservation for five requests at a time; real agents have more than this."""
SEQUENCER_SETTINGS = SequencerSettings(
    session_lease_ms=4_000,
    writer_lease_ms=5_000,
    agent_lease_ms=3_000,
    committer_lease_ms=1_500,
    deletion_grace_ms=4_000,
    sweep_interval_ms=4_500,
    commit_wait_ms=1_000,
    checkpoint_reservation=2_000,
)
NODE_SETTINGS = ServerSettings(
    poll_s=0.3,
    margin_s=0.2,
    forward_timeout_s=1.0,
    retention_interval_s=1.0,
    collection_interval_s=1.0,
    follow_pause_s=5.0,
)
"""A follower reads the journal so seldom that it is behind when the committer ends."""
SLOW_SEQUENCER_SETTINGS = SequencerSettings(
    deletion_grace_ms=20_000,
    sweep_interval_ms=10_000,
    checkpoint_reservation=2_000,
    writer_lease_ms=30_000,
)
"""Leases as in production: if answers take seconds, shorter ones would end before they are reported."""
LONG_GRACE_MS = 20_000
"""For batches that were answered on receipt: they are committed by reference for half of the grace, and wait for up to
`gap_deadline_ms` and, until it is answered, a commit."""
FEW_RESERVED, FEW_BUFFERED = 24, 12
"""Offsets that a checkpoint reserves, and records after which an agent seals a buffer: a commit never needs more than
are reserved, but a history does."""
FORGOTTEN_AFTER_S = 8.0
FORGETFUL_SETTINGS = SEQUENCER_SETTINGS.model_copy(
    update={
        "producer_expiry_ms": 8_000,
        "transactional_id_expiration_ms": 8_000,
        "offsets_retention_ms": 8_000,
        "empty_group_ms": 2_000,
        "orphaned_members_ms": 3_000,
    }
)
"""Unused state is kept for FORGOTTEN_AFTER_S: longer than any request is in transfer."""
LONG_SESSION_MS = 12_000
"""Three times the grace: a commit by reference that is sent again after an outage finds its session open, and its
object collected."""
SLOW_NODE_SETTINGS = replace(NODE_SETTINGS, forward_timeout_s=ServerSettings().forward_timeout_s)
CACHE_SETTINGS = CacheSettings(
    chunk_bytes=4_096,
    memory_bytes=64 * 1024,
    catch_up_age_ms=2_000,
    decoded_bytes=64 * 1024,
    framed_bytes=16 * 1024,
)

WITH_A_DISK = CACHE_SETTINGS.model_copy(update={"memory_bytes": 12 * 1024})
"""Room for three chunks, so that chunks soon leave memory for the disk."""

_PUT = Faults(
    Latency(30, 300), fails_before=0.05, fails_after=0.05, hangs_before=0.02, hangs_after=0.02, hang_seconds=3
)
_GET = Faults(Latency(10, 80), fails_before=0.05)
_OTHER = Faults(Latency(20, 100), fails_before=0.05, fails_after=0.05)
TROUBLED = FaultPlan(put=_PUT, get=_GET, list=_OTHER, delete=_OTHER)
CALM = FaultPlan(put=Faults(Latency(20, 60)), get=Faults(Latency(5, 20)))
DELETES_SLOWLY = replace(TROUBLED, delete=replace(_OTHER, latency=Latency(300, 3_000)))

MISFORTUNES = (
    "an agent crashes",
    "an agent's machine is gone",
    "an agent stops for a while",
    "an agent stops for long",
    "an agent is cut off",
    "an agent is cut off for long",
    "an agent restarts",
    "the committer crashes",
    "the committer's machine is gone",
    "the committer stops for a while",
    "the committer stops for long",
    "the committer can't reach the database",
    "a follower stops for a while",
    "an agent can't reach the committer",
    "bytes rot in the store",
    "a clock jumps",
    "the database's clock jumps",
    "the store is away",
    "the database fails",
    "a client crashes",
    "a client stops for a while",
    "a client stops for long",
    "records are deleted",
    "a topic is made again",
)

OF_WORKERS = ("a compactor crashes", "a compactor stops for long", "a compactor is cut off")
"""Faults of a process that compacts or erases, if there is one."""
SLOW_DATABASE = "the database is slow"
"""A misfortune of a separate kind of seeds: see `slowing_its_database`."""
SLOW_SEEDS = 0.05
COMMITTER_RESTARTS = "the committer restarts"
"""A misfortune of `restarting_its_committer`: nothing is lost, and the next committer begins at once."""
RETENTION_OFF = "a topic keeps everything for a while"
"""Another one, if a topic with retention by bytes is written to."""
RETENTION_OFF_SEEDS = 0.3
JOB_SEEDS = 0.1
SHARE_SEEDS = 0.15
"""The part of the seeds in which a share group reads, too. Like those below, drawn from its own stream, so that other
seeds stay the same."""
CONSUMER_SEEDS = 0.15
"""A group whose coordinator assigns reads, too (own stream)."""
TIMED_SEEDS = 0.12
"""A client asks for offsets by time, and a topic expires by time (own stream)."""
STATIC_SEEDS = 0.12
"""A group has static members (own stream)."""
ABORT_SEEDS = 0.12
"""An operator aborts transactions (own stream)."""
RIGHTS_SEEDS = 0.1
"""ACLs are granted and revoked (own stream)."""
CREDENTIALS_SEEDS = 0.1
"""A user's credentials and delegation tokens change (own stream)."""
STANDALONE_SEEDS = 0.12
"""Consumers that are not members commit and delete positions (own stream)."""
DISK_SEEDS = 0.1
"""Agents keep chunks on disks that fail, hang and change bits (own stream)."""
GROWING_SEEDS = 0.12
"""A topic grows (own stream)."""
REREAD_SEEDS = 0.07
"""Old records are read again and again, in small pieces (own stream)."""
FULL_SEEDS = 0.12
"""Clients take their answers late (own stream)."""
RESET_SEEDS = 0.08
"""A share group's start is reset now and then (own stream)."""
RESTART_SEEDS = 0.15
"""Sequencers are drained and restarted, and followers read the journal more often (own stream)."""
FORGETFUL_SEEDS = 0.08
"""Producers, transactional ids and groups are forgotten soon (own stream)."""
FORGETFUL_EXTRA_S = 6.0
"""How much longer the faults last in these seeds, so that forgetting and faults coincide."""
RECEIPT_SEEDS = 0.15
"""Producers are acknowledged on receipt (own stream)."""
LONG_SESSION_SEEDS = 0.1
"""Upload sessions outlive retired objects (own stream)."""
FEW_RESERVED_SEEDS = 0.1
"""Partitions use up the offsets that a checkpoint reserves (own stream)."""
KEYED_SEEDS = 0.4
"""Of the seeds that compact: a topic is compacted by key."""
ERASURE_SEEDS = 0.5
"""Of these: one of its keys is erased again and again."""
OF_SEQUENCERS = ("committer", "follower", "the database fails", "the database's clock")
"""Faults that affect the holders of the lease."""

NOT_WHILE_FORGETTING = (
    "an agent stops",
    "an agent is cut off",
    "a client stops",
    "the database's clock",
    "is made again",
)
"""Faults that delay requests for longer than their producers are remembered, or change the clock."""
NOT_WITH_A_LOSS = ("records are deleted", "a topic is made again")
"""Changes that a recovery may undo, because they were requested after the last checkpoint."""
ONLY_POISON: dict[str, Any] = {
    "poisoners": 1,
    "is_only_poisoned": True,
    "is_on_sqlite": False,
    "makes_again": False,
    "misfortunes": (),
    "plan": CALM,
    "loss": 0.0,
    "repetition": 0.0,
    "cut": 0.0,
    "max_delay_s": 0.003,
    "peer_delay_s": 0.003,
    "failing_writes": 0.0,
    "slow_loads_s": 0.0,
    "slow_writes": 0.0,
    "unforeseen": 0.0,
    "stutter": 0.0,
}
"""No faults that could cause anybody but the poisoners to be refused."""

REMEMBERED_FOR_SHORT: dict[str, Any] = {
    "forgets": True,
    "idempotent_producers": 0,
    "transactional_producers": 0,
    "processors": 0,
    "group_processors": 0,
    "group_members": 0,
    "static_members": 0,
    "aborts": False,
    "standalone_consumers": 0,
    "makes_again": False,
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated. `is_on_sqlite`: the rows are in SQLite; otherwise in the reference in memory."""

    agents: int = 2
    sequencers: int = 2
    zones: int = 1
    partitions: int = 2
    is_on_sqlite: bool = False
    plain_producers: int = 1
    idempotent_producers: int = 2
    transactional_producers: int = 0
    processors: int = 0
    group_processors: int = 0
    group_members: int = 0
    static_members: int = 0
    share_members: int = 0
    consumers: int = 0
    """Members of a group that changes between the classic protocol and KIP-848's."""
    standalone_consumers: int = 0
    """They commit positions of a group without members, and delete them."""
    resets: bool = False
    """A share group's start is reset now and then."""
    grants: bool = False
    """ACLs are granted and revoked."""
    credentials: bool = False
    """A user's credentials and delegation tokens change."""
    aborts: bool = False
    """An operator aborts transactions."""
    jobs: int = 0
    """Spark streams that write without an agent."""
    receipt_producers: int = 0
    """They write to a topic with `tailrace.flush=async`: an idempotent one, and a plain one if there are two."""
    readers: int = 1
    batches: int = 8
    window: int = 3
    compactors: int = 0
    merges: bool = False
    """Compactors merge small Parquet objects, too."""
    expires: bool = False
    """A topic with retention by bytes is written to, too."""
    makes_again: bool = False
    """A topic is deleted and created again while it is used."""
    plan: FaultPlan = TROUBLED
    loss: float = 0.01
    repetition: float = 0.01
    max_delay_s: float = 0.01
    peer_delay_s: float = 0.003
    cut: float = 0.005
    slow_reads: float = 0.0
    failing_writes: float = 0.02
    slow_loads_s: float = 0.0
    """A new committer takes up to this long to read the state, to the end of the run; its lease is 1.5 s."""
    slow_writes: float = 0.0
    """The chance that a transaction of the database takes up to 1.9 s."""
    unforeseen: float = 0.0
    """The chance that a call of the database raises an error that no interface declares."""
    poisoners: int = 0
    """Clients whose every change the database refuses."""
    stutter: float = 0.0
    """The chance that a process of the product pauses before a step: between reading something and acting on it."""
    has_low_bounds: bool = False
    """Answers of the sequencer and rounds of compaction hold a few runs, so that everything comes in pages, and agents
    have memory for only a few requests at a time."""
    wall_errors_ms: int = 0
    loses_database: bool = False
    """The database is lost once, and recovered from the bucket."""
    slow_answers_s: float = 0.0
    """For `slow_for_s`, every answer of the database takes between 2/5 of this and all of it."""
    slow_for_s: float = 0.0
    rereads: bool = False
    """Some readers read the log again and again, and what is kept for sending is in small pieces."""
    full: float = 0.0
    """The chance that a client does not take an answer at once."""
    is_keyed: bool = False
    """A topic that is compacted by key is written to, too."""
    erases: bool = False
    """A key of that topic is erased, again and again."""
    forgets: bool = False
    """Unused state is forgotten after a few seconds, and some clients rest for that long."""
    is_timed: bool = False
    """A client asks for offsets by time, and a topic has retention by time."""
    has_disks: bool = False
    """Agents have a disk for what leaves the cache's memory, and some readers read the log again and again."""
    has_long_sessions: bool = False
    """Upload sessions outlive retired objects, and deletions take seconds: a batch may be committed by reference while
    its object is deleted, or later."""
    reserves_few: bool = False
    """Partitions use up the offsets that a checkpoint reserves."""
    grows: bool = False
    """A topic gets more partitions, and a client uses them at once."""
    is_only_poisoned: bool = False
    """There are no other faults, so no producer is refused anything."""
    follow_pause_s: float = NODE_SETTINGS.follow_pause_s
    trouble_s: float = 6.0
    misfortunes: tuple[tuple[float, str], ...] = field(default=((1.0, "an agent crashes"),))

    @property
    def is_calm(self) -> bool:
        """No fault could cause a client to be refused, or an agent to end."""
        chances = (
            self.loss, self.repetition, self.cut, self.failing_writes, self.slow_loads_s, self.slow_writes,
            self.unforeseen, self.stutter, self.slow_answers_s,
        )  # fmt: skip
        return self.plan == CALM and self.peer_delay_s < 0.1 and not self.misfortunes and not any(chances)

    @property
    def has_small_commits(self) -> bool:
        """Whether no client writes more than a few records at once."""
        return not (self.processors or self.group_processors or self.share_members or self.jobs)

    @property
    def has_wrong_clocks(self) -> bool:
        """Whether agents' clocks may differ."""
        return bool(self.wall_errors_ms) or any(kind == "a clock jumps" for _, kind in self.misfortunes)

    @property
    def keeps_its_committer(self) -> bool:
        """Whether a slow database is the only fault that affects the holder of the lease."""
        return not self.failing_writes and not any(
            what in kind for _, kind in self.misfortunes for what in OF_SEQUENCERS
        )


def draw(luck: Entropy) -> Scenario:
    """Draw a scenario."""

    def maybe(chance: float) -> bool:
        return luck.fraction() < chance

    trouble_s = 2.5 + 3.5 * luck.fraction()
    is_bad = maybe(0.75)
    compacts, expires, makes_again = maybe(0.35), maybe(0.25), maybe(0.2)
    kinds = [
        kind
        for kind in MISFORTUNES
        if kind != "a topic is made again" or makes_again
    ]  # fmt: skip
    count = luck.below(5) if is_bad else luck.below(2)
    misfortunes = [
        (0.3 + trouble_s * 0.9 * luck.fraction(), kinds[luck.below(len(kinds))]) for _ in range(count)
    ]
    if compacts and is_bad:
        misfortunes += [
            (0.3 + trouble_s * 0.9 * luck.fraction(), OF_WORKERS[luck.below(len(OF_WORKERS))])
            for _ in range(luck.below(4))
        ]
    if makes_again:
        misfortunes.append((0.5 + trouble_s * 0.6 * luck.fraction(), "a topic is made again"))
    drawn = Scenario(
        agents=2 + luck.below(2),
        sequencers=2 if maybe(0.8) else 3,
        zones=1 if maybe(0.8) else 2,
        partitions=1 + luck.below(3),
        is_on_sqlite=maybe(0.04),
        plain_producers=luck.below(2),
        idempotent_producers=luck.below(3),
        transactional_producers=luck.below(3),
        processors=(processors := 1 + luck.below(2) if maybe(0.25) else 0),
        group_processors=1 + luck.below(3) if not processors and maybe(0.25) else 0,
        group_members=1 + luck.below(3) if maybe(0.25) else 0,
        readers=1 + luck.below(2),
        batches=3 + luck.below(6),
        window=1 + luck.below(5),
        compactors=1 + maybe(0.3) if compacts else 0,
        expires=expires,
        makes_again=makes_again,
        plan=TROUBLED if is_bad and maybe(0.8) else CALM,
        loss=0.03 * luck.fraction() if is_bad else 0.0,
        repetition=0.05 * luck.fraction() if is_bad else 0.0,
        max_delay_s=0.002 + (0.05 * luck.fraction() ** 3 if is_bad else 0.0),
        peer_delay_s=1.0 if maybe(0.1) else 0.003,
        cut=0.02 * luck.fraction() if is_bad else 0.0,
        slow_reads=0.3 if maybe(0.3) else 0.0,
        failing_writes=0.04 * luck.fraction() if is_bad else 0.0,
        slow_loads_s=3.0 if is_bad and maybe(0.15) else 0.0,
        slow_writes=0.05 if is_bad and maybe(0.15) else 0.0,
        unforeseen=0.02 * luck.fraction() if is_bad and maybe(0.15) else 0.0,
        poisoners=maybe(0.1) + 0,
        stutter=0.002 * luck.fraction() ** 2 if is_bad and maybe(0.2) else 0.0,
        has_low_bounds=maybe(0.15),
        wall_errors_ms=3_000 if maybe(0.3) else 0,
        trouble_s=trouble_s,
        misfortunes=tuple(sorted(misfortunes)),
    )
    if not drawn.plain_producers and not drawn.idempotent_producers and not drawn.transactional_producers:
        drawn = replace(drawn, idempotent_producers=1)  # some client must write
    if drawn.poisoners and not is_bad:
        return replace(drawn, **ONLY_POISON)
    if maybe(0.05):
        drawn = losing_its_database(drawn, luck)
    return replace(drawn, merges=bool(drawn.compactors) and maybe(0.5))


def losing_its_database(scenario: Scenario, luck: Entropy) -> Scenario:
    """Return the scenario with the database lost in the middle, and only with clients that recover everything."""
    kept = [
        (at, kind)
        for at, kind in scenario.misfortunes
        if kind not in NOT_WITH_A_LOSS and "committer" not in kind and "follower" not in kind
    ]
    lost = (1.0 + 0.6 * scenario.trouble_s * luck.fraction(), "the database is lost")
    return replace(
        scenario,
        loses_database=True,
        is_on_sqlite=False,
        idempotent_producers=max(1, scenario.idempotent_producers),
        transactional_producers=0,
        processors=0,
        group_processors=0,
        group_members=0,
        expires=False,
        makes_again=False,
        misfortunes=tuple(sorted([*kept, lost])),
    )


def slowing_its_database(scenario: Scenario, luck: Entropy) -> Scenario:
    """Return the scenario with a database whose answers take seconds for a while; in half of these nothing else affects
    the sequencers. No frames are lost or repeated: calls wait as long as in production, where connections lose none."""
    kept, failing = scenario.misfortunes, scenario.failing_writes
    if luck.below(2):
        kept = tuple(each for each in kept if not any(what in each[1] for what in OF_SEQUENCERS))
        failing = 0.0
    began, slow_for_s = 0.3 + 1.5 * luck.fraction(), 24.0 + 8.0 * luck.fraction()
    return replace(
        scenario,
        slow_answers_s=2.5 + 2.5 * luck.fraction(),
        slow_for_s=slow_for_s,
        loss=0.0,
        repetition=0.0,
        failing_writes=failing,
        slow_loads_s=0.0,
        slow_writes=0.0,
        unforeseen=0.0,
        stutter=0.0,
        trouble_s=began + slow_for_s + 1.0,
        misfortunes=tuple(sorted([*kept, (began, SLOW_DATABASE)])),
    )


def forgetting(scenario: Scenario) -> Scenario:
    """Return the scenario with short memories, and without the faults that delay clients for as long as their rests."""
    longer = (scenario.trouble_s + FORGETFUL_EXTRA_S) / scenario.trouble_s
    return replace(
        scenario,
        **REMEMBERED_FOR_SHORT,
        plain_producers=1,
        readers=1,
        trouble_s=scenario.trouble_s + FORGETFUL_EXTRA_S,
        misfortunes=tuple(
            (at * longer, kind)
            for at, kind in scenario.misfortunes
            if not any(what in kind for what in NOT_WHILE_FORGETTING)
        ),
    )


def outliving_objects(scenario: Scenario) -> Scenario:
    """Return the scenario in which upload sessions outlive retired objects and, if the store is troubled, deletions
    take seconds."""
    plan = DELETES_SLOWLY if scenario.plan == TROUBLED else scenario.plan
    return replace(scenario, has_long_sessions=True, plan=plan)


def turning_retention_off(scenario: Scenario, luck: Entropy) -> Scenario:
    """Return the scenario in which the limit of the topic that expires is lifted once, and restored."""
    at = 0.3 + 0.6 * scenario.trouble_s * luck.fraction()
    return replace(scenario, misfortunes=tuple(sorted([*scenario.misfortunes, (at, RETENTION_OFF)])))


def restarting_its_committer(scenario: Scenario, luck: Entropy) -> Scenario:
    """Return the scenario in which the committer drains and restarts up to three times, beside followers that soon have
    a copy."""
    restarts = [
        (0.3 + scenario.trouble_s * 0.9 * luck.fraction(), COMMITTER_RESTARTS)
        for _ in range(1 + luck.below(3))
    ]
    return replace(
        scenario,
        follow_pause_s=0.3 + luck.fraction(),
        misfortunes=tuple(sorted([*scenario.misfortunes, *restarts])),
    )
