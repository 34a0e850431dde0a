#!/usr/bin/python3
"""Tell CloudWatch this agent's traffic in MiB per second, for target tracking.

Run each minute. Sums the counters named in TRAFFIC_COUNTERS (commas between) from /metrics and divides what
they grew by since the last run by the time between. The first run, and the first after a restart of the agent
(counters fell), only remember. Where clients of the agent log in, so does this, by the file that systemd passes on.
"""

import base64
import json
import os
import pathlib
import subprocess
import sys
import time  # noqa: TID251 - runs beside Tailrace, not in it
import urllib.request


def total(metrics: str, counters: "set[str]") -> float:
    """The sum of all samples of the counters, whatever their labels."""
    found = 0.0
    for line in metrics.splitlines():
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name in counters:
            # What follows the labels, or the bare name: the value, then perhaps a time stamp.
            found += float((line.rsplit("}", 1)[1] if "}" in line else line[len(name) :]).split()[0])
    return found


def rate(before: "dict[str, float]", now: "dict[str, float]") -> "float | None":
    """MiB per second between two readings of {bytes, seconds}, or None if they don't compare."""
    elapsed = now["seconds"] - before["seconds"]
    if elapsed <= 0 or now["bytes"] < before["bytes"]:
        return None
    return (now["bytes"] - before["bytes"]) / elapsed / 2**20


def login(folder: "str | None") -> "dict[str, str]":
    """The header for USER:PASSWORD in the folder's admin.user; none where that is empty."""
    text = (pathlib.Path(folder) / "admin.user").read_text().strip() if folder else ""
    return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()} if text else {}


def main() -> int:
    state = pathlib.Path(os.environ.get("STATE_DIRECTORY", "/var/lib/tailrace-traffic")) / "last.json"
    url = os.environ.get("METRICS_URL", "http://127.0.0.1:9644/metrics")
    request = urllib.request.Request(url, headers=login(os.environ.get("CREDENTIALS_DIRECTORY")))
    with urllib.request.urlopen(request, timeout=5) as answer:
        metrics = answer.read().decode()
    now = {
        "bytes": total(metrics, set(os.environ["TRAFFIC_COUNTERS"].split(","))),
        "seconds": time.monotonic(),
    }
    before = json.loads(state.read_text()) if state.exists() else now
    state.write_text(json.dumps(now))
    value = rate(before, now)
    if value is None:
        return 0
    return subprocess.run(
        [
            *("aws", "cloudwatch", "put-metric-data", "--region", os.environ["AWS_REGION"]),
            *("--namespace", os.environ["METRIC_NAMESPACE"], "--metric-name", "TrafficMiBPerSecond"),
            *("--dimensions", f"AutoScalingGroupName={os.environ['AUTOSCALING_GROUP']}"),
            *("--value", f"{value:.6f}"),
        ]
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
