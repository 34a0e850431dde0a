"""Checks that RPC beyond this machine has a secret or certificates, in clients and servers."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from tailrace.addresses import plain_address
from tailrace.rpc.link import RpcConnection, split_address

_ADVICE = (
    "make a secret (umask 077; openssl rand -base64 32 > rpc.secret) and give the same one to every process of the "
    "cluster by rpc_secret_file (TAILRACE_RPC_SECRET_FILE), or set tls.rpc_* (Spark's options: rpc_*)"
)


class RpcExposed(ValueError):
    """RPC to or from other machines without a secret or certificates; the message says what to do."""


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT is a loopback address. Does not resolve names: of them, only `localhost` is loopback."""
    return _is_loopback_host(split_address(address)[0])


def is_private(connection: RpcConnection) -> bool:
    """Whether the connection uses TLS or stays within this machine, so that nobody can tamper with it."""
    host = connection.peer_host
    return connection.is_encrypted or not host or _is_loopback_host(host)


def _is_loopback_host(host: str) -> bool:
    try:
        return ipaddress.ip_address(plain_address(host)).is_loopback
    except ValueError:
        return host == "localhost"


def check_rpc_not_exposed(*, listen: str | None, sequencers: Sequence[str], is_closed: bool) -> None:
    """Raise RpcExposed for RPC to or from other machines without a secret."""
    if is_closed:
        return
    if listen is not None and not is_loopback(listen):
        raise RpcExposed(
            f"rpc {listen!r} can be reached from other machines, and without a secret anyone who reaches it can read "
            f"and delete everything; {_ADVICE}, or listen on 127.0.0.1"
        )
    far = [address for address in sequencers if not is_loopback(address)]
    if far:
        raise RpcExposed(
            f"sequencer {far[0]!r} is on another machine, and this process has no secret for it; {_ADVICE}"
        )
