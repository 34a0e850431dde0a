"""Makes PySpark's work in a worker process before and after each task and plan cheap. It took more CPU than a small
query.

- Before, PySpark invalidates import caches (`worker_util.setup_spark_files`). For every package imported from
  pyspark.zip, and for spark-core's jar, which is on the path of imports too, Python 3.11 then reads the archive's whole
  directory again, although a worker's archives do not change. Without a finder for the archive, nothing is read again.
  The next import creates a finder from Python's cache.
- After, PySpark runs the cyclic collector (`daemon.worker`), which scans all loaded modules. These stay anyway.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from zipimport import zipimporter

_SPARKS_OWN = re.compile(r"(pyspark\.zip|py4j-[^/]*\.zip|spark-core_[^/]*\.jar)$")


@contextmanager
def settled() -> Iterator[None]:
    """Run the block, which does work for Spark, without both costs."""
    forget_finders()
    yield
    main = getattr(sys.modules.get("__main__"), "__spec__", None)  # a library may have replaced it
    if main is not None and main.name.startswith("pyspark.") and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def forget_finders() -> None:
    """Drop the finders of Spark's own archives, but keep those of a user's."""
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and _SPARKS_OWN.search(finder.archive):
            sys.path_importer_cache.pop(path, None)
