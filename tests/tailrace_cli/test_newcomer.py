"""Missing, wrong or hostile arguments of a command: one line on stderr, and an exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace_cli.app import main
from tests.support.serve import Served, serve, tailrace

MAX_LINE = 1_000
LONG = "x" * 40_000
NOT_UTF8 = os.fsdecode(b"\xff\xfe")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("newcomer") / "data") as server:
        assert tailrace("topic", "create", "few", "-p", "2", "-b", server.kafka).returncode == 0
        yield server


CASES = [
    ("topic describe nope -b KAFKA", 1, "topic 'nope': UNKNOWN_TOPIC_OR_PARTITION; there is none; `tail"),
    ("group describe nope -b KAFKA", 1, "Group nope not found; `tailrace group list` shows the groups"),
    ("transaction describe nope -b KAFKA", 1, "`tailrace transaction list` shows the ids"),
    ("user remove nope -b KAFKA", 1, "`tailrace user list` shows the users"),
    ("consume nope -b KAFKA", 1, "`tailrace topic list` shows the topics"),
    ("topic list -b HTTP", 1, "is an HTTP server, not a Kafka broker; give the address for Kafka clients"),
    ("consume a -b HTTP", 1, "is an HTTP server, not a Kafka broker"),
    ("produce a b -b HTTP", 1, "is an HTTP server, not a Kafka broker"),
    ("cost --from-metrics KAFKA", 1, "gave no metrics (Server disconnected); give the address of `http`"),
    ("cost --from-metrics 127.0.0.1:1", 1, "give the address of `http` (--http, port 9644 by default)"),
    ("cost --from-metrics 127.0.0.1:99999", 2, "--from-metrics '127.0.0.1:99999': expected HOST:PORT or a URL"),
    ("cost --from-metrics ftp://127.0.0.1:1", 2, "--from-metrics 'ftp://127.0.0.1:1': expected HOST:PORT or a URL"),
    ("topic list -b EMPTY", 2, "--bootstrap '': expected HOST:PORT, such as 127.0.0.1:9092"),
    ("consume a -b EMPTY", 2, "--bootstrap '': expected HOST:PORT, such as 127.0.0.1:9092"),
    ("consume a -b 127.0.0.1:99999", 2, "--bootstrap '127.0.0.1:99999': expected HOST:PORT"),
    ("produce a b --compression x -b KAFKA", 2, "--compression 'x': expected one of none, gzip"),
    ("topic trim few --before 1 -p 0 -p 3 -b KAFKA", 1, "topic 'few' has no partition 3"),
    ("group reset g --to end -t few -p 0 -p 3 -b KAFKA", 1, "topic 'few' has no partition 3"),
    ("topic list -b LONG:1", 2, "no host has this name"),
    ("topic create a -p 99999999999 -b KAFKA", 2, "--partitions"),
    ("topic create LONG -b KAFKA", 2, "does not fit into CREATE_TOPICS"),
    ("topic describe BYTES -b KAFKA", 2, "names are UTF-8"),
    ("group describe LONG -b KAFKA", 2, "names are UTF-8 of at most 32,767 bytes"),
    ("group describe EMPTY -b KAFKA", 1, "INVALID_GROUP_ID: 0 bytes; 1 to 1024 are allowed"),
    ("produce a b -p 99999999999 -b KAFKA", 2, "--partition"),
    ("produce a b -H BYTES=x -b KAFKA", 2, "is not UTF-8, as names and SQL must be"),
    ("produce LONG b -b KAFKA", 2, "(40000 characters)"),
    ("consume EMPTY -b KAFKA", 2, "topic '': a name has 1 to 249 letters"),
    ("consume LONG -b KAFKA", 2, "a name has 1 to 249 letters"),
    ("consume a --from x -b KAFKA", 2, "--from 'x': expected start, end, an offset such as 42"),
    ("consume a --since 99999999999999999999d -b KAFKA", 2, "is not a time; expected 2026-01-31T12:00"),
    ("acl add --principal User:a --operation read --topic t --host h", 2, "--host 'h': expected an IP address, or *"),
    ("consume a --since 1960-01-01 -b KAFKA", 2, "'1960-01-01' is a time before 1970"),
    ("produce a b --timestamp 100000d -b KAFKA", 2, "'100000d' is a time before 1970"),
    ("transaction list --state Open -b KAFKA", 2, "--state 'Open': expected one of Empty, Ongoing, Prep"),
    ("topic delete nope -b KAFKA", 1, "there is no such topic; `tailrace topic list` shows the topics"),
    ("config get retention.mss -b KAFKA", 1, "no config 'retention.mss'; did you mean log.retention.ms?"),
    ("consume a -X BYTES=1 -b KAFKA", 2, "--client"),
    ("topic trim a --before x -b KAFKA", 1, "topic 'a': UNKNOWN_TOPIC_OR_PARTITION"),
    ("consume a -X b -b KAFKA", 2, "--client 'b': expected NAME=VALUE, such as linger.ms=0"),
    ("serve --zone LONG", 2, "zone"),
    ("serve --data BYTES", 2, "expected a folder with a name in UTF-8"),
    ("serve --data EMPTY", 2, "expected a folder, such as ./data"),
    ("query BYTES --data EMPTY", 2, "SQL"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "status", "said"), CASES, ids=[case[0] for case in CASES])
def test_missing_wrong_or_hostile_input_gets_one_line_and_a_status(
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    status: int,
    said: str,
) -> None:
    words = {"KAFKA": served.kafka, "HTTP": served.http, "EMPTY": "", "LONG": LONG, "BYTES": NOT_UTF8}
    arguments = command.replace("LONG:1", f"{LONG}:1").replace("BYTES=", f"{NOT_UTF8}=").split(" ")
    monkeypatch.setattr(sys, "argv", ["tailrace", *(words.get(word, word) for word in arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tailrace: ") and said in line and len(line) < MAX_LINE
    assert ended.value.code == status


def test_of_several_topics_the_existing_ones_are_deleted_and_named(served: Served) -> None:
    for name in ("one", "two"):
        assert tailrace("topic", "create", name, "-b", served.kafka).returncode == 0
    done = tailrace("topic", "delete", "nope", "one", "neither", "two", "one", "-b", served.kafka)
    assert (done.returncode, done.stdout) == (1, "deleted one, two\n")
    assert done.stderr.startswith("tailrace: topic 'nope' was not deleted: UNKNOWN_TOPIC_OR_PARTITION: ")
    assert done.stderr.endswith("`tailrace topic list` shows the topics (and 1 more)\n")


def test_the_configs_of_the_cluster_are_shown_with_their_defaults(served: Served) -> None:
    def listed(*words: str) -> dict[str, str]:
        rows = json.loads(tailrace("config", "list", *words, "--json", "-b", served.kafka).stdout)
        return {row["name"]: row["value"] for row in rows}

    assert tailrace("config", "get", "log.retention.ms", "-b", served.kafka).stdout == "604800000\n"
    assert tailrace("config", "set", "log.retention.ms=60000", "-b", served.kafka).returncode == 0
    assert listed() == {"log.retention.ms": "60000"}
    assert listed("--all")["num.partitions"] == "1" and listed("--all")["log.retention.ms"] == "60000"
    assert tailrace("config", "unset", "log.retention.ms", "-b", served.kafka).returncode == 0
    assert listed() == {}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            '{"value": "x", "partition": 99999999999}',
            '"partition" must be a whole number from 0 to 2147483647',
        ),
        ('{"value": "x", "timestamp": -1}', '"timestamp" must be a whole number from 0 to'),
        ('{"value": "x", "headers": {"\\ud800": "y"}}', '"headers" must be an object or a list of pairs'),
        ("[", "not a line of JSON"),
    ],
)
def test_a_line_of_json_that_is_no_record_is_reported(served: Served, line: str, said: str) -> None:
    done = tailrace("produce", "lines", "--from-json", "-b", served.kafka, stdin=line)
    assert done.returncode == 1 and said in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("redirected", "status"),
    [(">&-", 0), ("2>&-", 0), ("<&-", 0), ("| head -1", 0), (">/dev/full", 1)],
)
def test_a_standard_stream_may_be_closed_full_or_left(served: Served, redirected: str, status: int) -> None:
    line = f'"$0" -m tailrace topic list -b {served.kafka} {redirected}'
    done = subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, text=True, timeout=60)
    assert done.returncode == status
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_characters_that_the_terminal_does_not_have_are_escaped(served: Served) -> None:
    tailrace("produce", "signs", "-b", served.kafka, "\N{SNOWMAN}")
    latin = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "tailrace", "consume", "signs", "-b", served.kafka]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=latin)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\u2603\n", "")


INTERRUPTED = """
import os, signal, sys
class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == "tailrace_cli.app":
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupts())
from tailrace_cli.__main__ import main
main()
"""


def test_an_interrupt_before_the_command_has_begun_leaves_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "--version"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_records_that_failed_for_one_reason_name_it_once(served: Served) -> None:
    done = tailrace("produce", "few", "-p", "5", "-b", served.kafka, stdin="a\nb\nc\n")
    assert done.returncode == 1 and done.stderr.count("few-5: UNKNOWN_PARTITION") == 1


def test_a_damaged_object_is_reported_with_its_topic_partition_and_offset(tmp_path: Path) -> None:
    def mixed_objects() -> list[Path]:
        return [path for path in (tmp_path / "data" / "objects").rglob("mixed/**/*") if path.is_file()]

    with serve(tmp_path / "data") as first:
        lines = "\n".join(f"a record, the {number}th" for number in range(500))
        assert tailrace("produce", "orders", "-b", first.kafka, "-p", "0", stdin=lines).returncode == 0
    for path in mixed_objects():
        path.write_bytes(path.read_bytes().replace(b"the 250th", b"the 25?th"))
    with serve(tmp_path / "data") as second:
        done = tailrace("consume", "orders", "-b", second.kafka)
    assert done.returncode == 1 and done.stdout == ""
    assert "topic 'orders', partition 0, offset 0: the bytes stored there are damaged" in done.stderr
    assert "the agent's log names the object and the next offset that may be read" in done.stderr
    audited = tailrace("audit", "--full", "--data", str(tmp_path / "data"))
    assert audited.returncode == 1 and "corrupt_object" in audited.stdout
    assert audited.stdout.endswith("\n1 finding\n")
