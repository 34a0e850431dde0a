"""A worker's process of Spark: what Python looks through again and again."""

from __future__ import annotations

import gc
import importlib
import sys
import zipfile
import zipimport
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest

pytest.importorskip("pyspark")

from compactor.columns.spark import derive_in_task
from compactor.on_spark.job import run_task
from compactor.on_spark.worker_process import forget_finders, settled
from compactor.rewrite import OutputLocation
from compactor.spark_sink.options import SinkOptions
from compactor.spark_sink.sink import upload


def test_sparks_archives_are_not_read_again_and_can_still_be_imported_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparks, users = tmp_path / "pyspark.zip", tmp_path / "users.zip"
    core = tmp_path / "spark-core_2.13-4.1.4.jar"  # Spark puts it on the path of its workers, too
    for archive, package in ((sparks, "sparks_own"), (core, "cores_own"), (users, "users_own")):
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr(f"{package}/__init__.py", "")
            file.writestr(f"{package}/later.py", "")
        monkeypatch.syspath_prepend(str(archive))
        importlib.import_module(package)
    read: list[str] = []
    read_directory = zipimport._read_directory  # type: ignore[attr-defined]

    def counted(archive: str) -> object:
        read.append(archive)
        return read_directory(archive)

    monkeypatch.setattr(zipimport, "_read_directory", counted)
    forget_finders()
    importlib.invalidate_caches()
    assert not {str(sparks), str(core)}.intersection(read)
    assert str(users) in read
    packages = ("sparks_own", "cores_own", "users_own")
    for package in packages:
        importlib.import_module(f"{package}.later")
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


def test_a_main_module_that_a_library_has_replaced_is_no_worker_of_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: pytest.fail("it is not known whose process this is"))
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace())  # type: ignore[arg-type]
    with settled():
        pass
    monkeypatch.delitem(sys.modules, "__main__")
    with settled():
        pass


@pytest.mark.parametrize(("main", "times"), [("pyspark.daemon", 1), ("pytest.__main__", 0)])
def test_only_in_a_worker_of_spark_modules_are_no_longer_scanned(
    main: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: list[None] = []
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec(main, None))
    monkeypatch.setattr(gc, "get_freeze_count", lambda: len(frozen))
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(None))
    for _ in range(2):
        with settled():
            assert not frozen or main == "pyspark.daemon"
    assert len(frozen) == times


def a_write(store: str) -> None:
    options = SinkOptions.of({"store": store, "sequencer": "127.0.0.1:1", "topic": "t"})
    assert upload(options, UUID(int=1), 0, iter(())).objects == []


def a_rewrite(store: str) -> None:
    assert run_task([], store, OutputLocation("", "", 0)) == []


def a_derivation(store: str) -> None:
    assert derive_in_task([], store) == []


@pytest.mark.parametrize("task", [a_write, a_rewrite, a_derivation])
def test_a_task_leaves_its_worker_settled(
    task: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: list[None] = []
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("pyspark.daemon", None))
    monkeypatch.setattr(gc, "get_freeze_count", lambda: len(frozen))
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(None))
    task(str(tmp_path))
    assert len(frozen) == 1
