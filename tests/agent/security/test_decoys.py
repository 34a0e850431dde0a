"""A user that there is not has the same salt at every agent of a cluster, as one that there is has."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from agent.catalog import Catalog
from agent.security.sasl import ScramExchange
from agent.security.users import Users, decoy_key
from sequencer.api.security import ScramMechanism
from sequencer.engine.committer import Committer
from sequencer.store.memory import MemoryRowStore
from tests.support.clocks import ManualClock, SeededEntropy

SECRET = b"that all agents of a cluster share"


async def salt(agent: int, *shared: bytes, user: str = "nobody") -> bytes:
    """The salt of the challenge by this agent."""
    clock = ManualClock(1_700_000_000_000)
    with ThreadPoolExecutor(1) as executor:
        catalog = Catalog(Committer(MemoryRowStore(clock), clock, SeededEntropy(1)))
        users = Users(catalog, clock, executor, decoy_key(shared, SeededEntropy(agent)))
        step = await ScramExchange(users, ScramMechanism.SCRAM_SHA_256).answer(f"n,,n={user},r=abc".encode())
    return step.token.split(b",")[1]


async def test_agents_with_one_secret_give_an_unknown_user_one_salt() -> None:
    assert await salt(1, b"", SECRET) == await salt(2, b"", SECRET)
    assert await salt(1, SECRET) != await salt(1, SECRET, user="else")
    assert await salt(1, SECRET) != await salt(1, b"another secret"), "none can compute it without the secret"
    assert await salt(1) != await salt(2), "without a secret nothing is shared"
