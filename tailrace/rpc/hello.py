"""The first frames of a connection, in which both sides agree on version, cluster, incarnation and shared secret.

    client                                             server
    hello(versions, cluster, nonce, tags)        ->
                                                 <-    welcome(version, cluster, nonce, proof, frame MACs?)
    proof                                        ->
                                                 <-    accepted

Each side proves that it knows the secret by an HMAC over both nonces and the agreed values, labelled with its role. The
secret itself is never sent. Without a secret, the HMAC has an empty key. A process may know several secrets while they
are being replaced. The tags say which secrets the client knows, and the server chooses one that it knows too.

Versions:
    1   frames are not authenticated; with a secret, this version is used only over TLS or within a machine
    2   with a secret and without TLS, each frame from `accepted` on has a MAC (see `tailrace.rpc.security`)

A proof covers the offered versions, so that a man in the middle can't force an older one. It covers only the fields
that the agreed version has, because a peer of that version does not send the others. Pure: nonces are passed in.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tailrace.rpc.errors import HelloRefused
from tailrace.rpc.frames import VERSION, encode_body
from tailrace.rpc.security import FrameKeys, derive_keys, secret_tag

HELLO = "hello"
PROOF = "proof"
VERSIONS = (1, VERSION)
NONCE_BYTES = 16
_MAGIC = "tailrace"
_FIELDS = {1: (5, 5), 2: (7, 6)}
"""The number of fields of hello and welcome, by version."""
_CHECK = "check that both processes have the same one (rpc_secret_file)"


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """The database that a process belongs to. '' and 0 mean not known yet, and match any."""

    cluster_id: str = ""
    incarnation: int = 0


class KnownCluster:
    """What a process knows about its cluster. Its clients and servers share it. A known value never changes."""

    def __init__(self, identity: ClusterIdentity | None = None) -> None:
        self.identity = identity or ClusterIdentity()

    def check(self, seen: ClusterIdentity) -> None:
        """Raise HelloRefused if the peer belongs to another cluster or incarnation."""
        mine = self.identity
        if mine.cluster_id and seen.cluster_id and mine.cluster_id != seen.cluster_id:
            raise HelloRefused(
                "cluster", f"cluster {mine.cluster_id!r} met a peer of cluster {seen.cluster_id!r}"
            )
        if mine.incarnation and seen.incarnation and mine.incarnation != seen.incarnation:
            raise HelloRefused(
                "incarnation", f"incarnation {mine.incarnation} met a peer of {seen.incarnation}"
            )

    def learn(self, seen: ClusterIdentity) -> None:
        """Check the peer's identity, and take over the values that were not known. Raises HelloRefused."""
        self.check(seen)
        self.identity = ClusterIdentity(
            self.identity.cluster_id or seen.cluster_id, self.identity.incarnation or seen.incarnation
        )


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """The client's first frame. `tags`: one for each secret that it knows. `is_encrypted`: whether it uses TLS."""

    magic: str
    versions: list[int]
    cluster_id: str
    incarnation: int
    nonce: bytes
    tags: tuple[bytes, ...] = ()
    is_encrypted: bool = False


class Welcome(msgspec.Struct, array_like=True, frozen=True):
    version: int
    cluster_id: str
    incarnation: int
    nonce: bytes
    proof: bytes
    has_macs: bool = False


class Proof(msgspec.Struct, array_like=True, frozen=True):
    proof: bytes


class Accepted(msgspec.Struct, array_like=True, frozen=True):
    pass


def spoken_versions(*, has_secret: bool, is_private: bool) -> Sequence[int]:
    """Return the versions that a side offers. With a secret, frames without MACs are sent only over private
    connections."""
    return VERSIONS if is_private or not has_secret else VERSIONS[1:]


def make_hello(
    known: ClusterIdentity,
    nonce: bytes,
    secrets: Sequence[bytes] = (),
    versions: Sequence[int] = VERSIONS,
    *,
    is_encrypted: bool = False,
) -> Hello:
    tags = tuple(secret_tag(secret, nonce) for secret in secrets)
    return Hello(
        magic=_MAGIC,
        versions=list(versions),
        cluster_id=known.cluster_id,
        incarnation=known.incarnation,
        nonce=nonce,
        tags=tags,
        is_encrypted=is_encrypted,
    )


