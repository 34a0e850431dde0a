"""Write docs/protocol-support.md from the broker's tables: `python -m tailrace_cli.doc_pages.protocol_support`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tailrace.configs.broker_config import TOPIC_DEFAULTS
from tailrace.configs.group_config import GROUP_CONFIGS
from tailrace.configs.topic_config import TOPIC_CONFIGS, ConfigDefinition
from tailrace.kafka.apis import APIS, ApiSpec
from tailrace.kafka.schema import MAX_VERSION

PAGE = Path("docs/protocol-support.md")

HEAD = """# Protocol support

<!-- Generated from the code. Do not edit: run `python -m tailrace_cli.doc_pages.protocol_support`. -->

This page lists what an agent supports. It is generated from the declarations of versions (`tailrace/kafka/messages/`)
and of topic configs (`tailrace/configs/topic_config.py`), and a test compares it with them.
"""

VERSIONS = """"Refused" versions are listed to clients, because librdkafka derives a broker's features from them, but
answered with UNSUPPORTED_VERSION; Kafka 4 closes the connection. An unknown version of ApiVersions gets error 35 in a
version 0 body. As in Kafka, a request with an API or a version that is not listed closes the connection.
"""

BROKER_CONFIGS = """A broker describes all of Kafka 4.3's broker configs (`tailrace/configs/broker_config.py`). Those
that follow from an agent's settings (listeners, limits of groups, sizes of requests) have its values and can't be
altered. The defaults of the topic configs below can be altered for the whole cluster (`--entity-default`). Every
other config that Kafka can change at run time can be altered, too: the value is stored and described, without effect.
The same holds for a value that is set for a single broker, because any agent serves any partition.
"""

GROUPS = """\
Set them for one group (`--entity-type groups`), whether or not it exists. They apply from a member's next heartbeat on.
The defaults are the agent's settings. Streams groups (KIP-1071) and their configs are not supported.
"""

TOOLS = """`make compat` tests these clients unchanged, as far as the machine has what they need (Java and Maven, Go,
Node, cargo, kcat). It skips the others, and says why.

| client | produce | consume | groups | admin | transactions |
|---|---|---|---|---|---|
| confluent-kafka 2.16 (librdkafka) | works | works | works | works | works |
| kafka-python 3.0 | works | works | works | works | works |
| aiokafka 0.14 | works | works | works | works | works |
| Kafka's Java clients 4.3.1, 3.9.1 | works | works | works | works | works |
| franz-go 1.22, sarama 1.61 (Go) | works | works | works | works | works |
| kafka-go 0.4 (Go) | works | works | works | works | it has none |
| kafkajs 2.2 (Node) | works | works | works | works | works |
| rust-rdkafka 0.39 (Rust) | works | works | works | works | works |
| kcat | works | works | works | metadata works | it has none |
| Kafka's tools 4.3.1 | works | works | works | works; see below | works |
| Kafka Streams 4.3.1 | | restores from a compacted changelog | | | exactly once, killed twice |
| Kafka Connect 4.3.1 | | | | | exactly once, killed once |
| MirrorMaker 4.3.1 | from Kafka | to Kafka | | | |
| Spark's Kafka connector 4.1.1 | batches, streams | batches, streams | | | committed records |

An empty cell has no separate check: the other checks of its row need those areas too. Each client produces with all
codecs that it has. For franz-go, its own tests of groups, transactions and share groups run, too. Karapace and
Kafka UIs are not tested.

Tools and their limits, with Kafka 4.3.1, most tested by `make compat`, the others by hand:

- kafka-topics, kafka-console-producer and -consumer, kafka-verifiable-producer and -consumer,
  kafka-producer-perf-test (also in transactions), kafka-consumer-perf-test, kafka-groups,
  kafka-consumer-groups, kafka-get-offsets, kafka-delete-records, kafka-transactions, kafka-log-dirs,
  kafka-broker-api-versions, kafka-client-compatibility-test and kafka-streams-application-reset work. A
  replication factor is reported as requested, and has no effect: the object store replicates.
- Kafka Streams works with `processing.guarantee=exactly_once_v2`. In the check, a word count stays exact when the
  application or the broker is killed, and when it reads its changelog back from Parquet. After compaction by key, which
  left 100 of 6,000 records, an application without state restored the whole table from these 100 and continued from it.
- A distributed worker of Kafka Connect keeps its configs, offsets and status in compacted topics, and reads them
  again after it was killed. With `exactly.once.source.support=enabled` each line of its file source is in the topic
  once. Tested by hand: it also reads its topics again after the compactor has rewritten them.
