"""A worker's process of Spark: what Python looks through again and again."""

from __future__ import annotations

import gc
import importlib
import sys
import zipfile
import zipimport
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest

pytest.importorskip("pyspark")

from compactor.on_spark.worker_process import forget_finders, settled
from compactor.spark_sink.options import SinkOptions
from compactor.spark_sink.sink import upload


def test_sparks_archives_are_not_read_again_and_can_still_be_imported_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparks, users = tmp_path / "pyspark.zip", tmp_path / "users.zip"
    for archive, package in ((sparks, "sparks_own"), (users, "users_own")):
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
    assert str(sparks) not in read
    assert str(users) in read
    importlib.import_module("sparks_own.later")
    importlib.import_module("users_own.later")
    for name in [name for name in sys.modules if name.partition(".")[0] in ("sparks_own", "users_own")]:
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


def test_a_task_of_a_write_leaves_its_worker_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[None] = []
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("pyspark.daemon", None))
    monkeypatch.setattr(gc, "get_freeze_count", lambda: len(frozen))
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(None))
    options = SinkOptions.of({"store": str(tmp_path), "sequencer": "127.0.0.1:1", "topic": "t"})
    assert upload(options, UUID(int=1), 0, iter(())).objects == []
    assert len(frozen) == 1
