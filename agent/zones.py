"""Zones: which zone a client is in, by what it says of itself."""

from __future__ import annotations

_MARK = "tailrace_az="


def zone_of_client(client_id: str | None, fallback: str) -> str:
    """The zone that a client names in its client id (`...,tailrace_az=eu-1a`), else `fallback`."""
    if client_id and _MARK in client_id:
        named = client_id.split(_MARK, 1)[1]
        for end in (",", ";", " "):
            named = named.split(end, 1)[0]
        if named:
            return named
    return fallback
