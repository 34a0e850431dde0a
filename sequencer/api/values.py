"""The base of all values that are sent to or by the sequencer."""

from __future__ import annotations

import msgspec


class Value(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of all values that are sent to or by the sequencer."""


class Empty(Value, frozen=True):
    """A request or an answer without content."""
