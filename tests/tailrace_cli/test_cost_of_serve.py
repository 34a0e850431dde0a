"""`tailrace cost` of a running `tailrace serve`, and the dollars of its page beside the requests of the same page."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tailrace.cost import read_prices
from tests.support.serve import Served, serve, tailrace

RECORDS = "\n".join(f"record {number}" for number in range(2_000))


def total(page: list[Metric], name: str, **labels: str) -> float:
    return sum(
        sample.value
        for family in page
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def page_of(served: Served) -> list[Metric]:
    with urllib.request.urlopen(f"http://{served.http}/metrics", timeout=30) as answer:
        return list(text_string_to_metric_families(answer.read().decode()))


def write_and_read(served: Served, topic: str) -> None:
    assert tailrace("produce", topic, "-b", served.kafka, stdin=RECORDS).returncode == 0
    read = tailrace("consume", topic, "-b", served.kafka)
    assert read.returncode == 0 and read.stdout.count("\n") >= RECORDS.count("\n") + 1


def test_a_folder_and_sqlite_have_no_bill_while_they_are_served(tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        write_and_read(served, "orders")
        shown = tailrace("cost", "--from-metrics", served.http, "--json")
        on_s3 = tailrace("cost", "--from-metrics", served.http, "--prices", "s3-standard", "--json")
        in_words = tailrace("cost", "--from-metrics", served.http).stdout
    bill = json.loads(shown.stdout)
    assert (bill["prices"], bill["dollars_a_month"]) == ("own machine", 0)
    assert bill["topics"]["orders"]["usage"]["puts"] > 0
    assert "have no bill" in in_words
    topics = json.loads(on_s3.stdout)["topics"]
    assert topics["orders"]["dollars"]["put"] > 0
    assert topics["(stored)"]["dollars"]["sql"] == 0, "SQLite is no database that somebody bills"


def test_the_dollars_of_a_page_are_those_of_its_requests(tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        write_and_read(served, "orders")
    with serve(tmp_path, TAILRACE_PRICES="s3-standard") as served:  # what was written is read from the store
        for topic in ("orders", "returns"):
            write_and_read(served, topic)
        page = page_of(served)
    prices = read_prices("s3-standard")
    requests = {
        operation: total(page, "tailrace_object_store_requests_total", operation=operation)
        for operation in ("put", "list", "get", "head")
    }
    puts, gets = requests["put"] + requests["list"], requests["get"] + requests["head"]
    assert puts > 0 and gets > 0
    vcpu_hours = total(page, "process_cpu_seconds_total") / prices.cpu_utilisation / 3600
    expected = {
        "put": puts / 1000 * prices.put_per_1000,
        "get": gets / 1000 * prices.get_per_1000,
        "compute": vcpu_hours * prices.vcpu_hour,
    }
    told = {item: total(page, "tailrace_topic_cost_dollars_total", item=item) for item in expected}
    assert told == pytest.approx(expected, rel=0.05)
