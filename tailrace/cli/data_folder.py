"""The folder in which `tailrace serve` keeps everything: what is in it, and that only its owner reads it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import structlog

from tailrace.cli.failures import CommandFailed
from tailrace.clock import Entropy
from tailrace.credentials import make_secret_file

DATABASE = "tailrace.db"
OBJECTS = "objects"
SECRET = "rpc.secret"

_log = structlog.get_logger("tailrace.data")


def open_data_folder(path: Path, entropy: Entropy) -> None:
    """Make the folder and its RPC secret where they are missing. Raises CommandFailed.

    The folder is its owner's alone (0700), and so is every file that this process makes from now on (0600). A folder
    that others may enter is closed to them, unless it holds something else than ours: then a warning says so.
    """
    os.umask(0o077)
    try:
        path.mkdir(parents=True, exist_ok=True)
        _close_to_others(path)
        if not (path / SECRET).exists():
            make_secret_file(path / SECRET, entropy)
    except OSError as error:
        raise CommandFailed(
            f"data folder {str(path)!r} can't be made or written: {error.strerror}; give another with --data"
        ) from error


def _close_to_others(path: Path) -> None:
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if not mode & 0o077:
        return
    is_ours = (path / DATABASE).exists() or not any(path.iterdir())
    if is_ours and found.st_uid == os.geteuid():
        path.chmod(0o700)
        _log.info("the data folder was open to others and is closed now", folder=str(path), was=f"{mode:04o}")
        return
    _log.warning(
        "others may enter the data folder, and read files that are older than this process; run `chmod 700` on it",
        folder=str(path), mode=f"{mode:04o}",
    )  # fmt: skip
