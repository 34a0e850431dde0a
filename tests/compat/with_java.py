"""Kafka's own Java clients (java/Compat.java) and command-line tools, from jars that Maven brings once."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.compat.areas import Check, Client, equal, eventually
from tests.compat.broker import Broker

HERE = Path(__file__).parent / "java"
VERSION = "4.3.1"
JARS = Path.home() / ".cache" / "tailrace" / f"kafka-{VERSION}"
CLASSES = JARS / "classes"
TOOL_SECONDS = 90
NEEDED = ("mvn", "java", "javac")

TOOLS = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-share-consumer-perf-test": "org.apache.kafka.tools.ShareConsumerPerformance",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
}


def client() -> Client:
    """The Java client, skipped where it can't be run."""
    checks: dict[str, Check] = {
        "produce": produce,
        "consume": consume,
        "groups": groups,
        "admin": admin,
        "transactions": transactions,
    }
    return Client(f"Kafka {VERSION} (Java)", checks, unavailable())


@cache
def unavailable() -> str | None:
    """Why Java's clients can't be run here; None: they can. Brings the jars that java/pom.xml names, and compiles."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    reason = f"not on PATH: {', '.join(missing)}" if missing else _fetched()
    if reason is None:
        _compile()
    return reason


def command(*words: str) -> list[str]:
    """What runs a class among the jars."""
    return [
        "java",
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}",
        "-cp",
        f"{CLASSES}:{JARS}/*",
        *words,
    ]


@dataclass(frozen=True, slots=True)
class Jvm:
    """A running class; `log` is what it wrote."""

    process: subprocess.Popen[bytes]
    log: Path

    def eventually(self, fact: Callable[[], bool], what: str, seconds: float = TOOL_SECONDS) -> None:
        """Wait until `fact` holds; raise, with the last of the log, if it does not, or if the process ends first."""

        def holds() -> bool:
            equal(self.process.poll(), None, "exit status")
            return fact()

        try:
            eventually(holds, what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log.read_text(errors='replace')[-3000:]}") from error


@contextmanager
def running(log: Path, *words: str) -> Iterator[Jvm]:
    """A class among the jars as a process of its own, until it is killed with no warning."""
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command(*words), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield Jvm(process, log)
    finally:
        process.kill()
        process.wait()


def produce(broker: Broker) -> None:
    """The producer; kafka-console-producer, -verifiable-producer, -producer-perf-test."""
    _compat("produce", broker)
    topic = broker.name("java-console")
    _tool("kafka-console-producer", broker, "--topic", topic, "--reader-property", "parse.key=true",
          "--reader-property", "key.separator=:", input="a:1\nb:2\nc:3\n")  # fmt: skip
    _ends(broker, topic, [3])
    verified = broker.name("java-verifiable")
    said = _tool("kafka-verifiable-producer", broker, "--topic", verified, "--max-messages", "2000")
    acked = [json.loads(line) for line in said.splitlines() if "tool_data" in line]
    equal(acked[-1]["acked"], 2000, "acknowledged")
    _ends(broker, verified, [2000])
    perf = broker.name("java-perf")
    said = _tool("kafka-producer-perf-test", broker, "--topic", perf, "--num-records", "20000",
                 "--record-size", "500", "--throughput", "-1")  # fmt: skip
    if "20000 records sent" not in said:
        raise AssertionError(said)
    _ends(broker, perf, [20000])


def consume(broker: Broker) -> None:
    """The consumer; kafka-console-consumer, kafka-get-offsets, kafka-consumer-perf-test."""
    _compat("consume", broker)
    topic = broker.name("java-consumed")
    _tool("kafka-console-producer", broker, "--topic", topic, input="one\ntwo\nthree\n")
    said = _tool("kafka-console-consumer", broker, "--topic", topic, "--from-beginning", "--max-messages", "3",
                 "--timeout-ms", "20000", "--formatter-property", "print.offset=true")  # fmt: skip
    equal([line for line in said.splitlines() if line.startswith("Offset:")],
          ["Offset:0\tone", "Offset:1\ttwo", "Offset:2\tthree"], "printed")  # fmt: skip
    equal(_offsets(broker, topic, "-2"), [0], "earliest")
    equal(_offsets(broker, topic, "1000"), [0], "by timestamp")
    max_timestamp = _offsets(broker, topic, "-3")[0]
    if max_timestamp not in (0, 1, 2):
        raise AssertionError(f"max timestamp at {max_timestamp}")
    said = _tool("kafka-consumer-perf-test", broker, "--topic", topic, "--num-records", "3", "--hide-header")
    if not said.strip():
        raise AssertionError("kafka-consumer-perf-test said nothing")


def groups(broker: Broker) -> None:
    """Consumers in groups; kafka-verifiable-consumer, kafka-consumer-groups; share groups and their tools."""
    _compat("groups", broker)
    topic, group = broker.name("java-grouped"), broker.name("java-group")
    _tool("kafka-topics", broker, "--create", "--topic", topic, "--partitions", "3")
    _tool("kafka-verifiable-producer", broker, "--topic", topic, "--max-messages", "300")
    said = _tool("kafka-verifiable-consumer", broker, "--topic", topic, "--group-id", group,
                 "--max-messages", "300", "--reset-policy", "earliest")  # fmt: skip
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    consumed = sum(event["count"] for event in events if event["name"] == "records_consumed")
    equal(consumed, 300, "records of the verifiable consumer")
    equal(sum(_lags(broker, group).values()), 0, "lag")
    if group not in _tool("kafka-consumer-groups", broker, "--list").split():
        raise AssertionError("the group is not listed")
    _tool("kafka-consumer-groups", broker, "--group", group, "--describe", "--state")
    _tool("kafka-consumer-groups", broker, "--group", group, "--reset-offsets", "--to-earliest",
          "--topic", topic, "--execute")  # fmt: skip
    equal(sum(_lags(broker, group).values()), 300, "lag after a reset")
    _tool("kafka-consumer-groups", broker, "--group", group, "--delete-offsets", "--topic", topic)
    _tool("kafka-consumer-groups", broker, "--group", group, "--delete")
    if group in _tool("kafka-consumer-groups", broker, "--list").split():
        raise AssertionError("the group is listed after its deletion")
    _share_groups(broker)


def _share_groups(broker: Broker) -> None:
    """KafkaShareConsumer in kafka-console-share-consumer and kafka-share-consumer-perf-test; kafka-share-groups."""
    topic, group = broker.name("java-shared"), broker.name("java-share-group")
    _tool("kafka-topics", broker, "--create", "--topic", topic, "--partitions", "3")
    _tool("kafka-verifiable-producer", broker, "--topic", topic, "--max-messages", "300")
    said = _tool("kafka-console-share-consumer", broker, "--topic", topic, "--group", group,
                 "--max-messages", "300", "--timeout-ms", "60000")  # fmt: skip
    equal(sorted(map(int, filter(str.isdigit, said.split()))), list(range(300)), "records, each once")
    said = _tool("kafka-share-groups", broker, "--describe", "--group", group, "--offsets")
    rows = [line.split() for line in said.splitlines() if line.startswith(group)]
    equal((len(rows), sum(int(row[-1]) for row in rows)), (3, 0), "partitions and lag")
    if group not in _tool("kafka-share-groups", broker, "--list").split():
        raise AssertionError("the share group is not listed")
    _tool(
        "kafka-share-groups",
        broker,
        "--group",
        group,
        "--reset-offsets",
        "--to-earliest",
        "--topic",
        topic,
        "--execute",
    )
    said = _tool("kafka-share-consumer-perf-test", broker, "--topic", topic, "--group", group,
                 "--num-records", "300", "--timeout", "60000", "--hide-header")  # fmt: skip
    equal(said.split(", ")[5], "300", "records of the perf test")
    _tool("kafka-share-groups", broker, "--group", group, "--delete-offsets", "--topic", topic)
    _tool("kafka-share-groups", broker, "--group", group, "--delete")
    if group in _tool("kafka-share-groups", broker, "--list").split():
        raise AssertionError("the share group is listed after its deletion")


def admin(broker: Broker) -> None:
    """The admin client; kafka-topics, -configs, -broker-api-versions, -delete-records, -log-dirs, -cluster."""
    _compat("admin", broker)
    topic = broker.name("java-topic")
    _tool(
        "kafka-topics",
        broker,
        "--create",
        "--topic",
        topic,
        "--partitions",
        "2",
        "--config",
        "retention.ms=1000000",
    )
    _tool("kafka-topics", broker, "--alter", "--topic", topic, "--partitions", "5")
    said = _tool("kafka-topics", broker, "--describe", "--topic", topic)
    if "PartitionCount: 5" not in said or "retention.ms=1000000" not in said:
        raise AssertionError(said)
    _tool("kafka-configs", broker, "--entity-type", "topics", "--entity-name", topic, "--alter",
          "--add-config", "max.message.bytes=4321", "--delete-config", "retention.ms")  # fmt: skip
    said = _tool("kafka-configs", broker, "--entity-type", "topics", "--entity-name", topic, "--describe")
    if "max.message.bytes=4321" not in said or "retention.ms=1000000" in said:
        raise AssertionError(said)
    said = _tool("kafka-broker-api-versions", broker)
    if "Produce(0): 0 to 13" not in said:
        raise AssertionError(said)
    cut = broker.name("java-cut")
    _tool("kafka-verifiable-producer", broker, "--topic", cut, "--max-messages", "100")
    plan = {"version": 1, "partitions": [{"topic": cut, "partition": 0, "offset": 5}]}
    path = broker.log.with_name("delete-records.json")
    path.write_text(json.dumps(plan))
    _tool("kafka-delete-records", broker, "--offset-json-file", str(path))
    equal(_offsets(broker, cut, "-2"), [5], "log start")
    if topic not in _tool("kafka-log-dirs", broker, "--describe", "--topic-list", topic):
        raise AssertionError("kafka-log-dirs does not know the topic")
    if "Cluster ID:" not in _tool("kafka-cluster", broker, "cluster-id"):
        raise AssertionError("no cluster id")
    _tool("kafka-topics", broker, "--delete", "--topic", topic)
    if topic in _tool("kafka-topics", broker, "--list").split():
        raise AssertionError("the topic is listed after its deletion")


def transactions(broker: Broker) -> None:
    """Transactional producers and read_committed consumers; kafka-transactions, -console-consumer."""
    _compat("transactions", broker)
    said = _transactions_tool(broker, "list")
    ours = [re.split(r"\s+", line) for line in said.splitlines() if "java-transactions" in line]
    if not ours or any(row[3] not in ("CompleteCommit", "CompleteAbort", "Empty") for row in ours):
        raise AssertionError(said)
    name = next(row[0] for row in ours if row[0].endswith("-whole-tx"))
    said = _transactions_tool(broker, "describe", "--transactional-id", name)
    if "CompleteAbort" not in said:
        raise AssertionError(said)
    topic = name.removesuffix("-tx")
    said = _transactions_tool(broker, "describe-producers", "--topic", topic, "--partition", "0")
    equal(
        [line.split()[-1] for line in said.splitlines() if line[:1].isdigit()], ["None"], "open transactions"
    )
    found = _transactions_tool(broker, "find-hanging", "--broker-id", _broker_id(broker))
    equal(len(found.splitlines()), 1, "lines: a head, and nothing that hangs")
    said = _tool("kafka-console-consumer", broker, "--topic", topic, "--from-beginning", "--timeout-ms", "10000",
                 "--isolation-level", "read_committed")  # fmt: skip
    equal(len(said.split()), 90, "records, read committed")


# --- details -----------------------------------------------------------------------------------------------


def _fetched() -> str | None:
    """Bring the jars, once for each text of pom.xml; why not, if that failed."""
    wanted, done = (HERE / "pom.xml").read_text(), JARS / ".done"
    if done.exists() and done.read_text() == wanted:
        return None
    JARS.mkdir(parents=True, exist_ok=True)
    print(f"bringing Kafka {VERSION}'s jars by Maven to {JARS}", flush=True)
    brought = _run(
        [
            "mvn",
            "-q",
            "-B",
            "-f",
            str(HERE / "pom.xml"),
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={JARS}",
        ],
        seconds=600,
    )
    if brought.returncode:
        return f"Maven could not bring the jars: {(brought.stdout + brought.stderr)[-300:]}"
    done.write_text(wanted)
    return None


def _compile() -> None:
    for source in HERE.glob("*.java"):
        made = CLASSES / f"{source.stem}.class"
        if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
            compiling = _run(["javac", "-cp", f"{JARS}/*", "-d", str(CLASSES), str(source)], seconds=120)
            if compiling.returncode:
                raise AssertionError(f"{source.name} does not compile: {compiling.stderr}")


def _run(command: list[str], seconds: float, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        input=given,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env=dict(os.environ),
    )


def _java(*words: str, given: str = "") -> str:
    done = _run(command(*words), TOOL_SECONDS, given)
    if done.returncode or "Error while executing" in done.stdout + done.stderr:
        raise AssertionError(
            f"{' '.join(words)}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        )
    return done.stdout


def said(tool: str, address: str, *words: str) -> str:
    """All that a tool of TOOLS writes, whatever its exit status."""
    done = _run(command(TOOLS[tool], "--bootstrap-server", address, *words), TOOL_SECONDS)
    return done.stdout + done.stderr


def _compat(area: str, broker: Broker) -> None:
    _java("Compat", area, broker.address, broker.name(f"java-{area}"))


def _tool(tool: str, broker: Broker, *words: str, input: str = "") -> str:
    return _java(TOOLS[tool], *words, "--bootstrap-server", broker.address, given=input)


def _offsets(broker: Broker, topic: str, time: str) -> list[int]:
    said = _tool("kafka-get-offsets", broker, "--topic", topic, "--time", time)
    found = dict(line.rsplit(":", 2)[1:] for line in said.splitlines() if line.startswith(f"{topic}:"))
    return [int(found[partition]) for partition in sorted(found, key=int)]


def _ends(broker: Broker, topic: str, expected: list[int]) -> None:
    equal(_offsets(broker, topic, "-1"), expected, f"end offsets of {topic}")


def _transactions_tool(broker: Broker, *words: str) -> str:
    """This tool wants the address before its command."""
    return _java(TOOLS["kafka-transactions"], "--bootstrap-server", broker.address, *words)


def _broker_id(broker: Broker) -> str:
    said = _tool("kafka-broker-api-versions", broker)
    found = re.search(r"\(id: (\d+) ", said)
    if found is None:
        raise AssertionError(said)
    return found[1]


def _lags(broker: Broker, group: str) -> dict[int, int]:
    said = _tool("kafka-consumer-groups", broker, "--group", group, "--describe")
    rows = [re.split(r"\s+", line) for line in said.splitlines() if line.startswith(group + " ")]
    return {int(row[2]): int(row[5]) for row in rows}
