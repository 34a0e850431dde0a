"""Iceberg tables (format 2) through pyiceberg: any engine with access to the catalog can open a topic by its name.

The data files are the compactor's files, unchanged. A file of position deletes lists the rows of a data file that are
not live. A table is unpartitioned: each file is sorted, and the bounds in the manifests prune files by time, partition,
offset and key.

pyiceberg can't exchange delete files, so `iceberg_snapshot.SnapshotExchange` writes the manifests of a snapshot itself.
A commit is never retried on another state of the table (COMMIT_NUM_RETRIES is 0); the caller compares again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

import pyarrow as pa
import structlog
from pydantic import ValidationError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest.response import ErrorResponse
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntry
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.snapshots import Snapshot
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from compactor.columns.arrays import table_fields
from compactor.columns.derive import QUARANTINE
from compactor.tables.iceberg_snapshot import (
    SnapshotExchange,
    data_file,
    file_statistics,
    target_of,
    write_deletes,
)
from compactor.tables.rest_catalog import open_rest_catalog
from compactor.tables.sync import LISTED_MS
from compactor.tables.table import (
    CatalogSilent,
    CatalogUnavailable,
    NewFile,
    StoredFile,
    TableChange,
    TableConflict,
    TableSnapshot,
)
from tailrace.configs.columns import Columns, columns_text
from tailrace.object_store.open import object_url, s3_location
from tailrace.parquet_object.schema import COLUMNS_WITH_BOUNDS, LOG_SCHEMA, SCHEMA

log = structlog.get_logger("tailrace.tables")

CATALOG_NAME = "tailrace"
TOPIC_ID = "tailrace.topic-id"
CLUSTER_ID = "tailrace.cluster-id"
IS_QUARANTINE = "tailrace.is-quarantine"
COLUMNS = "tailrace.columns"
REPLAYS = "tailrace.replays"
GC_ENABLED = "gc.enabled"
"""Iceberg's setting that lets an engine delete data files: when it purges a table, expires snapshots or looks for
orphan files. Our data files are the log, so no engine may."""
SEARCHED_MS = "tailrace.searched-ms"
POSTGRES_LIMITS = {
    "connect_timeout": "30",
    "keepalives_idle": "10",
    "keepalives_interval": "10",
    "keepalives_count": "2",
    "tcp_user_timeout": "30000",
}
"""Parameters of connections to a PostgreSQL catalog, unless its address has them. libpq itself waits for ever."""
_PROPERTIES = {
    TableProperties.FORMAT_VERSION: "2",
    TableProperties.COMMIT_NUM_RETRIES: "0",
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "20",
    **{
        f"{TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX}.{name}": "none"
        for name in SCHEMA.names
        if name not in COLUMNS_WITH_BOUNDS
    },
}


def open_catalog(uri: str, store_url: str) -> Catalog:
    """Open the catalog at an address that TableSettings allows. `uri` may contain a password.

    Raises CatalogSilent, CatalogUnavailable.
    """
    if uri.startswith(("http://", "https://")):
        return open_rest_catalog(CATALOG_NAME, uri=uri, **store_properties(store_url))
    url = make_url(uri)
    if url.get_backend_name() == "postgresql":  # the driver that pyiceberg[sql-postgres] installs
        limited = url.update_query_dict({**POSTGRES_LIMITS, **url.query})
        uri = limited.set(drivername="postgresql+psycopg2").render_as_string(hide_password=False)
    try:
        return load_catalog(CATALOG_NAME, type="sql", uri=uri, **store_properties(store_url))
    except OperationalError as error:
        if "timeout expired" not in str(error.orig):
            raise
        raise CatalogSilent(
            f"the catalog's database does not answer ({error.orig}); check tables.catalog"
        ) from error


def store_properties(store_url: str) -> dict[str, str]:
    """Return the properties with which pyiceberg and pyarrow access the object store."""
    if urlsplit(store_url).scheme != "s3":
        return {}
    location = s3_location(store_url)
    properties = {"s3.region": location.region}
    if location.endpoint is not None:
        properties["s3.endpoint"] = location.endpoint
    if location.path_style is False:
        properties["s3.force-virtual-addressing"] = "true"
    if location.credentials is not None:
        properties["s3.access-key-id"] = location.credentials.access_key_id
        properties["s3.secret-access-key"] = location.credentials.secret_access_key
        if location.credentials.session_token is not None:
            properties["s3.session-token"] = location.credentials.session_token
    return properties


class IcebergTables:
    """The tables of one cluster, in a namespace of a catalog."""

    def __init__(self, catalog: Catalog, *, namespace: str, store_url: str, cluster_id: str) -> None:
        self._catalog = catalog
        self._namespace = namespace
        self._store_url = store_url
        self._cluster_id = cluster_id

    def open(
        self, topic_id: UUID, name: str, *, create: bool, is_quarantine: bool = False
    ) -> IcebergTable | None:
        wanted = _TableName(topic_id, name, is_quarantine)
        table = self._find(wanted)
        if table is None and create:
            table = self._create(wanted)
        return None if table is None else IcebergTable(self._complete(table, wanted))

    def drop(self, topic_id: UUID, name: str, *, is_quarantine: bool = False) -> None:
        """See Tables. Deletes the table's metadata too."""
        table = self._find(_TableName(topic_id, name, is_quarantine))
        if table is not None:
            used = _files_of(table, table.metadata.snapshots) | _metadata_of(table)
            self._catalog.drop_table(table.name())
            _delete(table, used)

    def find(self, name: str) -> Table | None:
        """Return the table of this name, no matter who created it; None if there is none. Raises CatalogUnavailable."""
        try:
            return self._catalog.load_table((self._namespace, name))
        except NoSuchTableError as error:
            response = getattr(error.__cause__, "response", None)  # None: not a REST catalog
            if response is None or _error_code(response.text) == response.status_code:
                return None
            raise CatalogUnavailable(
                f"table {name!r}: an HTTP {response.status_code} that is not an Iceberg catalog's; check tables.catalog"
                " and the proxies before it"
            ) from error
        except ValidationError as error:
            raise CatalogUnavailable(
                f"table {name!r}: what the catalog has of it is not a table's metadata; check tables.catalog and the"
                " proxies before it"
            ) from error

    def find_of(self, topic_id: UUID, name: str, *, is_quarantine: bool = False) -> Table | None:
        """Return the topic's table or its quarantine, None if missing. Raises TableConflict for another cluster's."""
        return self._find(_TableName(topic_id, name, is_quarantine))

    def _find(self, wanted: _TableName) -> Table | None:
        for candidate in (wanted.text, wanted.fallback_name):
            table = self.find(candidate)
            if table is not None and table.properties.get(TOPIC_ID) == str(wanted.topic_id):
                self._check_cluster(candidate, table, table.properties.get(CLUSTER_ID, self._cluster_id))
                return table
        return None

    def _create(self, wanted: _TableName) -> Table:
        with suppress(NamespaceAlreadyExistsError):
            self._catalog.create_namespace(self._namespace)
        name, existing = wanted.text, self.find(wanted.text)
        if existing is not None:
            if TOPIC_ID not in existing.properties:
                raise TableConflict(f"table {name!r} is there, and not one of Tailrace's; rename it")
            self._check_cluster(name, existing, existing.properties.get(CLUSTER_ID))
            if existing.properties[TOPIC_ID] == str(wanted.topic_id):
                return existing  # another writer has just created it
            fallback_name = _fallback_name(name, UUID(existing.properties[TOPIC_ID]))
            if wanted.is_quarantine and not _is_quarantine(existing):
                name = wanted.fallback_name  # a topic has the quarantine's name
            elif name.endswith(fallback_name.removeprefix(name)):  # it would not be found under another name
                raise TableConflict(
                    f"table {name!r} of an earlier topic, or a quarantine, is there until it is dropped; a topic of"
                    " this name has no table meanwhile"
                )
            else:
                self._catalog.rename_table((self._namespace, name), (self._namespace, fallback_name))
        return self._catalog.create_table(
            (self._namespace, name),
            schema=LOG_SCHEMA,
            location=object_url(self._store_url, f"{self._cluster_id}/tables/{wanted.folder}"),
            properties={**_PROPERTIES, TOPIC_ID: str(wanted.topic_id), **self._own_properties(wanted)},
        )

    def _own_properties(self, wanted: _TableName) -> dict[str, str]:
        return {
            CLUSTER_ID: self._cluster_id,
            IS_QUARANTINE: str(wanted.is_quarantine).lower(),
            GC_ENABLED: "false",
        }

    def _check_cluster(self, name: str, table: Table, of_cluster: str | None) -> None:
        """Raise TableConflict if the table is not this cluster's. In older tables, only the location tells."""
        if of_cluster is None and f"/{self._cluster_id}/tables/" in table.location():
            return
        if of_cluster != self._cluster_id:
            raise TableConflict(
                f"table {self._namespace}.{name} is of cluster {of_cluster or 'unknown'}, and this cluster is"
                f" {self._cluster_id}: set tables.namespace to a namespace of its own"
            )

    def _complete(self, table: Table, wanted: _TableName) -> Table:
        """Set properties that a new or older table lacks: its owner, that no engine may delete its files, and a name
        mapping, so that readers find columns by name: our files have no field ids.

        The mapping needs the field ids, which are known only after the table is created.
        """
        properties = self._own_properties(wanted)
        if TableProperties.DEFAULT_NAME_MAPPING not in table.properties:
            mapping = table.schema().name_mapping.model_dump_json()
            properties[TableProperties.DEFAULT_NAME_MAPPING] = mapping
        if not properties.items() <= table.properties.items():
            with table.transaction() as transaction:
                transaction.set_properties(properties)
        return table


