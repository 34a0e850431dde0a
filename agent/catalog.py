"""The catalog: the topics, ring, users and ACLs as the agent knows them. It asks the sequencer for changes since its
version.

A Metadata request, or a look-up of something unknown, asks the sequencer first, so metadata is correct right after a
change. All others use the current snapshot, and ask only when it may be out of date: it doesn't have a name, id or
partition, or the sequencer refuses one as unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from agent.answer_cache import AnswerCache
from cache.ring import Replicas
from sequencer.api.agents import Member, NewestVersions, Ring
from sequencer.api.errors import SequencerError
from sequencer.api.interface import Sequencer
from sequencer.api.security import ScramCredentials, ScramName, Security
from sequencer.api.topics import (
    BrokerConfigsRequest,
    ClientConfig,
    ConfigScope,
    Metadata,
    MetadataRequest,
    Topic,
)
from sequencer.pages import whole_client_configs, whole_security
from sequencer.ring_changes import ring_after
from tailrace.background_tasks import retrieve_error
from tailrace.configs.internal_topics import is_internal
from tailrace.configs.topic_config import TopicSettings, topic_settings
from tailrace.security.acls import Acl

MAX_DEPARTED = 32


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic, and the settings from its configs and the cluster's. `is_internal`: clients can't write to it."""

    topic: Topic
    settings: TopicSettings
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All metadata at one version and ring generation. Immutable; replaced as a whole.

    `partitions`: how many all topics have together.
    `departed`: the last agents that have left the ring, as the sequencer or this agent saw it, by broker id.
    `answers`: Metadata answers that were made from this snapshot. `unified_names`: see
    `agent.handlers.colliding_names`.
    """

    cluster_id: str
    incarnation: int
    version: int
    by_name: dict[str, KnownTopic]
    by_id: dict[UUID, KnownTopic]
    broker_configs: dict[str, str]
    replicas: Replicas
    departed: tuple[Member, ...] = ()
    partitions: int = 0
    answers: AnswerCache = field(default_factory=AnswerCache, compare=False, repr=False)
    unified_names: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def ring(self) -> Ring:
        """The members of the ring, and its generation."""
        return self.replicas.ring


@dataclass(frozen=True, slots=True)
class KnownSecurity:
    """All users and ACLs at one version."""

    version: int = 0
    users: dict[ScramName, ScramCredentials] = field(default_factory=dict, repr=False)
    acls: dict[Acl, None] = field(default_factory=dict, repr=False)

    def after(self, answer: Security) -> KnownSecurity:
        """Return what is known with this answer, which has all users and ACLs or only changes."""
        users = {user.name: user for user in answer.users or ()}
        acls = dict.fromkeys(answer.acls or ())
        if answer.deleted is not None:
            users, acls = self.users | users, self.acls | acls
            for name in answer.deleted.users:
                users.pop(name, None)
            for acl in answer.deleted.acls:
                acls.pop(acl, None)
        return KnownSecurity(answer.version, users, acls)


@dataclass(frozen=True, slots=True)
class KnownClientConfigs:
    """All configs of clients, at one version."""

    version: int = 0
    configs: tuple[ClientConfig, ...] = ()
    groups: dict[str, dict[str, str]] = field(default_factory=dict)
    metrics: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, version: int, configs: Iterable[ClientConfig]) -> KnownClientConfigs:
        """Build from the sequencer's rows."""
        kept = tuple(configs)
        groups, metrics = (
            {row.name: row.configs for row in kept if row.scope is scope}
            for scope in (ConfigScope.GROUP, ConfigScope.CLIENT_METRICS)
        )
        return cls(version, kept, groups, metrics)


EMPTY = Snapshot(
    cluster_id="",
    incarnation=0,
    version=-1,
    by_name={},
    by_id={},
    broker_configs={},
    replicas=Replicas(Ring(-1, [])),
)


class Catalog:
    """Owns the snapshot. At most one refresh runs and one waits to follow it. A caller's refresh always starts after
    its call, so the snapshot that it gets is at least as new as the call."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        self.snapshot = EMPTY
        self.security = KnownSecurity()
        self.on_removed_users: Callable[[frozenset[str]], None] = lambda users: None
        """Called with the users that no longer have credentials."""
        self.client_configs = KnownClientConfigs()
        self.on_client_configs: Callable[[KnownClientConfigs], None] = lambda configs: None
        """Called with new client configs."""
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def refresh(self) -> Snapshot:
        """Return the newest snapshot, requested after this call began. Raises SequencerError."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._after(self._running))
            self._next.add_done_callback(retrieve_error)
        await asyncio.shield(self._next)
        return self.snapshot

    def is_current(self, newest: NewestVersions | None) -> bool:
        """Whether this catalog has the newest versions of the sequencer; False if they are not given."""
        return (
            newest is not None
            and self.snapshot.version >= newest.metadata
            and self.snapshot.ring.generation >= newest.ring_generation
            and self.security.version >= newest.security
            and self.client_configs.version >= newest.client_configs
        )

    async def refresh_if_possible(self) -> None:
        """As `refresh`, but ignore an unreachable sequencer. Used after a change was made: the client needs its answer.
        Without one it would retry, and be told that its new topic already exists."""
        with suppress(SequencerError):
            await self.refresh()

    async def _after(self, running: asyncio.Task[None] | None) -> None:
        if running is not None:
            await asyncio.wait([running])
        self._running, self._next = self._next, None
        await self._ask()

    async def _ask(self) -> None:
        known = self.snapshot
        answer = await self._sequencer.metadata(
            MetadataRequest(known.version, known.ring.generation, takes_changes=True, takes_ring_changes=True)
        )
        if answer.security_version > self.security.version:  # a follower may be behind this catalog
            await self._ask_security()
        if answer.client_configs_version > self.client_configs.version:
            await self._ask_client_configs()
        has_ring = answer.ring is not None or answer.ring_change is not None
        if answer.version == known.version and answer.topics is None and not has_ring:
            return
        broker_configs = known.broker_configs
        if answer.version != known.version or answer.topics is not None:
            broker_configs = (await self._sequencer.broker_configs(BrokerConfigsRequest(""))).configs
        self.snapshot = _snapshot(known, answer, broker_configs)

    async def _ask_security(self) -> None:
        answer = await whole_security(self._sequencer, self.security.version)
        if answer is not None and answer.version > self.security.version:
            before, self.security = self.security, self.security.after(answer)
            removed = {name.user for name in before.users} - {name.user for name in self.security.users}
            if removed:
                self.on_removed_users(frozenset(removed))

    async def _ask_client_configs(self) -> None:
        answer = await whole_client_configs(self._sequencer, self.client_configs.version)
        if answer is not None and answer.version > self.client_configs.version:
            self.client_configs = KnownClientConfigs.of(answer.version, answer.configs or ())
            self.on_client_configs(self.client_configs)

    def of_one_request(self) -> RequestTopics:
        """Return a look-up for the topics of one request."""
        return RequestTopics(self)

    async def know(self, names: Iterable[str]) -> None:
        """Refresh if one of these topics is unknown: it may have been created a moment ago."""
        if any(name not in self.snapshot.by_name for name in names):
            await self.refresh()

    async def has_moved_on(self, seen: Snapshot) -> bool:
        """Refresh, and return whether the topics differ from `seen`; False if the sequencer can't be reached."""
        try:
            return (await self.refresh()).version != seen.version
        except SequencerError:
            return False


