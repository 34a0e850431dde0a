"""The output of `tailrace query`: rows as JSON, and errors that say what to do."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pytest

from tailrace_cli.commands.query import CONNECTION, _check_names, _explained, _lines
from tailrace_cli.errors import CommandFailed

TOPICS = ["flights", "Delays", "orders.eu", "late-flights", "group"]


def printed(sql: str) -> list[Any]:
    found = duckdb.connect().execute(sql)
    names = [column[0] for column in found.description]
    return [json.loads(line, parse_constant=pytest.fail) for line in _lines(names, found.fetchall())]


def test_columns_of_one_name_are_all_there() -> None:
    assert printed("select 1 a, 2 a, 3 b, 4 a_1, 5 a") == [{"a": 1, "a_1": 2, "b": 3, "a_1_1": 4, "a_2": 5}]


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("'nan'::double", "nan"),
        ("['inf'::float, 1.5]", ["inf", 1.5]),
        ("map {'a'::blob: [{'x': 'b'::blob}]}", {"a": [{"x": "b"}]}),
        ("map {date '2026-01-02': null}", {"2026-01-02": None}),
        ("'\\xff'::blob", "\ufffd"),
        ("1.50::decimal(5, 2)", "1.50"),
        ("true", True),
        ("1::hugeint << 80", 1 << 80),
        ("timestamptz '2026-01-02 03:04:05+00'", "2026-01-02 03:04:05+00:00"),
    ],
)
def test_each_value_is_json(sql: str, shown: Any) -> None:
    assert printed(f"set timezone = 'UTC'; select {sql} v") == [{"v": shown}]


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("select * from Flights", "no topic 'Flights'; did you mean 'flights'?"),
        ("select * from delay", "no topic 'delay'; did you mean 'Delays'?"),
        ("select * from nothing_like_it", "`tailrace topic list` shows the topics"),
        ("select offset from flights", '"offset" is a keyword: put it in double quotes'),
        ("select * from orders.eu where true", 'put the topic\'s name in double quotes: "orders.eu"'),
        ("select * from late-flights", 'put the topic\'s name in double quotes: "late-flights"'),
        ("select * from group", 'put the topic\'s name in double quotes: "group"'),
        ("select * from error", "there is no topic 'error'"),
    ],
)
def test_an_error_says_what_duckdb_cannot_know(sql: str, says: str) -> None:
    with pytest.raises(duckdb.Error) as error:
        duckdb.connect(config=CONNECTION).execute(sql)
    assert says in _explained(str(error.value), TOPICS)
    unknown = "Binder Error: what it is"
    assert _explained(unknown, TOPICS) == unknown


def test_topics_whose_names_differ_only_in_case_are_not_read_together() -> None:
    _check_names(["flights", "Delays"])
    with pytest.raises(
        CommandFailed, match="topics 'flights' and 'Flights', whose names differ only in case"
    ):
        _check_names(["flights", "Delays", "Flights"])
