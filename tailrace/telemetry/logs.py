"""Logs: structured lines to stderr, as JSON for programs or in colours for people.

A line begins with its time, level and process. It names the cause of an error, even of one without a message. The same
event of the same subject is logged once in 30 s, and its next line says how many were omitted. The audit log is exempt,
because it is a record; it has its own limit.
"""

from __future__ import annotations

import datetime
import logging
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TextIO, cast

import structlog

from tailrace.clock import Clock, SystemClock
from tailrace.printable import printable

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "console"]

Event = MutableMapping[str, Any]
Processor = Callable[[Any, str, Event], Any]

REPEAT_SECONDS = 30.0
MAX_KNOWN_EVENTS = 1_000
"""The most events that are remembered. We have some dozens, but a library's messages are unbounded."""

AUDIT_LOGGER = "tailrace.audit"
SUBJECTS = ("api", "child", "listener", "method", "part", "purpose", "request")
"""The keys that are part of an event's identity. Each has at most a few dozen values in a process; topics and peers are
unbounded."""

_FIRST = ("timestamp", "level", "process", "event", "logger")
_CAUSES = ("error", "reason", "cause")
_QUIET_BELOW_WARNING = (
    "aiohttp.access",
    "aiobotocore",
    "botocore",
    "alembic",
    "asyncio",
    "py4j",
    "sqlalchemy",
)
_QUIET_BELOW_ERROR = ("asyncpg.pool",)
"""Loggers whose warnings are dropped. asyncpg's pool logs a traceback for each connection that it could not replace,
and the next statement's error says why anyway."""


class _LenientFile:
    """Drops lines that can't be written: a full disk under the log must not end the task that logs."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()


class NamedLogger(structlog.WriteLogger):
    """A logger that knows its module's name."""

    def __init__(self, file: _LenientFile, name: str) -> None:
        super().__init__(cast(TextIO, file))
        self.name = name


@dataclass(slots=True)
class _Shown:
    at: float
    left_out: int = 0


class RepeatGate:
    """Admits the same event once in REPEAT_SECONDS."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shown: dict[object, _Shown] = {}

    def admit(self, key: object) -> int | None:
        """Return how many events with this key were omitted since the last; None if this one must be omitted too."""
        now = self._clock.monotonic()
        shown = self._shown.get(key)
        if shown is not None and now - shown.at < REPEAT_SECONDS:
            shown.left_out += 1
            return None
        if shown is None and len(self._shown) >= MAX_KNOWN_EVENTS:
            del self._shown[next(iter(self._shown))]
        self._shown[key] = _Shown(now)
        return 0 if shown is None else shown.left_out


class _ProcessName:
    """The process's name in log lines."""

    def __init__(self) -> None:
        self.find: Callable[[], str] = lambda: ""


_PROCESS = _ProcessName()


def name_process(find: Callable[[], str]) -> None:
    """Name the process in every log line. `find` is called for each line, because an agent learns its id late."""
    _PROCESS.find = find


def cause_of(error: BaseException) -> str:
    """Return the error's message. If it has none (a TimeoutError), return its type and the message of its cause."""
    if words := str(error).strip():
        return words
    name = type(error).__name__
    before = error.__cause__ or error.__context__
    return name if before is None else f"{name} ({cause_of(before)})"


