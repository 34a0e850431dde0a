"""Metrics that a class declares in its body, and that each instance creates in its registry.

    class Telemetry(DeclaredMetrics):
        flushes = metric(Counter, "Buffers sealed, by reason.", ["reason"])

    Telemetry(CollectorRegistry()).flushes.labels("size").inc()

A metric's name is the class's prefix and the attribute's name without a leading underscore: here `tailrace_flushes`. A
subclass inherits its parent's prefix and metrics.
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
    """Declare a metric of this kind, with the arguments of its class. `name`: a name other than the attribute's."""

    def make(full_name: str, registry: CollectorRegistry) -> M:
        return kind(full_name, documentation, *labels, registry=registry, **options)

    return cast("M", _Declared(name, make))  # what an instance has under this name


class DeclaredMetrics:
    """A class with declared metrics. Each instance registers them in the given registry, or in a new one."""

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
