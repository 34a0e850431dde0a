"""Checks of a process's settings against each other and against the files they name, before anything is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sequencer.store.sql.store import UnknownDatabase, check_database_url
from tailrace.cost import BadPrices, Prices, default_prices, read_prices
from tailrace.object_store.open import BadStoreUrl, check_store_url
from tailrace.rpc.link import split_address
from tailrace_cli.errors import CommandFailed
from tailrace_cli.running.first_user import read_first_user
from tailrace_cli.running.security import (
    check_client_auth,
    check_rpc_not_exposed,
    check_tenants,
    database_password,
    open_gateway_tls,
    open_http_tls,
    open_kafka_tls,
    open_listeners,
    open_security,
    read_token_secret,
)
from tailrace_cli.settings import Settings

RPC_OF_SEQUENCER = "127.0.0.1:9645"
"""Where `sequencer` listens by default."""
LEAST_SWEEP_INTERVAL_MS = 600_000
"""A wave of compaction has half of the sweep interval. With less time, its last tasks would fail each time. Simulated
clusters, whose time is compressed, use less."""
Check = Callable[[Settings], object]
"""Raises CommandFailed if the settings have a mistake."""


def serve_mistakes(settings: Settings) -> list[str]:
    return _mistakes(settings, _OF_ALL + _OF_CLIENTS)


def agent_mistakes(settings: Settings) -> list[str]:
    return _mistakes(settings, _OF_ALL + _OF_CLIENTS + _OF_AGENT)


def sequencer_mistakes(settings: Settings) -> list[str]:
    return _mistakes(settings, _OF_ALL + _OF_SEQUENCER)


def compact_mistakes(settings: Settings) -> list[str]:
    names_log = settings.store or settings.database or settings.sequencers
    return _mistakes(settings, _OF_ALL + _OF_LOG if names_log else _OF_ALL)


def check_log(settings: Settings) -> None:
    """Raise CommandFailed unless the settings name a store and a sequencer that a command can use."""
    for check in (*_OF_LOG, check_sweep_interval):
        check(settings)


def check_one_sequencer(settings: Settings, choice: str) -> None:
    """Raise CommandFailed unless exactly one of `database` and `sequencers` is given. `choice` says what to give."""
    if bool(settings.database) == bool(settings.sequencers):
        raise CommandFailed(
            f"{'both --database and' if settings.database else 'neither --database nor'} --sequencer "
            f"{'were' if settings.database else 'was'} given; give {choice}"
        )


def check_sweep_interval(settings: Settings) -> None:
    """Raise CommandFailed if the sweep interval leaves compaction too little time."""
    sweep_ms = settings.sequencer.sweep_interval_ms
    if sweep_ms < LEAST_SWEEP_INTERVAL_MS:
        raise CommandFailed(
            f"sequencer.sweep_interval_ms {sweep_ms} gives a compactor's tasks only {sweep_ms // 2} ms to write their "
            f"objects; set it to at least {LEAST_SWEEP_INTERVAL_MS} (10 minutes), or remove it (the default is a day)"
        )


def open_prices(settings: Settings, store_url: str = "", database: str | None = None) -> Prices:
    """Return the price table of the settings, else the default one for the store and database. Raises CommandFailed."""
    try:
        return read_prices(settings.prices or default_prices(store_url, database))
    except BadPrices as error:
        raise CommandFailed(str(error)) from None


def _check_first_user(settings: Settings) -> None:
    if settings.security.first_user_file is not None:
        read_first_user(settings.security.first_user_file)


def _check_database_password(settings: Settings) -> None:
    if settings.database:
        database_password(settings)


def _check_database_url(settings: Settings) -> None:
    try:
        check_database_url(settings.database or "sqlite://")
    except UnknownDatabase as error:
        raise CommandFailed(str(error)) from None


def _check_store_url(settings: Settings) -> None:
    try:
        check_store_url(settings.store or "memory:")
    except BadStoreUrl as error:
        raise CommandFailed(str(error)) from None


def _check_store_of_agent(settings: Settings) -> None:
    if settings.store is None:
        raise CommandFailed("no object store; give --store URL, such as s3://bucket/prefix")


def _check_sequencer_of_agent(settings: Settings) -> None:
    check_one_sequencer(
        settings, "--sequencer HOST:PORT, or --database URL for a sequencer inside this agent"
    )


def _check_rpc_of_agent(settings: Settings) -> None:
    check_rpc_not_exposed(
        listen=settings.rpc, sequencers=settings.sequencers, is_closed=open_security(settings).rpc.is_closed
    )


def _check_database_of_sequencer(settings: Settings) -> None:
    if settings.database is None:
        raise CommandFailed(
            "no database; give --database postgresql://USER@HOST/NAME, and its password by "
            "--database-password-file FILE or PGPASSWORD"
        )


def _check_address_of_sequencer(settings: Settings) -> None:
    rpc = settings.rpc or RPC_OF_SEQUENCER
    if split_address(rpc)[0] in ("0.0.0.0", "::") and settings.rpc_advertise is None:
        raise CommandFailed(
            f"rpc {rpc!r} is a wildcard address, so agents can't be sent there; set rpc_advertise "
            "(--rpc-advertise HOST:PORT)"
        )


def _check_store_of_log(settings: Settings) -> None:
    if settings.store is None:
        raise CommandFailed("no object store; give --store URL, the one that the agents use")


def _check_sequencer_of_log(settings: Settings) -> None:
    check_one_sequencer(
        settings, "--sequencer HOST:PORT of a running sequencer, or --database URL where none runs"
    )


def _check_rpc_of_log(settings: Settings) -> None:
    check_rpc_not_exposed(
        listen=None, sequencers=settings.sequencers, is_closed=open_security(settings).rpc.is_closed
    )


def _check_rpc_of_sequencer(settings: Settings) -> None:
    check_rpc_not_exposed(
        listen=settings.rpc or RPC_OF_SEQUENCER,
        sequencers=(),
        is_closed=open_security(settings).rpc.is_closed,
    )


_OF_ALL: tuple[Check, ...] = (
    check_sweep_interval,
    open_security,
    open_http_tls,
    _check_database_password,
    _check_database_url,
    _check_store_url,
)
_OF_CLIENTS: tuple[Check, ...] = (
    open_prices,
    open_listeners,
    check_tenants,
    check_client_auth,
    open_kafka_tls,
    open_gateway_tls,
    _check_first_user,
    read_token_secret,
)
_OF_AGENT: tuple[Check, ...] = (_check_store_of_agent, _check_sequencer_of_agent, _check_rpc_of_agent)
_OF_LOG: tuple[Check, ...] = (_check_store_of_log, _check_sequencer_of_log, _check_rpc_of_log)
_OF_SEQUENCER: tuple[Check, ...] = (
    _check_database_of_sequencer,
    _check_address_of_sequencer,
    _check_rpc_of_sequencer,
)


def _mistakes(settings: Settings, checks: Sequence[Check]) -> list[str]:
    """Run the checks and return their errors. Two checks can fail with the same line, which is returned once."""
    lines: dict[str, None] = {}
    for check in checks:
        try:
            check(settings)
        except CommandFailed as error:
            lines[str(error)] = None
    return list(lines)
