from types import SimpleNamespace

import pytest

from sequencer.store_check import WrongStore
from tests.agent.test_server import opened_hosts


async def test_an_agent_with_another_store_does_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    async def statistics(_: object) -> SimpleNamespace:
        return SimpleNamespace(objects=3)

    async with opened_hosts() as hosts:
        monkeypatch.setattr(hosts.sequencer, "statistics", statistics)
        with pytest.raises(WrongStore):
            await hosts.start(2)
        assert await hosts.epochs() == []
