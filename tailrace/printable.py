"""Text from outside, made fit to print: a client's name may contain what a terminal takes as a command. Pure."""

from __future__ import annotations


def printable(text: str, *, keeps: str = "") -> str:
    """Return the text with escapes (`\\x1b`) in place of control and invisible characters, except those in `keeps`."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in keeps
        else character.encode("unicode_escape").decode()
        for character in text
    )
