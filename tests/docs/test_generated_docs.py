"""Generated pages are current, and links between pages lead to files."""

from __future__ import annotations

import re
from pathlib import Path

from tailrace_cli.doc_pages.protocol_support import page

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
CODE_PATH = re.compile(r"`((?:agent|cache|compactor|sequencer|tailrace|tests)/[\w/]+\.py)`")


def test_protocol_support_is_what_the_code_says() -> None:
    written = (ROOT / "docs" / "protocol-support.md").read_text()

    assert written == page(), "run: python -m tailrace_cli.doc_pages.protocol_support"


def test_links_lead_to_files() -> None:
    dead = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in PAGES
        for target in LINK.findall(path.read_text())
        if not (path.parent / target).exists()
    ]

    assert dead == []


def test_modules_that_pages_name_exist() -> None:
    missing = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in PAGES
        for module in CODE_PATH.findall(path.read_text())
        if not (ROOT / module).exists()
    ]

    assert missing == []
