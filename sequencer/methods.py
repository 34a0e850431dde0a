"""The sequencer's methods as data, and the interface where each of them asks someone else."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Any, TypeVar

from sequencer.api import (
    AbortedProducer,
    AbortProducer,
    AddToTransaction,
    AgentInfo,
    AgentLease,
    AgentRef,
    AlterConfig,
    BrokerConfigsRequest,
    CommitAnswer,
    CommitOffsets,
    CommitRequest,
    CompactionCandidates,
    CompactionRequest,
    Configs,
    CreatePartitions,
    CreateTopic,
    DeletedRecords,
    DeleteOffsets,
    DeleteRecords,
    DeleteTopic,
    Empty,
    EndTransaction,
    EpochAnswer,
    EpochRequest,
    FeedAnswer,
    FeedRequest,
    FetchOffsets,
    FindAnswer,
    FindRequest,
    ForgetObjects,
    Garbage,
    GarbageRequest,
    GroupListings,
    GroupOwner,
    GroupRef,
    GroupState,
    InitProducer,
    KnownKeys,
    Lags,
    LagsRequest,
    ListGroups,
    LoadGroup,
    LocateGroup,
    Metadata,
    MetadataRequest,
    NamedLease,
    ObjectRef,
    ObjectsAnswer,
    ObjectsRequest,
    OffsetErrors,
    OffsetPositions,
    OffsetsAnswer,
    OffsetsRequest,
    OpenSession,
    ProducerGrant,
    ProducerQuery,
    ProducersAnswer,
    RenewAgent,
    RetentionSummary,
    RunsAnswer,
    SaveGroup,
    Sequencer,
    SequencerUnavailable,
    SessionGrant,
    SessionRef,
    SizesAnswer,
    SizesRequest,
    StampAnswer,
    StampRequest,
    Statistics,
    SwapAnswer,
    SwapRequest,
    SweptSession,
    TakeLease,
    Topic,
    TransactionDescriptions,
    TransactionsRequest,
    Value,
)

A = TypeVar("A", bound=Value)


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the interface: its name, the struct it takes and the one it gives."""

    name: str
    request: type[Value]
    answer: type[Value]


def _methods() -> dict[str, Method]:
    table = {}
    for name, function in vars(Sequencer).items():
        if name.startswith("_") or not callable(function):
            continue
        hints: dict[str, Any] = typing.get_type_hints(function)
        if "request" in hints:
            table[name] = Method(name, hints["request"], hints["return"])
    return table


METHODS = _methods()
"""All of the interface that takes a request, by name."""

FORWARD = "forward."
"""Before a method's name on the wire: a node that is not the committer may pass it on. Without it, it says who is."""


class NotCommitter(SequencerUnavailable):
    """This node is not the committer; the message is the committer's address, '' when there is none."""

    code = "not_committer"


