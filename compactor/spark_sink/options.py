"""Checks the options of the sink, and the columns of its input, which are those of Spark's own Kafka sink.

Unknown options are refused, because a misspelt one would be silently ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compactor.on_spark.spark_options import (
    SECURITY,
    count_of,
    is_true,
    known_options,
    names_in,
    security_files,
)
from tailrace.batches.record_batch import Compression
from tailrace.rpc.loaded_security import SecurityFiles

OBJECT_BYTES = 64 << 20
MOST_OBJECT_BYTES = 512 << 20

_OF_SPARK = ("checkpointLocation", "queryName", "path")
"""Options that Spark itself passes to a sink."""
_KNOWN = ("store", "sequencer", "topic", "compression", "objectBytes", "atomic", *SECURITY, *_OF_SPARK)
_REFUSED = {
    "kafka.bootstrap.servers": "this sink writes to the store and asks the sequencer, not a broker; give 'store' and"
    " 'sequencer'",
    "database": "a write needs a running sequencer; give 'sequencer' (host:port)",
}
_BYTES = ("string", "binary")
_COLUMNS = {
    "key": _BYTES,
    "value": _BYTES,
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""The accepted Spark types by column. Other columns are ignored, as in Spark's Kafka sink."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The checked options. `topic`: the topic of all records, '' if a column has it. `object_bytes`: bytes of rows per
    object. `is_atomic`: a batch job's records become visible together."""

    store: str
    sequencers: tuple[str, ...]
    topic: str
    compression: Compression
    object_bytes: int
    is_atomic: bool
    security: SecurityFiles

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SinkOptions:
        """Check options. Raises ValueError with the option, what was given and what is allowed."""
        given = known_options(options, _KNOWN, _REFUSED)
        sequencers = names_in(given.get("sequencer", ""))
        if not given.get("store") or not sequencers:
            raise ValueError("give the options 'store' and 'sequencer' (host:port)")
        codec = given.get("compression", "none").upper()
        if codec not in Compression.__members__:
            allowed = ", ".join(name.lower() for name in Compression.__members__)
            raise ValueError(f"option 'compression': {given['compression']!r}; allowed are {allowed}")
        object_bytes = count_of(given, "objectBytes", default=OBJECT_BYTES)
        if object_bytes > MOST_OBJECT_BYTES:
            raise ValueError(f"option 'objectBytes': {object_bytes}; at most {MOST_OBJECT_BYTES}")
        return cls(
            store=given["store"],
            sequencers=sequencers,
            topic=given.get("topic", ""),
            compression=Compression[codec],
            object_bytes=object_bytes,
            is_atomic=is_true(given, "atomic", default=True),
            security=security_files(given, sequencers),
        )

    def check_columns(self, types: Mapping[str, str]) -> None:
        """Raise ValueError unless rows with these columns (Spark's type by name) can be written."""
        if "value" not in types:
            raise ValueError(f"no column 'value' among {', '.join(types)}")
        if not self.topic and "topic" not in types:
            raise ValueError("give the option 'topic' or a column 'topic'")
        for name, allowed in _COLUMNS.items():
            if name in types and types[name] not in allowed:
                raise ValueError(f"column {name!r} is {types[name]}; allowed is {' or '.join(allowed)}")
