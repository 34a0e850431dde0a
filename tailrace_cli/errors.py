"""Errors that end a command with one line on stderr."""

from __future__ import annotations


class CommandFailed(Exception):
    """The command fails and exits with 1. The message says what was given, what was seen and what to do."""


class WrongUsage(CommandFailed):
    """The arguments can't be right in any cluster; the command exits with 2."""