def answer_hello(
    hello: Hello,
    known: KnownCluster,
    secrets: Sequence[bytes],
    nonce: bytes,
    versions: Sequence[int] = VERSIONS,
    *,
    is_encrypted: bool = False,
) -> tuple[Welcome, bytes]:
    """Return the server's response and the secret that it chose. Raises HelloRefused."""
    if hello.magic != _MAGIC or len(hello.nonce) != NONCE_BYTES:
        raise HelloRefused("version", "this is not Tailrace's RPC")
    shared = set(hello.versions) & set(versions)
    if not shared:
        raise HelloRefused(
            "version", f"the client speaks versions {hello.versions}, the server {list(versions)}"
        )
    known.check(ClusterIdentity(hello.cluster_id, hello.incarnation))
    version = max(shared)
    secret = _shared_secret(hello, secrets) if version > 1 else next(iter(secrets), b"")
    has_macs = version > 1 and bool(secret) and not (is_encrypted and hello.is_encrypted)
    mine = known.identity
    bare = Welcome(
        version=version,
        cluster_id=mine.cluster_id,
        incarnation=mine.incarnation,
        nonce=nonce,
        proof=b"",
        has_macs=has_macs,
    )
    return msgspec.structs.replace(bare, proof=_proof("server", secret, hello, bare)), secret


def check_welcome(
    hello: Hello, welcome: Welcome, secrets: Sequence[bytes], versions: Sequence[int] = VERSIONS
) -> tuple[Proof, bytes]:
    """Check the server's response in the client. Return the client's proof and the secret. Raises HelloRefused."""
    if welcome.version not in versions or len(welcome.nonce) != NONCE_BYTES:
        raise HelloRefused(
            "version", f"the server chose version {welcome.version}, offered were {list(versions)}"
        )
    for secret in secrets or (b"",):
        if hmac.compare_digest(welcome.proof, _proof("server", secret, hello, welcome)):
            break
    else:
        raise HelloRefused("secret", f"the server does not know the shared secret: {_CHECK}")
    wants_macs = welcome.version > 1 and bool(secret)
    if (welcome.has_macs and not wants_macs) or (wants_macs and not (welcome.has_macs or hello.is_encrypted)):
        raise HelloRefused("secret", "the server does not agree on whether frames are authenticated")
    return Proof(_proof("client", secret, hello, welcome)), secret


def check_proof(hello: Hello, welcome: Welcome, proof: Proof, secret: bytes) -> None:
    """Check the client's proof in the server. Raises HelloRefused."""
    if not hmac.compare_digest(proof.proof, _proof("client", secret, hello, welcome)):
        raise HelloRefused("secret", f"the client does not know the shared secret: {_CHECK}")


def frame_keys(hello: Hello, welcome: Welcome, secret: bytes) -> FrameKeys | None:
    """Return the keys for this connection's frames; None if they have no MAC."""
    if not welcome.has_macs:
        return None
    return derive_keys(secret, hello.nonce + welcome.nonce, _transcript("frames", hello, welcome))


def _shared_secret(hello: Hello, secrets: Sequence[bytes]) -> bytes:
    for secret in secrets:
        if secret_tag(secret, hello.nonce) in hello.tags:
            return secret
    if secrets:
        seen = "shows another one" if hello.tags else "shows none"
        raise HelloRefused("secret", f"the server wants the shared secret, the client {seen}: {_CHECK}")
    if hello.tags:
        raise HelloRefused("secret", f"the client has a shared secret, the server has none: {_CHECK}")
    return b""


def _proof(role: str, secret: bytes, hello: Hello, welcome: Welcome) -> bytes:
    return hmac.digest(secret, _transcript(role, hello, welcome), hashlib.sha256)


def _transcript(role: str, hello: Hello, welcome: Welcome) -> bytes:
    """Encode what both sides sent, without the proof and without fields that the agreed version does not have."""
    of_hello, of_welcome = _FIELDS[welcome.version]
    bare = msgspec.structs.replace(welcome, proof=b"")
    return encode_body(
        (role, msgspec.structs.astuple(hello)[:of_hello], msgspec.structs.astuple(bare)[:of_welcome])
    )
