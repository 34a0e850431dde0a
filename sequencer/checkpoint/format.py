"""Metadata checkpoints: the committer's rows as objects in the bucket, from which a lost database is rebuilt.

While a committer holds its lease (a *term*) it writes numbered *heads*, each with the rows that changed since the
previous head: a chain. From time to time a head is a *snapshot*: it has all hot rows as of that head, and the names of
*parts*, which contain the cold rows. Parts are read page by page while commits continue, so a part has each row as it
was at some moment after head `replay_from` was begun. Applying the changes in the heads from `replay_from` on, in
order, makes the rows exact, except for a write that the database had and the committer had not shown yet
(`sequencer.recovery.bucket_scan` leaves it out). Objects before the `replay_from` of the previous snapshot are then
deleted: if a part is corrupt, the previous snapshot and all heads since give the same rows.

Producers and the positions of groups are cold rows too, because a server has only some of them in memory. Version 1 had
both among the hot rows, version 2 had positions there; a reader of an older version would ignore those in the parts.

Keys: `{cluster id}/meta/{incarnation}/{epoch}/{number}.head`, `....{part}.part`. All of them sort by age.

A head promises that no offset at or above a partition's end in the head plus `reservation` was or will be assigned
before another head of that partition is durable. The first head of a term has all topics and partitions. A last head
with reservation 0 says that the committer has ended and that nothing was assigned after it.

Every object is zstd of MessagePack between a magic number and a CRC-32C. Rows are arrays in the order of their fields,
which are only ever appended, with defaults. Pure. Work that may be long is `Steps`, in units of a row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from struct import Struct
from typing import Any

import cramjam
import msgspec
from fastcrc.crc32 import iscsi as crc32c

from sequencer.store.rows import HOT, KEYS, AnswerRow, Changes, CommitRow, JournalRow, Row, key_of
from tailrace import messagepack
from tailrace.buffers import Buffer
from tailrace.turns import Steps

VERSION = 3
READABLE_VERSIONS = (1, 2, VERSION)
MAGIC = b"TRCK"
MAX_UNPACKED_BYTES = 1 << 30
TABLE_ROWS = 2_000
"""Rows of one table in a head or a part; one kind may have several tables there."""
BYTES_AS_A_ROW = 512
"""The number of bytes that take as long to compress as one row takes to encode."""
_PACKED_AT_ONCE = 1 << 20
_ZSTD_LEVEL = 1
_HEADER = Struct(">4sHH")
_TRAILER = Struct(">QI4s")

LEFT_OUT: frozenset[type[Row]] = frozenset({CommitRow, AnswerRow, JournalRow})
"""Answers are for retries, which do not continue across a recovery: it closes all sessions and ends all agents. The
journal is for servers that follow this database."""
KEPT: frozenset[type[Row]] = frozenset(KEYS) - LEFT_OUT
KEPT_HOT: tuple[type[Row], ...] = tuple(kind for kind in HOT if kind in KEPT)
KINDS: dict[str, type[Row]] = {kind.__name__: kind for kind in KEYS}


class InvalidCheckpoint(Exception):
    """The bytes are not a part of a checkpoint that this version reads; the message says what was found."""


class Table(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one kind that were put, and keys of rows that were deleted; both encoded."""

    kind: str
    puts: msgspec.Raw
    deletes: msgspec.Raw


class Part(msgspec.Struct, frozen=True, array_like=True):
    """An object with rows that a snapshot names. `is_hot`: its rows are exact as of the head, not of an earlier
    moment."""

    key: str
    size: int
    crc: int
    rows: int
    is_hot: bool = False


class Head(msgspec.Struct, frozen=True, array_like=True):
    """See the module. `begins`: the head from which on this term's chain has no gap. `replay_from` -1: not a
    snapshot."""

    version: int
    cluster_id: str
    incarnation: int
    epoch: int
    number: int
    begins: int
    commit_number: int
    created_ms: int
    interval_ms: int
    reservation: int
    tables: list[Table]
    replay_from: int = -1
    parts: list[Part] = []

    @property
    def is_snapshot(self) -> bool:
        return self.replay_from >= 0

    @property
    def head_id(self) -> HeadId:
        return HeadId(self.incarnation, self.epoch, self.number)


@dataclass(frozen=True, slots=True, order=True)
class HeadId:
    """Identifies a head. Ids are ordered by age."""

    incarnation: int
    epoch: int
    number: int


class ClusterFile(msgspec.Struct, frozen=True):
    """`{cluster id}/cluster.json`: the cluster and incarnation that the bucket belongs to, readable for people too."""

    cluster_id: str
    incarnation: int
    version: int = 1
    formats: dict[str, int] = {}


# --- keys -------------------------------------------------------------------------------------------------


def meta_prefix(cluster_id: str) -> str:
    """Return the prefix of a cluster's checkpoints."""
    return f"{cluster_id}/meta/"


def cluster_key(cluster_id: str) -> str:
    return f"{cluster_id}/cluster.json"


