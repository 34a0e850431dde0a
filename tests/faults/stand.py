"""A cluster whose parts (processes, database, store, disk, clocks) can be made to fail, and repaired."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import pwd
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import asyncpg

from tailrace.object_store.s3_location import S3Credentials
from tests.faults.shifted_process import write_shift
from tests.faults.store_proxy import StoreProxy, store_proxy
from tests.support.cluster import RPC_SECRET, Cluster, Part
from tests.support.servers import S3Server, end_process, end_with_parent, moto_server, postgres_server

ROOT = Path(__file__).parents[2]
ZONES = ("az-a", "az-a")
DISK_MIB = 64
WATCHDOG_SECONDS = 3.0
StoreKind = Literal["folder", "s3", "small-disk"]


_END = "pg_terminate_backend(pid)"
_NO_S3 = S3Server("", S3Credentials("unused", "unused"), 0)


class StandFailed(Exception):
    """A fault could not be injected, or its repair did not help."""


@dataclass
class Stand(Cluster):
    """A cluster with a method for each fault."""

    kind: StoreKind = "s3"
    proxy: StoreProxy | None = None
    folder: Path | None = None
    """The objects' folder, if they are not on S3."""
    postgres_pid: int = 0
    mended: list[subprocess.Popen[bytes]] = field(default_factory=list)
    notified: dict[str, socket.socket] = field(default_factory=dict)
    """The socket on which each process notifies its service manager that it is alive."""

    @property
    def store_url(self) -> str:
        return super().store_url if self.folder is None else f"file://{self.folder}"

    # -- processes

    def restart(self, part: Part) -> None:
        """Restart a killed process at its address, without waiting."""
        if part.is_running:
            raise StandFailed(f"{part.name} runs")
        with open(part.log, "ab") as output:
            part.process = subprocess.Popen(
                part.process.args,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environ(part.name),
                preexec_fn=end_with_parent(signal.SIGKILL, os.getpid()),
            )

    def pause(self, part: Part) -> None:
        part.process.send_signal(signal.SIGSTOP)

    def be_watchdog(self, part: Part) -> None:
        """Act like systemd with WatchdogSec=3 in the unit: kill the process once it has been silent for this long."""
        channel, silent_since = self.notified[part.name], time.monotonic()
        channel.settimeout(0.05)
        while time.monotonic() < silent_since + WATCHDOG_SECONDS:
            with suppress(TimeoutError):
                while channel.recv(100):
                    silent_since = time.monotonic()
        self.kill(part)

    def resume(self, part: Part) -> None:
        part.process.send_signal(signal.SIGCONT)

    # -- clocks

    def shift_clock(self, part: Part, milliseconds: int) -> None:
        write_shift(self._shift_file(part.name), milliseconds)

    # -- the database

    def kill_database(self) -> None:
        """Send SIGKILL to the postmaster and all its children, as the loss of the machine would."""
        pids = [self.postgres_pid, *_children(self.postgres_pid)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(
                self.postgres_pid, 0
            )  # PostgreSQL won't start while its predecessor's id belongs to a zombie
        deadline = time.monotonic() + 10
        while any(_is_alive(pid) for pid in pids):
            if time.monotonic() > deadline:
                raise StandFailed("PostgreSQL's processes did not end by SIGKILL")
            time.sleep(0.02)

    def restart_database(self) -> float:
        """Restart PostgreSQL on its data; once it accepts connections, return the seconds that it took."""
        postgres, began = self.postgres, time.monotonic()
        with open(postgres.log, "ab") as output:
            process = subprocess.Popen(
                postgres.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=postgres.log.parent,
                user=postgres.user,
                group=None if postgres.user is None else pwd.getpwnam(postgres.user).pw_gid,
                extra_groups=None if postgres.user is None else [],
                preexec_fn=end_with_parent(signal.SIGINT, os.getpid()),
            )
        self.mended.append(process)
        self.postgres_pid = process.pid
        while True:
            try:
                postgres.execute("SELECT 1")
                return time.monotonic() - began
            except Exception as error:
                if process.poll() is not None or time.monotonic() - began > 30:
                    said = postgres.log.read_text(errors="replace")[-2000:]
                    raise StandFailed(f"PostgreSQL did not come back: {said}") from error
                time.sleep(0.05)

    def freeze_database(self) -> None:
        """Stop the postmaster and all its children, as the pause of its virtual machine would."""
        for pid in (self.postgres_pid, *_children(self.postgres_pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def thaw_database(self) -> None:
        for pid in (*_children(self.postgres_pid), self.postgres_pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def cut_database_connections(self) -> None:
        """End every connection to the cluster's database, as `pg_terminate_backend` or a fail-over of a proxy does."""
        self.postgres.execute(f"SELECT {_END} FROM pg_stat_activity WHERE {self._theirs}")

    def set_database(self, setting: str, value: str) -> None:
        """Change a setting of the running PostgreSQL."""
        self.postgres.execute(f"ALTER SYSTEM SET {setting} = {value}")
        self.postgres.execute("SELECT pg_reload_conf()")

    @contextmanager
    def all_connections_taken(self) -> Iterator[None]:
        """Take every connection that PostgreSQL accepts, including the cluster's."""

        async def take() -> list[asyncpg.Connection]:
            taken: list[asyncpg.Connection] = [await self._connect()]
            while True:
                try:
                    taken.append(await self._connect())
                except asyncpg.TooManyConnectionsError:
                    if not await taken[0].fetchval(
                        f"SELECT count({_END}) FROM pg_stat_activity WHERE {self._theirs}"
                    ):
                        return taken

        async def give_back(taken: list[asyncpg.Connection]) -> None:
            for connection in taken:
                connection.terminate()

        with asyncio.Runner() as runner:
            taken = runner.run(take())
            yield
            runner.run(give_back(taken))

    @contextmanager
    def tables_locked(self) -> Iterator[None]:
        """Lock every table, as a migration by hand does, without waiting for each in turn."""

        async def lock() -> asyncpg.Connection:
            connection = await self._connect()
            tables = await connection.fetch(
                "SELECT quote_ident(tablename) AS name FROM pg_tables WHERE schemaname = 'public'"
            )
            await connection.execute("BEGIN")
            await connection.execute(f"LOCK TABLE {', '.join(table['name'] for table in tables)}")
            return connection

        with asyncio.Runner() as runner:
            connection = runner.run(lock())
            yield
            runner.run(connection.close())

    async def _connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(
            host="127.0.0.1", port=self.postgres.port, user="postgres", database=self.database_name
        )

    @property
    def _theirs(self) -> str:
        """Which rows of `pg_stat_activity` are the cluster's."""
        return f"datname = '{self.database_name}' AND application_name LIKE 'tailrace%'"

    @property
    def database_name(self) -> str:
        return self.database.rpartition("/")[2]

    def end_database(self) -> None:
        """End the servers that were started here. The first belongs to whoever started it."""
        for process in self.mended:
            end_process(process, signal.SIGINT)
        for channel in self.notified.values():
            channel.close()

    # -- below: details

    def _shift_file(self, name: str) -> Path:
        return self.logs / f"{name}.clock"

    def _environ(self, name: str) -> dict[str, str]:
        notify = self.logs / f"{name}.notify"
        if name not in self.notified:
            self.notified[name] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.notified[name].bind(str(notify))
        return {
            "NOTIFY_SOCKET": str(notify),
            "WATCHDOG_USEC": str(round(WATCHDOG_SECONDS * 1_000_000)),
            **os.environ,
            **self.s3.environ,
            "TAILRACE_LOG_FORMAT": "json",
            "PYTHONPATH": str(ROOT),
            "TAILRACE_RPC_SECRET": RPC_SECRET,
            **self.environ,
        }

    def _start(self, name: str, address: str, http: str, arguments: Sequence[str], zone: str = "") -> Part:
        log, shift = self.logs / f"{name}.log", self._shift_file(name)
        write_shift(shift, 0)
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.shifted_process", str(shift), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environ(name),
                preexec_fn=end_with_parent(signal.SIGKILL, os.getpid()),
            )
        return Part(name, address, http, log, process, zone)


@contextmanager
def running_stand(
    kind: StoreKind = "s3", *, zones: Sequence[str] = ZONES, environ: Mapping[str, str] | None = None
) -> Iterator[Stand]:
    """Run a ready cluster: two agents, two sequencers, PostgreSQL with durable commits, a store.

    Args:
        kind: where objects are: in a folder, in moto behind the proxy, or on a disk of 64 MiB (needs root).
        environ: `TAILRACE_*` settings; all others are at their defaults.
    """
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-faults-")))
        proxy, folder, s3, bucket = None, None, _NO_S3, ""
        if kind == "s3":
            moto = stack.enter_context(moto_server())
            bucket = moto.create_bucket()
            proxy = stack.enter_context(
                store_proxy(int(moto.endpoint.rpartition(":")[2]), home / "proxy.log")
            )
            s3 = dataclasses.replace(moto, endpoint=proxy.endpoint)
        elif kind == "small-disk":
            folder = stack.enter_context(small_disk(home / "disk"))
        else:
            folder = home / "objects"
        # Written data survives a killed process without fsync; data in its own buffers does not.
        postgres = stack.enter_context(postgres_server(fsync=True, settings={"fsync": "off"}))
        stand = Stand(
            s3,
            bucket,
            postgres,
            postgres.create_database(),
            home,
            dict(environ or {}),
            kind=kind,
            proxy=proxy,
            folder=folder,
            postgres_pid=postgres.pid,
        )
        stack.callback(stand.end_database)
        stack.callback(stand.end)
        try:
            stand.wait_until_ready([stand.launch_sequencer() for _ in range(2)])
            stand.wait_until_ready([stand.launch_agent(zone) for zone in zones])
            yield stand
        except BaseException:
            print(stand.report(), file=sys.stderr)
            raise


def can_mount() -> bool:
    """Return whether a small disk can be mounted on this machine."""
    with tempfile.TemporaryDirectory(prefix="tailrace-mount-") as folder:
        try:
            with small_disk(Path(folder) / "disk"):
                return True
        except StandFailed:
            return False


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system of 64 MiB; root only."""
    folder.mkdir()
    asked = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=0777", "tailrace-faults", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode:
        raise StandFailed(f"no small disk can be mounted: {asked.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *_children(int(child))]
    return found


def _is_alive(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
