"""`tailrace transaction`: list, describe and abort transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace_cli.command_group import group_of_commands
from tailrace_cli.connections.connecting import BootstrapFlag, ask_broker
from tailrace_cli.errors import WrongUsage
from tailrace_cli.flags import flag
from tailrace_cli.output import JsonFlag, print_json, print_rows
from tailrace_cli.record_text import iso_time

if TYPE_CHECKING:
    from tailrace_cli.connections.kafka_client import KafkaClient

app = group_of_commands("Transactions: list, describe, abort.")

TransactionalId = Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID")]


@app.command("list")
def list_transactions(
    state: Annotated[
        list[str] | None, flag("--state", "STATE", "Show only this state, such as Ongoing. Can be repeated.")
    ] = None,
    longer_than_ms: Annotated[
        int, flag("--longer-than-ms", "MS", "Show only transactions that are open for longer.", min=0)
    ] = 0,
    bootstrap: BootstrapFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """List transactional ids and their states."""

    async def run(client: KafkaClient) -> list[dict[str, Any]]:
        from tailrace.kafka.messages.list_transactions import TRANSACTION_STATES, ListTransactionsRequest
        from tailrace_cli.connections.kafka_client import check

        request = ListTransactionsRequest(state_filters=state or [], duration_filter=longer_than_ms or -1)
        rows: dict[str, dict[str, Any]] = {}
        async for broker in client.brokers():
            answer = await broker.ask(request)
            check(answer.error_code, None, "transactions")
            if answer.unknown_state_filters:
                states = ", ".join(TRANSACTION_STATES)
                raise WrongUsage(f"--state {answer.unknown_state_filters[0]!r}: expected one of {states}")
            for row in answer.transaction_states:
                rows[row.transactional_id] = {
                    "transactional_id": row.transactional_id,
                    "producer_id": row.producer_id,
                    "state": row.transaction_state,
                }
        return [rows[name] for name in sorted(rows)]

    transactions = ask_broker(bootstrap, run)
    columns = {"transactional id": "transactional_id", "producer id": "producer_id", "state": "state"}
    print_rows(columns, transactions, as_json=as_json, if_none="no transactions")


@app.command()
def describe(
    transactional_id: TransactionalId, bootstrap: BootstrapFlag = None, as_json: JsonFlag = False
) -> None:
    """Show a transaction, its producer and its partitions."""

    async def run(client: KafkaClient) -> dict[str, Any]:
        from tailrace_cli.connections.kafka_client import TRANSACTION

        async with await client.coordinator_of(transactional_id, TRANSACTION) as coordinator:
            transaction = await _described(coordinator, transactional_id)
        began = transaction.transaction_start_time_ms
        return {
            "transactional_id": transactional_id,
            "state": transaction.transaction_state,
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.producer_epoch,
            "timeout_ms": transaction.transaction_timeout_ms,
            "began": iso_time(began) if began > 0 else None,
            "partitions": [
                {"topic": topic.topic, "partition": partition}
                for topic in transaction.topics
                for partition in topic.partitions
            ],
        }

    shown = ask_broker(bootstrap, run)
    if as_json:
        print_json(shown)
        return
    began = f", began {shown['began']}" if shown["began"] else ""
    print(
        f"{shown['transactional_id']}  {shown['state']}, producer {shown['producer_id']} epoch "
        f"{shown['producer_epoch']}, timeout {shown['timeout_ms']} ms{began}"
    )
    print_rows({"topic": "topic", "partition": "partition"}, shown["partitions"], if_none="no partitions")


@app.command()
def abort(transactional_id: TransactionalId, bootstrap: BootstrapFlag = None) -> None:
    """Abort an open transaction and fence its producer.

    The producer gets PRODUCER_FENCED on its next request.
    """

    async def run(client: KafkaClient) -> int:
        from tailrace.kafka.messages.init_producer_id import InitProducerIdRequest
        from tailrace_cli.connections.kafka_client import TRANSACTION, check

        async with await client.coordinator_of(transactional_id, TRANSACTION) as coordinator:
            # InitProducerId would create an unknown id, so refuse a misspelt one first.
            state = await _described(coordinator, transactional_id)
            answer = await coordinator.ask(
                InitProducerIdRequest(
                    transactional_id=transactional_id, transaction_timeout_ms=state.transaction_timeout_ms
                )
            )
        check(answer.error_code, None, f"{transactional_id!r} was not aborted")
        return int(answer.producer_epoch)

    epoch = ask_broker(bootstrap, run)
    print(f"aborted any open transaction of {transactional_id}; its producer is fenced by epoch {epoch}")


async def _described(coordinator: KafkaClient, transactional_id: str) -> Any:
    from tailrace.kafka.messages.describe_transactions import DescribeTransactionsRequest
    from tailrace_cli.connections.kafka_client import check

    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    (described,) = (await coordinator.ask(request)).transaction_states
    check(described.error_code, None, f"transactional id {transactional_id!r}")
    return described
