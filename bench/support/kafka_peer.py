"""Apache Kafka for comparison: one broker from its jars, if Java and Maven are installed."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tailrace_cli.demo.ports import free_port
from tests.compat import with_java

READY_SECONDS = 120.0
HEAP = "1g"
CLUSTER_ID = "YmVuY2gtb2YtdGFpbHJhY2U"
PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{kafka},CONTROLLER://127.0.0.1:{controller}{logins}
advertised.listeners=PLAINTEXT://127.0.0.1:{kafka}{logins}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
log.dirs={folder}/data
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
"""


@dataclass(frozen=True, slots=True)
class KafkaPeer:
    """A Kafka broker's process."""

    bootstrap: str
    pid: int


def unavailable() -> str | None:
    """Fetch Kafka's jars. Returns the reason why Kafka can't run here, or None if it can."""
    return with_java.unavailable()


@contextmanager
def kafka(folder: Path, more: Mapping[str, str] | None = None, login_port: int = 0) -> Iterator[KafkaPeer]:
    """Run one broker, which is also the controller, with its log in `folder`. Yield it when it is ready. `more`:
    further properties. `login_port`: the port of a SASL listener."""
    ports = {"kafka": free_port(), "controller": free_port()}
    folder.mkdir(parents=True, exist_ok=True)
    properties = folder / "server.properties"
    logins = f",SASL_PLAINTEXT://127.0.0.1:{login_port}" if login_port else ""
    lines = [f"{key}={value}\n" for key, value in (more or {}).items()]
    properties.write_text(PROPERTIES.format(folder=folder, logins=logins, **ports) + "".join(lines))
    subprocess.run(
        with_java.command("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)),
        check=True, capture_output=True,
    )  # fmt: skip
    command = [
        shutil.which("java") or "java", f"-Xms{HEAP}", f"-Xmx{HEAP}", "-XX:+UseG1GC",
        f"-Dkafka.logs.dir={folder}", f"-Dlog4j2.configurationFile={with_java.HERE / 'log4j2.properties'}",
        "-cp", f"{with_java.JARS}/*", "kafka.Kafka", str(properties),
    ]  # fmt: skip
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _until_ready(process, ports["kafka"], folder / "broker.log")
        yield KafkaPeer(f"127.0.0.1:{ports['kafka']}", process.pid)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"Kafka ended with status {process.returncode}: {log.read_text()[-2000:]}")
        try:
            admin.list_topics(timeout=1)
        except KafkaException:
            continue
        return
    raise RuntimeError(f"Kafka was not ready within {READY_SECONDS:.0f} s: {log.read_text()[-2000:]}")
