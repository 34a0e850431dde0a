"""Threads that decompress and decode records, for clients in turn.

A small batch may take seconds to look into. So the work of each client waits in a queue of its own: however much work
one client has, another's waits for what is running and one piece of each client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from threading import Lock  # noqa: TID251 - a lock between the threads of the pool, and no thread
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

CLIENT: ContextVar[Hashable] = ContextVar("client", default=None)
"""For whom the current task works: principal and address. None: for nobody, or for all."""


class DecodingThreads(Executor):
    """As ThreadPoolExecutor, but takes the waiting work of CLIENT's values in turn."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self._lock = Lock()
        self._free = threads
        self._waiting: dict[Hashable, deque[tuple[Future[Any], Callable[[], Any]]]] = {}

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            self._waiting.setdefault(CLIENT.get(), deque()).append((future, partial(fn, *args, **kwargs)))
            self._start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for queue in waiting.values():
            for future, _ in queue:
                future.cancel()
        self._pool.shutdown(wait, cancel_futures=cancel_futures)

    def _start(self) -> None:
        """Start waiting work on free threads. The caller holds the lock."""
        while self._free and self._waiting:
            client = next(iter(self._waiting))
            queue = self._waiting.pop(client)
            future, work = queue.popleft()
            if queue:
                self._waiting[client] = queue
            self._free -= 1
            self._pool.submit(self._run, future, work)

    def _run(self, future: Future[Any], work: Callable[[], Any]) -> None:
        try:
            if future.set_running_or_notify_cancel():
                future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is for whoever waits for the future
            future.set_exception(error)
        finally:
            with self._lock:
                self._free += 1
                self._start()
