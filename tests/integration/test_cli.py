"""`tailrace serve` as a process, used by the other commands, watched over HTTP, and drained."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from pyiceberg.catalog import load_catalog

from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tailrace_cli.connections.kafka_client import KafkaClient
from tailrace_cli.demo.ports import free_port
from tests.support.patience import PATIENCE_SECONDS
from tests.support.servers import PostgresServer

COMMAND = [sys.executable, "-m", "tailrace_cli.app"]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        return str(answer.read().decode())


class Server:
    def __init__(self, folder: Path, *more: str) -> None:
        self.kafka = f"127.0.0.1:{free_port()}"
        self.http = f"http://127.0.0.1:{(http := free_port())}"
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "serve", "--data", str(folder / "data"), "--listen", self.kafka, "--http",
                 f"127.0.0.1:{http}", *more],
                stderr=log, env=environment(),
            )  # fmt: skip

    def wait_until_ready(self) -> None:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < give_up and self.process.poll() is None:
            try:
                assert json.loads(get(f"{self.http}/readyz"))["ready"] is True
                return
            except (OSError, urllib.error.HTTPError):
                time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def run(self, *arguments: str, given: str | None = None) -> str:
        done = self.try_run(*arguments, given=given)
        assert done.returncode == 0, done.stderr + self.log.read_text()
        return done.stdout

    def try_run(self, *arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, *arguments, "--bootstrap", self.kafka]
        return subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=environment()
        )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.process.wait()


@pytest.mark.parametrize(
    ("url", "said", "status"),
    [
        ("postgresql://nobody@127.0.0.1:{port}/postgres", 'role "nobody" does not exist', 1),
        ("postgresql://postgres@127.0.0.1:{port}/nothing", 'database "nothing" does not exist', 1),
        ("postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=require", "rejected SSL upgrade", 1),
        ("postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=verify-full", "root certificate file", 1),
        ("postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=verify-full&sslrootcert=/no.pem", "/no.pem", 2),
        ("postgresql://postgres@127.0.0.1:{port}/postgres?sslmod=require", "did you mean sslmode?", 2),
        ("postgresql://postgres@127.0.0.1:port/postgres", "a port that is no number", 2),
    ],
)  # fmt: skip
def test_a_database_that_cannot_be_used_is_one_line(
    postgres: PostgresServer, url: str, said: str, status: int
) -> None:
    command = ["sequencer", "--http", "127.0.0.1:0", "--rpc", "127.0.0.1:0"]
    assert said in refusal(command, url.format(port=postgres.port), status=status)


@pytest.mark.parametrize(
    "command",
    [
        ["sequencer", "--http", "127.0.0.1:0", "--rpc", "127.0.0.1:0"],
        ["compact", "--store", "memory:"],
        ["table", "list", "--store", "memory:"],
    ],
    ids=" ".join,
)
def test_a_wrong_password_is_one_line(postgres: PostgresServer, tmp_path: Path, command: list[str]) -> None:
    (file := tmp_path / "password").write_text("wrong")
    file.chmod(0o600)
    asking_for_a_password(postgres, "careful")
    url = f"postgresql://careful@127.0.0.1:{postgres.port}/postgres"
    line = refusal(command, url, {"TAILRACE_DATABASE_PASSWORD_FILE": str(file)})
    assert 'password authentication failed for user "careful"' in line


def asking_for_a_password(postgres: PostgresServer, role: str) -> None:
    """Have a role that only comes in with its password, which is not told."""
    rules = Path(postgres.command[2]) / "pg_hba.conf"
    rule = f"host all {role} 127.0.0.1/32 scram-sha-256\n"
    if not rules.read_text().startswith(rule):
        rules.write_text(rule + rules.read_text())
        postgres.execute("SELECT pg_reload_conf()")
        postgres.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'right'")


def refusal(command: list[str], database: str, more: dict[str, str] | None = None, *, status: int = 1) -> str:
    """The one line with which a command on a database ends. Status 2: its settings alone show that it can't work."""
    done = subprocess.run(
        [*COMMAND, *command, "--database", database],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=environment() | (more or {}),
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    # Lines in JSON are the log's: on a busy machine, that the event loop was held.
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith("{"))
    assert line.startswith("tailrace: ")
    return line


