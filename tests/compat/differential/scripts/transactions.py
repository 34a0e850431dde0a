"""Idempotent producers and transactions: ids, epochs, partitions, groups' offsets, ends, and what is told of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tailrace.kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tailrace.kafka.messages.describe_producers import DescribeProducersRequest
from tailrace.kafka.messages.describe_producers import TopicRequest as ProducersOf
from tailrace.kafka.messages.describe_transactions import DescribeTransactionsRequest
from tailrace.kafka.messages.end_txn import EndTxnRequest
from tailrace.kafka.messages.find_coordinator import FindCoordinatorRequest
from tailrace.kafka.messages.init_producer_id import InitProducerIdRequest
from tailrace.kafka.messages.list_transactions import ListTransactionsRequest
from tailrace.kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.compat.differential.known import Known, says_why
from tests.compat.differential.scripts.producing import batch, log, produced
from tests.compat.differential.steps import LATER, Ask, Script, Scripts, topic

MINUTE_MS = 60_000


def inited(
    what: str,
    name: str | None,
    version: int = 5,
    timeout_ms: int = MINUTE_MS,
    producer: int = -1,
    epoch: int = -1,
) -> Ask:
    """InitProducerId."""
    request = InitProducerIdRequest(name, timeout_ms, producer, epoch)
    return Ask(what, ApiKey.INIT_PRODUCER_ID, version, request)


def added(what: str, name: str, producer: int, epoch: int, *topics: tuple[str, int], version: int = 3) -> Ask:
    """AddPartitionsToTxn as clients send it."""
    rows = [AddPartitionsToTxnTopic(topic_name, [index]) for topic_name, index in topics]
    request = AddPartitionsToTxnRequest([], name, producer, epoch, rows)
    return Ask(what, ApiKey.ADD_PARTITIONS_TO_TXN, version, request, unordered=("topics",))


def ended(what: str, name: str, producer: int, epoch: int, committed: bool = True, version: int = 4) -> Ask:
    """EndTxn."""
    return Ask(what, ApiKey.END_TXN, version, EndTxnRequest(name, producer, epoch, committed))


def with_offsets(what: str, name: str, producer: int, epoch: int, group: str, version: int = 3) -> Ask:
    """AddOffsetsToTxn."""
    return Ask(what, ApiKey.ADD_OFFSETS_TO_TXN, version, AddOffsetsToTxnRequest(name, producer, epoch, group))


def offsets(
    what: str,
    name: str,
    producer: int,
    epoch: int,
    group: str,
    topic_name: str = "txn",
    version: int = 3,
    **more: Any,
) -> Ask:
    """TxnOffsetCommit of offset 5 of partition 0."""
    rows = [TxnOffsetCommitRequestTopic(topic_name, [TxnOffsetCommitRequestPartition(0, 5, -1, "m")])]
    request = TxnOffsetCommitRequest(name, group, producer, epoch, topics=rows, **more)
    return Ask(what, ApiKey.TXN_OFFSET_COMMIT, version, request)


def in_txn(
    what: str,
    name: str | None,
    producer: int,
    epoch: int,
    sequence: int,
    topic_name: str = "txn",
    version: int = 11,
) -> Ask:
    """A batch of a transaction. Kafka's broker refuses the first ones until it is connected with the coordinator."""
    # Of today, as Kafka begins another file for a marker that is much newer, and a fetch ends with the file.
    at = int(time.time() * 1000)
    data = batch(
        at=at, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, is_transactional=True
    )
    not_yet = LATER | {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS}
    return produced(what, topic_name, data, version=version, transactional_id=name, repeat_on=not_yet)


def coordinated(name: str) -> Script:
    """Find the coordinators of a transactional id and of a group: Kafka makes its topics on the first look-up."""
    groups = FindCoordinatorRequest(key=name, key_type=0)
    is_found = lambda answer: answer.error_code == 0  # noqa: E731
    yield Ask(f"find the group {name}", ApiKey.FIND_COORDINATOR, 3, groups, until=is_found, is_compared=False)
    request = FindCoordinatorRequest(key=name, key_type=1)
    yield Ask(f"find {name}", ApiKey.FIND_COORDINATOR, 3, request, is_compared=False)
    yield Ask(
        f"ready for {name}",
        ApiKey.INIT_PRODUCER_ID,
        4,
        InitProducerIdRequest(f"{name}-ready", MINUTE_MS),
        until=lambda answer: answer.error_code == 0,
        is_compared=False,
    )


