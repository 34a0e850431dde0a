"""What runs on the instances: settings, units, and the size of user data.

The scripts run here for real, against stand-ins for curl, aws and chown on PATH; test_as_shipped.py runs all of it.
"""

from __future__ import annotations

import base64
import configparser
import gzip
import importlib.util
import os
import re
import ssl
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from agent.settings import AgentSettings
from sequencer.settings import ServerSettings
from tailrace.settings import load_settings
from tailrace_cli.running.checks import agent_mistakes
from tailrace_cli.running.first_user import read_first_user
from tailrace_cli.running.shutdown import LAST_RESORT_SECONDS
from tailrace_cli.settings import Settings
from tests.support.tls_postgres import make_certificates

MODULES = Path(__file__).parents[2] / "terraform" / "modules"
SCRIPTS = sorted(MODULES.glob("*/files/*.sh"))
UNITS = sorted(path for path in MODULES.glob("*/files/*") if ".service" in path.name or ".timer" in path.name)

CURL = """#!/bin/bash
case "${@: -1}" in
  */api/token) echo token ;;
  */local-ipv4) echo 10.40.1.7 ;;
  */local-hostname) echo ip-10-40-1-7.eu-central-1.compute.internal ;;
  */availability-zone-id) echo euc1-az2 ;;
  *) exit 22 ;;
esac
"""
AWS = """#!/bin/bash
case "$*" in
  *arn:login*) echo '{"username": "tailrace", "password": "a/b@c:d?e%f\\"g"}' ;;
  *arn:rpc*) echo 0123456789abcdef ;;
  *arn:tls*) cat "$TLS_PEM" ;;
  *arn:tokens*) echo tokens-0123456789 ;;
  *arn:admin*) echo flights2013 ;;
  *) exit 1 ;;
esac
"""


def stand_ins(directory: Path) -> dict[str, str]:
    """An environment whose PATH finds these scripts first."""
    for name, text in {"curl": CURL, "aws": AWS, "chown": "#!/bin/bash\n"}.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    return {
        "PATH": f"{directory}:{os.environ['PATH']}",
        "TAILRACE_CONFIG": str(directory / "etc" / "tailrace.toml"),
        "AWS_REGION": "eu-central-1",
        "STORE_URL": "s3://records/tailrace",
        "RPC_SECRET": "arn:rpc",
    }


def run(script: str, environment: dict[str, str]) -> str:
    command = ["bash", str(MODULES / script)]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, timeout=20
    ).stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parts[-3]}-{path.name}")
def test_a_script_is_read_by_bash(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=20)


def test_an_agent_is_configured_with_its_address_zone_and_sequencer(tmp_path: Path) -> None:
    environment = stand_ins(tmp_path) | {"SEQUENCER_ADDRESS": "seq.internal:9645"}
    run("agents/files/write_config.sh", environment)
    settings = tomllib.loads(Path(environment["TAILRACE_CONFIG"]).read_text())
    assert settings["store"] == "s3://records/tailrace"
    assert "database" not in settings
    assert settings["listen"] == "0.0.0.0:9092"
    assert settings["advertise"] == "10.40.1.7:9092"
    assert settings["http"] == "0.0.0.0:9644"
    assert settings["rpc_advertise"] == "10.40.1.7:9646"
    assert settings["zone"] == "euc1-az2"
    assert settings["sequencers"] == ["seq.internal:9645"]
    load_settings(Settings, environ={}, file=Path(environment["TAILRACE_CONFIG"]))


def test_the_clients_of_an_agent_log_in_where_it_has_a_certificate(tmp_path: Path) -> None:
    made = make_certificates(tmp_path, "*.eu-central-1.compute.internal")
    pem = tmp_path / "listener.pem"
    pem.write_bytes(made.key.read_bytes() + made.certificate.read_bytes())
    environment = stand_ins(tmp_path) | {
        "SEQUENCER_ADDRESS": "seq.internal:9645",
        "KAFKA_TLS_SECRET": "arn:tls",
        "TLS_PEM": str(pem),
        "TOKENS_SECRET": "arn:tokens",
        "ADMIN_SECRET": "arn:admin",
    }
    run("agents/files/write_config.sh", environment)
    config = Path(environment["TAILRACE_CONFIG"])
    assert "listen" not in tomllib.loads(config.read_text())
    settings = load_settings(Settings, environ={}, file=config)
    assert agent_mistakes(settings) == []
    assert settings.listeners == ("SASL_SSL://0.0.0.0:9092",)
    name = "ip-10-40-1-7.eu-central-1.compute.internal"
    assert settings.advertised_listeners == (f"SASL_SSL://{name}:9092",)
    assert settings.security.super_users == ("User:admin",)
    assert settings.security.first_user_file is not None
    assert read_first_user(settings.security.first_user_file) == ("admin", "flights2013")
    assert settings.security.delegation_token_secret_file is not None
    assert settings.security.delegation_token_secret_file.read_text() == "tokens-0123456789\n"
    assert settings.tls.kafka_cert_file == settings.tls.kafka_key_file
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(str(settings.tls.kafka_cert_file))
    secret = [path for path in config.parent.iterdir() if path != config]
    assert {path.stat().st_mode & 0o777 for path in secret} == {0o600}


