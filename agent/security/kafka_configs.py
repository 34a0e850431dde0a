"""Kafka's configs for what DescribeConfigs reports of an agent's listeners, logins and limits. Pure."""

from __future__ import annotations

from agent.security.listener_contexts import ClientSecurity
from tailrace.rpc.link import join_address

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""The authorizer whose rules apply. Tools look at the name to learn whether there are ACLs."""
NO_LIMIT = 2**31 - 1


def security_configs(clients: ClientSecurity) -> dict[str, str | None]:
    """Return the values by Kafka's names. `clients` must have the ports that its listeners bound."""
    settings = clients.settings
    named = [(listener.name or listener.protocol.value, listener) for listener in clients.listeners]
    return {
        "listeners": ",".join(f"{name}://{join_address(own.host, own.port)}" for name, own in named),
        "listener.security.protocol.map": ",".join(f"{name}:{own.protocol.value}" for name, own in named),
        "authorizer.class.name": AUTHORIZER if clients.is_authenticating else "",
        "sasl.enabled.mechanisms": ",".join(settings.sasl_mechanisms),
        "sasl.server.max.receive.size": str(settings.max_login_bytes),
        "sasl.oauthbearer.jwks.endpoint.url": settings.oauth_jwks or None,
        "sasl.oauthbearer.jwks.endpoint.refresh.ms": str(round(settings.oauth_jwks_refresh_seconds * 1000)),
        "sasl.oauthbearer.expected.issuer": settings.oauth_issuer or None,
        "sasl.oauthbearer.expected.audience": settings.oauth_audience,
        "sasl.oauthbearer.clock.skew.seconds": str(settings.oauth_clock_skew_seconds),
        "sasl.oauthbearer.sub.claim.name": settings.oauth_principal_claim,
        "ssl.client.auth": settings.client_auth,
        "ssl.principal.mapping.rules": ",".join(settings.principal_mapping_rules),
        "delegation.token.max.lifetime.ms": str(settings.delegation_token_max_lifetime_ms),
        "delegation.token.expiry.time.ms": str(settings.delegation_token_expiry_ms),
        "connection.failed.authentication.delay.ms": str(settings.failed_authentication_delay_ms),
        "connections.max.reauth.ms": str(settings.max_session_ms),
        "max.connections.per.ip": str(settings.max_connections_per_address or NO_LIMIT),
    }
