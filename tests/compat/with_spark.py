"""Spark's own Kafka source and sink (spark-sql-kafka), in batches and as a stream that goes on from its checkpoint."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.areas import Client, equal
from tests.compat.broker import Broker

HERE = Path(__file__).parent / "spark"
ROOT = Path(__file__).parents[2]
VERSION = "4.1.1"
JARS = Path.home() / ".cache" / "tailrace" / f"spark-kafka-{VERSION}"
FETCH_SECONDS, SPARK_SECONDS = 300, 400
EXPECTED = {
    "written": [2_500, 2_500],
    "copied": [[2_000, 2_000], [2_500, 2_500]],
    "keys": [100, 25],
    "headers": 2_500,
    "since then": 2_500,
    "committed": [10, 10],
}


def client() -> Client:
    """Skipped where the jars or PySpark can't be had."""
    return Client(f"Spark's Kafka source and sink {VERSION}", {"consume": move}, unavailable())


@cache
def unavailable() -> str | None:
    """Why they can't be tried here; None: they can. Brings the jars that spark/pom.xml names."""
    if importlib.util.find_spec("pyspark") is None:
        return "no PySpark: make setup brings it"
    if shutil.which("mvn") is None:
        return "not on PATH: mvn"
    brought = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies",
         "-DincludeScope=runtime", f"-DoutputDirectory={JARS}"],
        capture_output=True, text=True, timeout=FETCH_SECONDS, check=False,
    )  # fmt: skip
    return f"Maven could not bring the jars: {brought.stdout[-300:]}" if brought.returncode else None


def move(broker: Broker) -> None:
    """A batch is written, a stream copies it and goes on with a second one, batches are read, committed records too."""
    name = broker.name("spark")
    admin = AdminClient({"bootstrap.servers": broker.address})
    topics = [NewTopic(f"{name}-{kind}", 3, 1) for kind in ("in", "out", "tx")]
    for made in admin.create_topics(topics).values():
        made.result()
    _transactions(broker, f"{name}-tx")
    with tempfile.TemporaryDirectory(prefix="tailrace-spark-") as folder:
        jars = ",".join(sorted(map(str, JARS.glob("*.jar"))))
        done = subprocess.run(
            [sys.executable, str(HERE / "moves.py"), jars, broker.address, folder, name],
            capture_output=True, text=True, timeout=SPARK_SECONDS, cwd=ROOT, check=False,
        )  # fmt: skip
    if done.returncode:
        raise AssertionError(f"exit {done.returncode}\n{done.stderr[-3000:]}")
    equal(json.loads(done.stdout.splitlines()[-1]), EXPECTED, "read")


def _transactions(broker: Broker, topic: str) -> None:
    """Ten records that are committed, and ten that are not."""
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": topic})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for number in range(10):
            producer.produce(topic, f"{end.__name__} {number}".encode())
        end(30)
