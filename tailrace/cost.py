"""The cost of running Tailrace: prices, usage and the bill. Pure, except for reading a price table.

A price table is a TOML file with the fields of `Prices`. The package contains those in `tailrace/prices/`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import msgspec

GIB = 1 << 30
MONTH_SECONDS = 30 * 86_400
"""A month, in all cost figures, has 30 days."""
DEFAULT_PRICES = "s3-standard"
OWN_MACHINE, OWN_STORE = "own-machine", "own-store"
SQLITE = "sqlite"
_SHIPPED = Path(__file__).parent / "prices"

Dollars = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class BadPrices(ValueError):
    """A price table can't be used; the message says why."""


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dollars per unit. `cpu_utilisation`: the share of the paid CPU that is used. `database_month`: per database."""

    name: str
    date: str
    source: str
    put_per_1000: Dollars
    get_per_1000: Dollars
    storage_gib_month: Dollars
    put_gib: Dollars = 0.0
    get_gib: Dollars = 0.0
    cross_zone_gib: Dollars = 0.0
    vcpu_hour: Dollars = 0.0
    cpu_utilisation: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    database_month: Dollars = 0.0
    sql_million_rows: Dollars = 0.0


def shipped_prices() -> list[str]:
    """Return the names of the price tables in the package."""
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def default_prices(store_url: str, database_url: str | None = None) -> str:
    """Return the name of the default price table for these URLs. `database_url` is None if other processes have it.

    A folder is free as a store. The machine counts as one's own only with SQLite.
    """
    if store_url.startswith("s3:"):
        return DEFAULT_PRICES
    return OWN_MACHINE if kind_of_database(database_url) == SQLITE else OWN_STORE


def kind_of_database(url: str | None) -> str:
    """Return `sqlite` or `postgresql`; empty if other processes have the database."""
    return (url or "").partition(":")[0].partition("+")[0]


def read_prices(name: str = DEFAULT_PRICES) -> Prices:
    """Read a price table of the package by its name, or one from a file. Raises BadPrices."""
    path = _SHIPPED / f"{name}.toml" if name in shipped_prices() else Path(name).expanduser()
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), Prices)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadPrices(
            f"prices {name!r}: {error}; give a TOML file like tailrace/prices/{DEFAULT_PRICES}.toml, or one of "
            f"{', '.join(shipped_prices())}"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Usage in a period. `puts` includes LIST and `gets` includes HEAD, as S3 bills them. Bytes are those of requests.
    `database_months` and `storage_gib_months` are amounts times months."""

    puts: float = 0.0
    gets: float = 0.0
    put_bytes: float = 0.0
    got_bytes: float = 0.0
    storage_gib_months: float = 0.0
    cross_zone_bytes: float = 0.0
    cpu_seconds: float = 0.0
    database_months: float = 0.0
    sql_rows: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            **{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        )

    def __mul__(self, factor: float) -> Usage:
        return Usage(**{field.name: getattr(self, field.name) * factor for field in fields(self)})


@dataclass(frozen=True, slots=True)
class Bill:
    """Dollars by purpose."""

    put: float
    get: float
    storage: float
    sql: float
    compute: float
    cross_zone: float

    @property
    def items(self) -> Mapping[str, float]:
        """The parts of the bill by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return sum(self.items.values())


def bill_of(usage: Usage, prices: Prices) -> Bill:
    """Return the bill for a usage at these prices."""
    vcpu_seconds = usage.cpu_seconds / prices.cpu_utilisation
    return Bill(
        put=usage.puts / 1000 * prices.put_per_1000 + usage.put_bytes / GIB * prices.put_gib,
        get=usage.gets / 1000 * prices.get_per_1000 + usage.got_bytes / GIB * prices.get_gib,
        storage=usage.storage_gib_months * prices.storage_gib_month,
        sql=usage.database_months * prices.database_month + usage.sql_rows / 1e6 * prices.sql_million_rows,
        compute=vcpu_seconds / 3600 * prices.vcpu_hour,
        cross_zone=usage.cross_zone_bytes / GIB * prices.cross_zone_gib,
    )
