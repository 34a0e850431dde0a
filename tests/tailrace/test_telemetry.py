"""Log lines: how they begin, that they name a cause, and that none floods the others."""

from __future__ import annotations

import errno
import io
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import structlog

from agent.security import audit_log
from agent.security.audit_log import MAX_LINES_PER_SECOND, AuditLog
from agent.telemetry import AgentTelemetry
from tailrace.background_tasks import log_and_continue
from tailrace.telemetry.logs import MAX_KNOWN_EVENTS, RepeatGate, cause_of, configure_logging, name_process
from tests.support.clocks import ManualClock


@dataclass
class Written:
    clock: ManualClock
    stream: io.StringIO

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def written() -> Iterator[Written]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    found = Written(ManualClock(), io.StringIO())
    configure_logging("info", "json", stream=found.stream, clock=found.clock)
    try:
        yield found
    finally:
        structlog.reset_defaults()
        name_process(lambda: "")
        root.handlers[:] = handlers
        root.setLevel(level)


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")


def test_a_line_that_cannot_be_written_ends_nobody(written: Written) -> None:
    configure_logging("info", "json", stream=FullDisk(), clock=written.clock)

    structlog.get_logger("a.part").warning("loud")
    with log_and_continue(structlog.get_logger("a.keeper"), "put off"):
        raise ZeroDivisionError("a bug")


def test_a_line_begins_with_time_level_and_process(written: Written) -> None:
    ids = iter([1, 2])
    name_process(lambda: f"agent {next(ids)}")

    structlog.get_logger("a.part").warning("loud", size=3)
    logging.getLogger("a.library").warning("loud, too")

    assert [list(line.items()) for line in written.lines] == [
        [
            ("timestamp", "2023-11-14T22:13:20.000Z"), ("level", "warning"), ("process", "agent 1"),
            ("event", "loud"), ("logger", "a.part"), ("size", 3),
        ],
        [
            ("timestamp", "2023-11-14T22:13:20.000Z"), ("level", "warning"), ("process", "agent 2"),
            ("event", "loud, too"), ("logger", "a.library"),
        ],
    ]  # fmt: skip


def test_a_pool_that_tries_again_by_itself_says_nothing(written: Written) -> None:
    pool = logging.getLogger("asyncpg.pool")
    pool.warning("Failed to restore the pool connection floor; retrying")
    pool.error("an error")
    assert [line["event"] for line in written.lines] == ["an error"]


def test_a_line_for_people_begins_so_too() -> None:
    stream = io.StringIO()
    configure_logging("info", "console", stream=stream, clock=ManualClock())
    name_process(lambda: "sequencer 10.0.0.1:9645")
    try:
        structlog.get_logger("a.part").warning("loud")
    finally:
        structlog.reset_defaults()
        name_process(lambda: "")
    assert stream.getvalue().startswith("2023-11-14T22:13:20.000Z [warning  ] sequencer 10.0.0.1:9645: loud")


def lines_for_people(write: Callable[[], None]) -> str:
    """What `write` logs, as people see it on a terminal without colours."""
    stream = io.StringIO()
    configure_logging("info", "console", stream=stream, clock=ManualClock())
    try:
        write()
    finally:
        structlog.reset_defaults()
    return stream.getvalue()


def test_a_traceback_for_people_shows_no_values_of_variables() -> None:
    def check_password(password: str) -> None:
        raise ZeroDivisionError(f"a bug with {len(password)} characters")

    def write() -> None:
        try:
            check_password("-".join(["open", "sesame"]))
        except ZeroDivisionError as error:
            structlog.get_logger("a.part").error("a login failed unexpectedly", exc_info=error)

    shown = lines_for_people(write)
    assert "in check_password" in shown and "ZeroDivisionError: a bug with 11 characters" in shown
    assert "open-sesame" not in shown


def test_names_from_clients_do_not_control_the_terminal_of_who_reads_the_log() -> None:
    name = "x\x1b[2Jy\x9b31m\u202ez"

    def write() -> None:
        structlog.get_logger("tailrace.audit").warning("a login failed", user=name, peers=[name])
        try:
            raise ValueError(f"no such user: {name}")
        except ValueError as error:
            structlog.get_logger("a.part").error("failed", exc_info=error)

    shown = lines_for_people(write)
    assert not [character for character in shown if not character.isprintable() and character != "\n"]
    assert shown.count(r"x\x1b[2Jy\x9b31m\u202ez") == 3