class _TableName(NamedTuple):
    """Identifies a topic's table or its quarantine. `name`: the topic's name."""

    topic_id: UUID
    name: str
    is_quarantine: bool

    @property
    def text(self) -> str:
        """The table's name, if no other table has it."""
        return self.name + self._kind

    @property
    def fallback_name(self) -> str:
        """The table's name if another topic has, or will have, the first name."""
        return _fallback_name(self.text, self.topic_id)

    @property
    def folder(self) -> str:
        return f"{self.topic_id}{self._kind}"

    @property
    def _kind(self) -> str:
        return QUARANTINE if self.is_quarantine else ""


def _error_code(answer: str) -> int:
    """Return the code in an Iceberg catalog's error; 0 if the answer is not one. For pyiceberg, any HTTP 404 means that
    a table is missing."""
    try:
        return int(ErrorResponse.model_validate_json(answer).error.code)
    except ValidationError:
        return 0


def _is_quarantine(table: Table) -> bool:
    """Whether the table is a quarantine. In older tables, only the location tells."""
    of_old = str(table.location().rstrip("/").endswith(QUARANTINE)).lower()
    return bool(table.properties.get(IS_QUARANTINE, of_old) == "true")


def _fallback_name(name: str, topic_id: UUID) -> str:
    return f"{name}__{topic_id.hex[:12]}"