def ends_at(offset: int) -> Callable[[Any], bool]:
    """Whether a fetch's partition ends there: Kafka writes markers after it has answered EndTxn."""
    return lambda answer: answer.responses[0].partitions[0].last_stable_offset == offset


def init() -> Script:
    """InitProducerId of every version; ids, epochs and time-outs that are refused."""
    yield from coordinated("init")
    for version in range(6):
        yield inited("idempotent", None, version)
        yield inited("transactional", f"init-{version}", version)
        yield inited("transactional, again", f"init-{version}", version)
        yield inited("empty id", "", version)
        yield inited("time-out 0", "init-zero", version, 0)
        yield inited("time-out -1", "init-zero", version, -1)
        yield inited("time-out too long", "init-long", version, 10**9)
        yield inited("idempotent, time-out 0", None, version, 0)
    for version in (3, 5):
        name = f"init-epochs-{version}"
        first = yield inited("first", name, version)
        producer, epoch = first.producer_id, first.producer_epoch
        second = yield inited("with its own epoch", name, version, producer=producer, epoch=epoch)
        yield inited("with an older epoch", name, version, producer=producer, epoch=epoch)
        yield inited(
            "with the last epoch", name, version, producer=second.producer_id, epoch=second.producer_epoch
        )
        yield inited("with a newer epoch", name, version, producer=producer, epoch=500)
        yield inited("with another id", name, version, producer=987_654, epoch=0)
        yield inited("id without an epoch", name, version, producer=producer)
        yield inited("epoch without an id", name, version, epoch=0)
        yield inited("unknown, with an id", f"{name}-not", version, producer=987_654, epoch=3)
        own = yield inited("idempotent's first", None, version)
        yield inited(
            "idempotent with its epoch", None, version, producer=own.producer_id, epoch=own.producer_epoch
        )
        yield inited("idempotent with a strange id", None, version, producer=987_654, epoch=0)


