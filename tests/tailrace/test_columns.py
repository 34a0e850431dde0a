"""The text of columns, and how columns evolve."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.configs.columns import (
    MAX_COLUMNS,
    ColumnsConflict,
    DecimalType,
    InvalidColumns,
    ListOf,
    MapOf,
    Scalar,
    StructOf,
    TypedColumn,
    columns_text,
    is_name,
    merged,
    parse_columns,
)
from tailrace.configs.topic_config import InvalidConfigValue, check_topic_configs

names = st.text(max_size=20).filter(is_name)
decimals = st.integers(1, 38).flatmap(
    lambda precision: st.integers(0, precision).map(lambda scale: DecimalType(precision, scale))
)


def columns_of(types: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[TypedColumn, ...]]:
    pairs = st.lists(st.tuples(names, types), min_size=1, max_size=4, unique_by=lambda each: each[0].lower())
    return pairs.map(lambda found: tuple(TypedColumn(name, kind) for name, kind in found))  # type: ignore[arg-type]


types = st.recursive(
    st.sampled_from(Scalar) | decimals,
    lambda inner: inner.map(ListOf) | inner.map(MapOf) | columns_of(inner).map(StructOf),
    max_leaves=6,
)


@given(columns_of(types))
def test_columns_are_read_as_they_were_written(columns: tuple[TypedColumn, ...]) -> None:
    assert parse_columns(columns_text(columns)) == columns
    assert merged(columns, columns) == columns


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "a column's name is expected"),
        ("id", "a type is expected"),
        ("id long,", "a column's name is expected"),
        ("id long name", "a comma or the end is expected"),
        ("id list<long", "'>' is expected"),
        ("id bigint", "a type .* is expected"),
        ("id map<int, int>", "a map's keys are strings"),
        ("id decimal(39)", "at most 38 digits"),
        ("id int, ID int", "named twice"),
        ('`a"b` int', "no control character"),
        ("id " + "list<" * 11 + "int" + ">" * 11, "more than 10 deep"),
        (", ".join(f"c{number} int" for number in range(MAX_COLUMNS + 1)), "at most 1000 columns"),
    ],
)
def test_a_text_that_names_no_columns_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidColumns, match=reason):
        parse_columns(text)


def test_a_topics_config_takes_no_other_text() -> None:
    check_topic_configs({"tailrace.schema": "json", "tailrace.schema.columns": "id long"})
    check_topic_configs({"tailrace.schema.columns": ""})
    with pytest.raises(InvalidConfigValue, match=r"tailrace.schema.columns: at character 2, 'bigint'"):
        check_topic_configs({"tailrace.schema.columns": "id bigint"})


@pytest.mark.parametrize(
    ("old", "new", "both"),
    [
        ("a int", "b string", "a int, b string"),
        ("a int", "a long", "a long"),
        ("a long", "a int", "a long"),
        ("a float", "a double", "a double"),
        ("a decimal(5, 2)", "a decimal(9, 2)", "a decimal(9, 2)"),
        ("a list<int>", "a list<long>", "a list<long>"),
        ("a map<string, int>", "a map<string, long>", "a map<string, long>"),
        ("a struct<x int>", "a struct<y int, x long>", "a struct<x long, y int>"),
        ("b int, a int", "a int", "b int, a int"),
    ],
)
def test_columns_evolve_by_icebergs_rules(old: str, new: str, both: str) -> None:
    assert columns_text(merged(parse_columns(old), parse_columns(new))) == both


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("a int", "a string", "a"),
        ("a long", "a double", "a"),
        ("a decimal(5, 2)", "a decimal(9, 3)", "a"),
        ("a int", "a list<int>", "a"),
        ("a struct<x list<int>>", "a struct<x list<string>>", "a.x.element"),
        ("a map<string, int>", "a map<string, date>", "a.value"),
    ],
)
def test_a_column_never_changes_to_another_type(old: str, new: str, path: str) -> None:
    with pytest.raises(ColumnsConflict, match=f"column {path} is"):
        merged(parse_columns(old), parse_columns(new))


def test_columns_that_could_not_be_read_again_are_a_conflict() -> None:
    half = [parse_columns(", ".join(f"{name}{number} int" for number in range(600))) for name in "ab"]
    with pytest.raises(ColumnsConflict, match="at most 1000 columns"):
        merged(half[0], half[1])
    with pytest.raises(ColumnsConflict, match="named twice"):
        merged(parse_columns("in struct<a int>"), parse_columns("in struct<A int>"))
