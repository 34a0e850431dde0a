"""Real processes: mutual TLS and a secret between them, both exchanged while they serve; no secret is seen anywhere."""

from __future__ import annotations

import json
import os
import ssl
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace_cli.demo.ports import free_port
from tests.support.certificates import Authority
from tests.support.patience import PATIENCE_SECONDS
from tests.support.servers import folder_for_postgres, postgres_server

COMMAND = [sys.executable, "-m", "tailrace_cli.app"]
PASSWORD = "hush-of-the-database"


def environment(**more: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("TAILRACE_", "PG"))}
    return {**plain, **more}


class Processes:
    """Started by a test; ended with it. `said` is all that they wrote."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str, **environ: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"log-{len(self.running)}").open("wb") as log:
            process = subprocess.Popen(
                [*COMMAND, *arguments], stdout=log, stderr=log, env=environment(**environ)
            )
        self.running.append(process)
        return process

    @property
    def said(self) -> str:
        return "".join(path.read_text() for path in sorted(self._folder.glob("log-*")))

    def end(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path)
    try:
        yield started
    finally:
        started.end()


def until(holds: Callable[[], bool], processes: Processes, seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if holds():
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError(processes.said)


def get(url: str, context: ssl.SSLContext | None = None) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS, context=context) as answer:
        return str(answer.read().decode())


def private(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(text)
    return path


def test_a_cluster_behind_mutual_tls_and_a_secret_serves_and_exchanges_both(
    processes: Processes, tmp_path: Path
) -> None:
    authority = Authority.make()
    files = authority.files(tmp_path / "tls", "tailrace.example", "127.0.0.1")
    assert files.authorities is not None
    secret = private(tmp_path / "rpc.secret", "the first one of the two secrets\n")
    kafka, rpc, agent_http, sequencer_http = (f"127.0.0.1:{free_port()}" for _ in range(4))
    config = tmp_path / "tailrace.toml"
    config.write_text(
        f"""
        store = "{tmp_path / "objects"}"
        rpc_secret_file = "{secret}"
        [tls]
        rpc_cert_file = "{files.certificate}"
        rpc_key_file = "{files.key}"
        rpc_ca_file = "{files.authorities}"
        rpc_name = "tailrace.example"
        http_cert_file = "{files.certificate}"
        http_key_file = "{files.key}"
        """
    )
    trusting = ssl.create_default_context(cafile=str(files.authorities))

    database = f"sqlite:///{tmp_path / 'rows.db'}"
    processes.start(
        "sequencer", "--config", str(config), "--database", database, "--rpc", rpc, "--http", sequencer_http
    )
    processes.start(
        *("agent", "--config", str(config), "--sequencer", rpc, "--listen", kafka, "--http", agent_http),
        *("--rpc", f"127.0.0.1:{free_port()}"),
    )
    until(lambda: json.loads(get(f"https://{agent_http}/readyz", trusting))["ready"] is True, processes)

    with pytest.raises(OSError):
        get(f"http://{agent_http}/healthz")
    metrics = get(f"https://{sequencer_http}/metrics", trusting)
    assert 'tailrace_tls_certificate_expiry_timestamp_seconds{purpose="rpc"} 3.7' in metrics
    create = [*COMMAND, "topic", "create", "flights", "--bootstrap", kafka]
    subprocess.run(create, check=True, capture_output=True, timeout=PATIENCE_SECONDS, env=environment())

    # A process that knows the secret alone, or has a certificate of another authority alone, is refused.
    other = Authority.make("stranger").files(
        tmp_path / "stranger", "tailrace.example", authorities=authority.certificate
    )
    for strange in (
        {},
        {
            "TAILRACE_TLS__RPC_CERT_FILE": str(other.certificate),
            "TAILRACE_TLS__RPC_KEY_FILE": str(other.key),
            "TAILRACE_TLS__RPC_CA_FILE": str(other.authorities),
            "TAILRACE_TLS__RPC_NAME": "tailrace.example",
        },
    ):
        refused = subprocess.run(
            [*COMMAND, "agent", "--store", str(tmp_path / "objects"), "--sequencer", rpc, "--listen",
             f"127.0.0.1:{free_port()}", "--http", f"127.0.0.1:{free_port()}"],
            env=environment(TAILRACE_RPC_SECRET_FILE=str(secret), **strange), capture_output=True,
            timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        assert refused.returncode == 1, refused.stderr.decode()

    # Certificates, authority and secret are exchanged; both processes go on.
    next_one = Authority.make("next")
    next_one.files(tmp_path / "tls", "tailrace.example", "127.0.0.1", authorities=next_one.certificate)
    secret.write_text("the other one of the two secrets\n")
    trusting_next = ssl.create_default_context(cafile=str(files.authorities))
    until(lambda: bool(get(f"https://{sequencer_http}/healthz", trusting_next)), processes)
    until(lambda: bool(get(f"https://{agent_http}/healthz", trusting_next)), processes)
    create = [*COMMAND, "topic", "create", "weather", "--bootstrap", kafka]
    subprocess.run(create, check=True, capture_output=True, timeout=PATIENCE_SECONDS, env=environment())
    assert all(process.poll() is None for process in processes.running), processes.said
    assert "of the two secrets" not in processes.said


def test_serve_keeps_its_folder_to_itself(processes: Processes, tmp_path: Path) -> None:
    data = tmp_path / "data"
    kafka, http = (f"127.0.0.1:{free_port()}" for _ in range(2))
    processes.start("serve", "--data", str(data), "--listen", kafka, "--http", http)
    until(lambda: json.loads(get(f"http://{http}/readyz"))["ready"] is True, processes)
    create = [*COMMAND, "topic", "create", "flights", "--bootstrap", kafka]
    subprocess.run(create, check=True, capture_output=True, timeout=PATIENCE_SECONDS, env=environment())

    assert {path.name for path in data.iterdir()} >= {"tailrace.db", "objects", "rpc.secret"}
    for path in (data, *data.rglob("*")):
        try:
            mode = stat.S_IMODE(path.lstat().st_mode)
        except FileNotFoundError:
            continue  # an unfinished object that got its name meanwhile
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path}: {mode:o}"
    assert (data / "rpc.secret").read_text().strip() not in processes.said


def test_the_databases_password_is_exchanged_and_is_seen_nowhere(
    processes: Processes, tmp_path: Path
) -> None:
    with tempfile.TemporaryDirectory(dir=folder_for_postgres()) as open_to_nobody:
        Path(open_to_nobody).chmod(0o755)
        hba = Path(open_to_nobody) / "hba"
        hba.write_text("host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
        hba.chmod(0o644)
        with postgres_server(settings={"hba_file": str(hba)}) as server:
            server.execute(f"create role tail login password '{PASSWORD}-1'")
            server.execute("create database rows owner tail")
            url = f"postgresql://tail@127.0.0.1:{server.port}/rows"
            file = private(tmp_path / "password", f"{PASSWORD}-1\n")
            rpc, http = (f"127.0.0.1:{free_port()}" for _ in range(2))
            shown = ["--rpc", rpc, "--http", http, "--log-level", "debug"]
            process = processes.start(
                "sequencer", "--database", url, "--database-password-file", str(file), *shown
            )
            until(lambda: json.loads(get(f"http://{http}/readyz"))["ready"] is True, processes)

            server.execute(f"alter role tail password '{PASSWORD}-2'")
            server.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'tail'")
            file.write_text(f"{PASSWORD}-2\n")
            until(lambda: "tailrace_sequencer_is_committer 1.0" in get(f"http://{http}/metrics"), processes)
            assert process.poll() is None, processes.said

            # A wrong one, and one in the environment.
            for environ in (
                {"TAILRACE_DATABASE": f"postgresql://tail:{PASSWORD}-3@127.0.0.1:{server.port}/rows"},
                {"TAILRACE_DATABASE": url, "PGPASSWORD": f"{PASSWORD}-4"},
                {"TAILRACE_DATABASE": f"postgresql://tail:{PASSWORD}-5"},
                {"TAILRACE_DATABASE": f"postgresql://tail:x@{PASSWORD}@127.0.0.1:{server.port}/rows"},
            ):
                failed = subprocess.run(
                    [*COMMAND, "sequencer", "--rpc", f"127.0.0.1:{free_port()}", "--http",
                     f"127.0.0.1:{free_port()}", "--log-level", "debug"],
                    env=environment(**environ), capture_output=True, timeout=PATIENCE_SECONDS, text=True,
                )  # fmt: skip
                assert failed.returncode in (1, 2), failed.stderr
                assert PASSWORD not in failed.stderr + failed.stdout
                assert "Traceback" not in failed.stderr
            assert PASSWORD not in processes.said
            assert PASSWORD not in Path(f"/proc/{process.pid}/cmdline").read_text()
            assert PASSWORD not in get(f"http://{http}/metrics")
            processes.end()
            assert PASSWORD not in processes.said
