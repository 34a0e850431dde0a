"""Bytes as they are passed around: whoever takes a Buffer reads it, and copies nothing."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview
