"""IP addresses in one canonical text form. Pure."""

from __future__ import annotations

import ipaddress

_HOST_BITS = 64


def plain_address(text: str) -> str:
    """Return the address in the form of RFC 5952, and an IPv4-mapped IPv6 address as IPv4. Other text is unchanged.

    Java's `0:0:0:0:0:0:0:1` becomes `::1`. `::ffff:10.0.0.1`, from a dual-stack socket, becomes `10.0.0.1`.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def counted_address(text: str) -> str:
    """Return the key under which limits per address count this address: the /64 of an IPv6 address, else the text.

    One host commonly has a whole /64 (RFC 6177, RFC 8981), so a limit per IPv6 address would have no effect.
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