- MirrorMaker 2 copies topics with their configs, headers and timestamps, groups' offsets (offset syncs, checkpoints)
  and heartbeats from Kafka 4.3.1 and to it; from Kafka exactly once. The check does not cover ACLs. Kafka refuses topic
  configs that it does not know. If a topic that MirrorMaker copies to Kafka has a `tailrace.*` config of its own, add
  `tailrace[.].*` to `config.properties.exclude` (which replaces MirrorMaker's default list), or no copy is made.
- Spark's own Kafka source and sink (`spark-sql-kafka-0-10`, with Java's clients 3.9.1) work under PySpark 4.1: batches
  with keys and headers, a structured stream from topic to topic that resumes from its checkpoint, offsets by time,
  `minPartitions`, and `kafka.isolation.level=read_committed`. Tailrace also has its own
  [source and sink](compactor.md#hot-tail-and-parquet-as-one-table).
- kafka-configs works for topics, brokers and groups, users' SCRAM credentials, and the quotas of users, clients and
  addresses (IP addresses, not host names). kafka-acls works on an agent whose listeners authenticate.
- kafka-cluster supports cluster-id and list-endpoints; no broker can be unregistered. kafka-features describes
  features, whose levels are fixed. Kafka's metadata features do not exist, so `upgrade --release-version` fails.
- kafka-streams-groups reports UnsupportedVersionException, because there are no streams groups.
- kafka-leader-election reports that no election is needed: leaders follow the live agents. kafka-reassign-partitions
  reports that partitions are on no broker, and that no reassignment is in progress; it can set and clear its throttles,
  which have no effect. kafka-metadata-quorum shows the agent with the lowest id as the leader of the metadata, and the
  others as its observers.
- kafka-delegation-tokens creates, describes, renews and expires tokens, and clients log in with them, if
  `security.delegation_token_secret_file` is set; otherwise it gets the answers of a Kafka broker without a secret
  key. As with Kafka, `--describe` without `--owner-principal` shows none.
- Subscriptions to client metrics (KIP-714) are configs of type client-metrics (kafka-client-metrics, kafka-configs).
  Pushed metrics appear as `tailrace_client_metric` at the agent that received them. GetTelemetrySubscriptions and
  PushTelemetry are listed only while there is a subscription, so a client that is already connected learns of the first
  one when it connects again. Patterns of `match` are RE2 expressions.
- `group.protocol=consumer` (KIP-848) works, with the assignors uniform and range, regular expressions (RE2) and
  static members. The next coordinator knows everything that its predecessor knew. An empty group takes the protocol
  of its next member. A group with members changes from the classic protocol to the new one, and back, client by
  client (`agent.group_consumer_migration_policy`). A member of an unknown group gets UNKNOWN_MEMBER_ID, so it joins
  again; Kafka answers GROUP_ID_NOT_FOUND, on which Java's consumer gives up.
- Share groups (KIP-932) work, with renewal of locks (KIP-1222) and a strict number of records (KIP-1206). Any agent
  serves any partition: the sequencer decides which member gets which record, and stores it in SQL.
  `agent.group_share_auto_offset_reset`, or the group's own config, sets where a group starts in a partition that it has
  never read; the group's config may also be a time (`by_duration:P7D`). A group without members expires, with its
  offsets, after `sequencer.share_offsets_retention_ms`; Kafka keeps it until it is deleted. Locks are checked when a
  member makes a request: a record whose last lock expired is given up, and goes to the group's dead-letter topic, with
  the next request of any member for its partition. In Kafka, the broker's timers do this.
- OffsetCommit and TxnOffsetCommit accept at most 20,000 positions; more are refused with INVALID_COMMIT_OFFSET_SIZE.
  Kafka does the same if they don't fit into one batch of its internal topic (some 15,000 with its defaults).
- Groups need a name; Kafka keeps offsets of a group whose id is empty. A group that a request names twice is described
  once. A member has at most 100 protocols. `offset.metadata.max.bytes` counts bytes, in Kafka characters. If a static
  member that leads its group returns with other topics, the group rebalances at once; Kafka leaves that to the client.
- SCRAM credentials need a salt of at least 12 bytes and a salted password of the mechanism's size; Kafka takes any.
- Produce: agents check batches, not the records in them, so a batch whose records can't be decompressed is stored.
  Bytes after the batch are refused, and each mention of a partition is stored; Kafka ignores the former, and stores
  the last of the latter. A batch of an unknown idempotent producer that does not begin with sequence 0
  gets UNKNOWN_PRODUCER_ID; Kafka stores it. So does a producer that was idle for `sequencer.producer_expiry_ms` (7
  days). librdkafka raises its epoch and sends the batch again. Java's producer does so after 45 to 55 seconds: it needs
  the log start for it, which is in the answer once no agent can have earlier batches of the producer (after one and a
  half leases of an upload session, of refusals).
- Fetch: a fetch that waits no longer (`max_wait_ms` of 0, or its wait is over) has all that its agent has acknowledged.
  What another agent acknowledged may be missing for up to two seconds, usually some milliseconds. Batches are sent
  whole; Kafka cuts the last one off. Requests with a newer leader epoch than the partition's are answered, because
  any agent serves any partition.
- CreateTopics and CreatePartitions do not look at the brokers of assignments. Unknown broker configs are refused; Kafka
  keeps them. The configs of a topic have at most 16 KiB, those of all topics 16 MiB; a number or a choice has at most
  100 characters.
- `make differential` sends the same 3,900 requests to Kafka 4.3.1 and to Tailrace. All other differences that it
  knows are in `tests/compat/differential/scripts/`, each with its reason.
- OffsetCommit versions 2 to 4 may set a retention time; `sequencer.max_offsets_retention_ms` bounds it.
- The APIs with which Kafka's brokers store the state of share groups (InitializeShareGroupState, ReadShareGroupState,
  WriteShareGroupState, DeleteShareGroupState, ReadShareGroupStateSummary) are not supported: the sequencer has that
  state. FindCoordinator refuses keys of that type (2) for the same reason.
