"""What a process may open to others: RPC off this machine only with a secret, no password in a command line."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path

import structlog

from tailrace.cli.data_folder import SECRET
from tailrace.cli.failures import CommandFailed
from tailrace.cli.settings import Settings
from tailrace.credentials import MIN_SECRET_CHARACTERS, BadCredential, read_secrets
from tailrace.rpc.link import split_address

log = structlog.get_logger("tailrace.security")

_ADVICE = (
    "make a secret (umask 077; openssl rand -base64 32 > rpc.secret) and give the same one to every process of the "
    "cluster by rpc_secret_file (TAILRACE_RPC_SECRET_FILE)"
)


def is_loopback(address: str) -> bool:
    """Whether only this machine can be behind HOST:PORT. Names are not looked up; of them, `localhost` alone is."""
    host, _ = split_address(address)
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback


def check_rpc_is_closed(*, listen: str | None, sequencers: Sequence[str], has_secret: bool) -> None:
    """Refuse RPC that other machines can reach, or that goes to them, without a secret. Raises CommandFailed."""
    if has_secret:
        return
    if listen is not None and not is_loopback(listen):
        raise CommandFailed(
            f"rpc {listen!r} can be reached from other machines: without a secret, whoever reaches it may read and "
            f"delete everything; {_ADVICE}, or listen on 127.0.0.1"
        )
    far = [address for address in sequencers if not is_loopback(address)]
    if far:
        raise CommandFailed(
            f"sequencer {far[0]!r} is on another machine, and there is no secret to show to it; {_ADVICE}"
        )


def rpc_secret(settings: Settings, *, data: Path | None = None) -> bytes:
    """The secret that this process shares with the others of its cluster; empty for none.

    Args:
        data: the folder of `tailrace serve`, whose secret is used where the settings give none.

    Raises CommandFailed.
    """
    given, file = settings.rpc_secret.get_secret_value(), settings.rpc_secret_file
    if given and file is not None:
        raise CommandFailed("both rpc_secret and rpc_secret_file were given; give one of them")
    if not given and file is None and data is not None:
        file = data / SECRET
    if file is None:
        return given.encode()
    secret = _read(file, "rpc_secret_file")[0]
    if len(secret) < MIN_SECRET_CHARACTERS:
        raise CommandFailed(
            f"rpc_secret_file: the secret in {str(file)!r} has {len(secret)} characters, at least "
            f"{MIN_SECRET_CHARACTERS} are wanted; make one with `openssl rand -base64 32`"
        )
    return secret.encode()


def refuse_password_in_command(flag: str, url: str | None) -> None:
    """Refuse a database's URL with a password that came by a flag. Raises CommandFailed, without the URL."""
    if not url:
        return
    import sqlalchemy as sa

    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        return  # no URL at all: whoever opens it says so
    if parsed.password or "password" in parsed.query:
        raise CommandFailed(
            f"{flag}: every user of this machine can read a password in a command; leave it out there and give it by "
            "--database-password-file FILE (mode 0600) or PGPASSWORD, or give the whole URL by TAILRACE_DATABASE"
        )


class DatabasePassword:
    """The password in a file, read again for each connection, so that it may be changed without a restart.

    Raises CommandFailed when made. Later, where the file can't be read, the last password stays.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._last = _read(file, "database_password_file")[0]

    def __call__(self) -> str:
        try:
            self._last = read_secrets(self._file.expanduser())[0]
        except BadCredential as error:
            log.warning("the database's password was not read again; the last one stays", reason=str(error))
        return self._last

    def __repr__(self) -> str:
        return f"DatabasePassword({str(self._file)!r})"


def database_password(settings: Settings) -> DatabasePassword | None:
    """What gives the database's password where it has a file of its own. Raises CommandFailed."""
    file = settings.database_password_file
    return None if file is None else DatabasePassword(file)


def _read(file: Path, setting: str) -> tuple[str, ...]:
    try:
        return read_secrets(file.expanduser())
    except BadCredential as error:
        raise CommandFailed(f"{setting}: {error}") from error
