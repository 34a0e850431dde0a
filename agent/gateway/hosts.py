"""The host names under which a gateway may be called. The check protects a gateway that has nothing else to tell a web
page from a client.

After a browser has loaded a page, the page can point its own host name to this machine (DNS rebinding). The browser
then treats the gateway as the page's own server, and the page can read all answers. But the page can't put another name
into the Host header.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from agent.gateway.errors import HttpRefusal
from agent.gateway.settings import GatewaySettings
from tailrace.rpc.exposure import is_loopback
from tailrace.rpc.link import split_address

LOCAL = "localhost"
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:/@\s]+))(?::[0-9]*)?")


class AllowedHosts:
    """The names that a request's Host header may have: no public name, except those in the settings.

    `has_logins`: whether every request identifies its client. A web page can't do that, so such a gateway checks names
    only if it listens on loopback, where no client needs other names.
    """

    def __init__(self, settings: GatewaySettings, *, has_logins: bool) -> None:
        own = split_address(settings.listen)[0]
        self._names = frozenset((LOCAL, *map(_plain, (own, *settings.hosts))))
        self._takes_any = has_logins and not is_loopback(settings.listen)

    def check(self, given: Sequence[str]) -> None:
        """Raise HttpRefusal if a name is not allowed. `given`: the Host headers; any browser sends one."""
        for host in () if self._takes_any else given:
            name = _name_in(host)
            if name is None or not (name in self._names or name.endswith(f".{LOCAL}") or _is_ip(name)):
                raise HttpRefusal(
                    421, f"The gateway does not serve the host name {host[:100]!r} (gateway.hosts)."
                )


def _name_in(host: str) -> str | None:
    """Return the name or the address without its port; None if it is malformed."""
    match = _HOST.fullmatch(host)
    return None if match is None else _plain(match[1] or match[2])


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_ip(name: str) -> bool:
    """Whether the name is an IP address, which can't be pointed elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
