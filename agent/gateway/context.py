"""What an agent provides to its gateway."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent.answer_memory import AnswerMemory
from agent.dispatch import Dispatcher
from agent.memory_budget import MemoryBudget
from agent.quotas.quotas import Quotas
from agent.security.access import Access
from agent.security.http_login import HttpLogins


@dataclass(frozen=True, slots=True)
class GatewayContext:
    """`listener`: the listener whose clients the gateway's clients count as. `dispatch_for` returns the dispatcher for
    a client. `partitions_of` returns how many partitions the agent knows of a topic that the client may describe, else
    None; the topic may have more by now."""

    listener: str
    logins: HttpLogins
    dispatch_for: Callable[[Access], Dispatcher]
    partitions_of: Callable[[Access, str], int | None]
    budget: MemoryBudget
    memory: AnswerMemory
    quotas: Quotas