def head_key(cluster_id: str, head_id: HeadId) -> str:
    return f"{_stem(cluster_id, head_id)}.head"


def part_key(cluster_id: str, head_id: HeadId, part: int) -> str:
    """Return the key of a part of the snapshot that replays from `head_id`."""
    return f"{_stem(cluster_id, head_id)}.{part:06}.part"


def _stem(cluster_id: str, head_id: HeadId) -> str:
    return f"{meta_prefix(cluster_id)}{head_id.incarnation:08}/{head_id.epoch:010}/{head_id.number:010}"


def head_id_of(cluster_id: str, key: str) -> HeadId | None:
    """Return the id of the head that has this key; for a part, of the head from which its snapshot replays; for other
    keys None."""
    parts = key.removeprefix(meta_prefix(cluster_id)).split("/")
    if len(parts) != 3:
        return None
    number, _, rest = parts[2].partition(".")
    numbers = (parts[0], parts[1], number)
    if not all(digits.isdecimal() for digits in numbers) or not (rest == "head" or rest.endswith(".part")):
        return None
    return HeadId(*map(int, numbers))


# --- bytes ------------------------------------------------------------------------------------------------

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_heads = msgspec.msgpack.Decoder(Head)
_tables = msgspec.msgpack.Decoder(list[Table])


def seal(body: bytes) -> Steps[bytes]:
    """Pack a body between header and trailer."""
    packing = cramjam.zstd.Compressor(level=_ZSTD_LEVEL)
    for first in range(0, len(body), _PACKED_AT_ONCE):
        packing.compress(body[first : first + _PACKED_AT_ONCE])
        yield _PACKED_AT_ONCE // BYTES_AS_A_ROW
    summed = _HEADER.pack(MAGIC, VERSION, 0) + bytes(packing.finish())
    return summed + _TRAILER.pack(len(body), crc32c(summed), MAGIC)


def unseal(data: Buffer) -> bytes:
    """Unpack the body. Raises InvalidCheckpoint."""
    view = memoryview(data)
    if len(view) < _HEADER.size + _TRAILER.size:
        raise InvalidCheckpoint(f"{len(view)} bytes; a checkpoint has more")
    magic, version, _ = _HEADER.unpack_from(view)
    unpacked_length, crc, end = _TRAILER.unpack(view[-_TRAILER.size :])
    if magic != MAGIC or end != MAGIC:
        raise InvalidCheckpoint(
            f"begins with {magic!r} and ends in {end!r}; both are {MAGIC!r} in a checkpoint"
        )
    if version not in READABLE_VERSIONS:
        raise InvalidCheckpoint(f"format version {version}; this one reads {READABLE_VERSIONS}")
    summed = view[: -_TRAILER.size]
    if (computed := crc32c(summed)) != crc:
        raise InvalidCheckpoint(f"CRC {crc:#010x}, the bytes give {computed:#010x}")
    if unpacked_length > MAX_UNPACKED_BYTES:
        raise InvalidCheckpoint(f"{unpacked_length} bytes unpacked; at most {MAX_UNPACKED_BYTES}")
    body = bytearray(unpacked_length)
    try:
        written = cramjam.zstd.decompress_into(summed[_HEADER.size :], body)
    except cramjam.DecompressionError as error:
        raise InvalidCheckpoint(f"can't be unpacked: {error}") from error
    if written != unpacked_length:
        raise InvalidCheckpoint(f"{written} bytes unpacked; the trailer says {unpacked_length}")
    return bytes(body)


def encode_head(head: Head) -> Steps[bytes]:
    return (yield from seal(_encoder.encode(head)))


def decode_head(data: Buffer) -> Head:
    """Decode a stored head. Raises InvalidCheckpoint."""
    try:
        head = messagepack.decode(_heads, unseal(data))
    except msgspec.DecodeError as error:
        raise InvalidCheckpoint(f"no head: {error}") from error
    if head.version not in READABLE_VERSIONS:
        raise InvalidCheckpoint(f"a head of version {head.version}; this one reads {READABLE_VERSIONS}")
    return head


def encode_part(rows: Mapping[type[Row], Sequence[Row]]) -> Steps[bytes]:
    tables: list[Table] = []
    for kind, found in rows.items():
        for first in range(0, len(found), TABLE_ROWS):
            tables.append(encode_rows(kind, found[first : first + TABLE_ROWS]))
            yield TABLE_ROWS
    return (yield from seal(_encoder.encode(tables)))


def decode_part(data: Buffer, part: Part) -> list[Table]:
    """Decode a stored part. Raises InvalidCheckpoint if it is not the one that the head names."""
    crc = crc32c(data)
    if (len(data), crc) != (part.size, part.crc):
        raise InvalidCheckpoint(
            f"{part.key}: {len(data)} bytes, of CRC {crc:#010x}; the head says {part.size}, {part.crc:#010x}"
        )
    try:
        return messagepack.decode(_tables, unseal(data))
    except msgspec.DecodeError as error:
        raise InvalidCheckpoint(f"{part.key}: no part: {error}") from error


# --- rows -------------------------------------------------------------------------------------------------