class IcebergTable:
    """One state of a topic's table."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def named(self) -> dict[str, str | None]:
        """See TopicTable. Deletes of another program are listed like data files, so that a comparison removes them."""
        names: dict[str, str | None] = {}
        for entry in _entries_of(self._table, self._table.current_snapshot()):
            file = entry.data_file
            name = file.file_path.rpartition("/")[2].removesuffix(".parquet")
            if file.content == DataFileContent.DATA or file.file_path != self._deletes_path(name):
                names.setdefault(file.file_path, None)
            else:
                names[target_of(file)] = name
        return names

    def snapshots(self) -> list[TableSnapshot]:
        """See TopicTable. For a snapshot of another program, `listed_ms` is the snapshot's own timestamp."""
        metadata = self._table.metadata
        referenced = {reference.snapshot_id for reference in metadata.refs.values()}
        return [
            TableSnapshot(
                snapshot.snapshot_id, _listed_ms(snapshot), has_reference=snapshot.snapshot_id in referenced
            )
            for snapshot in sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
        ]

    def columns(self) -> str | None:
        """See TopicTable."""
        text: str | None = self._table.properties.get(COLUMNS)
        return text

    def schema(self) -> pa.Schema:
        """See TopicTable. With field ids."""
        return pa.schema([_plain(field) for field in schema_to_pyarrow(self._table.schema())])

    def grow(self, columns: Columns) -> None:
        """See TopicTable."""
        with self._changed() as transaction:
            with transaction.update_schema() as update:
                update.union_by_name(pa.schema(table_fields(columns)))
            transaction.set_properties({COLUMNS: columns_text(columns)})

    def replays(self) -> int:
        """See TopicTable."""
        return int(self._table.properties.get(REPLAYS, 0))

    def replay(self) -> None:
        """See TopicTable."""
        with self._changed() as transaction:
            transaction.set_properties({REPLAYS: str(self.replays() + 1)})

    @contextmanager
    def _changed(self) -> Iterator[Transaction]:
        """Commit the block's changes as one transaction. Raises TableConflict."""
        transaction = Transaction(self._table)
        try:
            yield transaction
            self._table = transaction.commit_transaction()
        except CommitFailedException as error:
            raise TableConflict(str(error)) from error

    def describe(self, path: str, file: StoredFile) -> DataFile:
        """See TopicTable."""
        metadata = self._table.metadata
        return data_file(
            metadata,
            content=DataFileContent.DATA,
            file_path=path,
            file_size_in_bytes=file.size,
            **file_statistics(file.metadata, metadata.schema(), metadata.properties),
        )

    def exchange(
        self, change: TableChange, files: Mapping[str, NewFile], properties: Mapping[str, str]
    ) -> None:
        """See TopicTable."""
        added = [files[path].description for path in sorted(change.added)]
        added += [self._write_deletes(files[covered.path]) for covered in sorted(change.covered, key=str)]
        removed: frozenset[str] = change.removed | {
            self._deletes_path(str(uncovered.deletes)) for uncovered in change.uncovered
        }
        with self._changed() as transaction:
            if not self.searched_ms():
                transaction.set_properties({SEARCHED_MS: properties[LISTED_MS]})
            SnapshotExchange(transaction, added, removed, dict(properties)).commit()

    def expire(self, snapshot_ids: Sequence[int]) -> None:
        """See TopicTable."""
        over = set(snapshot_ids)
        snapshots = self._table.metadata.snapshots
        unused = _files_of(self._table, [snapshot for snapshot in snapshots if snapshot.snapshot_id in over])
        try:
            self._table.maintenance.expire_snapshots().by_ids(list(snapshot_ids)).commit()
        except CommitFailedException as error:
            raise TableConflict(str(error)) from error
        self._table.refresh()
        _delete(self._table, unused - _files_of(self._table, self._table.metadata.snapshots))

    def searched_ms(self) -> int:
        """See TopicTable."""
        return int(self._table.properties.get(SEARCHED_MS, 0))

    def begin_search(self, now_ms: int) -> None:
        """See TopicTable."""
        with self._changed() as transaction:
            transaction.set_properties({SEARCHED_MS: str(now_ms)})
            SnapshotExchange(transaction, [], [], {LISTED_MS: str(now_ms)}).commit()

    def paths(self) -> set[str]:
        """See TopicTable."""
        paths = _metadata_of(self._table)
        for snapshot in self._table.metadata.snapshots:
            paths.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(self._table.io):
                if manifest.manifest_path not in paths:
                    paths.add(manifest.manifest_path)
                    entries = manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
                    paths |= {entry.data_file.file_path for entry in entries}
        return paths

    def _deletes_path(self, name: str) -> str:
        return f"{self._table.location()}/deletes/{name}.parquet"

    def _write_deletes(self, new: NewFile) -> DataFile:
        assert new.named.deletes is not None, "only files with dead rows are covered"
        return write_deletes(self._table, self._deletes_path(new.named.deletes), new)


