"""The tests' servers start wherever the clone lies: root's home is closed to all others in most images."""

from __future__ import annotations

from pathlib import Path

from tests.support.servers import copy_postgres, postgres_installation, postgres_server


def test_postgresql_starts_though_only_its_owner_may_enter_the_folder_it_is_installed_in(
    tmp_path: Path,
) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    installed = copy_postgres(postgres_installation(), private / "site-packages")

    with postgres_server(installed=installed) as server:
        server.execute("select 1")