def idempotent() -> Script:
    """Sequences and epochs of an idempotent producer."""
    yield from topic("idem", 2)
    made = yield inited("init", None)
    producer = made.producer_id

    def at(
        what: str, sequence: int, epoch: int = 0, producer_id: int = producer, version: int = 12, **more: Any
    ) -> Ask:
        data = batch(b"a", b"b", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        return produced(what, "idem", data, version=version, ignored=("base_offset",), **more)

    yield at("first", 0)
    yield at("duplicate", 0)
    yield at("next", 2)
    yield at("an older duplicate", 0)
    yield at("a gap", 10)
    yield at("overlap", 3)
    yield at("not from 0 in a new partition", 5, partition=1)
    yield at("newer epoch, from 0", 0, 1)
    yield at("older epoch", 4)
    yield at("newer epoch, not from 0", 7, 3)
    yield at("unknown producer, from 0", 0, producer_id=555_000)
    yield at("unknown producer, not from 0", 9, producer_id=555_001)
    yield at("negative epoch", 0, -1)
    yield at("negative sequence", -1, 3)
    yield at("negative sequence -2", -2, 3)
    for number in range(6):
        yield at(f"six more {number}", 2 * number, 4)
    yield at("a duplicate that is forgotten", 0, 4)
    yield at("last of five", 2, 4)
    request = DescribeProducersRequest([ProducersOf("idem", [0, 1, 7]), ProducersOf("idem-not", [0])])
    yield Ask("producers", ApiKey.DESCRIBE_PRODUCERS, 0, request, unordered=("topics", "active_producers"))


def first_protocol() -> Script:
    """Transactions before KIP-890: partitions are added by name, the epoch stays."""
    yield from coordinated("first_protocol")
    yield from topic("txn", 2)
    made = yield inited("init", "txn-a", 4)
    producer, epoch = made.producer_id, made.producer_epoch
    yield ended("commit without a beginning", "txn-a", producer, epoch)
    yield ended("abort without a beginning", "txn-a", producer, epoch, False)
    yield in_txn("not added", "txn-a", producer, epoch, 0)
    for version in range(4):
        yield added("one", "txn-a", producer, epoch, ("txn", 0), version=version)
        yield added("unknown topic", "txn-a", producer, epoch, ("txn-not", 0), ("txn", 0), version=version)
        yield added("unknown partition", "txn-a", producer, epoch, ("txn", 9), version=version)
        yield added("older epoch", "txn-a", producer, epoch - 1, ("txn", 0), version=version)
        yield added("newer epoch", "txn-a", producer, epoch + 1, ("txn", 0), version=version)
        yield added("another producer", "txn-a", producer + 1, epoch, ("txn", 0), version=version)
        yield added("unknown id", "txn-not", producer, epoch, ("txn", 0), version=version)
        yield added("empty id", "", producer, epoch, ("txn", 0), version=version)
        yield added("none", "txn-a", producer, epoch, version=version)
    yield in_txn("added", "txn-a", producer, epoch, 0)
    yield in_txn("added, of an older version", "txn-a", producer, epoch, 1, version=7)
    yield in_txn("without the id", None, producer, epoch, 2)
    yield in_txn("older epoch", "txn-a", producer, epoch - 1, 3)
    yield produced(
        "plain of its producer", "txn", batch(producer_id=producer, producer_epoch=epoch, base_sequence=3)
    )
    yield log(
        "txn",
        "open",
    )
    request = DescribeTransactionsRequest(["txn-a", "txn-not", ""])
    yield Ask("described", ApiKey.DESCRIBE_TRANSACTIONS, 0, request)
    producers = DescribeProducersRequest([ProducersOf("txn", [0])])
    yield Ask("producers", ApiKey.DESCRIBE_PRODUCERS, 0, producers)
    for version in range(4):
        yield with_offsets("offsets", "txn-a", producer, epoch, "txn-group", version)
        yield with_offsets("offsets, older epoch", "txn-a", producer, epoch - 1, "txn-group", version)
        yield with_offsets("offsets, empty group", "txn-a", producer, epoch, "", version)
        yield with_offsets("offsets, unknown id", "txn-not", producer, epoch, "txn-group", version)
        yield with_offsets("offsets, empty id", "", producer, epoch, "txn-group", version)
        yield offsets("commit them", "txn-a", producer, epoch, "txn-group", version=version)
        yield offsets("commit them, older epoch", "txn-a", producer, epoch - 1, "txn-group", version=version)
        yield offsets(
            "commit them, unknown topic", "txn-a", producer, epoch, "txn-group", "txn-not", version=version
        )
        yield offsets("commit them, empty group", "txn-a", producer, epoch, "", version=version)
        yield offsets("commit them, another group", "txn-a", producer, epoch, "txn-other", version=version)
        yield offsets("commit them, empty id", "", producer, epoch, "txn-group", version=version)
    yield offsets("commit them, generation", "txn-a", producer, epoch, "txn-group", generation_id=5)
    yield offsets(
        "commit them, member", "txn-a", producer, epoch, "txn-group", generation_id=1, member_id="m"
    )
    for version in range(5):
        yield ended("older epoch", "txn-a", producer, epoch - 1, version=version)
        yield ended("newer epoch", "txn-a", producer, epoch + 1, version=version)
        yield ended("unknown id", "txn-not", producer, epoch, version=version)
        yield ended("empty id", "", producer, epoch, version=version)
        yield ended("another producer", "txn-a", producer + 1, epoch, version=version)
    yield ended("commit", "txn-a", producer, epoch)
    yield ended("commit again", "txn-a", producer, epoch)
    yield ended("abort after the commit", "txn-a", producer, epoch, False)
    yield added("second", "txn-a", producer, epoch, ("txn", 1))
    yield ended("abort", "txn-a", producer, epoch, False)
    yield ended("abort again", "txn-a", producer, epoch, False)
    yield ended("commit after the abort", "txn-a", producer, epoch)
    yield replace(log("txn", "committed"), until=ends_at(3))
    yield Ask("described at the end", ApiKey.DESCRIBE_TRANSACTIONS, 0, request)
    yield added("third", "txn-a", producer, epoch, ("txn", 0))
    fenced = yield inited("init over an open one", "txn-a", 4)
    yield added("by the fenced one", "txn-a", producer, epoch, ("txn", 0))
    yield ended("by the fenced one", "txn-a", producer, epoch)
    yield in_txn("by the fenced one", "txn-a", producer, epoch, 5)
    yield added("by the new one", "txn-a", fenced.producer_id, fenced.producer_epoch, ("txn", 0))
    yield ended("by the new one", "txn-a", fenced.producer_id, fenced.producer_epoch)


def second_protocol() -> Script:
    """Transactions of KIP-890: partitions come with the records, each end raises the epoch."""
    yield from coordinated("second_protocol")
    yield from topic("txn2", 2)
    for name in ("a/b", "", "txn2-not"):
        asked = DescribeProducersRequest([ProducersOf(name, [0])])
        yield Ask(f"producers of {name!r}", ApiKey.DESCRIBE_PRODUCERS, 0, asked)
    made = yield inited("init", "txn2-a")
    producer, epoch = made.producer_id, made.producer_epoch
    yield ended("abort without a beginning", "txn2-a", producer, epoch, False, version=5)
    yield ended("commit without a beginning", "txn2-a", producer, epoch, version=5)
    again = yield inited("init again", "txn2-a")
    producer, epoch = again.producer_id, again.producer_epoch
    yield in_txn("the first brings the partition", "txn2-a", producer, epoch, 0, "txn2", 12)
    done = yield ended("commit", "txn2-a", producer, epoch, version=5)
    yield ended("commit again", "txn2-a", producer, epoch, version=5)
    yield ended("abort with the old epoch", "txn2-a", producer, epoch, False, version=5)
    yield in_txn("old epoch", "txn2-a", producer, epoch, 1, "txn2", 12)
    yield in_txn("new epoch", "txn2-a", done.producer_id, done.producer_epoch, 0, "txn2", 12)
    yield with_offsets("offsets", "txn2-a", done.producer_id, done.producer_epoch, "txn2-group", 4)
    yield offsets("commit them", "txn2-a", done.producer_id, done.producer_epoch, "txn2-group", "txn2", 5)
    gone = yield ended("abort", "txn2-a", done.producer_id, done.producer_epoch, False, version=5)
    yield ended("abort again", "txn2-a", done.producer_id, done.producer_epoch, False, version=5)
    yield ended("abort what is empty", "txn2-a", gone.producer_id, gone.producer_epoch, False, version=5)
    yield replace(log("txn2"), until=ends_at(4))


def timed_out() -> Script:
    """Producers whose transaction timed out: of KIP-890, which may abort it and go on, and of the first protocol."""
    yield from coordinated("timed_out")
    yield from topic("late", 2)

    def is_over(answer: Any) -> bool:
        return bool(answer.transaction_states[0].transaction_state == "CompleteAbort")

    for name, version, produce_version in (("late-2", 5, 12), ("late-1", 4, 11)):
        made = yield inited(f"init {name}", name, 4, 1_000)
        producer, epoch = made.producer_id, made.producer_epoch
        if version == 4:
            yield added("add it", name, producer, epoch, ("late", 0))
        yield in_txn(f"{name} begins", name, producer, epoch, 0, "late", produce_version)
        described = DescribeTransactionsRequest([name])
        yield Ask(
            f"until {name} is over",
            ApiKey.DESCRIBE_TRANSACTIONS,
            0,
            described,
            until=is_over,
            is_compared=False,
        )
        yield in_txn(f"{name} writes", name, producer, epoch, 1, "late", produce_version)
        yield ended("commit", name, producer, epoch, version=version)
        again = yield ended("abort", name, producer, epoch, False, version=version)
        yield inited(f"init {name} with its old epoch", name, 5, producer=producer, epoch=epoch)
        if version == 5:
            yield in_txn("goes on", name, again.producer_id, again.producer_epoch, 0, "late", 12)
            yield ended("commits", name, again.producer_id, again.producer_epoch, version=5)


def many_at_once() -> Script:
    """AddPartitionsToTxn of versions 4 and 5, which only brokers send."""
    yield from coordinated("many")
    yield from topic("txn4")
    made = yield inited("init", "txn4-a", 4)
    for version in (4, 5):
        for what, producer, epoch in (
            ("older", made.producer_id, made.producer_epoch - 1),
            ("newer", made.producer_id, made.producer_epoch + 1),
            ("another's", made.producer_id + 1, made.producer_epoch),
        ):
            topics = [AddPartitionsToTxnTopic("txn4", [0])]
            row = AddPartitionsToTxnTransaction("txn4-a", producer, epoch, False, topics)
            yield Ask(what, ApiKey.ADD_PARTITIONS_TO_TXN, version, AddPartitionsToTxnRequest([row]))
            yield ended(f"{what} end", "txn4-a", producer, epoch, version=version)
            yield with_offsets(f"{what} offsets", "txn4-a", producer, epoch, "txn4-group", version=4)
            yield offsets(f"{what} commit", "txn4-a", producer, epoch, "txn4-group", "txn4", version=version)
        for is_asked in (False, True):
            rows = [
                AddPartitionsToTxnTransaction(
                    name,
                    made.producer_id,
                    made.producer_epoch,
                    is_asked,
                    [AddPartitionsToTxnTopic("txn4", [0])],
                )
                for name in ("txn4-a", "txn4-not")
            ]
            what = f"verify only {is_asked}"
            yield Ask(
                what,
                ApiKey.ADD_PARTITIONS_TO_TXN,
                version,
                AddPartitionsToTxnRequest(rows),
                unordered=("results_by_transaction",),
            )


def listed() -> Script:
    """ListTransactions with its filters; DescribeTransactions of none and twice."""
    yield from coordinated("listed")
    yield from topic("txnl")
    made = yield inited("init", "txnl-a", 4)
    yield inited("init of another", "txnl-b", 4)
    yield added("one", "txnl-a", made.producer_id, made.producer_epoch, ("txnl", 0))

    def ask(what: str, version: int, *filters: Any) -> Ask:
        request = ListTransactionsRequest(*filters)
        unordered = ("transaction_states", "unknown_state_filters")
        return Ask(what, ApiKey.LIST_TRANSACTIONS, version, request, unordered=unordered)

    for version in range(3):
        yield ask("of a state", version, ["Ongoing"], [made.producer_id])
        yield ask("of an unknown state", version, ["Sleeping", "ongoing"])
        yield ask("of a producer", version, [], [made.producer_id])
        yield ask("of an unknown producer", version, [], [10**12])
    for version in (1, 2):
        yield ask("long running", version, [], [made.producer_id], 10**9)
        yield ask("of age 0", version, [], [made.producer_id], 0)
        yield ask("of age -7", version, [], [made.producer_id], -7)
    for pattern in ("txnl-.*", "txnl", "(", "txnl-[ab]"):
        yield ask(f"pattern {pattern!r}", 2, [], [], -1, pattern)
    yield Ask(
        "described twice", ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(["txnl-a", "txnl-a"])
    )
    yield Ask("described none", ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest([]))
    yield ended("commit", "txnl-a", made.producer_id, made.producer_epoch)


_NOT_FROM_0 = (
    "it is told that its state is gone; Kafka takes any first sequence of a producer that it does not know"
)

KNOWN = (
    says_why("transactions.idempotent", "negative sequence*"),
    says_why("transactions.idempotent", "producers*"),
    Known(
        "transactions.idempotent",
        "*",
        "*.log_append_time_ms",
        "no client reads it where the topic has CreateTime",
    ),
    Known("transactions.idempotent", "*", "*.log_start_offset", "no client reads it there"),
    Known("transactions.idempotent", "*", "*.record_errors.*", "Tailrace says what is wrong with the batch"),
    Known(
        "transactions.idempotent",
        "*not from 0*",
        "*.error_code",
        _NOT_FROM_0,
        tailrace="UNKNOWN_PRODUCER_ID(59)",
    ),
    Known(
        "transactions.idempotent",
        "negative epoch v12",
        "*.error_code",
        "a batch that no client sends is invalid",
    ),
    Known("transactions.*", "producers v0", "*.coordinator_epoch", "coordinators have no epochs"),
    Known("transactions.idempotent", "producers v0", "*", _NOT_FROM_0, tailrace="<missing>"),
    Known(
        "transactions.first_protocol",
        "older epoch v11",
        "*.error_code",
        "the epoch is -1: no client sends it",
    ),
    Known(
        "transactions.first_protocol",
        "plain of *",
        "*.error_code",
        "it sends no others",
    ),
    Known(
        "transactions.first_protocol",
        "*, empty group *",
        "*error_code",
        "a group has a name",
    ),
    Known(
        "transactions.first_protocol",
        "*, another group *",
        "*error_code",
        "it is added first",
    ),
    Known(
        "transactions.first_protocol", "*, empty id *", "*error_code", "a transaction without an id can't be"
    ),
    Known("transactions.*", "unknown topic *", "*<order>", "by the request's order"),
    Known(
        "transactions.first_protocol",
        "described at the end v0",
        "*.transaction_start_time_ms",
        "none is open",
    ),
    Known(
        "transactions.first_protocol",
        "init over an open one v4",
        "producer_epoch",
        "aborted at once, and asked for once",
    ),
    Known(
        "transactions.second_protocol", "log *", "*.producer_epoch", "a marker has its transaction's epoch"
    ),
    Known("transactions.listed", "described twice v0", "*#2", "an id is described once"),
)


SCRIPTS = Scripts(
    {
        "init": init,
        "idempotent": idempotent,
        "first_protocol": first_protocol,
        "second_protocol": second_protocol,
        "timed_out": timed_out,
        "many_at_once": many_at_once,
        "listed": listed,
    },
    kafka={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"},
    tailrace={"TAILRACE_AGENT__GAP_DEADLINE_MS": "200"},
    known=KNOWN,
)
