"""Secrets in files. They are created so that only the owner can read them, and refused if other users can."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

from tailrace.clock import Entropy

MIN_SECRET_CHARACTERS = 16
"""An attacker who records one hello can test guesses against it offline, and would find a short secret."""
MAX_FILE_BYTES = 64 << 10


class BadCredential(ValueError):
    """A secret file can't be used; the message says what was seen and what to do."""


def read_secrets(path: Path) -> tuple[str, ...]:
    """Read the secrets in a file, one per line, without blank lines. Raises BadCredential.

    Only the owner may have permission to read the file. If root owns it, its group may too (PostgreSQL's rule for
    keys).
    """
    try:
        with path.open("rb") as file:
            _check_mode(path, os.fstat(file.fileno()))
            data = file.read(MAX_FILE_BYTES + 1)
        lines = tuple(line.strip() for line in data.decode().splitlines() if line.strip())
    except OSError as error:
        raise BadCredential(f"{str(path)!r} can't be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise BadCredential(f"{str(path)!r} is not text: one secret a line is expected") from None
    if not lines or len(data) > MAX_FILE_BYTES:
        seen = f"has more than {MAX_FILE_BYTES} bytes" if lines else "has no secret in it"
        raise BadCredential(f"{str(path)!r} {seen}: one secret a line is expected")
    return lines


def make_secret_file(path: Path, entropy: Entropy) -> None:
    """Write a new random secret atomically, readable only by its owner. Keeps an existing file. Raises OSError."""
    secret = base64.urlsafe_b64encode(entropy.uuid().bytes + entropy.uuid().bytes).rstrip(b"=")
    unfinished = path.with_name(f".{path.name}.{entropy.uuid().hex}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(unfinished, path)
        except FileExistsError:
            return  # another process was faster, and its secret is used
    finally:
        unfinished.unlink()


def check_private(path: Path) -> None:
    """Raise BadCredential if other users could read or write this file, or if this process can't read it."""
    try:
        with path.open("rb") as file:
            _check_mode(path, os.fstat(file.fileno()))
    except OSError as error:
        raise BadCredential(f"{str(path)!r} can't be read: {error.strerror}") from error


def _check_mode(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BadCredential(f"{str(path)!r} is not a file")
    allowed = 0o640 if status.st_uid == 0 else 0o600
    if stat.S_IMODE(status.st_mode) & 0o077 & ~allowed:
        raise BadCredential(
            f"{str(path)!r} can be read or written by others (mode {stat.S_IMODE(status.st_mode):04o}); "
            f"run `chmod 600 {path}`"
        )
