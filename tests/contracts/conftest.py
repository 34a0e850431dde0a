"""Each sequencer that the contract suite runs over."""

from __future__ import annotations

import pytest

from tests.support.sequencers import FACTORIES, POSTGRES_FACTORIES, Factory


@pytest.fixture(params=[*FACTORIES, *POSTGRES_FACTORIES])
def factory(request: pytest.FixtureRequest) -> Factory:
    if request.param in POSTGRES_FACTORIES:
        return POSTGRES_FACTORIES[request.param](request.getfixturevalue("postgres"))
    return FACTORIES[request.param]
