"""How the gateway's clients come in: what an agent hands to its gateway."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent.answer_memory import AnswerMemory
from agent.dispatch import Dispatcher
from agent.memory_budget import MemoryBudget
from agent.security.access import Access
from agent.security.http_login import HttpLogins


@dataclass(frozen=True, slots=True)
class GatewayDoor:
    """`listener`: as whose clients the gateway's count. `dispatch_for`: what serves the frames of this client of that
    listener. `opened`: counts a connection from an address; for how many seconds it is above its quota."""

    listener: str
    logins: HttpLogins
    dispatch_for: Callable[[Access], Dispatcher]
    budget: MemoryBudget
    memory: AnswerMemory
    opened: Callable[[str], float]
