"""Free ports for servers that need a fixed port."""

from __future__ import annotations

import os
import socket
from itertools import count

_FIRST, _SPAN = 10_000, 20_000
"""Below the ephemeral ports: an outgoing connection could take one of those between the probe and its use."""
_offsets = count()


def free_port() -> int:
    """Return a free loopback port. Each process starts its search elsewhere, so two seldom pick the same port."""
    for offset in _offsets:
        port = _FIRST + (os.getpid() * 131 + offset) % _SPAN
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("counting does not end")
