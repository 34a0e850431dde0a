"""The settings of client authentication and tenants."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import NoDecode

from agent.security.listeners import parse_rules
from tailrace.security.handshakes import HandshakeBounds
from tailrace.settings import SettingsSection, separated_by

_DAY_MS = 24 * 3600 * 1000

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


def _typed(principals: tuple[str, ...]) -> tuple[str, ...]:
    for principal in principals:
        if not principal.startswith("User:") or len(principal) == len("User:"):
            raise ValueError(f"{principal!r}: expected User:NAME, such as User:admin")
    return principals


def _rule(text: str) -> str:
    parse_rules([text])
    return text


Texts = Annotated[tuple[str, ...], NoDecode, separated_by(";")]
"""Separated by semicolons in a variable, because names in certificates contain commas."""


Rules = Annotated[tuple[Annotated[str, AfterValidator(_rule)], ...], NoDecode, separated_by(";")]


class SecuritySettings(SettingsSection):
    """Logins of Kafka clients (see security.md)."""

    sasl_mechanisms: Annotated[tuple[Mechanism, ...], NoDecode, separated_by(";")] = (
        "SCRAM-SHA-256",
        "SCRAM-SHA-512",
    )
    """Mechanisms of the SASL listeners: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER."""
    super_users: Annotated[Texts, AfterValidator(_typed)] = ()
    """Principals (User:NAME) that may do everything, whatever the ACLs say."""
    first_user_file: Path | None = None
    """A file (mode 0600) with USER:PASSWORD. The user is created at the start if it does not exist. Make it a super
    user to create the others."""
    client_auth: Literal["none", "requested", "required"] = "none"
    """Client certificates on listeners with protocol SSL (ssl.client.auth)."""
    principal_mapping_rules: Rules = ("DEFAULT",)
    """How a certificate's distinguished name becomes a principal (ssl.principal.mapping.rules)."""
    handshake_timeout_ms: int = Field(default=10_000, ge=100, le=_DAY_MS)
    """A TLS handshake that takes longer ends the connection."""
    authentication_timeout_ms: int = Field(default=10_000, ge=100, le=_DAY_MS)
    """A client that has not logged in after this time is disconnected."""
    failed_authentication_delay_ms: int = Field(default=100, ge=0, le=60_000)
    """How long the answer to a failed login is delayed (connection.failed.authentication.delay.ms)."""
    max_login_bytes: int = Field(default=64 * 1024, ge=1024, le=1024 * 1024)
    """The largest request before the login."""
    max_session_ms: int = Field(default=0, ge=0, le=366 * _DAY_MS)
    """A client must log in again within this time (connections.max.reauth.ms); 0: never."""
    delegation_token_secret_file: Path | None = None
    """A file (mode 0600) with one line, the secret that makes delegation tokens; the same at every agent. Unset: there
    are no delegation tokens (delegation.token.secret.key)."""
    delegation_token_max_lifetime_ms: int = Field(default=7 * _DAY_MS, ge=1, le=3_660 * _DAY_MS)
    """How long a delegation token can be renewed (delegation.token.max.lifetime.ms)."""
    delegation_token_expiry_ms: int = Field(default=_DAY_MS, ge=1, le=3_660 * _DAY_MS)
    """How long a delegation token is valid unless it is renewed (delegation.token.expiry.time.ms)."""
    max_connections_per_address: int = Field(default=0, ge=0, le=1_000_000)
    """Limit of connections from one IP address (IPv6: one /64) (max.connections.per.ip); 0: no limit."""
    max_connections_per_principal: int = Field(default=0, ge=0, le=1_000_000)
    """Limit of connections of one user that has logged in with SASL; 0: no limit."""
    max_connections_without_login: int = Field(default=1_000, ge=1, le=1_000_000)
    """Limit of connections of a SASL listener that have not logged in yet, and of unfinished TLS handshakes of any
    listener."""
    max_connections_without_login_per_address: int = Field(default=200, ge=1, le=1_000_000)
    """Limit of these connections, and of these handshakes, from one IP address (IPv6: one /64), so that one address
    leaves room for others."""
    max_failed_logins_per_minute: int = Field(default=60, ge=0, le=1_000_000)
    """Limit of failed logins from one IP address. Above it its new connections are closed until the minute is over; 0:
    no limit."""
    tenant_listeners: Texts = ()
    """Listeners whose clients belong to a tenant, each `LISTENER=tenant`."""
    tenant_rules: Rules = ()
    """Map the names of other clients to the names of their tenants, in the notation of `principal_mapping_rules`. An
    empty result: no tenant. If there are rules, a client that matches none is refused."""
    oauth_jwks: str = ""
    """For OAUTHBEARER: the file or the URL (https://) of the JSON Web Key Set with the keys that sign tokens."""
    oauth_jwks_refresh_seconds: float = Field(default=300.0, ge=1, le=86_400)
    """How long the keys are used before they are read again."""
    oauth_issuer: str = ""
    """The issuer (`iss`) that tokens must have; empty: any."""
    oauth_audience: str = ""
    """The audience (`aud`) that tokens must have; empty: any."""
    oauth_scopes: Texts = ()
    """Scopes that a token must have, all of them."""
    oauth_clock_skew_seconds: int = Field(default=30, ge=0, le=3_600)
    """How far the clock of the tokens' issuer may differ."""
    oauth_principal_claim: str = Field(default="sub", min_length=1)
    """The claim with the user's name."""

    @property
    def handshakes(self) -> HandshakeBounds:
        """The limits on TLS handshakes of one listener: those on connections without a login."""
        return HandshakeBounds(
            most=self.max_connections_without_login,
            most_of_address=self.max_connections_without_login_per_address,
            seconds=self.handshake_timeout_ms / 1000,
        )

    @model_validator(mode="after")
    def _has_keys(self) -> Self:
        is_insecure = self.oauth_jwks.startswith("http://")
        if is_insecure and not self.oauth_jwks.startswith(("http://127.0.0.1", "http://localhost")):
            raise ValueError("security.oauth_jwks: keys from another machine need https://")
        if "OAUTHBEARER" in self.sasl_mechanisms and not self.oauth_jwks:
            raise ValueError("security.sasl_mechanisms has OAUTHBEARER, which needs security.oauth_jwks")
        return self
