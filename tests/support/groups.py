"""Which tests share a worker of pytest-xdist (`--dist loadgroup`).

The marks of pytest-xdist 3.8 have no effect with pytest 9.2: they change an item's `_nodeid`, which pytest no longer
reads. xdist's controller sees only node ids, so a test's group follows from its node id.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from xdist.scheduler import LoadScopeScheduling

GROUPS = {
    "cluster": (
        "tests/faults/test_faults.py",
        "tests/hostile/test_hostile.py::test_hostile_clients_cost_others_nothing",
        "tests/hostile/test_hostile.py::test_hostile_clients_of_the_gateway_or_another_tenant_cost_others_nothing",
        "tests/integration/test_cluster.py",
        "tests/integration/test_quiet_stop.py",
        "tests/integration/test_recovery.py",
    ),
    "spark": (
        "tests/compactor/test_iceberg_spark.py",
        "tests/compactor/test_job.py",
        "tests/compactor/test_spark_reads.py",
        "tests/compactor/test_spark_writes.py",
    ),
    "pages": (
        "tests/docs/test_cluster_page.py",
        "tests/docs/test_gateway_page.py::test_the_commands_print_what_the_page_says",
        "tests/docs/test_lakehouse_page.py",
        "tests/docs/test_readme.py",
    ),
    "compat": (
        "tests/compat/differential/test_differential.py",
        "tests/compat/test_bad_input.py",
        "tests/compat/test_clients.py",
    ),
    "as shipped": ("tests/terraform/test_as_shipped.py",),
    "fuzz": ("tests/fuzz/test_fuzz.py",),
}
"""Modules, or single tests, that load the machine or share something that starts slowly; the longest group first."""


def group_of(nodeid: str) -> str | None:
    """Return the group of a test, or None."""
    path = nodeid.partition("[")[0]
    return _group_by_path().get(path) or _group_by_path().get(path.partition("::")[0])


@cache
def _group_by_path() -> dict[str, str]:
    return {path: group for group, paths in GROUPS.items() for path in paths}


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a whole group, or a single test without a group, to one worker. While one worker runs a group, the others
    get single tests, as long as there are any."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid) or nodeid

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(self._next_for(node), last=False)
        super()._assign_work_unit(node)

    def _next_for(self, node: Any) -> str:
        groups = (group for group in GROUPS if group in self.workqueue)
        single_tests = (scope for scope in self.workqueue if scope not in GROUPS)
        if any(_has_group(scopes) for other, scopes in self.assigned_work.items() if other is not node):
            return next(single_tests, None) or next(groups)
        return next(groups, None) or next(single_tests)


def _has_group(scopes: dict[str, dict[str, bool]]) -> bool:
    """Return whether a worker still has tests of a group to run; `scopes` says whether each test ran."""
    return any(not all(scopes.get(group, {}).values()) for group in GROUPS)