def encode_rows(kind: type[Row], rows: Iterable[Row], deletes: Iterable[tuple[object, ...]] = ()) -> Table:
    puts = _encoder.encode([msgspec.structs.astuple(row) for row in rows])
    return Table(kind.__name__, msgspec.Raw(puts), msgspec.Raw(_encoder.encode(list(deletes))))


def encode_changes(changes: Changes, kinds: Collection[type[Row]] = KEPT) -> Steps[list[Table]]:
    """Return the changes of rows of these kinds as tables."""
    tables: list[Table] = []
    for kind, by_key in changes.by_kind.items():
        if kind not in kinds:
            continue
        rows = iter(by_key.items())
        while some := list(islice(rows, TABLE_ROWS)):
            puts = (row for _, row in some if row is not None)
            tables.append(encode_rows(kind, puts, (key for key, row in some if row is None)))
            yield len(some)
    return tables


class _TableCodec:
    """Decoders for one kind of row. Fields are decoded in order; missing last fields get their defaults."""

    def __init__(self, kind: type[Row]) -> None:
        self._kind = kind
        fields = msgspec.structs.fields(kind)
        stored = msgspec.defstruct(
            f"Stored{kind.__name__}", [_definition(one) for one in fields], array_like=True, gc=False
        )
        by_name = {one.name: one for one in fields}
        key = msgspec.defstruct(
            f"KeyOf{kind.__name__}",
            [(name, by_name[name].type) for name in KEYS[kind]],
            array_like=True,
            gc=False,
        )
        self._rows: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(list[stored])  # type: ignore[valid-type]
        self._keys: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(list[key])  # type: ignore[valid-type]

    def rows(self, data: msgspec.Raw) -> list[Row]:
        return [
            self._kind(*msgspec.structs.astuple(stored)) for stored in messagepack.decode(self._rows, data)
        ]

    def keys(self, data: msgspec.Raw) -> list[tuple[object, ...]]:
        return [msgspec.structs.astuple(key) for key in messagepack.decode(self._keys, data)]


def _definition(one: msgspec.structs.FieldInfo) -> Any:
    if one.default is not msgspec.NODEFAULT:
        return one.name, one.type, one.default
    if one.default_factory is not msgspec.NODEFAULT:
        return one.name, one.type, msgspec.field(default_factory=one.default_factory)
    return one.name, one.type


_codecs: dict[type[Row], _TableCodec] = {}


def decode_table(table: Table) -> tuple[type[Row], list[Row], list[tuple[object, ...]]]:
    """Return the kind, the rows and the deleted keys. Raises InvalidCheckpoint."""
    kind = KINDS.get(table.kind)
    if kind is None:
        raise InvalidCheckpoint(
            f"rows of kind {table.kind!r}, which this version doesn't know: run a newer one"
        )
    codec = _codecs.get(kind)
    if codec is None:
        codec = _codecs[kind] = _TableCodec(kind)
    try:
        return kind, codec.rows(table.puts), codec.keys(table.deletes)
    except msgspec.DecodeError as error:
        raise InvalidCheckpoint(f"{table.kind}: {error}") from error


@dataclass(slots=True)
class CheckpointedRows:
    """Rows by kind and key, as a chain of heads leaves them."""

    by_kind: dict[type[Row], dict[tuple[object, ...], Row]] = field(
        default_factory=lambda: {kind: {} for kind in KEYS}
    )

    def apply(self, tables: Iterable[Table]) -> None:
        """Put and delete rows. Raises InvalidCheckpoint."""
        for table in tables:
            kind, puts, deletes = decode_table(table)
            rows = self.by_kind[kind]
            for key in deletes:
                rows.pop(key, None)
            for row in puts:
                rows[key_of(row)] = row

    def forget_hot(self) -> None:
        """Drop all hot rows, before a snapshot's head is applied, which has all of them."""
        for kind in KEPT_HOT:
            self.by_kind[kind].clear()

    def all(self, kind: type[Any]) -> list[Any]:
        return list(self.by_kind[kind].values())


# --- chains -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chain:
    """A snapshot and the heads that follow it without a gap. `replayed` includes the snapshot's own head."""

    snapshot: Head
    replayed: list[Head]

    @property
    def last(self) -> Head:
        return self.replayed[-1]


def chains(heads: Mapping[HeadId, Head]) -> list[Chain]:
    """Return every snapshot that can be made exact, newest first, each with the heads that follow it."""
    found: list[Chain] = []
    for head_id in sorted(heads, reverse=True):
        snapshot = heads[head_id]
        if not snapshot.is_snapshot or snapshot.replay_from < snapshot.begins:
            continue
        replayed: list[Head] = []
        number = snapshot.replay_from
        while True:
            head = heads.get(HeadId(head_id.incarnation, head_id.epoch, number))
            if head is None or head.begins != snapshot.begins:
                break
            replayed.append(head)
            number += 1
        if replayed and replayed[-1].number >= snapshot.number:
            found.append(Chain(snapshot, replayed))
    return found
