"""`tailrace cost`: the monthly cost of running processes, by topic, or of a described workload."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tailrace_cli.connections.connecting import parse_pairs
from tailrace_cli.errors import CommandFailed, WrongUsage
from tailrace_cli.flags import flag
from tailrace_cli.output import JsonFlag, print_json, print_table

if TYPE_CHECKING:
    from agent.topic_usage import ProcessCounts
    from tailrace.cost import Bill, Prices, Usage

DEFAULT_PAGE = "http://127.0.0.1:9644"
PATIENCE_SECONDS = 10
REFUSED = (401, 403)
STORED = "(stored)"
"""The row for all stored bytes: metrics do not count them by topic."""


def cost(
    metrics: Annotated[
        list[str] | None,
        flag(
            "--from-metrics",
            "URL",
            f"The metrics address of an agent or sequencer. Can be repeated. Default: {DEFAULT_PAGE}",
        ),
    ] = None,
    over: Annotated[
        float,
        flag("--over", "SECONDS", "Seconds to measure. 0: since each process started.", min=0, max=86_400),
    ] = 0,
    workload: Annotated[
        Path | None, flag("--workload", "FILE", "A TOML file that describes a workload.")
    ] = None,
    changes: Annotated[
        list[str] | None, flag("--set", "NAME=VALUE", "Set one value of the workload. Can be repeated.")
    ] = None,
    prices: Annotated[
        str,
        flag(
            "--prices",
            "NAME|FILE",
            "s3-standard, s3-express, own-machine, own-store, or a TOML file. Default: the table that the"
            " running processes use, else s3-standard.",
        ),
    ] = "",
    as_json: JsonFlag = False,
) -> None:
    """Print each topic's monthly cost, or a described workload's.

    Prices come from a table that you can copy and edit.
    """
    from tailrace.cost import DEFAULT_PRICES, BadPrices, bill_of, read_prices

    try:
        table = read_prices(prices or DEFAULT_PRICES)
    except BadPrices as error:
        raise WrongUsage(f"--prices: {error}") from None
    if workload is not None or changes:
        if metrics:
            raise WrongUsage("--from-metrics and a workload were given; give one of them")
        usage = {"(workload)": _usage_of_workload(workload, changes or [])}
    else:
        from tailrace_cli.running.loop import run

        usage, theirs = run(_usage_of_processes(metrics or [DEFAULT_PAGE], over))
        if not prices:
            table = _table_of(theirs) or table
    _show({name: bill_of(used, table) for name, used in usage.items()}, usage, table, as_json=as_json)


def _usage_of_workload(file: Path | None, changes: Sequence[str]) -> Usage:
    from tailrace_cli.workload import BadWorkload, read_workload, usage_of

    try:
        text = file.read_text() if file is not None else ""
        return usage_of(read_workload(text, parse_pairs(changes, "--set")))
    except (BadWorkload, OSError, UnicodeDecodeError) as error:
        raise WrongUsage(str(error)) from None


async def _usage_of_processes(pages: Sequence[str], over: float) -> tuple[dict[str, Usage], set[str]]:
    """Return each topic's usage in a month at the measured rate, summed over all processes, and the names of the price
    tables that the processes use."""
    from tailrace.clock import SystemClock

    clock = SystemClock()
    first = await asyncio.gather(*(_read(page) for page in pages))
    theirs = {counts.prices for counts in first if counts.prices}  # a sequencer has none
    if over:
        await clock.sleep(over)
        later = await asyncio.gather(*(_read(page) for page in pages))
        changes = [(new.since(old), over) for new, old in zip(later, first, strict=True)]
        return usage_a_month(changes), theirs
    now = clock.wall_ms() / 1000
    return usage_a_month([(counts, now - counts.started_at) for counts in first]), theirs


def _table_of(theirs: set[str]) -> Prices | None:
    """Return the packaged price table that all processes use, None if there is no such table."""
    from tailrace.cost import read_prices, shipped_prices

    return next((table for name in shipped_prices() if {(table := read_prices(name)).name} == theirs), None)


def usage_a_month(counted: Sequence[tuple[ProcessCounts, float]]) -> dict[str, Usage]:
    """Extrapolate the counts of all processes to a month, by topic. Each count comes with the seconds it covers."""
    from agent.topic_usage import usage_by_topic
    from tailrace.cost import GIB, MONTH_SECONDS, SQLITE, Usage

    month: dict[str, Usage] = {}
    for counts, seconds in counted:
        for topic, used in usage_by_topic(counts).items():
            month[topic] = month.get(topic, Usage()) + used * (MONTH_SECONDS / max(seconds, 1.0))
    stored = max((counts.object_bytes for counts, _ in counted), default=0.0)
    databases = {counts.database for counts, _ in counted if counts.database}
    billed = 0.0 if databases == {SQLITE} else 1.0
    month[STORED] = Usage(storage_gib_months=stored / GIB, database_months=billed)
    return month


async def _read(page: str) -> ProcessCounts:
    import aiohttp
    from prometheus_client.parser import text_string_to_metric_families

    from agent.topic_usage import read_counts
    from tailrace_cli.connections.login import client_properties, tls_context

    properties = client_properties()
    login = None
    if "sasl.username" in properties:
        login = aiohttp.BasicAuth(properties["sasl.username"], properties.get("sasl.password", ""), "utf-8")
    given, page = page, page if "://" in page else f"http://{page}"
    url = f"{page.rstrip('/').removesuffix('/metrics')}/metrics"
    try:
        async with (
            aiohttp.ClientSession(
                auth=login if url.startswith("https:") else None,
                timeout=aiohttp.ClientTimeout(PATIENCE_SECONDS),
            ) as client,
            client.get(url, ssl=tls_context(properties) or True) as answer,
        ):
            answer.raise_for_status()
            return read_counts(text_string_to_metric_families(await answer.text()))
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
        raise WrongUsage(
            f"--from-metrics {given!r}: expected HOST:PORT or a URL, such as {DEFAULT_PAGE}"
        ) from None
    except aiohttp.ClientResponseError as error:
        if error.status not in REFUSED:
            raise CommandFailed(f"{url} gave no metrics: {error.status} {error.message}") from None
        raise CommandFailed(
            f"{url} gave no metrics: {error.status} {error.message}; let TAILRACE_CLIENT name a file with a user who "
            "may describe the cluster, and give an https URL: passwords are sent by HTTPS only"
        ) from None
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise CommandFailed(
            f"{url} gave no metrics ({str(error) or f'no answer within {PATIENCE_SECONDS} s'}); give the address of "
            "`http` (--http, port 9644 by default), not that of Kafka clients. If it serves HTTPS, give an https URL, "
            "and let TAILRACE_CLIENT name a file with ssl.ca.location"
        ) from None


def _show(bills: Mapping[str, Bill], usage: Mapping[str, Usage], prices: Prices, *, as_json: bool) -> None:
    total = sum(bill.total for bill in bills.values())
    if as_json:
        topics: dict[str, Any] = {
            name: {"dollars": {**bill.items, "total": bill.total}, "usage": asdict(usage[name])}
            for name, bill in bills.items()
        }
        print_json({"prices": prices.name, "dollars_a_month": total, "topics": topics})
        return
    rows = [
        (name, *(f"{dollars:,.2f}" for dollars in bill.items.values()), f"{bill.total:,.2f}")
        for name, bill in sorted(bills.items(), key=lambda priced: -priced[1].total)
    ]
    columns = ("topic", "put", "get", "storage", "sql", "compute", "cross-zone", "total")
    print_table(columns, rows, title=f"Dollars a month, by the prices of {prices.name} ({prices.date})")
    print(f"together: ${total:,.2f} a month")
    if not total and prices.name == "own machine":
        print(
            "A folder and SQLite on your own machine have no bill. What S3 would cost: --prices s3-standard"
        )