def test_stores_outside_of_the_folder_are_found_through_it_after_the_stop(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.db"
    server = Server(tmp_path, "--database", f"sqlite:///{elsewhere}")
    try:
        server.wait_until_ready()
        server.run("topic", "create", "flights", "--config", "tailrace.table=iceberg")
    finally:
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(timeout=PATIENCE_SECONDS)
    listing = [*COMMAND, "table", "list", "--data", str(tmp_path / "data"), "--json"]
    given: dict[str, Any] = {
        "capture_output": True,
        "text": True,
        "timeout": PATIENCE_SECONDS,
        "env": environment(),
    }

    found = subprocess.run(listing, **given)
    assert [each["topic"] for each in json.loads(found.stdout)] == ["flights"], found.stderr
    elsewhere.unlink()
    refused = subprocess.run(listing, **given)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)
    assert str(elsewhere) in refused.stderr
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert not any(path.name == "tailrace.db" for path in files)
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_serve_is_used_by_commands_watched_and_drained(server: Server) -> None:
    server.wait_until_ready()

    assert json.loads(server.run("topic", "create", "flights", "-p", "3", "--json"))["partitions"] == 3
    assert [topic["name"] for topic in json.loads(server.run("topic", "list", "--json"))] == ["flights"]

    server.run("config", "set", "retention.ms=99000", "--topic", "flights")
    assert server.run("config", "get", "retention.ms", "--topic", "flights").strip() == "99000"
    (described,) = json.loads(server.run("topic", "describe", "flights", "--json"))
    assert described["configs"] == {"retention.ms": "99000"}
    assert [each["end_offset"] for each in described["partition_list"]] == [0, 0, 0]

    metrics = get(f"{server.http}/metrics")
    assert "tailrace_connections " in metrics
    assert re.search(r'^tailrace_build_info\{kind="serve",version="[^"]+"\} 1.0$', metrics, flags=re.M)
    assert re.search(r"^process_resident_memory_bytes \d", metrics, flags=re.M)
    assert "\ntailrace_sequencer_is_committer 1.0\n" in metrics
    assert re.search(r"^tailrace_sequencer_checkpoint_age_seconds \d", metrics, flags=re.M)
    assert "_created" not in metrics
    assert 'tailrace_request_duration_seconds_count{api="CREATE_TOPICS"} 1.0' in metrics
    assert "flights" in get(f"{server.http}/")

    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=PATIENCE_SECONDS) == 0, server.log.read_text()
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert "drained" in {line["event"] for line in lines}
    of_the_machine = "the event loop was held"
    loud = [line for line in lines if line["level"] not in ("debug", "info")]
    assert [line for line in loud if line["event"] != of_the_machine] == []
    assert lines[-1]["process"].startswith("serve ")


