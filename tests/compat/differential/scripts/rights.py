"""What a user gets who has no rights, and then few: each API, for a topic, a group and a transactional id that it may
use, that it may not use, and that do not exist."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tailrace.kafka import ApiKey
from tailrace.kafka.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from tailrace.kafka.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tailrace.kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest
from tailrace.kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tailrace.kafka.messages.describe_cluster import DescribeClusterRequest
from tailrace.kafka.messages.describe_producers import DescribeProducersRequest
from tailrace.kafka.messages.describe_producers import TopicRequest as ProducersOf
from tailrace.kafka.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from tailrace.kafka.messages.describe_transactions import DescribeTransactionsRequest
from tailrace.kafka.messages.find_coordinator import FindCoordinatorRequest
from tailrace.kafka.messages.list_groups import ListGroupsRequest
from tailrace.kafka.messages.list_transactions import ListTransactionsRequest
from tailrace.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.compat.differential.known import Known, says_nothing, says_why
from tests.compat.differential.scripts import classic_groups, configs, consumer_groups, share_groups
from tests.compat.differential.scripts.committed_offsets import asked, committed
from tests.compat.differential.scripts.producing import batch, produced
from tests.compat.differential.scripts.reading import fetched, wanted
from tests.compat.differential.scripts.security import acl, created
from tests.compat.differential.scripts.transactions import (
    added,
    coordinated,
    ended,
    in_txn,
    inited,
    offsets,
    with_offsets,
)
from tests.compat.differential.steps import Ask, Script, Scripts, topic

BOB = "bob:secret"
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
READ, WRITE, CREATE, DESCRIBE = 3, 4, 5, 8
OURS, ANOTHERS, NOT_THERE = "rights", "rights-another", "rights-not"


def bob() -> Script:
    """Make the user, and wait until it can log in."""
    salted = hashlib.pbkdf2_hmac("sha256", b"secret", b"s" * 16, 4096)
    made = AlterUserScramCredentialsRequest([], [ScramCredentialUpsertion("bob", 1, 4096, b"s" * 16, salted)])
    yield Ask("make bob", ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, made, is_compared=False)


def on_topics() -> Iterator[Ask]:
    """Each API that names topics."""
    for name in (OURS, ANOTHERS, NOT_THERE):
        yield produced(f"produce {name}", name, batch())
        yield fetched(f"fetch {name}", name, wanted())
        rows = [MetadataRequestTopic(name=name)]
        yield Ask(f"metadata {name}", ApiKey.METADATA, 12, MetadataRequest(rows, False))
        request = DescribeTopicPartitionsRequest([TopicRequest(name)], 10, None)
        yield Ask(f"partitions {name}", ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)
        producers = DescribeProducersRequest([ProducersOf(name, [0])])
        yield Ask(f"producers {name}", ApiKey.DESCRIBE_PRODUCERS, 0, producers)
        new = CreateTopicsRequest([CreatableTopic(name, 1, 1)], 30_000, True)
        yield Ask(f"create {name}", ApiKey.CREATE_TOPICS, 7, new, ignored=("topic_id",))
        more = CreatePartitionsRequest([CreatePartitionsTopic(name, 5)], 30_000, True)
        yield Ask(f"grow {name}", ApiKey.CREATE_PARTITIONS, 3, more)
        gone = DeleteTopicsRequest([DeleteTopicState(name)], timeout_ms=30_000)
        yield Ask(f"delete {name}", ApiKey.DELETE_TOPICS, 6, gone)
        yield configs.described(f"configs {name}", TOPIC, name, ["retention.ms"])
        yield configs.changed(f"change {name}", TOPIC, name, ("retention.ms", 0, "5"), validate_only=True)
    yield Ask("all topics", ApiKey.METADATA, 12, MetadataRequest(None), unordered=("topics",))


def on_groups() -> Iterator[Ask]:
    """Each API that names groups."""
    for group in (OURS, ANOTHERS):
        yield Ask(f"find {group}", ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(group))
        yield classic_groups.joined(f"join {group}", f"{group}-classic", version=3)
        yield classic_groups.beaten(f"beat {group}", group, "m", 1)
        for name in (OURS, ANOTHERS, NOT_THERE):
            yield consumer_groups.join(f"join {group} for {name}", f"{group}-new", "m", name)
            yield committed(f"commit {group} {name}", group, name, (0, 1, ""))
            yield asked(f"offsets {group} {name}", group, (name, [0]))
        yield share_groups.beat(f"share {group}", f"{group}-share", share_groups.MEMBER, 0, [ANOTHERS])
        yield classic_groups.described(f"describe {group}", group)
        gone = DeleteGroupsRequest([f"{group}-not"])
        yield Ask(f"delete {group}", ApiKey.DELETE_GROUPS, 2, gone)
    yield Ask("all groups", ApiKey.LIST_GROUPS, 5, ListGroupsRequest(), unordered=("groups",))


def on_transactions() -> Iterator[Ask]:
    """Each API of transactions, with a producer that there is not."""
    yield inited("idempotent", None)
    for name in (OURS, ANOTHERS):
        yield added(f"add {name}", name, 1, 0, (OURS, 0), (ANOTHERS, 0), (NOT_THERE, 0))
        yield with_offsets(f"with offsets {name}", name, 1, 0, OURS)
        yield with_offsets(f"with another's offsets {name}", name, 1, 0, ANOTHERS)
        yield offsets(f"offsets {name}", name, 1, 0, OURS, ANOTHERS)
        yield in_txn(f"write {name}", name, 1, 0, 0, ANOTHERS)
        yield ended(f"end {name}", name, 1, 0)
        yield Ask(
            f"see {name}",
            ApiKey.DESCRIBE_TRANSACTIONS,
            0,
            DescribeTransactionsRequest([name]),
            ignored=("producer_id",),
        )
    yield Ask("all transactions", ApiKey.LIST_TRANSACTIONS, 1, ListTransactionsRequest())


def asked_by_bob(round_name: str) -> Script:
    """Everything, once."""
    cluster = Ask("cluster", ApiKey.DESCRIBE_CLUSTER, 1, DescribeClusterRequest(True))
    brokers = configs.described("all brokers", CLUSTER, "")
    for step in (*on_topics(), *on_groups(), *on_transactions(), cluster, brokers):
        yield replace(step, user=BOB, what=f"{step.what}, {round_name}", repeat_on=frozenset())


def can_see(name: str) -> Ask:
    """Wait until bob may describe the topic: brokers learn of an ACL after it was made."""

    def is_seen(answer: Any) -> bool:
        return not answer.topics[0].error_code

    request = MetadataRequest([MetadataRequestTopic(name=name)], False)
    return Ask(f"see {name}", ApiKey.METADATA, 12, request, user=BOB, until=is_seen, is_compared=False)


def few() -> Script:
    """Without ACLs; with those of a consumer of one topic; with those of its transactional producer."""
    yield from coordinated("rights")
    yield from bob()
    yield from topic(OURS)
    yield from topic(ANOTHERS)
    yield from asked_by_bob("no rights")
    for round_name, rows in (
        ("consumer", ((GROUP, OURS, READ), (TOPIC, OURS, READ))),
        ("producer", ((TRANSACTIONAL_ID, OURS, WRITE), (TOPIC, OURS, WRITE), (TOPIC, ANOTHERS, DESCRIBE))),
    ):
        rights = [
            acl(principal="User:bob", resource_type=kind, resource_name=name, operation=operation)
            for kind, name, operation in rows
        ]
        yield created(f"rights of a {round_name}", *rights)
        yield can_see(rows[-1][1])
        yield from asked_by_bob(round_name)


SCRIPTS = Scripts(
    {"few": few},
    needs_logins=True,
    known=(
        says_nothing("rights.few"),
        says_why("rights.few"),
        Known(
            "rights.few",
            "delete *",
            "*.error_message",
            "the code says it, as for other requests",
            tailrace=None,
        ),
        Known(
            "rights.few",
            "fetch *",
            "*.aborted_transactions",
            "without records there is nothing to abort",
            [],
            None,
        ),
        Known("rights.few", "add *", "*<order>", "by the request's order"),
    ),
)
