"""Servers that tests share, started when the first test asks: one of each per pytest process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers import PostgresServer, S3Server, moto_server, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with moto_server() as server:
        yield server