def test_records_go_in_and_out_by_command(server: Server) -> None:
    server.wait_until_ready()
    # One of the records is of 1970, which retention would remove.
    server.run("topic", "create", "events", "-p", "2", "-c", "retention.ms=-1")

    server.run("produce", "events", "one", "two", "--key", "k", "-H", "h=x", "--timestamp", "1000")
    written = server.run("produce", "events", "-K", r"\t", "--json", "-p", "1", given="a\t1\nb\t\n")
    assert [(row["key"], row["value"], row["partition"]) for row in map(json.loads, written.splitlines())] == [
        ("a", "1", 1), ("b", "", 1),
    ]  # fmt: skip

    rows = [json.loads(line) for line in server.run("consume", "events", "--json").splitlines()]
    assert sorted((row["key"], row["value"]) for row in rows) == [
        ("a", "1"),
        ("b", ""),
        ("k", "one"),
        ("k", "two"),
    ]
    assert {tuple(*row["headers"]) for row in rows if row["key"] == "k"} == {("h", "x")}
    assert {row["timestamp"] for row in rows if row["key"] == "k"} == {1000}

    server.run("topic", "create", "copy", "-p", "2", "-c", "retention.ms=-1")
    copied = "".join(f"{json.dumps(row)}\n" for row in rows)
    server.run("produce", "copy", "--from-json", given=copied)
    again = [json.loads(line) for line in server.run("consume", "copy", "--json").splitlines()]
    kept = ("partition", "offset", "timestamp", "key", "value", "headers")
    assert sorted([row[name] for name in kept] for row in again) == sorted(
        [row[name] for name in kept] for row in rows
    )

    assert server.run("consume", "events", "-p", "1", "--from", "-1", "--format", "{key}@{offset}") != ""
    since = server.run("consume", "events", "--since", "1h", "--format", "{key}")
    assert sorted(since.split()) == ["a", "b"]
    assert server.run("consume", "events", "--until", "1001", "--format", "{value}").split() == ["one", "two"]
    assert server.run("consume", "events", "--from", "end") == ""


def test_headers_of_one_name_are_kept_in_order(server: Server) -> None:
    server.wait_until_ready()
    server.run("topic", "create", "events")
    server.run("produce", "events", "v", "-H", "a=1", "-H", "b=2", "-H", "a=3")
    assert server.run("consume", "events", "--format", "{headers}") == "a=1,b=2,a=3\n"
    refused = server.try_run("produce", "events", "v", "-H", "a")
    assert "--header 'a': expected NAME=VALUE, such as source=radar" in refused.stderr


def test_bytes_that_text_can_not_show_are_reported_once_and_copied_in_another_encoding(
    server: Server,
) -> None:
    server.wait_until_ready()
    server.run("topic", "create", "events")
    server.run("produce", "events", "ff", "fe", "--encoding", "hex")
    server.run("produce", "events", "\ufffd", "--key", "text")
    shown = server.try_run("consume", "events", "--json")
    (said,) = shown.stderr.splitlines()
    assert said.startswith(
        "events-0, offset 0: bytes that are not UTF-8 are printed as \ufffd; --encoding hex or"
    )
    assert [json.loads(line)["value"] for line in shown.stdout.splitlines()] == ["\ufffd"] * 3
    of_text = server.try_run("consume", "events", "--from", "2")
    assert (of_text.stdout, of_text.stderr) == ("\ufffd\n", "")
    as_hex = server.try_run("consume", "events", "--json", "--encoding", "hex")
    assert ([json.loads(line)["value"] for line in as_hex.stdout.splitlines()][:2], as_hex.stderr) == (
        ["ff", "fe"], "",
    )  # fmt: skip


def test_a_name_that_no_config_has_is_not_unset(server: Server) -> None:
    server.wait_until_ready()
    server.run("topic", "create", "events", "-c", "retention.ms=1000")
    for command in (
        ("config", "unset", "retention.m", "--topic", "events"),
        ("topic", "alter", "events", "--unset", "retention.m"),
    ):
        refused = server.try_run(*command)
        assert (
            refused.returncode == 1
            and "no config 'retention.m'; did you mean retention.ms?" in refused.stderr
        )
    assert "no config 'retention.m'" in server.try_run("config", "unset", "retention.m").stderr
    assert (
        server.run("config", "unset", "retention.ms", "-t", "events")
        == "unset retention.ms of topic events\n"
    )


