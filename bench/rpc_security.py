"""The cost of authenticated RPC frames: CPU per MiB of MACs alone, and of whole calls with chunks.

    python -m bench.rpc_security

Client and server are one process here, so the figures of calls are the CPU of both sides together.
"""

from __future__ import annotations

import hashlib
import hmac
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from tailrace.buffers import Buffer
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.rpc import RpcClient, RpcSecurity, RpcServer, TcpLink, encode_body
from tailrace.security.tls import Tls
from tests.support.certificates import Authority

KEY = bytes(range(32))
CHUNK = 4 << 20
CALLS = 60
ROUNDS = 5


def macs() -> None:
    """Measure the MACs: the lowest of several rounds."""
    sha256 = hmac.new(KEY, digestmod="sha256")

    def with_sha256(data: bytes) -> bytes:
        mac = sha256.copy()
        mac.update(data)
        return mac.digest()

    ways: dict[str, Callable[[bytes], bytes]] = {
        "HMAC-SHA256": with_sha256,
        "BLAKE2b": lambda data: hashlib.blake2b(data, key=KEY, digest_size=16).digest(),
        "BLAKE2s": lambda data: hashlib.blake2s(data, key=KEY, digest_size=16).digest(),
    }
    for size in (100, 1 << 20, CHUNK):
        for name, make in ways.items():
            count = max(1, (8 << 20) // size // 40)
            best = min(_spent(make, bytes(size), count) for _ in range(20))
            print(
                f"{name:12} {size:8} bytes {best * 1e6:9.1f} us {best / size * (1 << 20) * 1e3:7.2f} ms per MiB"
            )


def _spent(make: Callable[[bytes], bytes], data: bytes, count: int) -> float:
    began = time.process_time()
    for _ in range(count):
        make(data)
    return (time.process_time() - began) / count


async def calls(security: RpcSecurity) -> float:
    """Return the CPU seconds per MiB of chunks that are requested one after another."""
    chunk = bytes(CHUNK)

    async def answer(method: str, body: memoryview) -> tuple[bytes, Sequence[Buffer]]:
        return encode_body(0), [chunk]

    clock, entropy = SystemClock(), SystemEntropy()
    server = RpcServer(answer, clock=clock, entropy=entropy, security=security)
    await server.listen("127.0.0.1", 0)
    link = TcpLink(f"127.0.0.1:{server.port}", security.tls)
    client = RpcClient(link, clock=clock, entropy=entropy, security=security)
    await client.call("chunk", 0, int, 10)
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(CALLS):
            await client.call("chunk", 0, int, 10)
        best = min(best, time.process_time() - began)
    await client.close()
    await server.close(grace_s=0)
    return best / CALLS / (CHUNK >> 20)


def main() -> None:
    macs()
    with tempfile.TemporaryDirectory() as folder:
        files = Authority.make().files(Path(folder), "127.0.0.1")
        ways = {
            "open": RpcSecurity(),
            "a MAC on each frame": RpcSecurity((KEY,)),
            "mutual TLS": RpcSecurity((), Tls("rpc", files)),
        }
        for name, security in ways.items():
            print(
                f"{name:20} {uvloop.run(calls(security)) * 1e3:6.2f} ms of CPU per MiB, both sides together"
            )


if __name__ == "__main__":
    main()
