"""Write docs/protocol-support.md from the broker's tables: `python -m tailrace_cli.doc_pages.protocol_support`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tailrace.broker_config import TOPIC_DEFAULTS
from tailrace.group_config import GROUP_CONFIGS
from tailrace.kafka.apis import APIS, ApiSpec
from tailrace.kafka.schema import MAX_VERSION
from tailrace.topic_config import TOPIC_CONFIGS, ConfigDefinition

PAGE = Path("docs/protocol-support.md")

HEAD = """# Protocol support

<!-- Generated from the code. Do not edit: run `python -m tailrace_cli.doc_pages.protocol_support`. -->

What an agent answers. Versions are declared in `tailrace/kafka/messages/`, topic configs in
`tailrace/topic_config.py`; this page is written from them and a test holds it to them.
"""

VERSIONS = """"Refused" versions are listed to clients, because librdkafka judges brokers by them, and answered with
UNSUPPORTED_VERSION, as Kafka 4 does. An unknown version of ApiVersions gets error 35 in a version 0 body.
A request of an API or a version that is not listed closes the connection, as Kafka does.
"""

BROKER_CONFIGS = """A broker describes all of Kafka 4.3's broker configs (`tailrace/broker_config.py`). Those that
follow from an agent's settings (listeners, limits of groups, sizes of requests) have its values and can't be altered.
The defaults of topic configs below can be altered for the whole cluster (`--entity-default`). Every other config that
Kafka changes at run time can be altered as well: the value is stored and described, without effect. So is a value that
is set for one broker alone, as any agent serves any partition.
"""

GROUPS = """\
Set for one group (`--entity-type groups`), whether or not it exists. They hold from a member's next heartbeat on. The
defaults are the agent's settings. There are no streams groups (KIP-1071), and none of their configs.
"""

TOOLS = """`make compat` tries these unchanged, where the machine has what they need (Java and Maven, Go, Node, cargo,
kcat). It leaves the others out, and says why.

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

An empty cell is not tried on its own: the checks beside it need those areas too. Each client produces with the codecs
that it has. Karapace and Kafka UIs are not tried: PyPI has no Karapace, and no UI was found that Maven brings.

Tools and their limits, with Kafka 4.3.1, most by `make compat`, the others by hand:

- kafka-topics, kafka-console-producer and -consumer, kafka-verifiable-producer and -consumer,
  kafka-producer-perf-test (also in transactions), kafka-consumer-perf-test, kafka-groups,
  kafka-consumer-groups, kafka-get-offsets, kafka-delete-records, kafka-transactions, kafka-log-dirs,
  kafka-broker-api-versions, kafka-client-compatibility-test and kafka-streams-application-reset work. A
  replication factor is reported as it was asked for, and has no effect: the object store replicates.
- Kafka Streams works with `processing.guarantee=exactly_once_v2`: a word count stayed exact when the
  application and when the broker was killed, and when its changelog was read back from Parquet. After the compactor had
  compacted the changelog by key (100 of 6,000 records were left), an application without state restored these and no
  more, had the whole table, and counted on from it.
- A distributed worker of Kafka Connect keeps its configs, offsets and status in compacted topics, and reads them again
  after it was killed. With `exactly.once.source.support=enabled` each line of its file source was in the topic once. By
  hand, it also read its topics again after the compactor had rewritten them.
- MirrorMaker 2 copies topics with their configs, headers and timestamps, groups' offsets (offset syncs, checkpoints)
  and heartbeats from Kafka 4.3.1 and to it; from Kafka exactly once. ACLs are not part of the check.
- Spark's own Kafka source and sink (`spark-sql-kafka-0-10`, with Java's clients 3.9.1) work under PySpark 4.1: batches
  with keys and headers, a structured stream from topic to topic that goes on from its checkpoint, offsets by time,
  `minPartitions`, and `kafka.isolation.level=read_committed`. Tailrace has a [source and a sink](compactor.md) of its
  own.
