"""By which names a gateway may be asked, where nothing else tells a page on the Web from a client.

A page can have its own name point to this machine once its reader's browser has loaded it (DNS rebinding). To the
browser the gateway is then that page's own server, and the page reads all answers. It can't have another name stand in
the Host header.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from agent.gateway.errors import HttpRefusal
from agent.gateway.settings import GatewaySettings
from tailrace.rpc.link import split_address
from tailrace.rpc.openness import is_loopback

LOCAL = "localhost"
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:/@\s]+))(?::[0-9]*)?")


class Hosts:
    """The names that a request's Host header may have: none of the Web's, but those that the settings name.

    `has_logins`: whether every request shows who its client is. A page on the Web can't then, so only a gateway that
    listens on loopback, where nobody needs other names, checks them.
    """

    def __init__(self, settings: GatewaySettings, *, has_logins: bool) -> None:
        own = split_address(settings.listen)[0]
        self._names = frozenset((LOCAL, *map(_plain, (own, *settings.hosts))))
        self._takes_any = has_logins and not is_loopback(settings.listen)

    def check(self, given: Sequence[str]) -> None:
        """Raises HttpRefusal. `given`: the Host headers, one from any browser."""
        for host in () if self._takes_any else given:
            name = _name_in(host)
            if name is None or not (name in self._names or name.endswith(f".{LOCAL}") or _is_ip(name)):
                raise HttpRefusal(
                    421, f"The gateway is not asked by the name {host[:100]!r} (gateway.hosts)."
                )


def _name_in(host: str) -> str | None:
    """The name or the address without its port; None if there is none to be read."""
    match = _HOST.fullmatch(host)
    return None if match is None else _plain(match[1] or match[2])


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_ip(name: str) -> bool:
    """An address is no name, and can't be made to point elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
