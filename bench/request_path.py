"""The cost of a small produce request in the agent alone: no sockets, no kernel, store and rows in memory.

    python -m bench.request_path [--rounds 30] [--topics 1]
    python -m bench.request_path --bytecodes      counts the bytecodes that a request executes, by function

`--topics`: each connection sends to so many topics in turn, like librdkafka, whose requests have one batch each.

Prints CPU microseconds of one request of 10 x 100 B, the lowest of all rounds, so that other load on the machine has
little effect. `whole` is from the received bytes to the response's bytes, including object and commit, for 400 requests
that arrive together over 100 connections, each with an idempotent producer. The parts are measured separately: they
show how much of the whole a compiled pass over a frame could save.

On a machine with other load, count bytecodes. They are the same in each run, and the interpreter takes most of a small
request's time. They do not include work in C code (futures, the loop, zstd, CRCs).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

from agent.connection import KafkaConnection
from agent.dispatch import Dispatcher
from agent.memory_budget import MemoryBudget
from tailrace.batches.mixed_object import coordinates
from tailrace.batches.produced_batch import plain_batch
from tailrace.batches.record_batch import crc_of, validate_produced
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.kafka import ApiKey, decode_request, encode_request, encode_response, parse_request_header
from tailrace.kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tailrace.kafka.produce_shape import shape_of
from tests.support.agents import AgentBench, settle

VERSION = 9
CONNECTIONS, REQUESTS = 100, 4
PARTITIONS = 16
PATIENCE = 2_000


def main() -> None:
    """Print the parts, as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--bytecodes", action="store_true", help="count them, in place of time")
    options = parser.parse_args()
    if options.bytecodes:
        print(json.dumps(bytecodes(options.topics), indent=1))
        return
    cpu = CpuTime()
    asyncio.run(whole(options.rounds, cpu, options.topics))
    figures = {"whole": cpu.least / (CONNECTIONS * REQUESTS) * 1e6, **parts(options.rounds)}
    print(json.dumps({name: round(figure, 2) for name, figure in figures.items()}, indent=1))


