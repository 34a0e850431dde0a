"""How the gateway's clients come in: what an agent hands to its gateway."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent.dispatch import Dispatcher
from agent.memory_budget import MemoryBudget
from agent.security.http_login import HttpLogins


@dataclass(frozen=True, slots=True)
class GatewayDoor:
    """`listener`: as whose clients the gateway's count. `dispatch`: what serves the frames of that listener;
    `dispatch_of_tenants`: those of tenants' clients. `opened`: counts a connection from an address; for how many
    seconds it is above its quota."""

    listener: str
    logins: HttpLogins
    dispatch: Dispatcher
    dispatch_of_tenants: Dispatcher
    budget: MemoryBudget
    opened: Callable[[str], float]
