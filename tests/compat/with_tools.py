"""Kafka's tools for operators: what each says, unchanged, of a cluster without disks, replicas or elections."""

from __future__ import annotations

import json
import time
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat import with_java
from tests.compat.areas import Client, equal
from tests.compat.broker import ADMIN, Broker, running_broker

COPIED_SECONDS = 3
"""After which the last changes of groups are in the internal topics."""
SAYS = (
    ("kafka-features", "describe", "Feature: transaction.version"),
    ("kafka-features", "upgrade --feature group.version=1", "group.version was upgraded to 1."),
    ("kafka-metadata-quorum", "describe --status", "CurrentVoters:          [{"),
    ("kafka-metadata-quorum", "describe --replication", "Leader"),
    (
        "kafka-leader-election",
        "--election-type unclean --topic {topic} --partition 0",
        "Valid replica already elected",
    ),
    (
        "kafka-leader-election",
        "--election-type preferred --topic {topic}-not --partition 0",
        "UnknownTopicOrPartition",
    ),
    (
        "kafka-reassign-partitions",
        "--generate --topics-to-move-json-file {topics} --broker-list {broker}",
        '"replicas"',
    ),
    (
        "kafka-reassign-partitions",
        "--execute --reassignment-json-file {plan} --throttle 1000",
        "Successfully started",
    ),
    (
        "kafka-reassign-partitions",
        "--verify --reassignment-json-file {plan}",
        "Clearing topic-level throttles",
    ),
    (
        "kafka-reassign-partitions",
        "--cancel --reassignment-json-file {plan}",
        "Clearing topic-level throttles",
    ),
    ("kafka-reassign-partitions", "--list", "No partition reassignments found."),
    (
        "kafka-client-metrics",
        "--alter --name {topic} --metrics org.apache.kafka. --interval 10000",
        "Altered client",
    ),
    ("kafka-client-metrics", "--describe --name {topic}", "interval.ms=10000"),
    ("kafka-client-metrics", "--delete --name {topic}", "Deleted client"),
    ("kafka-groups", "--list", "PROTOCOL"),
    ("kafka-streams-groups", "--list --state", "STATE"),
    ("kafka-streams-groups", "--describe --group {topic}", "UnsupportedVersionException"),
    (
        "kafka-delegation-tokens",
        "--describe --command-config {empty}",
        "UnsupportedByAuthenticationException",
    ),
)
"""Each tool, its words, and what must be in its answer. A cluster without a feature says what Kafka says without it."""


def client() -> Client:
    """The tools, skipped where Java's clients are."""
    name = f"Kafka {with_java.VERSION}'s tools"
    return Client(name, {"admin": say}, with_java.unavailable())


def say(broker: Broker) -> None:
    """Each tool says what is expected, or all that it said is shown."""
    names = _names(broker)
    for tool, words, expected in SAYS:
        given = [word.format(**names) for word in words.split()]
        said = with_java.said(tool, broker.address, *given)
        if expected not in said:
            raise AssertionError(f"{tool} {' '.join(given)}: no {expected!r} in\n{said[-2000:]}")
    _tokens()
    _internal_topics()


