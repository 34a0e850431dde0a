"""Write the table of permissions by API in docs/security.md: `python -m tailrace_cli.doc_pages.authorization_table`."""

from __future__ import annotations

from pathlib import Path

from agent.security.needs import NEEDS
from tailrace.kafka.apis import APIS

PAGE = Path("docs/security.md")
BEGIN = "<!-- Generated from the code: run `python -m tailrace_cli.doc_pages.authorization_table`. -->"
END = "<!-- End of what is generated. -->"


def table() -> str:
    """Return the table as Markdown, from the guards that the handlers declare."""
    lines = ["| API | needs | without it |", "|---|---|---|"]
    for key, guards in NEEDS.items():
        if not guards:
            lines.append(f"| {APIS[key].name} | nothing | |")
        for guard in guards:
            needs = "; ".join(str(need) for need in guard.needs)
            lines.append(f"| {APIS[key].name} | {needs} | {guard.effect} |")
    return "\n".join(lines)


def with_table(page: str) -> str:
    """Return the page with the current table in place of the old one."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main() -> None:
    """Write the table into the page."""
    PAGE.write_text(with_table(PAGE.read_text()))
    print(f"{PAGE}: written")


if __name__ == "__main__":
    main()
