"""`tailrace cluster`: the cluster's id, brokers and size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace_cli.connections.connecting import BootstrapFlag, ask_broker
from tailrace_cli.output import JsonFlag, print_json, print_rows

if TYPE_CHECKING:
    from tailrace_cli.connections.kafka_client import KafkaClient


def describe(bootstrap: BootstrapFlag = None, as_json: JsonFlag = False) -> None:
    """Show the cluster's id, brokers and leader counts.

    The leaders are those that the asked agent shows to clients of its zone: agents of other zones lead nothing here.
    """

    async def run(client: KafkaClient) -> dict[str, Any]:
        from tailrace.kafka.messages.describe_cluster import DescribeClusterRequest
        from tailrace.kafka.messages.metadata import MetadataRequest
        from tailrace_cli.connections.kafka_client import check

        answer = await client.ask(DescribeClusterRequest())
        check(answer.error_code, answer.error_message, "the cluster")
        topics = (await client.ask(MetadataRequest(topics=None))).topics
        partitions = [partition for topic in topics for partition in topic.partitions]
        leads = [partition.leader_id for partition in partitions]
        return {
            "cluster_id": answer.cluster_id,
            "topics": len(topics),
            "partitions": len(partitions),
            "partitions_without_leader": sum(leader < 0 for leader in leads),
            "brokers": [
                {
                    "id": broker.broker_id,
                    "host": broker.host,
                    "port": broker.port,
                    "rack": broker.rack,
                    "leads": leads.count(broker.broker_id),
                }
                for broker in sorted(answer.brokers, key=lambda broker: int(broker.broker_id))
            ],
        }

    cluster = ask_broker(bootstrap, run)
    if as_json:
        print_json(cluster)
        return
    print(
        f"cluster {cluster['cluster_id']}; topics: {cluster['topics']}; partitions: {cluster['partitions']}, "
        f"of them without a leader: {cluster['partitions_without_leader']}"
    )
    columns = {"broker": "id", "host": "host", "port": "port", "rack": "rack", "leads partitions": "leads"}
    print_rows(columns, cluster["brokers"], if_none="no brokers")
