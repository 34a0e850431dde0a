"""All mistakes of a process's settings that show in files or beside other settings, told before anything is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tailrace.cost import BadPrices, Prices, read_prices
from tailrace_cli.errors import CommandFailed
from tailrace_cli.running.first_user import read_first_user
from tailrace_cli.running.security import (
    check_client_auth,
    check_tenants,
    database_password,
    open_gateway_tls,
    open_http_tls,
    open_kafka_tls,
    open_listeners,
    open_security,
)
from tailrace_cli.settings import Settings

Check = Callable[[Settings], object]
"""Raises CommandFailed."""


def agent_mistakes(settings: Settings) -> list[str]:
    """A line for each mistake that `agent` or `serve` would end with."""
    checks = (
        open_prices,
        open_listeners,
        check_tenants,
        check_client_auth,
        open_kafka_tls,
        open_gateway_tls,
        _check_first_user,
    )
    return _mistakes(settings, (*_OF_ALL, *checks))


def sequencer_mistakes(settings: Settings) -> list[str]:
    """The same of `sequencer`."""
    return _mistakes(settings, _OF_ALL)


def open_prices(settings: Settings) -> Prices:
    """The price table of the settings. Raises CommandFailed."""
    try:
        return read_prices(settings.prices)
    except BadPrices as error:
        raise CommandFailed(str(error)) from None


def _check_first_user(settings: Settings) -> None:
    if settings.security.first_user_file is not None:
        read_first_user(settings.security.first_user_file)


def _check_database_password(settings: Settings) -> None:
    if settings.database:
        database_password(settings)


_OF_ALL: tuple[Check, ...] = (open_security, open_http_tls, _check_database_password)


def _mistakes(settings: Settings, checks: Sequence[Check]) -> list[str]:
    """A check that needs what another one opens fails with the same line, which is told once."""
    lines: dict[str, None] = {}
    for check in checks:
        try:
            check(settings)
        except CommandFailed as error:
            lines[str(error)] = None
    return list(lines)