def test_an_offset_outside_of_a_log_is_reported_and_the_nearest_is_used(server: Server) -> None:
    server.wait_until_ready()
    server.run("topic", "create", "events")
    server.run("produce", "events", "a", "b", "c")
    told = "events-0: offset 99 is outside the log (0 to 3); 3 is used instead"
    consumed = server.try_run("consume", "events", "--from", "99")
    assert (consumed.returncode, consumed.stdout, consumed.stderr.strip()) == (0, "", told)
    reset = server.try_run("group", "reset", "readers", "--topic", "events", "--to", "99", "--json")
    assert (json.loads(reset.stdout)[0]["new"], reset.stderr.strip()) == (3, told)
    for command in (
        ("group", "reset", "readers", "--topic", "events", "--to"),
        ("topic", "trim", "events", "--before"),
    ):
        refused = server.try_run(*command, "begin")
        assert (
            refused.returncode == 2
            and "'begin' is no position; expected start, end, an offset" in refused.stderr
        )


@pytest.mark.parametrize("flags", [("--since", "2h", "--from", "start"), ("--since", "2h", "--from", "end")])
def test_two_beginnings_are_one_too_many(flags: tuple[str, ...]) -> None:
    done = subprocess.run(
        [*COMMAND, "consume", "events", *flags], capture_output=True, text=True, env=environment()
    )
    assert done.returncode and "--from and --since both say where to begin; give one" in done.stderr


def test_acls_without_logins_say_what_to_set(server: Server) -> None:
    server.wait_until_ready()
    for command in (
        ("list",),
        ("add", "--principal", "User:a", "--operation", "read", "--topic", "t"),
        ("remove", "--topic", "t"),
    ):
        refused = server.try_run("acl", *command)
        assert refused.returncode and "tailrace serve --secure" in refused.stderr, refused


def test_a_topic_whose_records_are_acknowledged_on_receipt_is_described_so(server: Server) -> None:
    server.wait_until_ready()
    for name, flush in (("early", "async"), ("usual", "sync")):
        server.run("topic", "create", name, "--config", f"tailrace.flush={flush}")

    warned = "async: acknowledged on receipt, and lost if the agent dies before it is stored"
    assert warned in server.run("topic", "describe", "early")
    assert warned not in server.run("topic", "describe", "usual")


def test_one_of_several_brokers_is_enough_for_every_command(server: Server) -> None:
    server.wait_until_ready()
    server.kafka = f"127.0.0.1:1, {server.kafka}"

    server.run("topic", "create", "events")
    server.run("produce", "events", "a")

    assert server.run("consume", "events") == "a\n"
    assert server.run("topic", "describe", "events")


def test_a_line_that_is_no_record_ends_produce_after_those_before_it(server: Server) -> None:
    server.wait_until_ready()
    server.run("topic", "create", "events")

    failed = server.try_run(
        "produce", "events", "--from-json", given='{"value": "a"}\nnonsense\n{"value": "b"}\n'
    )

    assert failed.returncode == 1
    assert "1 records were acknowledged, then: not a line of JSON" in failed.stderr
    assert server.run("consume", "events") == "a\n"


def test_a_group_continues_where_it_was_and_is_reset_after_a_preview(server: Server) -> None:
    server.wait_until_ready()
    server.run("topic", "create", "events")
    server.run("produce", "events", *"abcd")

    assert server.run("consume", "events", "-g", "readers", "-n", "3") == "a\nb\nc\n"
    assert server.run("consume", "events", "-g", "readers") == "d\n"
    moved = {"topic": "events", "partition": 0, "committed": 4, "new": 2}
    reset = ("group", "reset", "readers", "--to", "-2", "--json")
    assert json.loads(server.run(*reset)) == [moved]
    assert server.run("consume", "events", "-g", "readers") == ""
    assert json.loads(server.run(*reset, "--execute")) == [moved]
    assert server.run("consume", "events", "-g", "readers") == "c\nd\n"

    trim = ("topic", "trim", "events", "--before", "3", "--json")
    assert json.loads(server.run(*trim))[0]["new_start_offset"] == 3
    assert server.run("consume", "events") == "a\nb\nc\nd\n"
    server.run(*trim, "--execute")
    assert server.run("consume", "events") == "d\n"


