"""The Spark session and its settings.

On `local[...]` we choose the settings: quiet, without a UI, on loopback. On a cluster the operator does. There we only
set the memory of the executors' Python, because Spark's default kills tasks of our size. The operator's settings
(`--conf`, spark-defaults.conf, `spark-submit --conf`) always take precedence.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compactor.by_key.keyed_cycle import KEY_MEMORY_BYTES
from compactor.by_key.keyed_rewrite import LOOKED_UP_BYTES
from compactor.on_spark.bundle import ENVIRONMENT
from compactor.on_spark.java import find_java
from compactor.plan import PlanSettings

TASK_BYTES_PER_INPUT_BYTE = 4
TASK_BASE_BYTES = 300_000_000
"""A task needs at most TASK_BYTES_PER_INPUT_BYTE times its item, plus this for Python and its libraries. A test
measures it."""
KEYED_BYTES_PER_INPUT_BYTE = 6
"""A pass over keys needs this in addition, per byte of its item, plus its index and the keys that it looks up
together."""
JVM_OVERHEAD_BYTES = 384 << 20
"""Spark's own overhead per executor, in addition to its heap."""
OVERHEAD = "spark.executor.memoryOverhead"
_ARCHIVES = ("spark.archives", "spark.yarn.dist.archives")
"""Settings with archives. Spark unpacks an archive in the executor's working folder, under the name after its `#`."""

_LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.log.level": "ERROR",
}


def is_submitted() -> bool:
    """Whether spark-submit started this process, and so chose the master and the settings."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def added_settings(master: str, chosen: Mapping[str, str], *, item_bytes: int) -> dict[str, str]:
    """Return the settings to add to the operator's `chosen` ones, for items of at most `item_bytes` of input.

    The executors' Python gets its memory as overhead. `spark.executor.pyspark.memory` would limit its address space,
    most of which Arrow's allocator reserves and never uses.
    """
    if master.startswith("local"):
        added = _LOCAL_SETTINGS
    else:
        slots = max(
            1, int(chosen.get("spark.executor.cores", "1")) // int(chosen.get("spark.task.cpus", "1"))
        )
        needed = JVM_OVERHEAD_BYTES + slots * keyed_task_memory_bytes(item_bytes)
        added = {OVERHEAD: f"{-(-needed // (1 << 20))}m"}
    if any(f"#{ENVIRONMENT}" in chosen.get(name, "") for name in _ARCHIVES):
        added = {**added, "spark.executorEnv.PYTHONPATH": ENVIRONMENT}
    return {name: value for name, value in added.items() if name not in chosen}


def task_memory_bytes(item_bytes: int) -> int:
    """Return the most memory that a task's Python process needs for an item of this input."""
    return TASK_BYTES_PER_INPUT_BYTE * item_bytes + TASK_BASE_BYTES


def keyed_task_memory_bytes(item_bytes: int, index_bytes: int = KEY_MEMORY_BYTES) -> int:
    """Return the most memory that a pass over keys needs, with an index of `index_bytes`. No other task needs more."""
    held = KEYED_BYTES_PER_INPUT_BYTE * item_bytes
    return task_memory_bytes(item_bytes) + held + LOOKED_UP_BYTES + index_bytes


def file_settings(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the settings in the operator's spark-defaults.conf; empty without that file."""
    folder = environ.get("SPARK_CONF_DIR") or (
        f"{environ['SPARK_HOME']}/conf" if environ.get("SPARK_HOME") else None
    )
    path = Path(folder) / "spark-defaults.conf" if folder else None
    if path is None or not path.is_file():
        return {}
    lines = (line.strip() for line in path.read_text().splitlines())
    pairs = (line.replace("=", " ", 1).split(None, 1) for line in lines if line and not line.startswith("#"))
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def spark_session(
    master: str | None = None,
    *,
    name: str = "tailrace compact",
    settings: Mapping[str, str] | None = None,
) -> Any:
    """Start a Spark session with the settings that Tailrace needs. Blocks for some seconds.

    Args:
        master: None means spark-submit's master, or `local[*]` without spark-submit.
        settings: the operator's Spark properties, which take precedence.

    Raises JavaNotFound.
    """
    from pyspark.sql import SparkSession

    chosen = dict(settings or {})
    if is_submitted():
        spark_settings = {**_submitted_settings(), **chosen}
        master = master or spark_settings.get("spark.master", "local[*]")
    else:
        spark_settings = {**file_settings(), **chosen}
        master = master or spark_settings.get("spark.master", "local[*]")
        os.environ["JAVA_HOME"] = str(find_java())
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName(spark_settings.get("spark.app.name", name))
    added = added_settings(master, spark_settings, item_bytes=PlanSettings().target_bytes)
    for key, value in {**added, **chosen}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _submitted_settings() -> dict[str, str]:
    """Return the settings given to spark-submit, from its running JVM."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())
