"""Histories as JSON lines: one event a line, written as it happens."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from tests.support.history.events import AnyEvent

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(AnyEvent)


class BadHistory(Exception):
    """A line is not an event; the message says which line, and why."""


def encode_event(event: AnyEvent) -> bytes:
    """Encode one event as a line, without its newline."""
    return _ENCODER.encode(event)


def decode_event(line: bytes) -> AnyEvent:
    event: AnyEvent = _DECODER.decode(line)
    return event


def write_history(path: Path, events: Iterable[AnyEvent]) -> int:
    """Write all events; returns their number."""
    count = 0
    with open(path, "wb") as file:
        for event in events:
            file.write(_ENCODER.encode(event) + b"\n")
            count += 1
    return count


def read_history(path: Path) -> Iterator[AnyEvent]:
    """Yield the events of a file. Raises BadHistory.

    A killed recorder leaves a last line without a newline; it is ignored.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield _DECODER.decode(line)
            except msgspec.DecodeError as error:
                if not line.endswith(b"\n"):
                    return
                raise BadHistory(f"{path}, line {number}: {error}: {line[:200]!r}") from error


class HistoryLog:
    """Takes events from many threads, keeps them, and writes each at once if it has a file."""

    def __init__(self, path: Path | None = None) -> None:
        self.events: list[AnyEvent] = []
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None if path is None else open(path, "wb")  # noqa: SIM115

    def add(self, event: AnyEvent) -> None:
        with self._lock:
            self.events.append(event)
            if self._file is not None:
                self._file.write(_ENCODER.encode(event) + b"\n")

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
