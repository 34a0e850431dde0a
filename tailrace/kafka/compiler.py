"""Compiles a declared message in a version to one flat decoder and one flat encoder.

The code of a codec is straight-line Python, generated on first use (1 to 3 ms) and kept. Nested structures are inlined.
One `struct` call reads or writes adjacent values of fixed size, with the length or the first varint byte after them.

Decoders do not trust their input: every declared count and length is checked against the remaining bytes before
anything is allocated, and any error in the bytes raises MalformedRequest. Encoders append to a bytearray that the
caller starts, for example with a header, and do not copy records.

Each has a variant that works in steps, for messages that may be long. It pauses after every STEP elements.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import UUID, SafeUUID

from tailrace.buffers import Buffer
from tailrace.kafka.errors import MalformedRequest, UnencodableMessage
from tailrace.kafka.schema import NIL_UUID, Field, MessageType, Wire, fields_of
from tailrace.kafka.varints import finish_unsigned_varint, skip_tagged_fields, unsigned_varint
from tailrace.limits import cut
from tailrace.turns import Steps

Parts = list[bytes | bytearray | memoryview]
Decoder = Callable[[memoryview, int], tuple[Any, int]]
"""Maps (buffer, offset) to (message, offset after it)."""
Encoder = Callable[[Any, bytearray, Parts], bytearray]
"""Takes (message, buffer to append to, finished parts). Returns the last buffer, which is not among the parts yet."""
StepDecoder = Callable[[memoryview, int], Steps[tuple[Any, int]]]
StepEncoder = Callable[[Any, bytearray, Parts], Steps[bytearray]]

MAX_STRING = 32767
MAX_MESSAGE_BYTES = 1_000
"""An error message is truncated to this. It may repeat names from a client, and must never prevent the encoding of a
response."""
STEP = 2_000
"""Elements that are read or written between two pauses; they take 1 to 3 ms."""
SMALL_RECORDS = 1024
"""Records of up to this many bytes are copied into the buffer, which is cheaper than a separate part."""

_FORMATS = {
    Wire.BOOL: "?",
    Wire.INT8: "b",
    Wire.INT16: "h",
    Wire.INT32: "i",
    Wire.INT64: "q",
    Wire.FLOAT64: "d",
    Wire.UUID: "16s",
}
_FEW = 16
"""For arrays of fewer numbers, such as replicas, the `struct` layouts are precomputed."""
_FEW_LAYOUTS = {
    code: [struct.Struct(f">{count}{code}") for count in range(_FEW)] for code in _FORMATS.values()
}
_FEW_PACK = {code: [layout.pack for layout in layouts] for code, layouts in _FEW_LAYOUTS.items()}
_FEW_UNPACK = {code: [layout.unpack_from for layout in layouts] for code, layouts in _FEW_LAYOUTS.items()}
_LENGTH_FORMATS = {Wire.STRING: "h", Wire.BYTES: "i", Wire.RECORDS: "i"}


@dataclass(frozen=True, slots=True)
class Codec:
    """The compiled decoder and encoder of one message in one version, with their source."""

    decode: Decoder
    encode: Encoder
    decoder_source: str
    encoder_source: str


@cache
def codec(message: MessageType, version: int, flexible: bool, *, max_items: int | None = None) -> Codec:
    """Return the codec of a message in a version. It is compiled on first use.

    Args:
        max_items: the decoder refuses a message whose arrays together have more elements.
    """
    decoder = _DecoderWriter(version, flexible, max_items)
    encoder = _EncoderWriter(version, flexible)
    decoder_source = decoder.write(message)
    encoder_source = encoder.write(message)
    name = f"<{message.__name__} v{version}>"
    decode = _run(decoder_source, decoder.names, name)["decode"]
    encode = _run(encoder_source, encoder.names, name)["encode"]
    return Codec(decode, encode, decoder_source, encoder_source)


@cache
def step_decoder(message: MessageType, version: int, flexible: bool, max_items: int | None) -> StepDecoder:
    """Return the decoder of a message that works in steps. For `max_items`, see `codec`."""
    writer = _DecoderWriter(version, flexible, max_items, is_stepping=True)
    decode: StepDecoder = _run(
        writer.write(message), writer.names, f"<{message.__name__} v{version} in steps>"
    )["decode"]
    return decode


@cache
def step_encoder(message: MessageType, version: int, flexible: bool) -> StepEncoder:
    """Return the encoder of a message that works in steps."""
    writer = _EncoderWriter(version, flexible, is_stepping=True)
    encode: StepEncoder = _run(
        writer.write(message), writer.names, f"<{message.__name__} v{version} in steps>"
    )["encode"]
    return encode


def _run(source: str, names: dict[str, Any], filename: str) -> dict[str, Any]:
    exec(compile(source, filename, "exec"), names)
    return names


def minimum_size(message: MessageType, version: int, flexible: bool) -> int:
    """Return the fewest bytes that this structure can have. It is at least 1, so that the bytes always limit a
    count."""
    size = 1 if flexible else 0
    for field in fields_of(message):
        if version not in field.versions or version in field.tagged:
            continue
        size += _minimum_field_size(field, version, flexible)
    return max(size, 1)


def _minimum_field_size(field: Field, version: int, flexible: bool) -> int:
    if field.is_array:
        return 1 if flexible else 4
    if not isinstance(field.kind, Wire):
        return 1 if version in field.nullable else minimum_size(field.kind, version, flexible)
    return _minimum_wire_size(field.kind, flexible)


def _minimum_wire_size(wire: Wire, flexible: bool) -> int:
    if wire in _FORMATS:
        return struct.calcsize(">" + _FORMATS[wire])
    return 1 if flexible else struct.calcsize(">" + _LENGTH_FORMATS[wire])


def uuid_of(data: bytes) -> UUID:
    """Return the UUID of 16 bytes, in a third of the time of its constructor."""
    if data == _NIL_BYTES:
        return NIL_UUID
    value = _new_object(UUID)
    _set_attribute(value, "int", int.from_bytes(data, "big"))
    _set_attribute(value, "is_safe", SafeUUID.unknown)
    return value


_NIL_BYTES = bytes(16)
_SEVERAL = (list, tuple)
_new_object = object.__new__
_set_attribute = object.__setattr__


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


def _skip(data: Buffer, offset: int, count: int) -> int:
    """Skip tagged fields; `count` is the first byte of their number. Return the offset after them."""
    if count > 127:
        count, offset = finish_unsigned_varint(data, offset, count)
    return skip_tagged_fields(data, offset, count)


def _refuse(what: str) -> None:
    raise MalformedRequest(what)


class _Writer:
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
        return self.flexible and self.version in field.tagged

    def literal(self, value: Any) -> str:
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return repr(value)
        if isinstance(value, list):
            return "[]"
        return self.constant(value, "DEFAULT_")


class _DecoderWriter(_Writer):
    """Writes `decode(buffer, offset) -> (message, end)`.

    In the code, `o` is the offset and `end` the buffer's length. If the message has no records, the buffer is first
    copied into bytes: slicing bytes costs half as much as slicing a view.
    """

    def __init__(
        self, version: int, flexible: bool, max_items: int | None, *, is_stepping: bool = False
    ) -> None:
        super().__init__(version, flexible, is_stepping=is_stepping)
        self.max_items = max_items

    def write(self, message: MessageType) -> str:
        self.names = {
            "MalformedRequest": MalformedRequest,
            "refuse": _refuse,
            "finish": finish_unsigned_varint,
            "skip": _skip,
            "uuid_of": uuid_of,
            "StructError": struct.error,
            "unpack_from": struct.unpack_from,
        }
        self.is_view = _has_records(message, self.version)
        self.line("def decode(data, o):")
        self.depth = 1
        if not self.is_view:
            self.line("data = bytes(data)")
        self.line("end = len(data)")
        self.begin_steps()
        if self.max_items is not None and _has_arrays(message, self.version):
            self.line("items = 0")
        self.line("try:")
        self.depth += 1
        result = self.structure(message)
        self.line(f"return {result}, o")
        self.depth -= 1
        self.line("except (StructError, IndexError, UnicodeDecodeError, OverflowError) as error:")
        self.line(f"    raise MalformedRequest(f'{message.__name__} v{self.version}: {{error}}') from error")
        return "\n".join(self.lines) + "\n"

    def flush(self) -> None:
        """Read the run of fixed-size values."""
        if not self.run:
            return
        if len(self.run) == 1 and self.run[0][0] == "B":
            self.line(f"{self.run[0][1]} = data[o]")
            self.line("o += 1")
            self.run = []
            return
        layout = struct.Struct(">" + "".join(code for code, _ in self.run))
        unpack = self.constant(layout.unpack_from, "unpack_")
        targets = ", ".join(name for _, name in self.run)
        self.line(f"{targets}, = {unpack}(data, o)")
        self.line(f"o += {layout.size}")
        self.run = []

    def structure(self, message: MessageType) -> str:
        """Read a structure. Return the expression that builds it."""
        values: dict[str, str] = {}
        for field in self.present(message):
            values[field.name] = self.field(field)
        if self.flexible:
            self.tag_section(self.tagged(message), values)
        self.flush()
        arguments = []
        fields = fields_of(message)
        last = max((index for index, field in enumerate(fields) if field.name in values), default=-1)
        for field in fields[: last + 1]:
            arguments.append(values.get(field.name) or self.literal(field.default))
        return f"{self.constant(message, 'C_')}({', '.join(arguments)})"

    def field(self, field: Field) -> str:
        nullable = self.version in field.nullable
        if field.is_array:
            return self.array(field, nullable)
        if isinstance(field.kind, Wire):
            return self.single(field.kind, nullable, field.name)
        if not nullable:
            return self.structure(field.kind)
        mark = self.fresh("mark")
        self.run.append(("b", mark))
        self.flush()
        target = self.fresh("v")
        self.line(f"{target} = None")
        self.line(f"if {mark} >= 0:")
        self.depth += 1
        self.line(f"{target} = {self.structure(field.kind)}")
        self.depth -= 1
        return target

    def single(self, wire: Wire, nullable: bool, what: str) -> str:
        target = self.fresh("v")
        if wire in _FORMATS:
            self.run.append((_FORMATS[wire], target))
            return f"uuid_of({target})" if wire is Wire.UUID else target
        length = self.length(_LENGTH_FORMATS[wire], nullable, what)
        if nullable:
            self.line(f"if {length} < 0:")
            self.line(f"    {target} = None")
            self.line("else:")
            self.depth += 1
        stop = self.fresh("e")
        self.line(f"{stop} = o + {length}")
        limit = f" or {length} > {MAX_STRING}" if wire is Wire.STRING and self.flexible else ""
        self.line(f"if {stop} > end{limit}: refuse(f'{what} of {{{length}}} bytes, {{end - o}} are left')")
        self.line(f"{target} = {self.slice(wire, stop)}")
        self.line(f"o = {stop}")
        if nullable:
            self.depth -= 1
        return target

    def slice(self, wire: Wire, stop: str) -> str:
        if wire is Wire.STRING:
            return f"str(data[o:{stop}], 'utf-8')" if self.is_view else f"data[o:{stop}].decode()"
        if wire is Wire.BYTES and self.is_view:
            return f"bytes(data[o:{stop}])"
        return f"data[o:{stop}]"

    def length(self, code: str, nullable: bool, what: str) -> str:
        """Read a length. Return its variable, which is -1 for null and never less."""
        length = self.fresh("n")
        if self.flexible:
            self.varint(length)
            self.line(f"{length} -= 1")
        else:
            self.run.append((code, length))
            self.flush()
        lowest = -1 if nullable else 0
        if not (nullable and self.flexible):
            self.line(f"if {length} < {lowest}: refuse(f'{what} has the length {{{length}}}')")
        return length

    def varint(self, target: str) -> None:
        self.run.append(("B", target))
        self.flush()
        self.line(f"if {target} > 127: {target}, o = finish(data, o, {target})")

    def array(self, field: Field, nullable: bool) -> str:
        count = self.length("i", nullable, field.name)
        target = self.fresh("a")
        if nullable:
            self.line(f"if {count} < 0:")
            self.line(f"    {target} = None")
            self.line("else:")
            self.depth += 1
        kind = field.kind
        size = (
            _minimum_wire_size(kind, self.flexible)
            if isinstance(kind, Wire)
            else minimum_size(kind, self.version, self.flexible)
        )
        self.line(
            f"if {count} * {size} > end - o:"
            f" refuse(f'{{{count}}} {field.name} are declared, {{end - o}} bytes are left')"
        )
        if self.max_items is not None:
            self.line(f"items += {count}")
            self.line(
                f"if items > {self.max_items}: refuse('more than {self.max_items} elements in one message')"
            )
        if isinstance(kind, Wire) and kind in _FORMATS and kind is not Wire.UUID:
            code = _FORMATS[kind]
            few = self.constant(_FEW_UNPACK[code], "few_")
            self.line(f"if {count} < {_FEW}: {target} = list({few}[{count}](data, o))")
            self.line(f"else: {target} = list(unpack_from(f'>{{{count}}}{code}', data, o))")
            self.line(f"o += {count} * {size}")
        else:
            self.line(f"{target} = []")
            self.line(f"for _ in range({count}):")
            self.depth += 1
            if isinstance(kind, Wire):
                element = self.single(kind, False, field.name)
                self.flush()
            else:
                element = self.structure(kind)
            self.line(f"{target}.append({element})")
            self.step()
            self.depth -= 1
        if nullable:
            self.depth -= 1
        return target

    def tag_section(self, fields: list[Field], values: dict[str, str]) -> None:
        count = self.fresh("n")
        self.run.append(("B", count))
        self.flush()
        if not fields:
            self.line(f"if {count}: o = skip(data, o, {count})")
            return
        for field in fields:
            values[field.name] = self.fresh("t")
            self.line(f"{values[field.name]} = {self.literal(field.default)}")
        self.line(f"if {count}:")
        self.depth += 1
        self.line(f"if {count} > 127: {count}, o = finish(data, o, {count})")
        self.line(
            f"if {count} * 2 > end - o: refuse(f'{{{count}}} tagged fields, {{end - o}} bytes are left')"
        )
        self.line(f"for _ in range({count}):")
        self.depth += 1
        tag, size, stop = self.fresh("tag"), self.fresh("n"), self.fresh("e")
        self.varint(tag)
        self.varint(size)
        self.line(f"{stop} = o + {size}")
        self.line(f"if {stop} > end: refuse(f'a tagged field of {{{size}}} bytes, {{end - o}} are left')")
        for index, field in enumerate(fields):
            self.line(f"{'if' if index == 0 else 'elif'} {tag} == {field.tag}:")
            self.depth += 1
            value = self.field(field)
            self.flush()
            self.line(f"{values[field.name]} = {value}")
            self.depth -= 1
        self.line("else:")
        self.line(f"    o = {stop}")
        self.line(f"if o != {stop}: refuse(f'tagged field {{{tag}}} does not fill its {{{size}}} bytes')")
        self.depth -= 2


class _EncoderWriter(_Writer):
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
        if wire in _FORMATS:
            self.run.append((_FORMATS[wire], f"{source}.bytes" if wire is Wire.UUID else source))
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
        self.length(_LENGTH_FORMATS[wire], length)
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
        if isinstance(kind, Wire) and kind in _FORMATS and kind is not Wire.UUID:
            code = _FORMATS[kind]
            few = self.constant(_FEW_PACK[code], "few_")
            self.line(f"if {count} < {_FEW}: out += {few}[{count}](*{value})")
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


def _has_arrays(message: MessageType, version: int) -> bool:
    return any(
        field.is_array or (not isinstance(field.kind, Wire) and _has_arrays(field.kind, version))
        for field in fields_of(message)
        if version in field.versions
    )


def _has_records(message: MessageType, version: int) -> bool:
    for field in fields_of(message):
        if version not in field.versions:
            continue
        if field.kind is Wire.RECORDS:
            return True
        if not isinstance(field.kind, Wire) and _has_records(field.kind, version):
            return True
    return False
