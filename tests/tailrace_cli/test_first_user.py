"""The first user: created once, with a line in the audit log for each of the credentials."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from sequencer.engine.committer import Committer
from sequencer.store.memory import MemoryRowStore
from tailrace_cli.running.first_user import create_first_user
from tests.support.clocks import ManualClock, SeededEntropy


def test_the_creation_of_the_first_user_is_in_the_audit_log_once(tmp_path: Path) -> None:
    file = tmp_path / "admin"
    file.touch(0o600)
    file.write_text("admin:flights2013\n")

    async def scenario() -> None:
        clock = ManualClock()
        sequencer = Committer(MemoryRowStore(clock), clock, SeededEntropy(1))
        await sequencer.start()
        try:
            await create_first_user(sequencer, file)
            await create_first_user(sequencer, file)
        finally:
            await sequencer.close()

    with structlog.testing.capture_logs() as logs:
        asyncio.run(scenario())
    lines = [line for line in logs if line["event"] == "changed"]
    assert [line["change"] for line in lines] == [
        "set SCRAM-SHA-256 of user admin, 4096 iterations",
        "set SCRAM-SHA-512 of user admin, 4096 iterations",
    ]
    assert "flights2013" not in str(logs)
