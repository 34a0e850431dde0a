"""Settings of the tables' catalog."""

from __future__ import annotations

from pydantic import Field

from tailrace.settings import SettingsSection


class TableSettings(SettingsSection):
    """The settings of processes that write tables: `tailrace compact` and `tailrace table`."""

    catalog: str = Field(default="", repr=False)
    """The Iceberg catalog: sqlite:///PATH or postgresql://USER@HOST/NAME (it has separate tables, so it may be the
    sequencer's database), or http(s)://... for a REST catalog, whose credentials come from pyiceberg's variables
    (PYICEBERG_CATALOG__TAILRACE__...). Empty: the sequencer's `database`."""
    namespace: str = Field(default="tailrace", pattern=r"^[A-Za-z0-9_-]{1,200}$")
    """The namespace of the tables in the catalog. A table has its topic's name."""
    registry: str = Field(default="", repr=False, pattern=r"^(https?://[^\s?#]+)?$")
    """The schema registry for values with `tailrace.schema=avro` or `protobuf`: http(s)://USER:PASSWORD@HOST/PATH, with
    the API of Confluent's registry and Karapace."""