- kafka-configs knows topics and brokers, sets and deletes users' SCRAM credentials, and the quotas of users, clients
  and addresses (an address, not a host's name), and configs of groups. kafka-acls works on an agent whose listeners
  authenticate.
- kafka-cluster says cluster-id and list-endpoints; there is nothing to unregister. kafka-features describes; levels
  are those of the code. There are no features of Kafka's own metadata, so `upgrade --release-version` fails.
- kafka-streams-groups lists none: there are no streams groups, and it says so by UnsupportedVersionException.
- kafka-leader-election finds that no election is needed: leaders follow the live agents. kafka-reassign-partitions
  is told that partitions lie on no broker, and that no reassignment is under way; it can set and clear its throttles,
  which have no effect. kafka-metadata-quorum shows the agent with the lowest id as the leader of the metadata, and the
  others as its observers.
- kafka-delegation-tokens creates, describes, renews and expires tokens, and clients log in by them, where
  `security.delegation_token_secret_file` is set; else it gets the answers of a Kafka without a secret key for them. As
  with Kafka, `--describe` without `--owner-principal` shows none.
- Subscriptions to clients' metrics (KIP-714) are configs of type client-metrics (kafka-client-metrics, kafka-configs);
  what clients push is `tailrace_client_metric` at the agent that they push to. GetTelemetrySubscriptions and
  PushTelemetry are listed while there is a subscription, so a client that connected before learns of the first one
  when it connects again. Patterns of `match` are RE2's.
- `group.protocol=consumer` (KIP-848) works: the assignors uniform and range, regular expressions (RE2), static
  members; what a coordinator knew is known to the next one. An empty group becomes what its next member asks
  for; one with members changes from the classic protocol to the new one, and back, client by client
  (`agent.group_consumer_migration_policy`). A member whose group is not known is answered UNKNOWN_MEMBER_ID, so it
  joins again; Kafka answers GROUP_ID_NOT_FOUND, on which Java's consumer gives up.
- Share groups (KIP-932) work, with records renewed (KIP-1222) and a strict number of records (KIP-1206). Any agent
  serves any partition: the sequencer decides which member gets which record, and keeps it in SQL. Where a group
  begins in a partition that it has never read is `agent.group_share_auto_offset_reset`, or the group's own config,
  which may also be a time (`by_duration:P7D`).
  A group without members is forgotten, with what it has read, after `sequencer.share_offsets_retention_ms`; Kafka
  keeps it until it is deleted. Locks are looked at when a member asks: a record whose last lock ran out is given up,
  and goes to the group's dead-letter topic, with the next request of any member for its partition. In Kafka the
  broker's own timers do so.
- OffsetCommit and TxnOffsetCommit take at most 20,000 positions; more are refused with INVALID_COMMIT_OFFSET_SIZE.
  Kafka does so, too, when they don't fit into one batch of its own topic (some 15,000 with its defaults).
- OffsetCommit versions 2 to 4 may ask for offsets to be kept for some time; `sequencer.max_offsets_retention_ms`
  bounds it.
- The APIs by which Kafka's brokers keep the state of share groups for each other (InitializeShareGroupState,
  ReadShareGroupState, WriteShareGroupState, DeleteShareGroupState, ReadShareGroupStateSummary) are not served: that
  state is the sequencer's. FindCoordinator refuses keys of that type (2) for the same reason.
- `__consumer_offsets` and `__transaction_state` are copies of what is in SQL, in Kafka's format. Agents keep those that
  the cluster's config `tailrace.internal.topics` names, by default none
  ([decision 80](decisions/0080-internal-topics-are-copies.md)). kafka-console-consumer reads them with
  OffsetsMessageFormatter, GroupMetadataMessageFormatter and TransactionLogMessageFormatter. Changes are copied once a
  second. Groups of KIP-848 and share groups are there by their positions only; what is forgotten by age stays for 14
  days. Clients can't write to topics of these names. Without the config, kafka-consumer-groups, kafka-transactions,
  `tailrace group`, `tailrace transaction` and the metrics show the same.
"""


def page() -> str:
    """Return the page as Markdown."""
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
