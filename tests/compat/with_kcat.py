"""kcat, where it is on PATH (Debian's is built on librdkafka 2.0.2)."""

from __future__ import annotations

import json
import shutil
import subprocess

from tests.compat.areas import CODECS, Client, equal
from tests.compat.broker import Broker

SECONDS = 60


def client() -> Client:
    """kcat, skipped where it is not on PATH."""
    reason = None if shutil.which("kcat") else "kcat is not on PATH (apt-get install kcat)"
    return Client("kcat", {"produce": produce, "consume": consume, "groups": groups, "admin": admin}, reason)


def produce(broker: Broker) -> None:
    """Keys, headers and every codec."""
    for codec in CODECS:
        topic = broker.name(f"kcat-{codec}")
        lines = "".join(f"k{number}:v{number}\n" for number in range(100))
        _kcat(broker, "-P", "-t", topic, "-K:", "-z", codec, "-H", "from=kcat", given=lines)
        said = _kcat(broker, "-C", "-t", topic, "-e", "-q", "-J")
        seen = [json.loads(line) for line in said.splitlines()]
        equal([each["offset"] for each in seen], list(range(100)), "offsets")
        equal([each["key"] for each in seen], [f"k{number}" for number in range(100)], "keys")
        equal(seen[0]["headers"], ["from", "kcat"], "headers")
    topic = broker.name("kcat-idempotent")
    _kcat(broker, "-P", "-t", topic, "-X", "enable.idempotence=true", given="a\nb\n")
    equal(_kcat(broker, "-C", "-t", topic, "-e", "-q"), "a\nb\n", "records")


def consume(broker: Broker) -> None:
    """From an offset, from the end, and by timestamp."""
    topic = broker.name("kcat-consume")
    _kcat(broker, "-P", "-t", topic, given="".join(f"{number}\n" for number in range(50)))
    equal(_kcat(broker, "-C", "-t", topic, "-o", "48", "-e", "-q"), "48\n49\n", "from an offset")
    equal(_kcat(broker, "-C", "-t", topic, "-o", "-1", "-e", "-q"), "49\n", "the last")
    equal(_kcat(broker, "-C", "-t", topic, "-o", "s@1000", "-c", "2", "-q"), "0\n1\n", "by timestamp")
    equal(
        _kcat(broker, "-Q", "-t", f"{topic}:0:1000").strip(), f"{topic} [0] offset 0", "offset by timestamp"
    )


def groups(broker: Broker) -> None:
    """A balanced consumer goes on where it stopped."""
    topic, group = broker.name("kcat-groups"), broker.name("kcat-group")
    _kcat(broker, "-P", "-t", topic, given="a\nb\n")
    wanted = ("-G", group, "-X", "auto.offset.reset=earliest", "-q", "-c")
    equal(_kcat(broker, *wanted, "2", topic), "a\nb\n", "records")
    _kcat(broker, "-P", "-t", topic, given="c\n")
    equal(_kcat(broker, *wanted, "1", topic), "c\n", "records after the committed ones")


def admin(broker: Broker) -> None:
    """Metadata."""
    topic = broker.name("kcat-admin")
    _kcat(broker, "-P", "-t", topic, given="a\n")
    known = json.loads(_kcat(broker, "-L", "-J"))
    equal([each["name"] for each in known["brokers"]], [broker.address], "brokers")
    if topic not in {each["topic"] for each in known["topics"]}:
        raise AssertionError("the topic is not in the metadata")


def _kcat(broker: Broker, *words: str, given: str = "") -> str:
    done = subprocess.run(
        ["kcat", "-b", broker.address, *words],
        input=given,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"kcat {' '.join(words)}: exit {done.returncode}: {done.stderr[-1000:]}")
    return done.stdout
