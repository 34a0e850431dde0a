"""RPC security: shared secrets, certificates, and a MAC on each frame.

With secrets and without TLS, each frame after the hello ends with a MAC. Its keys come from the hello:

    HMAC-SHA256(key of the direction, u64 number of the frame | the frame with its length), the first 16 bytes

A frame that was changed, repeated, omitted or moved, within a connection or between connections, ends the connection.
Frames are not encrypted; that needs TLS. HKDF-SHA256 (RFC 5869) derives the keys from the secret. Both nonces are the
salt, and the whole hello is in the label. Uses the standard library's HMAC. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.buffers import Buffer
from tailrace.rpc.errors import ProtocolViolation
from tailrace.rpc.frames import LENGTH
from tailrace.security.tls import Tls

MAC_BYTES = 16
TAG_BYTES = 8
_NUMBER = struct.Struct(">Q")


@dataclass(slots=True)
class RpcSecurity:
    """The security of all RPC of a process. It may change at run time: each new connection reads it again.

    `secrets`: a peer must know one of them. Without secrets, any peer is served. `tls`: None without TLS.
    """

    secrets: tuple[bytes, ...] = ()
    tls: Tls | None = None

    @property
    def is_closed(self) -> bool:
        """Whether unknown peers are refused."""
        return bool(self.secrets) or self.tls is not None


@dataclass(frozen=True, slots=True)
class FrameKeys:
    """One connection's keys, by sender."""

    of_client: bytes
    of_server: bytes


def secret_tag(secret: bytes, nonce: bytes) -> bytes:
    """Return a tag that tells a peer which secret is used. It reveals no more than the proof does."""
    return hmac.digest(secret, b"tailrace rpc tag" + nonce, "sha256")[:TAG_BYTES]


def derive_keys(secret: bytes, nonces: bytes, transcript: bytes) -> FrameKeys:
    """Derive the keys by HKDF. The nonces are the salt, and the transcript of the hello is in the label."""
    extracted = hmac.digest(nonces, secret, "sha256")
    said = hashlib.sha256(transcript).digest()
    of_client, of_server = (
        hmac.digest(extracted, b"tailrace rpc frames of the " + role + said + b"\x01", "sha256")
        for role in (b"client", b"server")
    )
    return FrameKeys(of_client, of_server)


class FrameSigner:
    """Appends a MAC to each frame, in the order of sending."""

    def __init__(self, key: bytes) -> None:
        self._mac = hmac.new(key, digestmod="sha256")
        self._number = 0

    def sign(self, frame: Sequence[Buffer]) -> list[Buffer]:
        """Return the frame with its MAC. The frame's declared length must include MAC_BYTES."""
        mac = self._mac.copy()
        mac.update(_NUMBER.pack(self._number))
        self._number += 1
        for part in frame:
            mac.update(part)
        return [*frame, mac.digest()[:MAC_BYTES]]


class FrameVerifier:
    """Checks and removes the MAC of each frame, in the order of arrival."""

    def __init__(self, key: bytes) -> None:
        self._mac = hmac.new(key, digestmod="sha256")
        self._number = 0

    def verify(self, frame: memoryview) -> memoryview:
        """Return the frame without its MAC. The frame is given without its length. Raises ProtocolViolation."""
        end = len(frame) - MAC_BYTES
        if end < 0:
            raise ProtocolViolation(f"a frame of {len(frame)} bytes has no room for its MAC")
        mac = self._mac.copy()
        mac.update(_NUMBER.pack(self._number))
        mac.update(LENGTH.pack(len(frame)))
        mac.update(frame[:end])
        if not hmac.compare_digest(mac.digest()[:MAC_BYTES], frame[end:]):
            raise ProtocolViolation(
                f"frame {self._number} does not carry the MAC of its peer: changed, repeated or out of order"
            )
        self._number += 1
        return frame[:end]
