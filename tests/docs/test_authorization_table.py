from __future__ import annotations

from tailrace_cli.doc_pages.authorization_table import PAGE, with_table


def test_the_page_says_what_each_api_needs() -> None:
    page = PAGE.read_text()
    assert page == with_table(page), "run `python -m tailrace_cli.doc_pages.authorization_table`"
