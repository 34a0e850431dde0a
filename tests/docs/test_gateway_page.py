"""docs/gateway.md: its commands run against `tailrace serve`, as they are written there, and print what it says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from agent.gateway.routes import ROUTES
from agent.gateway.settings import GatewaySettings
from tests.support.pages import ROOT, put_command, run_script
from tests.support.servers import own_network

PAGE = (ROOT / "docs" / "gateway.md").read_text()
STEPS = re.findall(r"^\$ (.+(?:\n {4}.+)*)\n((?:(?!\$ |```).*\n)*)", PAGE, flags=re.M)
"""Commands, and what each prints; `...` stands for anything."""
SECONDS = 120
MARK = "--- step"


def test_the_page_has_every_route_and_no_setting_that_there_is_not() -> None:
    ends = {route.path.rpartition("}")[2] or route.path.rpartition("/")[2] for route in ROUTES}
    assert {end for end in ends if end not in PAGE} == set()
    assert set(re.findall(r"`gateway\.(\w+)`", PAGE)) <= set(GatewaySettings.model_fields)


def test_the_commands_print_what_the_page_says(tmp_path: Path) -> None:
    host = f"{own_network()}.1"
    serve, *rest = [(command.replace("127.0.0.1", host), printed) for command, printed in STEPS]
    assert serve[0].startswith("tailrace serve") and len(rest) == 9
    put_command(tmp_path, "tailrace", f'{sys.executable} -m tailrace_cli.app "$@"')
    commands = "\n".join(
        f"echo '{MARK}'\n{command.replace('tailrace consume', CONSUME)}" for command, _ in rest
    )
    script = f"""
        {serve[0].removesuffix(" &")} --data data --http {host}:0 2>serve.log &
        until curl -sf {host}:8082/v3/clusters >/dev/null; do kill -0 $! || exit 1; sleep 0.5; done
        {commands.replace("HOST", host)}
        kill $!
        wait $!
    """
    printed = run_script(script, tmp_path, SECONDS)
    parts = [part.strip("\n") for part in printed.split(MARK)[1:]]
    for (command, expected), found in zip(rest, parts, strict=True):
        lines = expected.strip("\n")
        pattern = re.escape(lines).replace(re.escape("..."), ".*")
        if lines:
            assert re.match(pattern, found), f"{command}\nprinted\n{found}\nnot\n{lines}"


CONSUME = "tailrace consume --bootstrap HOST:9092"