- `__consumer_offsets` and `__transaction_state` are copies of the rows in SQL, in Kafka's format. Agents keep those
  that the cluster config `tailrace.internal.topics` names, by default none ([decision
  80](decisions/0080-internal-topics-are-copies.md)). kafka-console-consumer reads them with OffsetsMessageFormatter,
  GroupMetadataMessageFormatter and TransactionLogMessageFormatter. Changes are copied once a second. Of KIP-848
  groups and share groups, only the positions are copied. Entries that expire by age stay for 14 days. Clients can't
  write to topics of these names. Without the config, kafka-consumer-groups, kafka-transactions, `tailrace group`,
  `tailrace transaction` and the metrics show the same information.
"""


def page() -> str:
    with_effect = [config for config in _configs() if config.has_effect]
    without = [config for config in _configs() if not config.has_effect]
    return "\n".join(
        [
            HEAD,
            f"## {len(APIS)} APIs\n",
            VERSIONS,
            _table(
                ("API", "key", "versions", "refused", "flexible from"),
                (
                    (spec.name, spec.key.value, _span(spec), _refused(spec), _flexible(spec))
                    for spec in APIS.values()
                ),
            ),
            f"## Topic configs with effect: {len(with_effect)}\n",
            _table(
                ("config", "default", "meaning"),
                ((f"`{config.name}`", _value(config.default), config.doc.strip()) for config in with_effect),
            ),
            f"## Topic configs without effect: {len(without)}\n",
            "Accepted, checked against Kafka's bounds, kept and described, so that tools that set them work.\n",
            _table(
                ("config", "default", "why"),
                ((f"`{config.name}`", _value(config.default), config.doc.strip()) for config in without),
            ),
            "## Broker configs\n",
            BROKER_CONFIGS,
            _table(
                ("config", "gives topics"),
                (
                    (f"`{name}`", f"`{definition.name}`")
                    for name, definition in sorted(TOPIC_DEFAULTS.items())
                    if definition.has_effect
                ),
            ),
            "## Group configs\n",
            GROUPS,
            _table(
                ("config", "default", "meaning"),
                ((f"`{row.name}`", _value(row.default), row.doc) for row in GROUP_CONFIGS.values()),
            ),
            "## Clients and tools\n",
            TOOLS,
        ]
    )


def _configs() -> list[ConfigDefinition]:
    return [TOPIC_CONFIGS[name] for name in sorted(TOPIC_CONFIGS)]


def _span(spec: ApiSpec) -> str:
    first, last = spec.served.first, spec.served.last
    return str(last) if first == last else f"{first}-{last}"


def _refused(spec: ApiSpec) -> str:
    return "" if spec.listed == spec.served else f"{spec.listed.first}-{spec.served.first - 1}"


def _flexible(spec: ApiSpec) -> str:
    return str(spec.flexible.first) if spec.flexible.last == MAX_VERSION else ""


def _value(default: str) -> str:
    return f"`{default}`" if default else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page to its place below the working directory."""
    PAGE.write_text(page())
    print(f"{PAGE}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
