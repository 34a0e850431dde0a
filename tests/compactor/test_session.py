"""Whose settings the Spark session gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.on_spark.session import added_settings, file_settings, keyed_task_memory_bytes

ITEM = 128 << 20


def test_on_a_cluster_only_the_memory_of_the_executors_python_is_set() -> None:
    needed_mib = (384 << 20) + 10 * ITEM + 300_000_000 + (256 + 64 << 20) >> 20
    assert added_settings("yarn", {}, item_bytes=ITEM) == {
        "spark.executor.memoryOverhead": f"{needed_mib + 1}m"
    }


def test_an_executor_with_more_slots_gets_memory_for_as_many_tasks() -> None:
    four = added_settings(
        "spark://h:1", {"spark.executor.cores": "8", "spark.task.cpus": "2"}, item_bytes=ITEM
    )
    mib = int(four["spark.executor.memoryOverhead"].removesuffix("m"))
    assert mib << 20 >= 4 * keyed_task_memory_bytes(ITEM) + (384 << 20)


def test_configs_that_the_operator_has_set_are_left_alone() -> None:
    assert added_settings("yarn", {"spark.executor.memoryOverhead": "9g"}, item_bytes=ITEM) == {}
    chosen = {"spark.ui.enabled": "true", "spark.log.level": "INFO", "spark.driver.memory": "8g"}
    added = added_settings("local[*]", chosen, item_bytes=ITEM)
    assert not set(added) & set(chosen) and added["spark.driver.host"] == "127.0.0.1"


@pytest.mark.parametrize("name", ["SPARK_CONF_DIR", "SPARK_HOME"])
def test_settings_come_from_spark_defaults_too(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "conf" if name == "SPARK_HOME" else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / "spark-defaults.conf").write_text(
        "# the operator's\n\nspark.ui.enabled   true\nspark.driver.memory=8g\nalone\n"
    )
    assert file_settings({name: str(tmp_path)}) == {"spark.ui.enabled": "true", "spark.driver.memory": "8g"}
    assert file_settings({}) == {}
