"""Parses options from Spark, whose names are case-insensitive and whose values are text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tailrace.rpc.exposure import check_rpc_not_exposed
from tailrace.rpc.loaded_security import SecurityFiles

SECURITY = (
    "rpc_secret", "rpc_secret_file", "rpc_cert_file", "rpc_key_file", "rpc_ca_file", "rpc_name",
)  # fmt: skip


def known_options(
    options: Mapping[str, str], names: Sequence[str], refused: Mapping[str, str]
) -> dict[str, str]:
    """Return the options under their proper names. `refused`: names that a user may expect, and why they are refused.

    Raises ValueError for an unknown or refused option.
    """
    by_lower = {name.lower(): name for name in (*names, *refused)}
    given = {by_lower.get(name.lower(), name): value for name, value in options.items()}
    for name, why in refused.items():
        if name in given:
            raise ValueError(f"option {name!r} is not supported: {why}")
    unknown = sorted(name for name in options if name.lower() not in by_lower)
    if unknown:
        raise ValueError(f"options {', '.join(unknown)} are unknown; there are {', '.join(names)}")
    return given


def is_true(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return the value of a boolean option. Raises ValueError if it is not a boolean."""
    value = given.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise ValueError(f"option {name!r}: {value!r}; expected true or false")
    return value == "true"


def count_of(given: Mapping[str, str], name: str, *, default: int) -> int:
    """Return the value of an option that is a whole number above 0. Raises ValueError."""
    value = given.get(name, str(default))
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"option {name!r}: {value!r}; expected a whole number above 0")
    return int(value)


def security_files(given: Mapping[str, str], sequencers: Sequence[str]) -> SecurityFiles:
    """Return the secrets and certificates for RPC to these sequencers. Raises ValueError if one is on another machine
    and there is no secret."""

    def path(name: str) -> Path | None:
        return Path(given[name]) if given.get(name) else None

    files = SecurityFiles(
        secret=given.get("rpc_secret", ""),
        secret_file=path("rpc_secret_file"),
        certificate=path("rpc_cert_file"),
        key=path("rpc_key_file"),
        authorities=path("rpc_ca_file"),
        peer_name=given.get("rpc_name", ""),
    )
    check_rpc_not_exposed(listen=None, sequencers=sequencers, is_closed=files.is_closed)
    return files


def names_in(value: str) -> tuple[str, ...]:
    """Split names that are separated by commas."""
    return tuple(name.strip() for name in value.split(",") if name.strip())