def configure_logging(
    level: LogLevel = "info",
    log_format: LogFormat = "auto",
    *,
    stream: TextIO | None = None,
    clock: Clock | None = None,
) -> None:
    """Set up structlog and the standard library's logging. Call it once, when a process starts.

    `auto` means console on a terminal and JSON otherwise. Libraries that use the standard library's logging get the
    same format; their lines below warning are shown only at `debug`.
    """
    to, time = stream or sys.stderr, clock or SystemClock()
    is_console = log_format == "console" or (log_format == "auto" and to.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    gate, file = RepeatGate(time), _LenientFile(to)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _stamp(time),
        _name_process,
        _name_cause,
    ]
    last = _rendered(is_console=is_console, has_colors=to.isatty())
    structlog.configure(
        processors=[_leave_out_repeats(gate), *shared, _add_logger, *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *names: NamedLogger(file, names[0] if names else ""),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(to)
    handler.addFilter(_admits(gate))
    handler.setFormatter(_like_ours(shared, last))
    _show_libraries(handler, number)


def _rendered(*, is_console: bool, has_colors: bool) -> list[Processor]:
    """Return the processors that format an event as a line."""
    if is_console:
        # structlog's default formatter shows the values of local variables, and with them passwords.
        plain = structlog.dev.plain_traceback
        renderer = structlog.dev.ConsoleRenderer(colors=has_colors, exception_formatter=plain)
        return [structlog.processors.format_exc_info, _prefix_with_process, _escape, renderer]
    return [structlog.processors.format_exc_info, _order, structlog.processors.JSONRenderer(default=str)]


def _like_ours(shared: list[Processor], last: list[Processor]) -> logging.Formatter:
    """Return a formatter that formats the standard library's records like our lines."""
    of_library: list[Processor] = [
        *shared,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(["left_out"]),
    ]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=of_library,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )


def _show_libraries(handler: logging.Handler, level: int) -> None:
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for names, least in ((_QUIET_BELOW_WARNING, logging.WARNING), (_QUIET_BELOW_ERROR, logging.ERROR)):
        for name in names:
            logging.getLogger(name).setLevel(level if level == logging.DEBUG else max(level, least))


# --- processors, in the order in which they handle a line


def _leave_out_repeats(gate: RepeatGate) -> Processor:
    def process(logger: Any, method: str, event: Event) -> Event:
        if method == "debug" or logger.name == AUDIT_LOGGER:
            return event
        subject = tuple(str(event.get(name)) for name in SUBJECTS)
        left_out = gate.admit((logger.name, event.get("event"), subject, _raised(event)))
        if left_out is None:
            raise structlog.DropEvent
        if left_out:
            event["left_out"] = left_out
        return event

    return process


def _admits(gate: RepeatGate) -> Callable[[logging.LogRecord], bool]:
    """Return a filter that omits repeated records of the standard library. Messages are compared without arguments."""

    def filter_record(record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        kind = record.exc_info[0] if record.exc_info else None
        left_out = gate.admit((record.name, record.msg if isinstance(record.msg, str) else "", kind))
        if left_out:
            record.left_out = left_out
        return left_out is not None

    return filter_record


def _raised(event: Event) -> type[BaseException] | None:
    """Return the type of the line's exception: two different bugs in one place are two events."""
    given = event.get("exc_info")
    if isinstance(given, BaseException):
        return type(given)
    if isinstance(given, tuple):
        kind: type[BaseException] | None = given[0]
        return kind
    return sys.exc_info()[0] if given else None


def _stamp(clock: Clock) -> Processor:
    def process(logger: Any, method: str, event: Event) -> Event:
        time = datetime.datetime.fromtimestamp(clock.wall_ms() / 1000, datetime.UTC)
        event["timestamp"] = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return event

    return process


def _name_process(logger: Any, method: str, event: Event) -> Event:
    if name := _PROCESS.find():
        event["process"] = name
    return event


def _name_cause(logger: Any, method: str, event: Event) -> Event:
    for key in _CAUSES:
        given = event.get(key)
        if isinstance(given, BaseException):
            event[key] = cause_of(given)
        elif given is not None and not str(given).strip():
            event[key] = "not said"
    return event


def _add_logger(logger: Any, method: str, event: Event) -> Event:
    if logger.name:
        event["logger"] = logger.name
    return event


def _prefix_with_process(logger: Any, method: str, event: Event) -> Event:
    if name := event.pop("process", ""):
        event["event"] = f"{name}: {event.get('event', '')}"
    return event


def _escape(logger: Any, method: str, event: Event) -> Event:
    """Escape what a terminal would take as a command: names come from clients. JSON escapes it anyway."""
    return {
        key: printable(value, keeps="\n") if isinstance(value, str) else value for key, value in event.items()
    }


def _order(logger: Any, method: str, event: Event) -> Event:
    first = {key: event[key] for key in _FIRST if key in event}
    return first | {key: value for key, value in event.items() if key not in first}
