"""RPC between Tailrace processes: pipelined frames with raw tails, over a `Link` that simulations replace."""

from tailrace.rpc.client import RpcClient
from tailrace.rpc.errors import (
    CallFailed,
    CallTimedOut,
    FrameTooLarge,
    HelloRefused,
    LinkDown,
    NotConnected,
    RpcError,
)
from tailrace.rpc.frames import decode_body, encode_body
from tailrace.rpc.hello import ClusterIdentity, KnownCluster
from tailrace.rpc.link import Link, TcpLink
from tailrace.rpc.security import RpcSecurity
from tailrace.rpc.server import RpcServer

__all__ = [
    "CallFailed",
    "CallTimedOut",
    "ClusterIdentity",
    "FrameTooLarge",
    "HelloRefused",
    "KnownCluster",
    "Link",
    "LinkDown",
    "NotConnected",
    "RpcClient",
    "RpcError",
    "RpcSecurity",
    "RpcServer",
    "TcpLink",
    "decode_body",
    "encode_body",
]
