"""The archive for executors is complete: what it holds is enough to run the compactor's tasks."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

from compactor.on_spark.bundle import (
    ENVIRONMENT,
    LEFT_TO_THE_CLUSTER,
    SUBMITTED,
    bundled_files,
    required,
    write_archive,
)
from compactor.on_spark.session import added_settings


def test_a_python_without_packages_has_what_tasks_and_the_source_need_in_the_archive(tmp_path: Path) -> None:
    environment = tmp_path / ENVIRONMENT
    environment.mkdir()
    for name, path in bundled_files():
        top = environment / name.partition("/")[0]
        if not top.is_symlink():
            top.symlink_to(path.parents[name.count("/") - 1] if "/" in name else path)
    assert not any((environment / name).exists() for name in LEFT_TO_THE_CLUSTER)
    bare = [sys.executable, "-I", "-S", "-c"]
    modules = (
        "compactor.on_spark.job, compactor.spark_source.database_index, tailrace_cli.app, obstore, pandas"
    )
    code = f"import sys; sys.path.append({str(environment)!r}); import {modules}"
    subprocess.run([*bare, code], check=True, timeout=300, cwd=tmp_path)
    without = subprocess.run([*bare, "import compactor"], capture_output=True, timeout=300, cwd=tmp_path)
    assert without.returncode != 0, "this Python would find the package anyway"


def test_an_archive_has_the_packages_at_its_top(tmp_path: Path) -> None:
    of_plan = [
        (name, path) for name, path in bundled_files() if name in ("compactor/plan.py", "msgspec/__init__.py")
    ]
    write_archive(tmp_path / "a.tar.gz", of_plan)
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        assert sorted(archive.getnames()) == ["compactor/plan.py", "msgspec/__init__.py"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


def test_what_is_needed_is_followed_and_the_clusters_own_left_out() -> None:
    names = {found.metadata["Name"].lower() for found in required("tailrace", extra="compactor")}
    assert {"tailrace", "pyarrow", "numba", "llvmlite", "msgspec", "botocore"} <= names
    assert not names & {"pytest", *LEFT_TO_THE_CLUSTER}


def test_executors_find_the_archives_packages_without_a_setting_of_the_operators() -> None:
    name = "spark.executorEnv.PYTHONPATH"
    archive = f"s3://b/{ENVIRONMENT}.tar.gz#{ENVIRONMENT}"
    for given in ("spark.archives", "spark.yarn.dist.archives"):
        assert added_settings("yarn", {given: archive}, item_bytes=1)[name] == ENVIRONMENT
    assert name not in added_settings("yarn", {"spark.archives": "other.zip"}, item_bytes=1)
    assert name not in added_settings("yarn", {"spark.archives": archive, name: "/opt"}, item_bytes=1)
    assert SUBMITTED.endswith(".py")