def test_an_event_is_written_once_in_30_s_and_what_was_left_out_is_counted(written: Written) -> None:
    log = structlog.get_logger("a.part")
    for number in range(5):
        log.warning("the store is away", attempt=number)
        written.clock.advance(0.5)
    log.warning("something else")
    written.clock.advance(30)
    log.warning("the store is away", attempt=99)
    log.warning("the store is away", attempt=100)
    written.clock.advance(30)
    log.warning("the store is away", attempt=101)

    assert [(line["event"], line.get("attempt"), line.get("left_out")) for line in written.lines] == [
        ("the store is away", 0, None),
        ("something else", None, None),
        ("the store is away", 99, 4),
        ("the store is away", 101, 1),
    ]


def test_a_librarys_message_is_the_same_event_whatever_is_put_into_it(written: Written) -> None:
    log = logging.getLogger("a.library")
    for number in range(3):
        log.warning("attempt %d", number)
    written.clock.advance(31)
    log.warning("attempt %d", 3)
    assert [(line["event"], line.get("left_out")) for line in written.lines] == [
        ("attempt 0", None),
        ("attempt 3", 2),
    ]


def test_two_bugs_in_one_place_are_two_events(written: Written) -> None:
    log = structlog.get_logger("a.part")
    for error in (KeyError("a"), ValueError("b"), KeyError("c")):
        try:
            raise error
        except (KeyError, ValueError):
            log.exception("a request failed")
    assert ["KeyError: 'a'" in line["exception"] for line in written.lines] == [True, False]


def test_the_same_event_of_another_subject_is_another_event(written: Written) -> None:
    log = structlog.get_logger("a.part")
    for child in ("agent 1", "agent 2", "agent 1"):
        log.error("a child ended by itself; it is restarted", child=child)
    assert [line["child"] for line in written.lines] == ["agent 1", "agent 2"]


def test_the_audit_log_has_every_refusal_up_to_its_own_bound(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        audit_log.log, "bind", audit_log.log.bind
    )  # its first line binds it to what is configured here
    doors = AuditLog(AgentTelemetry(), written.clock)

    def refuse(number: int) -> None:
        doors.refused(
            host="10.0.0.1", principal=f"User:{number}", api="Fetch",
            resource_type="TOPIC", resource="secret", operation="READ",
        )  # fmt: skip

    for number in range(3):
        refuse(number)
        doors.login_failed(f"10.0.0.{number}", "SASL", "PLAIN", "wrong password")
    assert [line.get("principal") or line["peer"] for line in written.lines] == [
        "User:0", "10.0.0.0", "User:1", "10.0.0.1", "User:2", "10.0.0.2",
    ]  # fmt: skip
    for number in range(MAX_LINES_PER_SECOND):
        refuse(number)
    assert len(written.lines) == MAX_LINES_PER_SECOND
    written.clock.advance(1)
    refuse(0)
    assert written.lines[-1]["left_out"] == 6


def test_the_gate_remembers_a_bounded_number_of_events() -> None:
    gate = RepeatGate(ManualClock())
    assert all(gate.admit(number) == 0 for number in range(3 * MAX_KNOWN_EVENTS))
    assert len(gate._shown) == MAX_KNOWN_EVENTS


def test_an_error_without_words_is_its_type_and_what_it_came_from() -> None:
    try:
        try:
            raise ConnectionResetError("reset by peer")
        except OSError as error:
            raise TimeoutError from error
    except TimeoutError as error:
        assert cause_of(error) == "TimeoutError (reset by peer)"
    assert cause_of(TimeoutError()) == "TimeoutError"
    assert cause_of(TimeoutError("waited 2 s for x")) == "waited 2 s for x"


def test_no_line_has_an_empty_cause(written: Written) -> None:
    log = structlog.get_logger("a.part")
    log.warning("one", error=TimeoutError())
    log.warning("two", reason="")
    assert [line.get("error") or line.get("reason") for line in written.lines] == ["TimeoutError", "not said"]
