"""The tests' servers start wherever the clone lies: root's home is closed to all others in most images."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.support.servers import copy_postgres, postgres_installation, postgres_server


def test_postgresql_starts_though_only_its_owner_may_enter_the_folder_it_is_installed_in(
    tmp_path: Path,
) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    installed = copy_postgres(postgres_installation(), private / "site-packages")

    with postgres_server(installed=installed) as server:
        server.execute("select 1")


def test_postgresql_starts_though_only_its_owner_may_enter_the_folder_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    inner = private / "temporary"
    inner.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(inner))

    with postgres_server() as server:
        server.execute("select 1")