def test_traffic_is_measured_with_a_login_where_there_is_one(tmp_path: Path) -> None:
    traffic = _traffic()
    assert traffic.login(None) == {}
    (tmp_path / "admin.user").write_text("\n")
    assert traffic.login(str(tmp_path)) == {}
    (tmp_path / "admin.user").write_text("admin:flights2013\n")
    assert traffic.login(str(tmp_path)) == {"Authorization": "Basic YWRtaW46ZmxpZ2h0czIwMTM="}


def test_a_sequencers_password_and_secret_are_files_of_their_own(tmp_path: Path) -> None:
    environment = stand_ins(tmp_path) | {
        "DATABASE_HOST": "db.internal",
        "DATABASE_PORT": "5432",
        "DATABASE_NAME": "tailrace",
        "DATABASE_SECRET": "arn:login",
    }
    run("sequencer/files/write_config.sh", environment)
    config = Path(environment["TAILRACE_CONFIG"])
    settings = load_settings(Settings, environ={}, file=config)
    assert settings.database == (
        "postgresql://tailrace@db.internal:5432/tailrace?sslmode=verify-full&sslrootcert=/etc/tailrace/rds-ca.pem"
    )
    assert settings.rpc_advertise == "10.40.1.7:9645"
    files = {
        settings.database_password_file: 'a/b@c:d?e%f"g\n',
        settings.rpc_secret_file: "0123456789abcdef\n",
    }
    for file, text in files.items():
        assert file is not None
        assert (file.read_text(), file.stat().st_mode & 0o777) == (text, 0o600)
    assert config.stat().st_mode & 0o007 == 0
    before = config.read_bytes()
    run("sequencer/files/write_config.sh", environment)
    assert config.read_bytes() == before


def test_a_process_is_killed_no_earlier_than_it_ends_by_itself() -> None:
    drains = {"agents": AgentSettings().drain_ms / 1000, "sequencer": ServerSettings().drain_s}
    for module, name in (("agents", "drain_seconds"), ("sequencer", "stop_seconds")):
        text = (MODULES / module / "variables.tf").read_text()
        (least,) = re.findall(rf"var\.{name} >= (\d+)", text)
        assert int(least) > drains[module] + LAST_RESORT_SECONDS


def test_the_units_stop_processes_by_sigterm_and_start_them_with_their_settings() -> None:
    unit = (MODULES / "agents/files/tailrace-agent.service.tftpl").read_text()
    assert "TimeoutStopSec=${drain_seconds}\n" in unit
    assert "KillSignal=SIGTERM\n" in unit
    assert "ExecStart=/usr/local/bin/tailrace agent --config /etc/tailrace/tailrace.toml\n" in unit
    server = (MODULES / "sequencer/files/tailrace-sequencer.service.tftpl").read_text()
    assert "TimeoutStopSec=${stop_seconds}\n" in server
    assert "ExecStart=/usr/local/bin/tailrace sequencer --config /etc/tailrace/tailrace.toml\n" in server


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_only_what_user_data_writes(unit: Path) -> None:
    parsed = configparser.RawConfigParser(strict=False)
    parsed.read_string(unit.read_text())
    assert parsed.has_option("Unit", "Description")
    written = (unit.parents[1] / "main.tf").read_text()
    assert f'"/etc/systemd/system/{unit.name.removesuffix(".tftpl")}" = {{' in written
    for path in re.findall(r"^Exec\w+=\+?(/usr/local/lib/\S+)", unit.read_text(), flags=re.M):
        assert f'"{path}" = {{' in written


@pytest.mark.parametrize("module", ["agents", "sequencer"])
def test_user_data_fits_into_what_ec2_takes(module: str) -> None:
    files = [file for part in (module, "service") for file in sorted((MODULES / part / "files").iterdir())]
    inner = b"".join(base64.b64encode(path.read_bytes()) + b"x" * 100 for path in files if path.is_file())
    assert len(gzip.compress(inner)) + 2048 < 16 * 1024


def _traffic() -> ModuleType:
    path = MODULES / "agents/files/publish_traffic.py"
    spec = importlib.util.spec_from_file_location("publish_traffic", path)
    assert spec is not None and spec.loader is not None
    traffic = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(traffic)
    return traffic


def test_traffic_is_the_growth_of_the_counters() -> None:
    traffic = _traffic()
    metrics = (
        '# HELP a_total x\na_total{topic="x y"} 3\na_total{topic="z"} 4 1700000000\nb_total 5\nab_total 9\n'
    )
    assert traffic.total(metrics, {"a_total", "b_total"}) == 12
    before = {"bytes": 0.0, "seconds": 10.0}
    assert traffic.rate(before, {"bytes": 60 * 2.0**20, "seconds": 70.0}) == 1.0
    assert traffic.rate({"bytes": 9.0, "seconds": 10.0}, {"bytes": 1.0, "seconds": 70.0}) is None
