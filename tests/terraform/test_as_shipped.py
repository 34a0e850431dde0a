"""Runs what Terraform ships: user data's files, units and commands, and the compactor's container.

PostgreSQL behind TLS with a CA of its own and a password, S3 and Secrets Manager at moto, the tables' catalog in a
file; see machine.py for what of AWS is stood in for.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compactor.tables.iceberg import open_catalog
from tests.support.servers import PostgresServer, S3Server, moto_server, own_network, postgres_server
from tests.support.tls_postgres import make_certificates, tls_before
from tests.terraform.machine import (
    Facts,
    File,
    Machine,
    container,
    first_commands,
    metadata_service,
    rendered_files,
)

pytestmark = pytest.mark.skipif(
    shutil.which("curl") is None, reason="no curl on PATH, which the scripts call"
)

REGION = "eu-central-1"
PASSWORDS = ("a/b@c:d?e%f\"g'h$i", "another one")
WAIT_SECONDS = 180.0


@dataclass
class Site:
    """What AWS would keep: the store, the database, the secrets; and the machines that were started."""

    folder: Path
    s3: S3Server
    postgres: PostgresServer
    secrets: Any
    login_arn: str
    values: dict[str, str]
    ca: str
    stack: ExitStack
    machines: list[Machine] = field(default_factory=list)

    def set_password(self, password: str) -> None:
        """As RDS does when it rotates: in the database and in Secrets Manager."""
        self.postgres.execute("ALTER ROLE tailrace PASSWORD '" + password.replace("'", "''") + "'")
        login = json.dumps({"username": "tailrace", "password": password})
        self.secrets.put_secret_value(SecretId=self.login_arn, SecretString=login)

    def boot(self, kind: str) -> tuple[Machine, Facts]:
        """Start a machine of `sequencer` or `agents` by its user data."""
        number = len(self.machines) + 1
        address = f"{own_network()}.{number}"
        facts = self.stack.enter_context(
            metadata_service(
                {
                    "local-ipv4": address,
                    "placement/availability-zone-id": "euc1-az2",
                    "instance-id": f"i-{number:017x}",
                    "autoscaling/target-lifecycle-state": "InService",
                }
            )
        )
        machine = Machine(
            self.folder / f"{kind}-{number}", address, self.s3.environ, self.s3.endpoint, facts.port
        )
        self.machines.append(machine)
        self.stack.callback(machine.end)
        in_the_image = {"/etc/tailrace/rds-ca.pem": File(self.ca, 0o644)}
        machine.boot(in_the_image | rendered_files(kind, self.values), first_commands(kind))
        return machine, facts


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with ExitStack() as stack:
        s3 = stack.enter_context(moto_server())
        postgres = stack.enter_context(postgres_server())
        authentication = Path(postgres.command[2]) / "pg_hba.conf"
        authentication.write_text(
            "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        )
        postgres.execute("SELECT pg_reload_conf()")
        postgres.execute("CREATE ROLE tailrace LOGIN")
        postgres.execute("CREATE DATABASE tailrace OWNER tailrace")
        certificates = make_certificates(folder, "localhost")
        port = stack.enter_context(tls_before(postgres.port, certificates))
        secrets = botocore.session.get_session().create_client(
            "secretsmanager",
            region_name=REGION,
            endpoint_url=s3.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        login = secrets.create_secret(Name="login", SecretString="{}")["ARN"]
        rpc = secrets.create_secret(Name="rpc", SecretString="x" * 43)["ARN"]
        values = {
            "data.aws_region.current.region": REGION,
            "local.region": REGION,
            "var.store.url": s3.url(s3.create_bucket(), "records"),
            "var.database.address": "localhost",
            "var.database.port": str(port),
            "var.database.name": "tailrace",
            "var.database.secret_arn": login,
            "aws_secretsmanager_secret.rpc.arn": rpc,
            "var.rpc_secret.arn": rpc,
            'try(var.kafka_tls_secret.arn, "")': "",
            'try(aws_secretsmanager_secret.login["admin"].arn, "")': "",
            'try(aws_secretsmanager_secret.login["tokens"].arn, "")': "",
            "var.sequencer.address": f"{own_network()}.1:9645",
            "catalog.url": f"sqlite:///{folder}/catalog.db",
            "var.stop_seconds": "45",
            "var.drain_seconds": "120",
            "local.group_name": "test-agents",
            "local.drain_hook": "drain",
            "local.metric_namespace": "Tailrace/test",
            'join(",", var.traffic_counters)': "tailrace_produced_bytes_total,tailrace_fetched_bytes_total",
        }
        found = Site(folder, s3, postgres, secrets, login, values, certificates.ca.read_text(), stack)
        found.set_password(PASSWORDS[0])
        yield found


@pytest.fixture(scope="module")
def sequencers(site: Site) -> list[Machine]:
    machines = [site.boot("sequencer")[0] for _ in range(2)]
    for machine in machines:
        wait_until_ready(machine, "tailrace-sequencer.service")
    return machines


@pytest.fixture(scope="module")
def agents(site: Site, sequencers: list[Machine]) -> list[tuple[Machine, Facts]]:
    booted = [site.boot("agents") for _ in range(2)]
    for machine, _ in booted:
        wait_until_ready(machine, "tailrace-agent.service")
    return booted


def status(machine: Machine, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{machine.address}:9644{path}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def wait_for(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    give_up = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < give_up, what()
        time.sleep(0.1)


def wait_until_ready(machine: Machine, unit: str) -> None:
    wait_for(
        lambda: machine.running[unit].poll() is not None or status(machine, "/readyz") == 200,
        lambda: machine.log(unit),
    )
    assert machine.running[unit].poll() is None, machine.log(unit)


def test_the_settings_and_secrets_are_their_owners_alone(
    agents: list[tuple[Machine, Facts]], sequencers: list[Machine]
) -> None:
    for machine in (sequencers[0], agents[0][0]):
        folder = machine.folder / "etc/tailrace"
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir() if path.suffix != ".env"}
        assert modes.pop("tailrace.toml") == 0o640
        assert modes.pop("rds-ca.pem", 0o644) == 0o644
        assert set(modes.values()) == {0o600}
        assert PASSWORDS[0] not in (folder / "tailrace.toml").read_text()


def test_every_server_tells_systemd_that_it_serves_and_continues_to_say_that_it_lives(
    agents: list[tuple[Machine, Facts]], sequencers: list[Machine]
) -> None:
    told = [machine.told["tailrace-sequencer.service"] for machine in sequencers]
    told += [machine.told["tailrace-agent.service"] for machine, _ in agents]
    wait_for(lambda: all(each.count(b"READY=1") == 1 for each in told), lambda: str(told))
    before = [each.count(b"WATCHDOG=1") for each in told]
    wait_for(
        lambda: all(each.count(b"WATCHDOG=1") > count + 1 for each, count in zip(told, before, strict=True)),
        lambda: str(told),
    )


def test_records_go_through_what_is_shipped(agents: list[tuple[Machine, Facts]]) -> None:
    bootstrap = f"{agents[0][0].address}:9092"
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(100):
        producer.produce("shipped", b"%d" % number)
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["shipped"])
    seen: list[int] = []

    def is_all_read() -> bool:
        seen.extend(int(record.value()) for record in consumer.consume(100, 0.5))
        return len(seen) >= 100

    wait_for(is_all_read, lambda: str(seen))
    consumer.close()
    assert sorted(seen) == list(range(100))


def test_the_compactors_container_compacts_and_keeps_a_table(
    monkeypatch: pytest.MonkeyPatch, site: Site, agents: list[tuple[Machine, Facts]]
) -> None:
    bootstrap = {"bootstrap.servers": f"{agents[0][0].address}:9092"}
    topic = NewTopic("tabled", 1, config={"tailrace.table": "iceberg"})
    admin = AdminClient(bootstrap)
    admin.create_topics([topic])["tabled"].result(60)
    producer = Producer(bootstrap)
    for number in range(100):
        producer.produce("tabled", b"%d" % number)
    assert producer.flush(60) == 0
    command, environment = container(
        site.values, lambda arn: str(site.secrets.get_secret_value(SecretId=arn)["SecretString"])
    )
    machine = agents[0][0]  # for its `tailrace` on PATH
    everything = ["--min-bytes", "1", "--min-age-ms", "0"]
    done = subprocess.run(
        [str(machine.folder / "bin" / command[0]), *command[1:], *everything, "--json"],
        env={**environment, **site.s3.environ, "PATH": "/usr/bin:/bin", "HOME": str(site.folder)},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["failures"], figures["table_failures"]) == ([], [])
    for name, value in site.s3.environ.items():
        monkeypatch.setenv(name, value)
    found = open_catalog(environment["TAILRACE_TABLES__CATALOG"], environment["TAILRACE_STORE"])
    assert found.load_table("tailrace.tabled").scan().to_arrow().num_rows == 100


def test_traffic_is_reported_to_cloudwatch(agents: list[tuple[Machine, Facts]]) -> None:
    machine = agents[0][0]
    machine.run("tailrace-traffic.service")
    machine.run("tailrace-traffic.service")
    (told,) = [call for call in machine.calls if "put-metric-data" in call]
    assert "--namespace Tailrace/test --metric-name TrafficMiBPerSecond" in told
    assert "--dimensions AutoScalingGroupName=test-agents --value " in told


def test_a_rotated_password_is_followed_without_a_restart(site: Site, sequencers: list[Machine]) -> None:
    site.set_password(PASSWORDS[1])
    for machine in sequencers:
        machine.run("tailrace-refresh.service")
    site.postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'tailrace'")

    def is_connected_again() -> bool:
        return all(status(machine, "/readyz") == 200 for machine in sequencers)

    wait_for(is_connected_again, lambda: sequencers[0].log("tailrace-sequencer.service"))
    for machine in sequencers:
        assert machine.running["tailrace-sequencer.service"].poll() is None


def test_while_the_database_is_away_no_process_ends_and_only_readiness_is_lost(
    site: Site, sequencers: list[Machine], agents: list[tuple[Machine, Facts]]
) -> None:
    machines = [*sequencers, *(machine for machine, _ in agents)]
    site.postgres.execute("ALTER ROLE tailrace NOLOGIN")
    site.postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'tailrace'")
    try:
        wait_for(
            lambda: [status(machine, "/readyz") for machine in machines] == [503] * 4,
            lambda: str([status(machine, "/readyz") for machine in machines]),
        )
        assert [status(machine, "/healthz") for machine in machines] == [200] * 4
    finally:
        site.postgres.execute("ALTER ROLE tailrace LOGIN")
    wait_for(
        lambda: [status(machine, "/readyz") for machine in machines] == [200] * 4,
        lambda: "\n".join(machine.log(unit) for machine in machines for unit in machine.running),
    )
    assert [process.poll() for machine in machines for process in machine.running.values()] == [None] * 6


def test_a_process_that_answers_is_left_alone_and_one_that_hangs_is_restarted(
    sequencers: list[Machine],
) -> None:
    machine = sequencers[1]
    machine.run("tailrace-alive.service")
    assert not any("systemctl" in call for call in machine.calls)
    server = machine.running["tailrace-sequencer.service"]
    server.send_signal(signal.SIGSTOP)
    try:
        machine.run("tailrace-alive.service")
    finally:
        server.send_signal(signal.SIGCONT)
    assert machine.calls[-1] == "systemctl try-restart tailrace-sequencer.service"
    wait_until_ready(machine, "tailrace-sequencer.service")


def test_an_agent_drains_before_autoscaling_is_told_to_continue(agents: list[tuple[Machine, Facts]]) -> None:
    machine, facts = agents[0]
    facts.values["autoscaling/target-lifecycle-state"] = "Terminated"
    agent = machine.running["tailrace-agent.service"]
    wait_for(
        lambda: any("complete" in call for call in machine.calls),
        lambda: machine.log("tailrace-drain.service"),
    )
    assert agent.poll() == 0
    assert "drained" in machine.log("tailrace-agent.service")
    stop, complete = (call for call in machine.calls if "lifecycle" in call or "systemctl" in call)
    assert stop == "systemctl stop tailrace-agent.service"
    assert complete == (
        "aws autoscaling complete-lifecycle-action --region eu-central-1 --auto-scaling-group-name test-agents "
        f"--lifecycle-hook-name drain --instance-id {facts.values['instance-id']} --lifecycle-action-result CONTINUE"
    )


def test_an_agent_drains_when_ec2_takes_its_spot_instance_back(agents: list[tuple[Machine, Facts]]) -> None:
    machine, facts = agents[1]
    facts.values["spot/instance-action"] = '{"action": "terminate", "time": "2030-01-01T00:00:00Z"}'
    agent = machine.running["tailrace-agent.service"]
    wait_for(lambda: agent.poll() is not None, lambda: machine.log("tailrace-drain.service"))
    assert agent.poll() == 0
    assert "drained" in machine.log("tailrace-agent.service")
    assert not any("complete" in call for call in machine.calls)
