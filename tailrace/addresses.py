"""IP addresses as text, each written in one way. Pure."""

from __future__ import annotations

import ipaddress


def plain_address(text: str) -> str:
    """The address as RFC 5952 writes it; an IPv4 address that is mapped into IPv6 as IPv4. Other text stays.

    So Java's `0:0:0:0:0:0:0:1` is `::1`, and `::ffff:10.0.0.1`, which a socket for both families shows, is `10.0.0.1`.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
