"""What PySpark does in a worker's process before and after each task and plan, made cheap: it took more CPU than a
small query needs.

- Before, Python looks for new modules (`worker_util.setup_spark_files`). For every package that was imported from
  pyspark.zip, Python 3.11 reads the whole directory of the archive again. The archive of a worker does not change.
  Without a finder of it nothing is read again; the next import makes one, of what Python keeps.
- After, Python looks for cycles (`daemon.worker`), through all modules that are loaded. These stay anyway.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from zipimport import zipimporter

_SPARKS_OWN = re.compile(r"(pyspark|py4j-[^/]*)\.zip$")


@contextmanager
def settled() -> Iterator[None]:
    """Around what Spark asks of us."""
    forget_finders()
    yield
    main = getattr(sys.modules.get("__main__"), "__spec__", None)  # a library may have put another one there
    if main is not None and main.name.startswith("pyspark.") and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def forget_finders() -> None:
    """Drop the finders of Spark's own archives; those of a user's stay."""
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and _SPARKS_OWN.search(finder.archive):
            sys.path_importer_cache.pop(path, None)
