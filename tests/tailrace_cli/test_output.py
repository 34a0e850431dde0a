"""Tables of names that clients chose."""

from __future__ import annotations

import pytest

from tailrace_cli.output import print_table


def test_a_name_in_a_table_neither_controls_the_terminal_nor_adds_a_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(
        ["group", "state"], [["a\x1b]0;x\x07", "Stable"], ["b\nc  Stable", "Empty"], ["ü \u202e", "Empty"]]
    )

    shown = capsys.readouterr().out
    assert not [character for character in shown if not character.isprintable() and character != "\n"]
    assert [line.split("  ")[0].strip() for line in shown.splitlines()[3:6]] == [
        r"a\x1b]0;x\x07",
        r"b\nc",
        r"ü \u202e",
    ]
