"""docs/configuration.md says what the code does."""

from __future__ import annotations

from pathlib import Path

from tailrace_cli.doc_pages.configuration_page import page

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_what_the_settings_say() -> None:
    assert PAGE.read_text() == page(), (
        "run `python -m tailrace_cli.doc_pages.configuration_page > docs/configuration.md`"
    )