def test_groups_of_all_kinds_are_described_and_reset(server: Server) -> None:
    server.wait_until_ready()
    server.run("topic", "create", "events")
    server.run("produce", "events", *"abcd")
    server.run("consume", "events", "-g", "old")
    consumer = Consumer(
        {"bootstrap.servers": server.kafka, "group.id": "new", "group.protocol": "consumer",
         "auto.offset.reset": "earliest", "client.id": "reader"}
    )  # fmt: skip
    consumer.subscribe(["events"])
    for _ in range(4):
        assert consumer.poll(PATIENCE_SECONDS) is not None
    consumer.commit(asynchronous=False)
    asyncio.run(_join_share_group(server.kafka, "pool"))

    listed = json.loads(server.run("group", "list", "--json"))
    assert {one["group"]: one["kind"] for one in listed} == {
        "old": "classic", "new": "consumer", "pool": "share"
    }  # fmt: skip
    described = json.loads(server.run("group", "describe", "new", "--json"))
    assert (described["kind"], described["state"]) == ("consumer", "Stable")
    (member,) = described["members"]
    assert (member["client_id"], member["assigned"]) == ("reader", ["events-0"])
    assert described["offsets"][0]["committed"] == 4 and described["offsets"][0]["lag"] == 0
    assert "new  consumer  Stable  uniform" in server.run("group", "describe", "new")
    refused = server.try_run("group", "reset", "new", "--to", "start", "--execute")
    assert "the group has members; stop its consumers first" in refused.stderr

    consumer.close()
    for group in ("new", "pool"):
        server.run("group", "reset", group, "--topic", "events", "--to", "1", "--execute")
        (offset,) = json.loads(server.run("group", "describe", group, "--json"))["offsets"]
        assert (offset["committed"], offset["lag"]) == (1, 3)


def test_a_classic_group_is_described_with_its_partitions_also_those_without_an_offset(
    server: Server,
) -> None:
    server.wait_until_ready()
    server.run("topic", "create", "events", "--partitions", "2")
    server.run("produce", "events", "-p", "1", *"ab")
    consumer = Consumer(
        {"bootstrap.servers": server.kafka, "group.id": "old", "auto.offset.reset": "earliest",
         "enable.auto.commit": False}
    )  # fmt: skip
    consumer.subscribe(["events"])
    message = consumer.poll(PATIENCE_SECONDS)

    described = json.loads(server.run("group", "describe", "old", "--json"))
    (member,) = described["members"]
    assert member["assigned"] == ["events-0", "events-1"]
    assert [(row["committed"], row["end_offset"], row["lag"]) for row in described["offsets"]] == [
        (None, 0, None),
        (None, 2, None),
    ]
    consumer.commit(message, asynchronous=False)
    shown = server.run("group", "describe", "old")
    assert re.search(r"events +0 +- +0 +- *\n +events +1 +1 +2 +1 *\n", shown), shown
    consumer.close()


def test_consume_commits_the_ends_of_partitions_without_records_too(server: Server) -> None:
    server.wait_until_ready()
    server.run("topic", "create", "events", "--partitions", "2")
    server.run("produce", "events", "-p", "1", *"abc")

    assert server.run("consume", "events", "-g", "readers", "-n", "1") == "a\n"
    (row,) = json.loads(server.run("group", "describe", "readers", "--json"))["offsets"]
    assert (row["partition"], row["committed"]) == (1, 1), "b and c were not printed"
    assert server.run("consume", "events", "-g", "readers") == "b\nc\n"
    server.run("produce", "events", "-p", "0", "d")
    rows = json.loads(server.run("group", "describe", "readers", "--json"))["offsets"]
    assert [(row["partition"], row["committed"], row["lag"]) for row in rows] == [(0, 0, 1), (1, 3, 0)]


async def _join_share_group(broker: str, group: str) -> None:
    """Join, and leave again."""
    async with KafkaClient(broker) as client, await client.coordinator_of(group) as coordinator:
        for epoch in (0, -1):
            joined = await coordinator.ask(
                ShareGroupHeartbeatRequest(group, "member", epoch, subscribed_topic_names=["events"]),
            )
            assert joined.error_code == ErrorCode.NONE


