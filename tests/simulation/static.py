"""Static members of a group (KIP-345): instances that return under a new member id, and so replace their process.

An instance that returns within its session takes its own place: the group stays in its generation. From then on no
request of the earlier process is accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.clients import Log, Stage
from tests.simulation.groups import GroupMember, GroupWatch, MustJoin
from tests.simulation.loop import SimulatedProcess
from tests.simulation.network import NoAnswer

RETURNS = 2
"""How often each instance is replaced during the faults; once more after them."""
SETTLED_S = 8.0
"""This long after the faults all sessions of dead processes have ended."""


@dataclass(slots=True)
class Incarnation:
    """One join of an instance under a new id."""

    asked_at: float
    answered_at: float | None = None


@dataclass(slots=True)
class StaticWatch:
    """The answers that the static members of one group received."""

    violated: Callable[[str], None]
    members: int
    newest: int = -1
    newest_at: float = -1.0
    owners: dict[tuple[int, int], str] = field(default_factory=dict)
    joins: dict[str, list[Incarnation]] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    """The generation in which each instance last got its partitions."""
    settled: int = 0
    """How many instances returned after the faults."""
    joining: dict[str, SimulatedProcess] = field(default_factory=dict)
    rejoins: int = 0
    """How often processes joined again after an error: if the leader does so, a new generation follows."""

    @property
    def is_stable(self) -> bool:
        """Whether all instances are in the newest generation, and none is joining."""
        return [*self.generations.values()] == [self.newest] * self.members and all(
            process.is_dead for process in self.joining.values()
        )

    @property
    def is_over(self) -> bool:
        return self.settled == self.members

    def is_replaced(self, instance: str, mine: Incarnation, asked_at: float) -> bool:
        """Return whether a later process had certainly taken the place when this request was sent: its join began after
        the answer to this one's, and was answered."""
        return mine.answered_at is not None and any(
            other.asked_at > mine.answered_at
            and other.answered_at is not None
            and other.answered_at < asked_at
            for other in self.joins[instance]
        )


class StaticView(GroupWatch):
    """The watch as one process of an instance sees it: member ids change within a generation, instances do not."""

    def __init__(self, shared: StaticWatch, instance: str) -> None:
        super().__init__(shared.violated)
        self.shared, self.instance = shared, instance
        self.mine: Incarnation | None = None

    def joined(self, at: float, generation: int, leader: str) -> None:
        assert self.mine is not None, "it asked"
        if self.mine.answered_at is None:
            self.mine.answered_at = at
        if generation > self.shared.newest:
            self.shared.newest, self.shared.newest_at = generation, at

    def synced(self, generation: int, member: str, partitions: list[int]) -> None:
        # A replaced process may take its answer late, after its successor's.
        known = self.shared.generations.get(self.instance, generation)
        self.shared.generations[self.instance] = max(known, generation)
        for partition in partitions:
            owner = self.shared.owners.setdefault((generation, partition), self.instance)
            if owner != self.instance:
                self.violated(
                    f"generation {generation}: partition {partition} is {owner}'s and {self.instance}'s"
                )

    def accepted(self, asked_at: float, generation: int, what: str) -> None:
        self.newest, self.newest_at = self.shared.newest, self.shared.newest_at
        super().accepted(asked_at, generation, what)
        assert self.mine is not None, "it joined"
        if self.shared.is_replaced(self.instance, self.mine, asked_at):
            self.violated(
                f"{what} of {self.instance} accepted, asked at {asked_at:.3f} by a replaced process"
            )


class StaticMember(GroupMember):
    """One process of an instance; it never sends LeaveGroup."""

    def __init__(self, stage: Stage, instance: str, group: str, shared: StaticWatch) -> None:
        self._view = StaticView(shared, instance)
        super().__init__(stage, instance, group, self._view)
        self.instance_id = instance
        self._shared = shared
        self.is_retired = False
        """Another process has replaced this one, which ends once an answer says so."""

    def is_over(self, log: Log) -> bool:
        return self._shared.is_over

    async def look_again(self, error: MustJoin | NoAnswer) -> None:
        if isinstance(error, MustJoin) and error.is_new and self.is_retired:
            raise Replaced
        await super().look_again(error)

    async def run(self, topic: str) -> None:
        try:
            await super().run(topic)
        except Replaced:
            self.stage.note(f"{self.name} is replaced")

    async def join(self, log: Log) -> list[int]:
        if not self.member_id or self._view.mine is None:
            self._view.mine = Incarnation(self.stage.now())
            self._shared.joins.setdefault(self._view.instance, []).append(self._view.mine)
        else:
            self._shared.rejoins += 1
        self._shared.joining[self.name] = self.process
        try:
            return await super().join(log)
        finally:
            del self._shared.joining[self.name]

    async def leave(self) -> None:
        """Do nothing: the session ends by itself."""

    @property
    def has_joined(self) -> bool:
        return (
            self._view.mine is not None and self._view.mine.answered_at is not None and self.generation >= 0
        )


class Replaced(Exception):
    """Another process of the instance took this one's place."""
