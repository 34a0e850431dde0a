"""The checker: applies all rules to one history, and writes the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.support.history import log_rules, position_rules, transaction_rules
from tests.support.history.events import AnyEvent
from tests.support.history.view import HistoryView
from tests.support.history.violations import Kind, Violation

Rule: TypeAlias = Callable[[HistoryView], Iterator[Violation]]

RULES: tuple[Rule, ...] = (
    log_rules.offsets_mean_one_record,
    log_rules.records_stand_once,
    log_rules.passes_miss_nothing,
    log_rules.passes_have_no_holes,
    log_rules.what_must_be_stored_is_found,
    log_rules.order_is_kept,
    log_rules.batches_are_whole,
    log_rules.bounds_only_grow,
    log_rules.deleted_records_stay_deleted,
    transaction_rules.read_committed_sees_committed_only,
    transaction_rules.inputs_are_processed_once,
    position_rules.positions_are_what_was_committed,
)


@dataclass(slots=True)
class Report:
    """The findings, and the size of the history: a history without readers proves nothing."""

    violations: list[Violation] = field(default_factory=list)
    events: int = 0
    records_sent: int = 0
    records_acked: int = 0
    records_unanswered: int = 0
    acked_unread: int = 0
    """Acknowledged (and not aborted) records that no reader passed: nothing is known about them."""
    reads: int = 0
    passes: int = 0
    transactions: int = 0
    transactions_committed: int = 0
    transactions_unknown: int = 0
    positions_fetched: int = 0

    @property
    def is_clean(self) -> bool:
        return not self.violations

    @property
    def kinds(self) -> Counter[Kind]:
        return Counter(violation.kind for violation in self.violations)

    def text(self, most: int = 10) -> str:
        """Return the report as text, with up to `most` faults of each kind."""
        lines = [
            f"{self.events} events: {self.records_sent} records sent, {self.records_acked} acknowledged, "
            f"{self.records_unanswered} unanswered; {self.transactions} transactions, "
            f"{self.transactions_committed} committed, {self.transactions_unknown} of unknown end; "
            f"{self.reads} reads in {self.passes} passes, {self.acked_unread} acknowledged records unread; "
            f"{self.positions_fetched} positions fetched"
        ]
        for kind, count in sorted(self.kinds.items()):
            lines.append(f"{kind}: {count}")
            shown = [violation for violation in self.violations if violation.kind == kind][:most]
            lines.extend(f"  {violation}" for violation in shown)
        lines.append("no fault was found" if self.is_clean else f"{len(self.violations)} faults")
        return "\n".join(lines)


def check(events: Iterable[AnyEvent]) -> Report:
    """Check one whole history. The events may come in any order; their `at` orders them."""
    view = HistoryView()
    view.load(events)
    position_rules.learn_from_fetches(view)
    violations = list(view.violations)
    for rule in RULES:
        violations.extend(rule(view))
    violations.sort(key=lambda violation: (violation.kind, violation.at))
    transactions = view.transactions.values()
    return Report(
        violations,
        events=view.event_count,
        records_sent=len(view.records),
        records_acked=sum(record.is_acked for record in view.records.values()),
        records_unanswered=sum(
            not record.is_acked and not record.is_failed for record in view.records.values()
        ),
        acked_unread=sum(
            record.is_acked
            and not record.read_offsets
            and not (
                (transaction := view.transaction_of(record)) is not None and not transaction.is_committed
            )
            for record in view.records.values()
        ),
        reads=sum(len(each.offsets) for each in view.passes),
        passes=len(view.passes),
        transactions=len(transactions),
        transactions_committed=sum(each.is_committed for each in transactions),
        transactions_unknown=sum(not each.is_committed and not each.is_aborted for each in transactions),
        positions_fetched=sum(len(fetches) for fetches in view.fetches.values()),
    )
