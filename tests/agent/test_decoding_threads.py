"""The threads that decode records serve clients in turn."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from agent.decoding_threads import CLIENT, DecodingThreads
from tests.support.patience import PATIENCE_SECONDS


def submitted(threads: DecodingThreads, client: str, done: list[str], *names: str) -> list[Future[None]]:
    CLIENT.set(client)
    return [threads.submit(done.append, name) for name in names]


def test_a_client_waits_for_one_piece_of_anothers_work() -> None:
    threads, is_over, done = DecodingThreads(1), threading.Event(), list[str]()
    threads.submit(is_over.wait)
    futures = submitted(threads, "hostile", done, "h1", "h2", "h3", "h4")
    futures += submitted(threads, "other", done, "o1", "o2")
    is_over.set()
    for future in futures:
        future.result(PATIENCE_SECONDS)
    assert done == ["h1", "o1", "h2", "o2", "h3", "h4"]
    threads.shutdown()


def test_results_errors_and_cancellations_reach_their_futures() -> None:
    threads, is_over = DecodingThreads(1), threading.Event()
    blocked = threads.submit(is_over.wait)
    cancelled, failing = threads.submit(int), threads.submit(int, "x")
    assert cancelled.cancel()
    is_over.set()
    assert blocked.result(PATIENCE_SECONDS)
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result(PATIENCE_SECONDS)
    assert threads.submit(int, "7").result(PATIENCE_SECONDS) == 7
    is_over.clear()
    threads.submit(is_over.wait)
    left = threads.submit(int)
    threads.shutdown(wait=False, cancel_futures=True)
    is_over.set()
    assert left.cancelled()
