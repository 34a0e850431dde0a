"""The first frames of a connection: one version, one cluster, one incarnation, one shared secret.

    client                                     server
    hello(versions, cluster, nonce)      ->
                                         <-    welcome(version, cluster, nonce, proof)
    proof                                ->
                                         <-    accepted

Each side proves that it knows the secret by an HMAC over both nonces and what was agreed, labelled by its
role; the secret itself never travels. Without a secret the proofs are over an empty key. What a listener
between the two may do is TLS's business. Pure: nonces are passed in.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tailrace.rpc.errors import HelloRefused
from tailrace.rpc.frames import VERSION, encode_body

HELLO = "hello"
PROOF = "proof"
VERSIONS = (VERSION,)
NONCE_BYTES = 16
_MAGIC = "tailrace"


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """Which database is behind a process. '' and 0: not known yet, agrees with any."""

    cluster_id: str = ""
    incarnation: int = 0


class KnownCluster:
    """What a process knows of its cluster; shared by its links and servers. Once learnt, it never changes."""

    def __init__(self, identity: ClusterIdentity | None = None) -> None:
        self.identity = identity or ClusterIdentity()

    def check(self, seen: ClusterIdentity) -> None:
        """Raises HelloRefused when the peer belongs to another cluster or incarnation."""
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
        """Check, and fill in what was not known."""
        self.check(seen)
        self.identity = ClusterIdentity(
            self.identity.cluster_id or seen.cluster_id, self.identity.incarnation or seen.incarnation
        )


class Hello(msgspec.Struct, array_like=True, frozen=True):
    magic: str
    versions: list[int]
    cluster_id: str
    incarnation: int
    nonce: bytes


class Welcome(msgspec.Struct, array_like=True, frozen=True):
    version: int
    cluster_id: str
    incarnation: int
    nonce: bytes
    proof: bytes


class Proof(msgspec.Struct, array_like=True, frozen=True):
    proof: bytes


class Accepted(msgspec.Struct, array_like=True, frozen=True):
    pass


def make_hello(known: ClusterIdentity, nonce: bytes) -> Hello:
    return Hello(_MAGIC, list(VERSIONS), known.cluster_id, known.incarnation, nonce)


def answer_hello(
    hello: Hello, known: KnownCluster, secret: bytes, nonce: bytes, versions: Sequence[int] = VERSIONS
) -> Welcome:
    """The server's side. Raises HelloRefused."""
    if hello.magic != _MAGIC or len(hello.nonce) != NONCE_BYTES:
        raise HelloRefused("version", "this is not Tailrace's RPC")
    shared = set(hello.versions) & set(versions)
    if not shared:
        raise HelloRefused(
            "version", f"the client speaks versions {hello.versions}, the server {list(versions)}"
        )
    known.check(ClusterIdentity(hello.cluster_id, hello.incarnation))
    mine = known.identity
    bare = Welcome(max(shared), mine.cluster_id, mine.incarnation, nonce, b"")
    return msgspec.structs.replace(bare, proof=_proof("server", secret, hello, bare))


def check_welcome(hello: Hello, welcome: Welcome, secret: bytes, versions: Sequence[int] = VERSIONS) -> Proof:
    """The client's side: is the server what it says, and our own proof. Raises HelloRefused."""
    if welcome.version not in versions or len(welcome.nonce) != NONCE_BYTES:
        raise HelloRefused(
            "version", f"the server chose version {welcome.version}, offered were {list(versions)}"
        )
    bare = msgspec.structs.replace(welcome, proof=b"")
    if not hmac.compare_digest(welcome.proof, _proof("server", secret, hello, bare)):
        raise HelloRefused(
            "secret", "the server does not know the shared secret: check that both have the same one"
        )
    return Proof(_proof("client", secret, hello, bare))


def check_proof(hello: Hello, welcome: Welcome, proof: Proof, secret: bytes) -> None:
    """The server's side again. Raises HelloRefused."""
    bare = msgspec.structs.replace(welcome, proof=b"")
    if not hmac.compare_digest(proof.proof, _proof("client", secret, hello, bare)):
        raise HelloRefused(
            "secret", "the client does not know the shared secret: check that both have the same one"
        )


def _proof(role: str, secret: bytes, hello: Hello, welcome: Welcome) -> bytes:
    return hmac.digest(secret, encode_body((role, hello, welcome)), hashlib.sha256)
