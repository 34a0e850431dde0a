"""Shared by all tests: the division among workers, and servers. A server starts when a test first asks for it, one
of each kind per pytest process."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop
from hypothesis import settings

import sequencer.store.sql.postgres as postgres_module
from tests.support.groups import GroupScheduling
from tests.support.patience import PATIENCE_SECONDS
from tests.support.servers import PostgresServer, S3Server, moto_server, postgres_server

settings.register_profile("no clock", deadline=None)  # an example may take long on a busy machine
settings.load_profile("no clock")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function, on a loop of its own: asyncio's, or uvloop's if it is marked so."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    (uvloop if pyfuncitem.get_closest_marker("uvloop") else asyncio).run(test)
    return True


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Stores in this process wait long for the database: a machine that stops for seconds does not mean that the
    database is unavailable."""
    with postgres_server() as server, pytest.MonkeyPatch.context() as patched:
        for bound in ("CONNECT_SECONDS", "STATEMENT_SECONDS", "IDLE_SECONDS", "LEASE_SECONDS"):
            patched.setattr(postgres_module, bound, PATIENCE_SECONDS)
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a new database on PostgreSQL."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with moto_server() as server:
        yield server