class _Transport(asyncio.Transport):
    """Counts responses."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def writelines(self, list_of_data: Any) -> None:
        self.answers += len(list_of_data)

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        return


class CpuTime:
    """Measures the CPU seconds of a block, the least of all rounds."""

    def __init__(self) -> None:
        self.least = float("inf")
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = time.thread_time()

    def __exit__(self, *error: object) -> None:
        self.least = min(self.least, time.thread_time() - self._started)


class Bytecodes:
    """Counts the bytecodes that each function of the product executes in a block, in all rounds but the first ones."""

    def __init__(self, warm_up: int) -> None:
        self.of: Counter[str] = Counter()
        self.rounds = -warm_up

    def __enter__(self) -> None:
        self.rounds += 1
        if self.rounds > 0:
            sys.settrace(self._called)

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return None if self._name(frame).startswith(("__main__", "tests", "asyncio")) else self._ran

    def _ran(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.of[self._name(frame)] += 1
        return self._ran

    @staticmethod
    def _name(frame: FrameType) -> str:
        return f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_name}"


def bytecodes(topics: int) -> dict[str, float]:
    """Return the bytecodes of a request: in total, by package, and of the functions that execute most."""
    warm_up = -(-2 * topics // REQUESTS)  # the agent learns from two requests to each topic
    counted = Bytecodes(warm_up)
    asyncio.run(whole(warm_up + 3, counted, topics))
    requests = counted.rounds * CONNECTIONS * REQUESTS
    rooms: Counter[str] = Counter()
    for name, count in counted.of.items():
        rooms[name.partition(".")[0]] += count
    rows = [("whole", counted.of.total()), *rooms.most_common(6), *counted.of.most_common(40)]
    return {name: round(count / requests, 1) for name, count in rows}


async def whole(rounds: int, meter: AbstractContextManager[None], topics: int) -> None:
    """Run `rounds` rounds of requests from end to end, each under the meter."""
    gc.disable()  # like a server, which collects rarely
    bench = AgentBench({})
    await bench.open()
    for number in range(topics):
        await bench.topic(f"t{number}", PARTITIONS)
    budget = MemoryBudget(512 << 20)
    dispatch = Dispatcher(bench.services)
    staging = bytearray(16 * 1024)
    lines = [
        KafkaConnection(
            dispatch, budget, max_frame_bytes=1 << 20, max_inflight=64, staging=staging,
            on_close=lambda connection: None, monotonic=bench.clock.monotonic,
        )
        for _ in range(CONNECTIONS)
    ]  # fmt: skip
    transports = [_Transport() for _ in lines]
    for line, transport in zip(lines, transports, strict=True):
        line.connection_made(transport)
    await settle()
    for number in range(rounds):
        sent = [
            b"".join(frame(producer, number * REQUESTS + of, topics) for of in range(REQUESTS))
            for producer in range(CONNECTIONS)
        ]
        before = sum(transport.answers for transport in transports)
        with meter:
            for line, data in zip(lines, sent, strict=True):
                buffer = line.get_buffer(-1)
                buffer[: len(data)] = data
                line.buffer_updated(len(data))
            for _ in range(PATIENCE):
                await asyncio.sleep(0)
                bench.clock.advance(0.001)
                if sum(transport.answers for transport in transports) - before == CONNECTIONS * REQUESTS:
                    break
            else:
                raise RuntimeError("the requests were not answered")
    for line in lines:
        line.connection_lost(None)
    await bench.close()


def parts(rounds: int) -> dict[str, float]:
    """Return the microseconds of each step over the bytes of a frame."""
    data = memoryview(frame(1, 0))[4:]
    header = parse_request_header(data)
    request = decode_request(ApiKey.PRODUCE, VERSION, data, header.body_offset)
    records = request.topic_data[0].partition_data[0].records
    checked, _ = validate_produced(records, max_message_bytes=1 << 20)[0]
    row = PartitionProduceResponse(index=1, base_offset=12, log_start_offset=0)
    response = ProduceResponse(responses=[TopicProduceResponse(name="t0", partition_responses=[row])])
    steps: dict[str, Callable[[], object]] = {
        "header": lambda: parse_request_header(data),
        "decode": lambda: decode_request(ApiKey.PRODUCE, VERSION, data, header.body_offset),
        "validate": lambda: validate_produced(records, max_message_bytes=1 << 20),
        "of which CRC": lambda: crc_of(records),
        "coordinates": lambda: coordinates(checked),
        "validate and coordinates, in one look": lambda: plain_batch(
            records, max_message_bytes=1 << 20, oldest_timestamp=0, newest_timestamp=1 << 62
        ),
        "encode, by the codec": lambda: encode_response(1, ApiKey.PRODUCE, VERSION, response),
    }
    shape = shape_of(data, header, request)
    assert shape is not None
    steps["header and decode, by shape"] = lambda: shape.read(data)
    try:
        from tailrace.kafka.answers import produce_answer
    except ImportError:  # an older agent, to compare with
        pass
    else:
        steps["encode, by template"] = lambda: produce_answer(1, VERSION, response)
    return {name: _least(step, rounds) for name, step in steps.items()}


def _least(step: Callable[[], object], rounds: int, times: int = 1_000) -> float:
    best = float("inf")
    for _ in range(rounds):
        started = time.thread_time()
        for _ in range(times):
            step()
        best = min(best, time.thread_time() - started)
    return best / times * 1e6


def frame(producer: int, number: int, topics: int = 1) -> bytes:
    """Return the producer's request of this number as a frame with its size. The topics take turns."""
    batch = encode_batch(
        [NewRecord(None, b"x" * 100)] * 10, timestamps=[1_700_000_000_000] * 10,
        producer_id=producer, producer_epoch=0, base_sequence=number // topics * 10,
    )  # fmt: skip
    data = PartitionProduceData(index=producer % PARTITIONS, records=memoryview(batch))
    named = TopicProduceData(name=f"t{number % topics}", partition_data=[data])
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[named])
    return b"".join(encode_request(1, ApiKey.PRODUCE, VERSION, request, "bench"))


if __name__ == "__main__":
    main()
