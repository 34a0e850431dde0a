"""`bench.scale` in its smallest form: it measures, fails over twice, and everybody is served afterwards."""

from __future__ import annotations

import asyncio

from bench.scale import Size, measure, measure_outages, ratios
from bench.support.scale_servers import sequencers
from tests.support.servers import PostgresServer

MOST_SECONDS = 300.0


def test_a_small_cluster_is_measured_and_survives_two_fail_overs(postgres: PostgresServer) -> None:
    database = postgres.create_database()
    size = Size(partitions=20, groups=5, consumers=30, producers=10)
    with sequencers(database) as servers:
        result = asyncio.run(
            asyncio.wait_for(measure(servers, size, agents=3, factor=3, calls=12, idle_s=0.5), MOST_SECONDS)
        )
        servers.look_for_committer()
        assert servers.committer.is_committer and not servers.follower.is_committer
    few, many = result["rows"]
    assert many["idle_partitions"] == 60 and many["idle_consumers"] == 90
    for row in (few, many):
        # What a call costs is told less the renewals beside it, which may be more than so few calls: it can be 0.
        assert row["quiet_agent_committer_us"] > 0
        assert row["object_per_second"] > 0 and row["offset_commit_per_second"] > 0
        assert row["calls_per_fetch"] <= 1 and row["fail_over_cpu_s"] > 0
        assert row["fail_over_first_commit_s"] <= row["fail_over_all_subscribed_s"]


def test_a_small_cluster_comes_back_from_outages(postgres: PostgresServer) -> None:
    size = Size(partitions=6, groups=1, consumers=6, producers=1)
    with sequencers(postgres.create_database()) as servers:
        result = asyncio.run(
            asyncio.wait_for(measure_outages(servers, size, agents=3, seconds=1.0), MOST_SECONDS)
        )
    stopped, killed = result["outages"]
    assert (stopped["outage"], killed["outage"]) == ("stopped", "killed")
    for row in (stopped, killed):
        assert 0 < row["first_renewed_s"] <= row["all_renewed_s"] <= row["all_subscribed_s"]
        assert row["servers_cpu_s"] > 0
    assert killed["connects_of_the_busiest_tenth"] > 0, "new processes have no connections"


def test_ratios_leave_out_what_is_no_cost() -> None:
    few = {"idle_groups": 1, "object_committer_us": 10.0, "object_per_second": 3.0, "fetch_committer_us": 0.0}
    many = {
        "idle_groups": 10,
        "object_committer_us": 12.0,
        "object_per_second": 9.0,
        "fetch_committer_us": 1.0,
    }
    assert ratios(few, many) == {"object_committer_us": 1.2}
