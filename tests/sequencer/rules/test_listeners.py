from __future__ import annotations

from uuid import UUID

import pytest

from sequencer.api.agents import AgentInfo
from sequencer.api.errors import InvalidRequest
from sequencer.rules.leases import MAX_LISTENERS, register_agent
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.row_store import DatabaseIdentity
from sequencer.store.state import HotState


@pytest.mark.parametrize(
    "listeners",
    [
        {f"L{number}": ("host", 1) for number in range(MAX_LISTENERS + 1)},
        {"L": ("host", 65536)},
        {"L": ("", 1)},
        {"": ("host", 1)},
    ],
)
def test_an_agent_with_listeners_out_of_bounds_is_refused(listeners: dict[str, tuple[str, int]]) -> None:
    info = AgentInfo("host", 9092, "host", 0, 0, "", "1", UUID(int=1), listeners)
    with pytest.raises(InvalidRequest, match="listeners"):
        register_agent(Draft(HotState({}), 1), info, DatabaseIdentity("c", 1), SequencerSettings(), 0)
