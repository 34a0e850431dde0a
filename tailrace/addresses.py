"""IP addresses as text, each written in one way. Pure."""

from __future__ import annotations

import ipaddress

_HOST_BITS = 64


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


def counted_address(text: str) -> str:
    """What a bound by address counts this address as: an IPv6 address as its /64, any other text as itself.

    One host commonly has a whole /64 (RFC 6177, RFC 8981), so a bound on single IPv6 addresses bounds nobody.
    """
    if ":" not in text:
        return text
    try:
        address = ipaddress.ip_address(plain_address(text))
    except ValueError:
        return text
    if address.version == 4:
        return str(address)
    return str(ipaddress.IPv6Network((int(address) >> _HOST_BITS << _HOST_BITS, 128 - _HOST_BITS)))
