"""What clients must show to be served."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from tailrace.settings import SettingsSection

_DAY_MS = 24 * 3600 * 1000

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


def _listed(value: Any) -> Any:
    if isinstance(value, str):
        return [part.strip() for part in value.split(";") if part.strip()]
    return value


def _typed(principals: tuple[str, ...]) -> tuple[str, ...]:
    for principal in principals:
        if not principal.startswith("User:") or len(principal) == len("User:"):
            raise ValueError(f"{principal!r}: expected User:NAME, such as User:admin")
    return principals


Texts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]
"""In a variable separated by semicolons, as names of certificates contain commas."""


class SecuritySettings(SettingsSection):
    """Logins of Kafka clients (see security.md)."""

    sasl_mechanisms: Annotated[tuple[Mechanism, ...], NoDecode, BeforeValidator(_listed)] = (
        "SCRAM-SHA-256",
        "SCRAM-SHA-512",
    )
    """Mechanisms of the SASL listeners: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER."""
    super_users: Annotated[Texts, AfterValidator(_typed)] = ()
    """Principals (User:NAME) that may do everything, whatever the ACLs say."""
    first_user_file: Path | None = None
    """A file (mode 0600) with USER:PASSWORD: the user is created at the start if it does not exist. Make it a super
    user to create the others."""
    client_auth: Literal["none", "requested", "required"] = "none"
    """Client certificates on listeners with protocol SSL (ssl.client.auth)."""
    principal_mapping_rules: Texts = ("DEFAULT",)
    """How a certificate's distinguished name becomes a principal (ssl.principal.mapping.rules)."""
    handshake_timeout_ms: int = Field(default=10_000, ge=100, le=_DAY_MS)
    """A TLS handshake that takes longer ends the connection."""
    authentication_timeout_ms: int = Field(default=10_000, ge=100, le=_DAY_MS)
    """A client that has not logged in after this time is disconnected."""
    failed_authentication_delay_ms: int = Field(default=100, ge=0, le=60_000)
    """How long a failed login waits for its answer (connection.failed.authentication.delay.ms)."""
    max_login_bytes: int = Field(default=64 * 1024, ge=1024, le=1024 * 1024)
    """The largest request before the login."""
    max_session_ms: int = Field(default=0, ge=0, le=366 * _DAY_MS)
    """A client must log in again within this time (connections.max.reauth.ms); 0: never."""
    scram_iterations: int = Field(default=4_096, ge=4_096, le=16_384)
    """Iterations that an unknown user is told, as if there were credentials."""