def test_a_transaction_that_hangs_is_found_and_aborted(server: Server) -> None:
    server.wait_until_ready()
    server.run("topic", "create", "events")
    producer = Producer(
        {
            "bootstrap.servers": server.kafka,
            "transactional.id": "stuck",
            "transaction.timeout.ms": 600_000,  # the commands that look for it may take longer than a minute
        }
    )
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    producer.produce("events", b"lost")
    producer.flush(PATIENCE_SECONDS)
    server.run("produce", "events", "kept")

    assert server.run("consume", "events") == ""
    (listed,) = json.loads(server.run("transaction", "list", "--json"))
    assert (listed["transactional_id"], listed["state"]) == ("stuck", "Ongoing")
    described = json.loads(server.run("transaction", "describe", "stuck", "--json"))
    assert described["partitions"] == [{"topic": "events", "partition": 0}]

    server.run("transaction", "abort", "stuck")

    assert server.run("consume", "events") == "kept\n"
    assert server.run("consume", "events", "--uncommitted") == "lost\nkept\n"
    with pytest.raises(KafkaException, match=r"(?i)fenced"):
        producer.commit_transaction(PATIENCE_SECONDS)
    assert "TRANSACTIONAL_ID_NOT_FOUND" in server.try_run("transaction", "abort", "stcuk").stderr


def test_a_command_without_a_broker_says_how_to_get_one(server: Server) -> None:
    server.process.kill()
    for command in (
        ("produce", "events", "a"),
        ("consume", "events"),
        ("consume", "events", "-g", "g"),
        ("cluster",),
    ):
        failed = server.try_run(*command)
        assert failed.returncode == 1
        assert "no broker answers at" in failed.stderr and "tailrace serve" in failed.stderr


def test_a_second_serve_on_a_folder_is_reported_at_once_who_uses_it(server: Server, tmp_path: Path) -> None:
    server.wait_until_ready()
    command = [*COMMAND, "serve", "--data", str(tmp_path / "data"), "--http", "127.0.0.1:0"]
    command += ["--database", "postgresql://nobody@127.0.0.1:1/nothing"]  # opened first, it would be named
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=environment()
    )
    assert done.returncode == 1
    assert f"is in use by process {server.process.pid}; stop that one" in done.stderr.splitlines()[-1]

    server.process.kill()
    server.process.wait()
    again = Server(tmp_path)
    try:
        again.wait_until_ready()  # what the killed one left behind holds up nobody
    finally:
        again.process.kill()
        again.process.wait()


def test_compact_works_on_the_folder_of_a_running_serve_and_of_a_stopped_one(
    server: Server, tmp_path: Path
) -> None:
    server.wait_until_ready()
    server.run("topic", "create", "readings", "--config", "tailrace.table=iceberg")
    producer = Producer({"bootstrap.servers": server.kafka})
    for number in range(100):
        producer.produce("readings", b"%d" % number)
    assert producer.flush(PATIENCE_SECONDS) == 0
    compact = [
        *COMMAND,
        "compact",
        "--data",
        str(tmp_path / "data"),
        "--master",
        "local[1]",
        "--min-bytes",
        "1",
    ]
    compact += ["--min-age-ms", "0", "--json"]

    beside = subprocess.run(compact, capture_output=True, text=True, timeout=400, env=environment())
    assert beside.returncode == 0, beside.stderr
    done = json.loads(beside.stdout)
    assert (done["records"], done["table_failures"]) == (100, [])
    catalog = load_catalog("tailrace", type="sql", uri=f"sqlite:///{tmp_path}/data/tailrace.db")
    assert catalog.load_table("tailrace.readings").scan().to_arrow().num_rows == 100

    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=PATIENCE_SECONDS) == 0
    alone = subprocess.run(compact, capture_output=True, text=True, timeout=400, env=environment())
    assert alone.returncode == 0, alone.stderr
    assert json.loads(alone.stdout)["records"] == 0
