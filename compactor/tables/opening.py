"""Opens the tables of a cluster. It opens the catalog and imports pyiceberg only when a topic has a table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from compactor.columns.registry import HttpRegistry
from compactor.tables.settings import TableSettings
from compactor.tables.sync import TableSync
from compactor.tables.table import TopicTable
from sequencer.api.interface import Sequencer
from sequencer.api.topics import MetadataRequest
from tailrace.object_store.api import ObjectStore
from tailrace.object_store.open import object_url

if TYPE_CHECKING:
    from compactor.tables.iceberg import IcebergTables


class CatalogMissing(Exception):
    """A topic asks for a table, but no catalog is configured; the message names the setting."""


class CatalogTables:
    """The `compactor.tables.table.Tables` of a catalog, at an address that TableSettings allows."""

    def __init__(self, address: str, *, namespace: str, store_url: str, cluster_id: str) -> None:
        self._address = address
        self._namespace = namespace
        self._store_url = store_url
        self._cluster_id = cluster_id
        self._opened: IcebergTables | None = None

    @property
    def iceberg(self) -> IcebergTables:
        """The catalog's tables. Raises CatalogMissing."""
        if self._opened is None:
            if not self._address:
                raise CatalogMissing(
                    "no catalog is known; set tables.catalog, or give the sequencer's --database"
                )
            from compactor.tables.iceberg import IcebergTables, open_catalog

            self._opened = IcebergTables(
                open_catalog(self._address, self._store_url),
                namespace=self._namespace,
                store_url=self._store_url,
                cluster_id=self._cluster_id,
            )
        return self._opened

    def open(
        self, topic_id: UUID, name: str, *, create: bool, is_quarantine: bool = False
    ) -> TopicTable | None:
        return self.iceberg.open(topic_id, name, create=create, is_quarantine=is_quarantine)

    def drop(self, topic_id: UUID, name: str, *, is_quarantine: bool = False) -> None:
        self.iceberg.drop(topic_id, name, is_quarantine=is_quarantine)


@asynccontextmanager
async def opened_tables(
    sequencer: Sequencer, store: ObjectStore, store_url: str, *, address: str, settings: TableSettings
) -> AsyncIterator[tuple[CatalogTables, TableSync]]:
    """Open a cluster's tables, and the TableSync that compares them with their logs. `address`: the catalog's."""
    cluster_id = (await sequencer.metadata(MetadataRequest())).cluster_id
    tables = CatalogTables(address, namespace=settings.namespace, store_url=store_url, cluster_id=cluster_id)
    async with AsyncExitStack() as stack:
        executor = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="tables"))
        registry = HttpRegistry(settings.registry) if settings.registry else None
        if registry is not None:
            stack.push_async_callback(registry.close)
        syncing = TableSync(
            sequencer,
            store,
            tables,
            path_of=lambda key: object_url(store_url, key),
            executor=executor,
            folder=f"{cluster_id}/tables",
            registry=registry,
        )
        yield tables, syncing
