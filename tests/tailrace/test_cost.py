"""Bills: dollars out of amounts and a price table, and what a table may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.cost import GIB, MONTH_SECONDS, BadPrices, Usage, bill_of, read_prices, shipped_prices


def test_five_puts_a_second_cost_65_dollars_a_month_on_s3() -> None:
    bill = bill_of(Usage(puts=5 * MONTH_SECONDS), read_prices())
    assert round(bill.total, 2) == round(bill.put, 2) == 64.80


def test_each_item_of_a_bill_follows_from_its_own_price() -> None:
    prices = read_prices()
    usage = Usage(
        gets=1_000_000,
        storage_gib_months=100,
        cross_zone_bytes=10 * GIB,
        cpu_seconds=1_800,
        database_months=1,
    )
    bill = bill_of(usage, prices)
    assert {name: round(dollars, 5) for name, dollars in bill.items.items()} == {
        "put": 0.0,
        "get": 0.4,
        "storage": 2.3,
        "sql": 229.0,
        "compute": prices.vcpu_hour,
        "cross_zone": 0.2,
    }
    assert bill.total == pytest.approx(sum(bill.items.values()))


def test_a_store_that_bills_bytes_is_billed_by_bytes_too() -> None:
    express = read_prices("s3-express")
    bill = bill_of(Usage(puts=1_000, put_bytes=10 * GIB, got_bytes=10 * GIB), express)
    assert bill.put == pytest.approx(0.00113 + 0.032) and bill.get == pytest.approx(0.006)


def test_usage_adds_up() -> None:
    both = Usage(puts=1, sql_rows=2) + Usage(puts=3) * 2
    assert both == Usage(puts=7, sql_rows=2)


@pytest.mark.parametrize("name", shipped_prices())
def test_shipped_tables_say_when_and_where_their_prices_were_read(name: str) -> None:
    prices = read_prices(name)
    assert prices.date and prices.source
    assert prices.put_per_1000 > prices.get_per_1000 or name.startswith("own-")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("put_per_1000 = -1", "missing required field|Expected `float` >= 0"),
        ("name = 'x'\ndate = ''\nsource = ''\nput_per_1000 = 1\nget_per_1000 = 1\nstorage = 2", "storage"),
        ("name =", "Invalid value"),
    ],
)
def test_a_table_that_cannot_be_used_says_why(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(BadPrices, match=said):
        read_prices(str(file))


def test_a_table_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(BadPrices, match="s3-express, s3-standard"):
        read_prices("/nowhere/prices.toml")
