"""Kafka's tools for operators: what each says, unchanged, of a cluster without disks, replicas or elections."""

from __future__ import annotations

import json

from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat import with_java
from tests.compat.areas import Client
from tests.compat.broker import ADMIN, Broker, running_broker

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
