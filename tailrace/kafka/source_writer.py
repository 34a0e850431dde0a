"""What the writers of decoders' and encoders' source share: lines, constants, and the wire's layouts.

A writer collects adjacent values of fixed size in `run`, so that one `struct` call reads or writes all of them.
"""

from __future__ import annotations

from typing import Any

from tailrace.kafka.schema import Field, MessageType, Wire, fields_of

MAX_STRING = 32767
STEP = 2_000
"""Elements that are read or written between two pauses; they take 1 to 3 ms."""

FORMATS = {
    Wire.BOOL: "?",
    Wire.INT8: "b",
    Wire.INT16: "h",
    Wire.INT32: "i",
    Wire.INT64: "q",
    Wire.FLOAT64: "d",
    Wire.UUID: "16s",
}
FEW = 16
"""For arrays of fewer numbers, such as replicas, the `struct` layouts are precomputed."""
LENGTH_FORMATS = {Wire.STRING: "h", Wire.BYTES: "i", Wire.RECORDS: "i"}


class SourceWriter:
    """Collects lines of source, the constants they use, and the run of fixed-size values not yet written."""

    def __init__(self, version: int, flexible: bool, *, is_stepping: bool = False) -> None:
        self.version = version
        self.flexible = flexible
        self.is_stepping = is_stepping
        self.names: dict[str, Any] = {}
        self.lines: list[str] = []
        self.depth = 0
        self.counter = 0
        self.run: list[tuple[str, str]] = []

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    def begin_steps(self) -> None:
        """Prepare for pauses. This makes the function a generator, even if its message has no arrays."""
        if self.is_stepping:
            self.line(f"left = {STEP}")
            self.line("if not left: yield 0")

    def step(self) -> None:
        """Count an element, and pause after STEP of them."""
        if self.is_stepping:
            self.line("left -= 1")
            self.line("if not left:")
            self.line(f"    left = {STEP}")
            self.line(f"    yield {STEP}")

    def constant(self, value: Any, stem: str) -> str:
        for name, known in self.names.items():
            if known is value:
                return name
        name = self.fresh(stem)
        self.names[name] = value
        return name

    def present(self, message: MessageType) -> list[Field]:
        """Return the fields that are on the wire in this version, in order, without tagged ones."""
        return [
            field
            for field in fields_of(message)
            if self.version in field.versions and not self.is_tagged(field)
        ]

    def tagged(self, message: MessageType) -> list[Field]:
        fields = [
            field for field in fields_of(message) if self.version in field.versions and self.is_tagged(field)
        ]
        return sorted(fields, key=lambda field: field.tag or 0)

    def is_tagged(self, field: Field) -> bool:
        return self.flexible and field.tag is not None

    def literal(self, value: Any) -> str:
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return repr(value)
        if isinstance(value, list):
            return "[]"
        return self.constant(value, "DEFAULT_")
