"""The broker that the clients meet: `tailrace serve` as a process of its own, on a free loopback port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tailrace_cli.demo.ports import free_port
from tests.support.patience import PATIENCE_SECONDS

START_SECONDS = PATIENCE_SECONDS
STOP_SECONDS = 20
ADMIN = "admin:flights-2013"
"""User and password, where a broker has logins."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker. `log` is what it wrote; `name` makes names that no other check uses; `http` is the port of its
    metrics and health; `login_port` of its listener with logins, `gateway` of topics over HTTP, 0 if it has none;
    `tenants` of the listeners of tenants, by their names."""

    port: int
    http: int
    process: subprocess.Popen[bytes]
    log: Path
    login_port: int = 0
    gateway: int = 0
    tenants: Mapping[str, int] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def name(self, what: str) -> str:
        return f"{what}-{next(self._numbers)}"

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None


@contextmanager
def running_broker(
    database: str | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    with_logins: bool = False,
    with_gateway: bool = False,
    tenants: Sequence[str] = (),
) -> Iterator[Broker]:
    """Start a broker on a fresh folder, and end it on the way out. `settings`: `TAILRACE_*` of its environment.
    `with_logins`: beside the plain listener, whose clients may do everything, it has one for SASL (PLAIN,
    SCRAM-SHA-256), ADMIN, and delegation tokens. `tenants`, where there are logins: names of tenants, each with a plain
    listener of its own."""
    with tempfile.TemporaryDirectory(prefix="tailrace-compat-") as folder:
        log = Path(folder) / "log"
        port, http = free_port(), free_port()
        login_port = free_port() if with_logins else 0
        doors = {tenant: free_port() for tenant in tenants}
        logins = _login_settings(Path(folder), port, login_port, doors) if with_logins else {}
        gateway = free_port() if with_gateway else 0
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tailrace_cli.app",
                    "serve",
                    "--data",
                    str(Path(folder) / "data"),
                    "--listen",
                    f"127.0.0.1:{port}",
                    "--http",
                    f"127.0.0.1:{http}",
                    *(() if database is None else ("--database", database)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    "TAILRACE_AGENT__GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "200",
                    "TAILRACE_AGENT__GROUP_SHARE_AUTO_OFFSET_RESET": "earliest",
                    **{key: value for key, value in os.environ.items() if not key.startswith("TAILRACE_")},
                    **logins,
                    **({"TAILRACE_GATEWAY__LISTEN": f"127.0.0.1:{gateway}"} if gateway else {}),
                    **(settings or {}),
                },
            )
        try:
            _wait_until_it_listens(process, port, log)
            yield Broker(port, http, process, log, login_port, gateway, doors)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _login_settings(folder: Path, port: int, login_port: int, doors: Mapping[str, int]) -> dict[str, str]:
    first_user = folder / "admin"
    first_user.touch(mode=0o600)
    first_user.write_text(ADMIN)
    secret = folder / "tokens"
    secret.touch(mode=0o600)
    secret.write_text("a secret of the cluster")
    listeners = [f"PLAINTEXT://127.0.0.1:{port}", f"SASL_PLAINTEXT://127.0.0.1:{login_port}"]
    listeners += [f"{tenant.upper()}:PLAINTEXT://127.0.0.1:{door}" for tenant, door in doors.items()]
    super_users = ["User:ANONYMOUS", "User:admin", *(f"User:{tenant}~ANONYMOUS" for tenant in doors)]
    return {
        "TAILRACE_LISTENERS": ",".join(listeners),
        "TAILRACE_SECURITY__TENANT_LISTENERS": ";".join(f"{tenant.upper()}={tenant}" for tenant in doors),
        "TAILRACE_SECURITY__SASL_MECHANISMS": "PLAIN;SCRAM-SHA-256",
        "TAILRACE_SECURITY__SUPER_USERS": ";".join(super_users),
        "TAILRACE_SECURITY__FIRST_USER_FILE": str(first_user),
        "TAILRACE_SECURITY__DELEGATION_TOKEN_SECRET_FILE": str(secret),
        "TAILRACE_SECURITY__MAX_FAILED_LOGINS_PER_MINUTE": "0",
    }


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"the broker did not come up:\n{log.read_text(errors='replace')[-3000:]}")
