"""Metrics declared in the body of a class, and made for each of its instances in a registry.

    class Telemetry(DeclaredMetrics):
        flushes = metric(Counter, "Buffers sealed, by reason.", ["reason"])

    Telemetry(CollectorRegistry()).flushes.labels("size").inc()

A metric has the name of its attribute, without a leading underscore, behind the class's prefix: here
`tailrace_flushes`. A subclass has its parent's prefix and metrics too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

from prometheus_client import CollectorRegistry

M = TypeVar("M")


class _Declared(NamedTuple):
    name: str | None
    make: Callable[[str, CollectorRegistry], object]


def metric(
    kind: Callable[..., M], documentation: str, *labels: Any, name: str | None = None, **options: Any
) -> M:
    """Declare a metric of this kind, by the arguments of its class. `name`: where it is not the attribute's."""

    def make(full_name: str, registry: CollectorRegistry) -> M:
        return kind(full_name, documentation, *labels, registry=registry, **options)

    return cast("M", _Declared(name, make))  # what an instance has under this name


class DeclaredMetrics:
    """All metrics of an instance are in one registry: the one given, or its own."""

    _prefix = "tailrace_"

    def __init_subclass__(cls, prefix: str | None = None) -> None:
        cls._prefix = cls._prefix if prefix is None else prefix

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        attributes = {
            name: value for cls in reversed(type(self).__mro__) for name, value in vars(cls).items()
        }
        for attribute, declared in attributes.items():
            if isinstance(declared, _Declared):
                name = self._prefix + (declared.name or attribute.lstrip("_"))
                setattr(self, attribute, declared.make(name, self.registry))
