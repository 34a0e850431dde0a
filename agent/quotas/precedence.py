"""Finds a client's quota, and with whom it shares it, in Kafka's order: the most specific first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from sequencer.api.topics import ClientConfig, ConfigScope
from tailrace.addresses import counted_address
from tailrace.quotas import CONNECTION_CREATION_RATE, DEFAULT, InvalidQuota, QuotaEntity, entity_of, limits_of
from tailrace.tenants import Tenant


class Holder(NamedTuple):
    """Those whose usage counts together: all clients of a user, of a client id, of both, or of an address."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


class Bound(NamedTuple):
    """What a holder may use per second."""

    holder: Holder
    limit: float


class QuotaBook:
    """All quotas, by quota key."""

    def __init__(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        self._limits: dict[str, dict[QuotaEntity, float]] = {}
        for entity, limits in quotas.items():
            for key, limit in limits.items():
                self._limits.setdefault(key, {})[entity] = limit

    @property
    def has_client_quotas(self) -> bool:
        """Whether there is any quota other than those of addresses."""
        return bool(self._limits.keys() - {CONNECTION_CREATION_RATE})

    def of_client(self, key: str, user: str, client_id: str, default: str = DEFAULT) -> Bound | None:
        """Return the bound of a user's client, or None. `default`: the name that stands for all without their own
        quota; each tenant has its own."""
        limits = self._limits.get(key)
        if limits is None:
            return None
        for of_user, of_client in (
            (user, client_id),
            (user, default),
            (user, None),
            (default, client_id),
            (default, default),
            (default, None),
            (None, client_id),
            (None, default),
        ):
            limit = limits.get(QuotaEntity(of_user, of_client))
            if limit is not None:
                return Bound(
                    Holder(
                        None if of_user is None else user,
                        None if of_client is None else client_id,
                    ),
                    limit,
                )
        return None

    def of_tenant(self, key: str, tenant: Tenant) -> Bound | None:
        """Return the bound of all clients of a tenant together, or None."""
        limit = self._limits.get(key, {}).get(QuotaEntity(user=tenant.everyone))
        return None if limit is None else Bound(Holder(user=tenant.everyone), limit)

    def of_address(self, key: str, ip: str) -> Bound | None:
        """Return the bound of an address, or None. The default bounds an IPv6 /64 as a whole."""
        limits = self._limits.get(key, {})
        limit = limits.get(QuotaEntity(ip=ip))
        if limit is not None:
            return Bound(Holder(ip=ip), limit)
        limit = limits.get(QuotaEntity(ip=DEFAULT))
        return None if limit is None else Bound(Holder(ip=counted_address(ip)), limit)


def quotas_of(configs: Iterable[ClientConfig]) -> dict[QuotaEntity, dict[str, float]]:
    """Return the quotas among the configs of clients. Those that this version does not know are left out."""
    quotas: dict[QuotaEntity, dict[str, float]] = {}
    for config in configs:
        if config.scope is ConfigScope.QUOTA:
            with suppress(InvalidQuota):
                entity = entity_of(config.name)
                quotas[entity] = limits_of(entity, config.configs)
    return quotas


def book_of(configs: Iterable[ClientConfig]) -> QuotaBook:
    """Return a QuotaBook of the quotas among these configs."""
    return QuotaBook(quotas_of(configs))
