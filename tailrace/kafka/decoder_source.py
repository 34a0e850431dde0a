"""The source of decoders. Every declared count and length is checked before anything is allocated."""

from __future__ import annotations

import struct
from uuid import UUID, SafeUUID

from tailrace.buffers import Buffer
from tailrace.kafka.errors import MalformedRequest
from tailrace.kafka.schema import NIL_UUID, Field, MessageType, Wire, fields_of
from tailrace.kafka.source_writer import FEW, FORMATS, LENGTH_FORMATS, MAX_STRING, SourceWriter
from tailrace.kafka.varints import finish_unsigned_varint, skip_tagged_fields

_FEW_UNPACK = {
    code: [struct.Struct(f">{count}{code}").unpack_from for count in range(FEW)] for code in FORMATS.values()
}


class DecoderWriter(SourceWriter):
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
        if wire in FORMATS:
            self.run.append((FORMATS[wire], target))
            return f"uuid_of({target})" if wire is Wire.UUID else target
        length = self.length(LENGTH_FORMATS[wire], nullable, what)
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
        if isinstance(kind, Wire) and kind in FORMATS and kind is not Wire.UUID:
            code = FORMATS[kind]
            few = self.constant(_FEW_UNPACK[code], "few_")
            self.line(f"if {count} < {FEW}: {target} = list({few}[{count}](data, o))")
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


def minimum_size(message: MessageType, version: int, flexible: bool) -> int:
    """Return the fewest bytes that this structure can have. It is at least 1, so that the bytes always limit a
    count."""
    size = 1 if flexible else 0
    for field in fields_of(message):
        if version not in field.versions or field.tag is not None:
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
    if wire in FORMATS:
        return struct.calcsize(">" + FORMATS[wire])
    return 1 if flexible else struct.calcsize(">" + LENGTH_FORMATS[wire])


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


def _skip(data: Buffer, offset: int, count: int) -> int:
    """Skip tagged fields; `count` is the first byte of their number. Return the offset after them."""
    if count > 127:
        count, offset = finish_unsigned_varint(data, offset, count)
    return skip_tagged_fields(data, offset, count)


def _refuse(what: str) -> None:
    raise MalformedRequest(what)


def uuid_of(data: bytes) -> UUID:
    """Return the UUID of 16 bytes, in a third of the time of its constructor."""
    if data == _NIL_BYTES:
        return NIL_UUID
    value = _new_object(UUID)
    _set_attribute(value, "int", int.from_bytes(data, "big"))
    _set_attribute(value, "is_safe", SafeUUID.unknown)
    return value


_NIL_BYTES = bytes(16)
_new_object = object.__new__
_set_attribute = object.__setattr__
