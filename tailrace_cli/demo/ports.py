"""Free ports for servers that must be told theirs."""

from __future__ import annotations

import os
import socket
from itertools import count

_FIRST, _SPAN = 10_000, 20_000
"""Below the ports that systems hand to outgoing connections: one of those may be taken between probe and use."""
_offsets = count()


def free_port() -> int:
    """A loopback port that nobody listens on; processes start at different places, so they seldom meet."""
    for offset in _offsets:
        port = _FIRST + (os.getpid() * 131 + offset) % _SPAN
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("counting does not end")