def _internal_topics() -> None:
    """kafka-console-consumer reads groups, offsets and transactional ids from Kafka's internal topics."""
    with running_broker() as broker:

        def tool(name: str, *words: str) -> str:
            return with_java.said(name, broker.address, *words)

        def formatted(topic: str, formatter: str) -> list[dict[str, Any]]:
            by = f"org.apache.kafka.tools.consumer.{formatter}"
            reading = ("--topic", topic, "--from-beginning", "--timeout-ms", "8000", "--formatter", by)
            return _json_values(tool("kafka-console-consumer", *reading))

        both = "tailrace.internal.topics=[__consumer_offsets,__transaction_state]"
        tool("kafka-configs", "--alter", "--entity-type", "brokers", "--entity-default", "--add-config", both)
        tool("kafka-topics", "--create", "--topic", "read", "--partitions", "3")
        tool("kafka-producer-perf-test", "--topic", "read", "--num-records", "300", "--record-size", "10",
             "--throughput", "-1", "--transactional-id", "writes", "--transaction-duration-ms", "100000")  # fmt: skip
        for group, protocol in (("old", "classic"), ("new", "consumer")):
            tool("kafka-verifiable-consumer", "--topic", "read", "--group-id", group, "--max-messages", "300",
                 "--reset-policy", "earliest", "--group-protocol", protocol)  # fmt: skip
        time.sleep(COPIED_SECONDS)
        offsets = formatted("__consumer_offsets", "OffsetsMessageFormatter")
        for group in ("old", "new"):
            rows = [(row["key"]["data"], row["value"]["data"]) for row in offsets]
            last = {key["partition"]: value["offset"] for key, value in rows if key["group"] == group}
            # A transactional producer's last record in a partition is a marker, which a consumer's position is after.
            equal(300 <= sum(last.values()) <= 303, True, f"the group {group} in {last}")
        groups = formatted("__consumer_offsets", "GroupMetadataMessageFormatter")
        states = [row["value"]["data"] for row in groups if row["value"] is not None]
        equal(
            {len(state["members"]) for state in states}, {0, 1}, "members of this reader and of who has left"
        )
        ids = formatted("__transaction_state", "TransactionLogMessageFormatter")
        equal({row["key"]["data"]["transactionalId"] for row in ids}, {"writes"}, "transactional ids")
        equal(ids[-1]["value"]["data"]["transactionStatus"], 4, "complete commit")
        listed = tool("kafka-topics", "--list", "--exclude-internal").split()
        equal(listed, ["read"], "topics but the internal ones")


def _json_values(said: str) -> list[dict[str, Any]]:
    """The objects among what a tool says: one may follow the other on a line."""
    found, decoder, start = [], json.JSONDecoder(), said.find("{")
    while start >= 0:
        value, start = decoder.raw_decode(said, start)
        found.append(value)
        start = said.find("{", start)
    return found


def _tokens() -> None:
    """kafka-delegation-tokens makes, shows, renews and ends a token, and clients log in by it meanwhile."""
    with running_broker(with_logins=True) as broker:
        address = f"127.0.0.1:{broker.login_port}"
        admin = _login(broker, *ADMIN.split(":"))

        def tool(*words: str) -> str:
            return with_java.said("kafka-delegation-tokens", address, *words, "--command-config", admin)

        made = tool("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob").split()
        row = made[made.index("MAXDATE") + 1 :]
        if len(row) < 4 or row[2:5] != ["User:admin", "User:admin", "[User:bob]"]:
            raise AssertionError(f"no new token in {made}")
        token_id, token_hmac = row[:2]
        by_token = _login(broker, token_id, token_hmac, 'tokenauth="true"')
        listing = ("--list", "--command-config", by_token)
        for said, expected in (
            (tool("--describe", "--owner-principal", "User:admin"), token_id),
            (tool("--renew", "--renew-time-period", "-1", "--hmac", token_hmac), "Completed renew operation"),
            (with_java.said("kafka-groups", address, *listing), "PROTOCOL"),
            (
                tool("--expire", "--expiry-time-period", "-1", "--hmac", token_hmac),
                "Completed expire operation",
            ),
            (with_java.said("kafka-groups", address, *listing), "SaslAuthenticationException"),
        ):
            if expected not in said:
                raise AssertionError(f"no {expected!r} in\n{said[-2000:]}")


def _login(broker: Broker, user: str, password: str, *more: str) -> str:
    """A file with the settings of a client that logs in so."""
    path = broker.log.with_name(f"login-{user}")
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    words = " ".join((f'username="{user}"', f'password="{password}"', *more))
    path.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config={module} required {words};\n"
    )
    return str(path)


def _names(broker: Broker) -> dict[str, str]:
    """What the words above stand for: a topic of one partition, this broker, and files."""
    topic, admin = broker.name("tools"), AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    (broker_id,) = admin.list_topics(timeout=30).brokers
    partition = {"topic": topic, "partition": 0, "replicas": [broker_id]}
    files = {
        "plan": json.dumps({"version": 1, "partitions": [partition]}),
        "topics": json.dumps({"version": 1, "topics": [{"topic": topic}]}),
        "empty": "",
    }
    paths = {name: broker.log.with_name(f"tools-{name}") for name in files}
    for name, path in paths.items():
        path.write_text(files[name])
    return {"topic": topic, "broker": str(broker_id), **{name: str(path) for name, path in paths.items()}}