class AskedSequencer:
    """The interface, where every method asks `_ask`: what a remote or a routed sequencer is made of."""

    async def _ask(self, method: str, request: Value, answer: type[A]) -> A:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    # Upload sessions and commits.

    async def open_session(self, request: OpenSession) -> SessionGrant:
        return await self._ask("open_session", request, SessionGrant)

    async def renew_session(self, request: SessionRef) -> SessionGrant:
        return await self._ask("renew_session", request, SessionGrant)

    async def close_session(self, request: SessionRef) -> Empty:
        return await self._ask("close_session", request, Empty)

    async def commit(self, request: CommitRequest) -> CommitAnswer:
        return await self._ask("commit", request, CommitAnswer)

    # Agents and the ring.

    async def register_agent(self, request: AgentInfo) -> AgentLease:
        return await self._ask("register_agent", request, AgentLease)

    async def renew_agent(self, request: RenewAgent) -> AgentLease:
        return await self._ask("renew_agent", request, AgentLease)

    async def release_agent(self, request: AgentRef) -> Empty:
        return await self._ask("release_agent", request, Empty)

    async def suspect_agent(self, request: AgentRef) -> Empty:
        return await self._ask("suspect_agent", request, Empty)

    # Topics and configs.

    async def metadata(self, request: MetadataRequest) -> Metadata:
        return await self._ask("metadata", request, Metadata)

    async def create_topic(self, request: CreateTopic) -> Topic:
        return await self._ask("create_topic", request, Topic)

    async def delete_topic(self, request: DeleteTopic) -> Empty:
        return await self._ask("delete_topic", request, Empty)

    async def create_partitions(self, request: CreatePartitions) -> Topic:
        return await self._ask("create_partitions", request, Topic)

    async def alter_config(self, request: AlterConfig) -> Empty:
        return await self._ask("alter_config", request, Empty)

    async def broker_configs(self, request: BrokerConfigsRequest) -> Configs:
        return await self._ask("broker_configs", request, Configs)

    # Reading.

    async def find_batches(self, request: FindRequest) -> FindAnswer:
        return await self._ask("find_batches", request, FindAnswer)

    async def list_offsets(self, request: OffsetsRequest) -> OffsetsAnswer:
        return await self._ask("list_offsets", request, OffsetsAnswer)

    async def offsets_for_epochs(self, request: EpochRequest) -> EpochAnswer:
        return await self._ask("offsets_for_epochs", request, EpochAnswer)

    async def feed(self, request: FeedRequest) -> FeedAnswer:
        return await self._ask("feed", request, FeedAnswer)

    async def sizes(self, request: SizesRequest) -> SizesAnswer:
        return await self._ask("sizes", request, SizesAnswer)

    # Producers.

    async def init_producer(self, request: InitProducer) -> ProducerGrant:
        return await self._ask("init_producer", request, ProducerGrant)

    async def describe_producers(self, request: ProducerQuery) -> ProducersAnswer:
        return await self._ask("describe_producers", request, ProducersAnswer)

    # Transactions.

    async def add_to_transaction(self, request: AddToTransaction) -> Empty:
        return await self._ask("add_to_transaction", request, Empty)

    async def stamp_batches(self, request: StampRequest) -> StampAnswer:
        return await self._ask("stamp_batches", request, StampAnswer)

    async def end_transaction(self, request: EndTransaction) -> ProducerGrant:
        return await self._ask("end_transaction", request, ProducerGrant)

    async def transactions(self, request: TransactionsRequest) -> TransactionDescriptions:
        return await self._ask("transactions", request, TransactionDescriptions)

    async def abort_producer(self, request: AbortProducer) -> AbortedProducer:
        return await self._ask("abort_producer", request, AbortedProducer)

    # Groups.

    async def locate_group(self, request: LocateGroup) -> GroupOwner:
        return await self._ask("locate_group", request, GroupOwner)

    async def load_group(self, request: LoadGroup) -> GroupState:
        return await self._ask("load_group", request, GroupState)

    async def save_group(self, request: SaveGroup) -> Empty:
        return await self._ask("save_group", request, Empty)

    async def delete_group(self, request: GroupRef) -> Empty:
        return await self._ask("delete_group", request, Empty)

    async def list_groups(self, request: ListGroups) -> GroupListings:
        return await self._ask("list_groups", request, GroupListings)

    async def commit_offsets(self, request: CommitOffsets) -> OffsetErrors:
        return await self._ask("commit_offsets", request, OffsetErrors)

    async def fetch_offsets(self, request: FetchOffsets) -> OffsetPositions:
        return await self._ask("fetch_offsets", request, OffsetPositions)

    async def delete_offsets(self, request: DeleteOffsets) -> OffsetErrors:
        return await self._ask("delete_offsets", request, OffsetErrors)

    async def lags(self, request: LagsRequest) -> Lags:
        return await self._ask("lags", request, Lags)

    # Retention, garbage, compaction.

    async def delete_records(self, request: DeleteRecords) -> DeletedRecords:
        return await self._ask("delete_records", request, DeletedRecords)

    async def apply_retention(self, request: Empty) -> RetentionSummary:
        return await self._ask("apply_retention", request, RetentionSummary)

    async def garbage(self, request: GarbageRequest) -> Garbage:
        return await self._ask("garbage", request, Garbage)

    async def forget_objects(self, request: ForgetObjects) -> Empty:
        return await self._ask("forget_objects", request, Empty)

    async def known_keys(self, request: KnownKeys) -> KnownKeys:
        return await self._ask("known_keys", request, KnownKeys)

    async def session_swept(self, request: SweptSession) -> Empty:
        return await self._ask("session_swept", request, Empty)

    async def take_lease(self, request: TakeLease) -> NamedLease:
        return await self._ask("take_lease", request, NamedLease)

    async def compaction_candidates(self, request: CompactionRequest) -> CompactionCandidates:
        return await self._ask("compaction_candidates", request, CompactionCandidates)

    async def swap(self, request: SwapRequest) -> SwapAnswer:
        return await self._ask("swap", request, SwapAnswer)

    async def objects(self, request: ObjectsRequest) -> ObjectsAnswer:
        return await self._ask("objects", request, ObjectsAnswer)

    async def object_runs(self, request: ObjectRef) -> RunsAnswer:
        return await self._ask("object_runs", request, RunsAnswer)

    async def statistics(self, request: Empty) -> Statistics:
        return await self._ask("statistics", request, Statistics)
