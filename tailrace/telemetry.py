"""Logs: structured lines to stderr, as JSON for programs or in colours for people."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, Literal, TextIO

import structlog

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "console"]

Event = MutableMapping[str, Any]

_QUIET_BELOW_WARNING = (
    "aiohttp.access",
    "aiobotocore",
    "botocore",
    "alembic",
    "asyncio",
    "py4j",
    "sqlalchemy",
)


class NamedLogger(structlog.WriteLogger):
    """Writes lines, and knows which module's it is."""

    def __init__(self, file: TextIO, name: str) -> None:
        super().__init__(file)
        self.name = name


def configure_logging(
    level: LogLevel = "info", log_format: LogFormat = "auto", *, stream: TextIO | None = None
) -> None:
    """Set structlog and the standard library's logging up, once, at a process's start.

    `auto` is for people where the stream is a terminal, and JSON everywhere else. Lines of libraries that log by
    the standard library look the same; what they say below warning is only shown at `debug`.
    """
    to = stream or sys.stderr
    is_console = log_format == "console" or (log_format == "auto" and to.isatty())
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Callable[[Any, str, Event], Any]] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Callable[[Any, str, Event], Any]]
    if is_console:
        last = [structlog.dev.ConsoleRenderer(colors=to.isatty())]
    else:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    structlog.configure(
        processors=[*shared, _add_name, *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *names: NamedLogger(to, names[0] if names else ""),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(to)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for name in _QUIET_BELOW_WARNING:
        logging.getLogger(name).setLevel(number if level == "debug" else max(number, logging.WARNING))


def _add_name(logger: Any, method: str, event: Event) -> Event:
    if logger.name:
        event["logger"] = logger.name
    return event