class RequestTopics:
    """Looks up the topics of one request. Refreshes at most once, however many topics are unknown: the answer is newer
    than the request."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._is_current = False

    async def by_name(self, name: str, partitions: int = 0) -> KnownTopic | None:
        """Return the topic. Refresh if it is unknown, or known with fewer than `partitions` partitions."""
        known = self._catalog.snapshot.by_name.get(name)
        return known if has(known, partitions) else (await self._current()).by_name.get(name)

    async def by_id(self, topic_id: UUID, partitions: int = 0) -> KnownTopic | None:
        """As `by_name`, by the topic's id."""
        known = self._catalog.snapshot.by_id.get(topic_id)
        return known if has(known, partitions) else (await self._current()).by_id.get(topic_id)

    async def _current(self) -> Snapshot:
        if not self._is_current:
            await self._catalog.refresh()
            self._is_current = True
        return self._catalog.snapshot


def has(known: KnownTopic | None, partitions: int) -> bool:
    """Whether the topic is known with at least this many partitions."""
    return known is not None and partitions <= known.topic.partitions


def departed_of(known: Snapshot, ring: Ring) -> tuple[Member, ...]:
    """Return the latest MAX_DEPARTED agents that had left at the time of this ring and have not come back."""
    live = {member.broker_id for member in ring.members}
    named = (*ring.departed, *known.departed, *known.ring.members)
    left = [member for member in named if member.broker_id not in live]
    latest = list({member.broker_id: member for member in left}.values())[-MAX_DEPARTED:]
    return tuple(sorted(latest, key=lambda member: member.broker_id))


def _snapshot(known: Snapshot, answer: Metadata, broker_configs: dict[str, str]) -> Snapshot:
    replicas = _replicas_after(known, answer)
    by_id = _topics_after(known, answer, broker_configs)
    return Snapshot(
        cluster_id=answer.cluster_id,
        incarnation=answer.incarnation,
        version=answer.version,
        by_name=known.by_name
        if by_id is known.by_id
        else {known_topic.topic.name: known_topic for known_topic in by_id.values()},
        by_id=by_id,
        broker_configs=broker_configs,
        replicas=replicas,
        departed=departed_of(known, replicas.ring),
        partitions=known.partitions
        if by_id is known.by_id
        else sum(known_topic.topic.partitions for known_topic in by_id.values()),
    )


def _replicas_after(known: Snapshot, answer: Metadata) -> Replicas:
    if answer.ring_change is not None:
        return Replicas(ring_after(known.ring, answer.ring_change))
    return known.replicas if answer.ring is None else Replicas(answer.ring)


def _topics_after(
    known: Snapshot, answer: Metadata, broker_configs: dict[str, str]
) -> dict[UUID, KnownTopic]:
    """Return the topics after the answer. Only changed topics are processed, unless the cluster's configs changed."""
    if answer.topics is not None:
        return _known_topics(answer.topics, broker_configs)
    if broker_configs == known.broker_configs and not answer.changed and not answer.deleted:
        return known.by_id
    left = dict(known.by_id)
    for topic_id in answer.deleted:
        left.pop(topic_id, None)
    if broker_configs != known.broker_configs:
        left = _known_topics([known_topic.topic for known_topic in left.values()], broker_configs)
    return left | _known_topics(answer.changed, broker_configs)


def _known_topics(topics: Iterable[Topic], broker_configs: dict[str, str]) -> dict[UUID, KnownTopic]:
    settings: dict[tuple[tuple[str, str], ...], TopicSettings] = {}  # most topics have the same settings
    by_id: dict[UUID, KnownTopic] = {}
    for topic in topics:
        configs = tuple(topic.configs.items())
        if configs not in settings:
            settings[configs] = topic_settings(topic.configs, broker_configs)
        by_id[topic.topic_id] = KnownTopic(topic, settings[configs], is_internal(topic.name))
    return by_id