def _listed_ms(snapshot: Snapshot) -> int:
    listed = snapshot.summary.additional_properties.get(LISTED_MS) if snapshot.summary is not None else None
    return int(listed) if listed is not None else int(snapshot.timestamp_ms)


def _entries_of(table: Table, snapshot: Snapshot | None) -> Iterator[ManifestEntry]:
    for manifest in [] if snapshot is None else snapshot.manifests(table.io):
        yield from manifest.fetch_manifest_entry(table.io, discard_deleted=True)


def _files_of(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """Return the table's own files in these snapshots: manifest lists, manifests, deletes and derived files."""
    files: set[str] = set()
    has_derived = COLUMNS in table.properties
    for snapshot in snapshots:
        files.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in files:
                continue
            files.add(manifest.manifest_path)
            if manifest.content == ManifestContent.DELETES or has_derived:
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                paths = (entry.data_file.file_path for entry in entries)
                files |= {path for path in paths if path.startswith(f"{table.location()}/")}
    return files


def _metadata_of(table: Table) -> set[str]:
    """Return the table's metadata files, current and previous, and statistics that other programs added."""
    metadata = table.metadata
    statistics = {stored.statistics_path for stored in (*metadata.statistics, *metadata.partition_statistics)}
    return {entry.metadata_file for entry in metadata.metadata_log} | {table.metadata_location} | statistics


def _plain(field: pa.Field) -> pa.Field:
    """Return the field with the types of our Parquet files: Arrow's large types become the plain ones."""
    kind = field.type
    if pa.types.is_large_string(kind):
        kind = pa.string()
    elif pa.types.is_large_binary(kind):
        kind = pa.binary()
    elif pa.types.is_large_list(kind):
        kind = pa.list_(_plain(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_plain(kind.key_field), _plain(kind.item_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_plain(part) for part in kind])
    return field.with_type(kind)


def _delete(table: Table, paths: Iterable[str]) -> None:
    """Delete the table's own files that nothing refers to any more.

    A missing file is not an error. A file that can't be deleted stays, and is logged, because the catalog does not know
    it any more.
    """
    left: dict[str, OSError] = {}
    for path in sorted(paths):
        try:
            table.io.delete(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            left[path] = error
    if left:
        first, reason = next(iter(left.items()))
        log.warning("unreferenced files of a table could not be deleted; they remain",
                    table=".".join(table.name()), files=len(left), first=first, reason=str(reason))  # fmt: skip
