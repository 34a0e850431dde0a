"""The source of encoders. They append to a buffer, and pass large records on without a copy."""

from __future__ import annotations

import struct
from typing import Any

from tailrace.buffers import Buffer
from tailrace.kafka.errors import UnencodableMessage
from tailrace.kafka.schema import Field, MessageType, Wire, fields_of
from tailrace.kafka.source_writer import FEW, FORMATS, LENGTH_FORMATS, MAX_STRING, SourceWriter
from tailrace.kafka.varints import unsigned_varint
from tailrace.limits import cut

Parts = list[bytes | bytearray | memoryview]

MAX_MESSAGE_BYTES = 1_000
"""An error message is truncated to this. It may repeat names from a client, and must never prevent the encoding of a
response."""
SMALL_RECORDS = 1024
"""Records of up to this many bytes are copied into the buffer, which is cheaper than a separate part."""

_SEVERAL = (list, tuple)
_FEW_PACK = {
    code: [struct.Struct(f">{count}{code}").pack for count in range(FEW)] for code in FORMATS.values()
}


class EncoderWriter(SourceWriter):
    """Writes `encode(message, out, parts) -> out`."""

    def write(self, message: MessageType) -> str:
        self.names = {
            "UnencodableMessage": UnencodableMessage,
            "varint": unsigned_varint,
            "cut": cut,
            "total_size": total_size,
            "SEVERAL": _SEVERAL,
            "append_records": append_records,
            "pack": struct.pack,
            "StructError": struct.error,
        }
        self.line("def encode(m, out, parts):")
        self.line("    try:")
        self.depth = 2
        self.begin_steps()
        self.structure(message, "m")
        self.flush()
        self.line("return out")
        self.depth -= 1
        self.line("except (StructError, AttributeError, TypeError, ValueError) as error:")
        self.line(
            f"    raise UnencodableMessage(f'{message.__name__} v{self.version}: {{error}}') from error"
        )
        return "\n".join(self.lines) + "\n"

    def flush(self) -> None:
        """Write the run of fixed-size values."""
        if self.run:
            self.line(self.packed(self.run))
            self.run = []

    def packed(self, run: list[tuple[str, str]]) -> str:
        codes = "".join(code for code, _ in run)
        values = ", ".join(value for _, value in run if value)
        if codes == "B":
            return f"out.append({values})"
        if not values:
            return f"out += {bytes(struct.calcsize('>' + codes))!r}"
        return f"out += {self.constant(struct.Struct('>' + codes).pack, 'pack_')}({values})"

    def structure(self, message: MessageType, source: str) -> None:
        for field in fields_of(message):
            if self.version not in field.versions and not field.ignorable:
                self.line(f"if {self.differs(field, f'{source}.{field.name}')}:")
                self.line(
                    f"    raise UnencodableMessage('{message.__name__}.{field.name} is not in"
                    f" version {self.version}')"
                )
        for field in self.present(message):
            self.field(field, f"{source}.{field.name}")
        if not self.flexible:
            return
        tagged = self.tagged(message)
        if not tagged:
            self.run.append(("x", ""))
        else:
            self.tag_section(tagged, source)

    def differs(self, field: Field, source: str) -> str:
        """Return the condition that a value is not the default."""
        default = field.default
        if default is None:
            return f"{source} is not None"
        if isinstance(default, list):
            return f"({source} or {source} is None)" if field.nullable.last >= 0 else source
        if isinstance(default, bool):
            return f"not {source}" if default else source
        name = self.literal(default)
        if isinstance(default, int | float | str | bytes):
            return f"{source} != {name}"
        return f"({source} is not {name} and {source} != {name})"

    def field(self, field: Field, source: str) -> None:
        nullable = self.version in field.nullable
        if field.is_array:
            self.array(field, source, nullable)
        elif isinstance(field.kind, Wire):
            self.single(field.kind, source, nullable)
        else:
            value = self.fresh("s")
            self.line(f"{value} = {source}")
            if nullable:
                self.flush()
                self.line(f"if {value} is None:")
                self.line("    out.append(255)")
                self.line("else:")
                self.depth += 1
                self.run.append(("b", "1"))
                self.structure(field.kind, value)
                self.flush()
                self.depth -= 1
            else:
                self.structure(field.kind, value)

    def single(self, wire: Wire, source: str, nullable: bool) -> None:
        if wire in FORMATS:
            self.run.append((FORMATS[wire], f"{source}.bytes" if wire is Wire.UUID else source))
            return
        value, length = self.fresh("s"), self.fresh("n")
        self.line(f"{value} = {source}")
        if nullable:
            self.line(f"if {value} is None: {length} = -1")
            self.line("else:")
            self.depth += 1
        if wire is Wire.STRING:
            is_message = source.endswith("error_message")
            self.line(
                f"{value} = "
                + (f"cut({value}, {MAX_MESSAGE_BYTES}).encode()" if is_message else f"{value}.encode()")
            )
        if wire is Wire.RECORDS:
            self.line(f"{length} = total_size({value}) if isinstance({value}, SEVERAL) else len({value})")
        else:
            self.line(f"{length} = len({value})")
        if wire is Wire.STRING:
            self.line(
                f"if {length} > {MAX_STRING}:"
                f" raise UnencodableMessage(f'a string of {{{length}}} bytes; the most is {MAX_STRING}')"
            )
        if nullable:
            self.depth -= 1
        self.length(LENGTH_FORMATS[wire], length)
        self.flush()
        guard = f"if {length} > 0: " if nullable else ""
        if wire is Wire.RECORDS:
            self.line(f"{guard}out = append_records({value}, {length}, out, parts)")
        else:
            self.line(f"{guard}out += {value}")

    def length(self, code: str, length: str) -> None:
        """Write a length (-1 for null) after the run."""
        if not self.flexible:
            self.run.append((code, length))
            return
        run, self.run = self.run, []
        self.line(f"if {length} < 127: {self.packed([*run, ('B', f'{length} + 1')])}")
        self.line("else:")
        if run:
            self.line(f"    {self.packed(run)}")
        self.line(f"    out += varint({length} + 1)")

    def array(self, field: Field, source: str, nullable: bool) -> None:
        value, count = self.fresh("a"), self.fresh("n")
        self.line(f"{value} = {source}")
        if nullable:
            self.line(f"{count} = -1 if {value} is None else len({value})")
        else:
            self.line(f"{count} = len({value})")
        self.length("i", count)
        self.flush()
        kind = field.kind
        self.line(f"if {count} > 0:")
        self.depth += 1
        if isinstance(kind, Wire) and kind in FORMATS and kind is not Wire.UUID:
            code = FORMATS[kind]
            few = self.constant(_FEW_PACK[code], "few_")
            self.line(f"if {count} < {FEW}: out += {few}[{count}](*{value})")
            self.line(f"else: out += pack(f'>{{{count}}}{code}', *{value})")
        else:
            element = self.fresh("i")
            self.line(f"for {element} in {value}:")
            self.depth += 1
            if isinstance(kind, Wire):
                self.single(kind, element, False)
            else:
                self.structure(kind, element)
            self.flush()
            self.step()
            self.depth -= 1
        self.depth -= 1

    def tag_section(self, fields: list[Field], source: str) -> None:
        tests = [self.differs(field, f"{source}.{field.name}") for field in fields]
        run, self.run = self.run, []
        self.line(f"if not ({' or '.join(tests)}): {self.packed([*run, ('x', '')])}")
        self.line("else:")
        self.depth += 1
        if run:
            self.line(self.packed(run))
        conditions = [self.fresh("c") for _ in tests]
        for condition, test in zip(conditions, tests, strict=True):
            self.line(f"{condition} = {test}")
        outer, body = self.fresh("o"), self.fresh("b")
        count = " + ".join(f"bool({condition})" for condition in conditions)
        self.line(f"out += varint({count})")
        self.line(f"{outer} = out")
        for condition, field in zip(conditions, fields, strict=True):
            self.line(f"if {condition}:")
            self.depth += 1
            self.line("out = bytearray()")
            self.field(field, f"{source}.{field.name}")
            self.flush()
            self.line(f"{body} = out")
            self.line(f"{outer} += varint({field.tag})")
            self.line(f"{outer} += varint(len({body}))")
            self.line(f"{outer} += {body}")
            self.depth -= 1
        self.line(f"out = {outer}")
        self.depth -= 1


def total_size(buffers: list[Buffer]) -> int:
    """Return the total size of several buffers in bytes."""
    return sum(map(len, buffers))


def append_records(records: Any, size: int, out: bytearray, parts: Parts) -> bytearray:
    """Append records to `out` if they are small, else as separate parts. Return the last buffer."""
    several = isinstance(records, _SEVERAL)
    if size <= SMALL_RECORDS:
        for buffer in records if several else (records,):
            out += buffer
        return out
    parts.append(out)
    if several:
        parts.extend(records)
    else:
        parts.append(records)
    return bytearray()
