"""Names and messages come from models that anyone may have written: make them safe to show, everywhere."""

import re
import unicodedata
from collections.abc import Iterable

_SPAN = re.compile(r"`([^`\n]+)`")
_SEPARATORS = ("Zl", "Zp")


class Code(str):
    """A span to be shown as code: a parameter path, a class, a call."""

    __slots__ = ()


Spans = tuple[str, ...]


def visible(text: str, keep: str = "") -> str:
    r"""Spell out what would act on a terminal or reorder a line instead of being seen.

    Args:
        text: Any string, lone surrogates included.
        keep: Control characters left as they are.

    Returns:
        The text with control, format, surrogate and line-separating characters as backslash escapes.

    Example:
        >>> print(visible("red\x1b[31m\u202e"))
        red\x1b[31m\u202e
    """
    return "".join(_spelt(c) if _acts(c) and c not in keep else c for c in text)


def name(text: str) -> Code:
    """A parameter path, module path or class name as a code span; an empty one can still be seen."""
    return Code(visible(text) or '""')


def spans(message: str) -> Spans:
    """Split a message into prose and the code spans that backticks mark in it, its line breaks made spaces.

    Example:
        >>> spans("call `model.tie()` first")
        ('call ', 'model.tie()', ' first')
    """
    line = visible(" ".join(message.split()))
    pieces = _SPAN.split(line)
    return tuple(Code(p) if i % 2 else p for i, p in enumerate(pieces) if p)


def joined(names: Iterable[str]) -> Spans:
    """Names as code spans with commas between them."""
    pieces: list[str] = []
    for each in names:
        pieces += [", ", name(each)] if pieces else [name(each)]
    return tuple(pieces)


def program(text: str) -> str:
    """Python to be copied: line breaks and tabs stay, everything else that acts is spelt out."""
    return visible(text.replace("\r\n", "\n"), keep="\n\t").strip("\n")


def _acts(character: str) -> bool:
    kind = unicodedata.category(character)
    return kind[0] == "C" or kind in _SEPARATORS


def _spelt(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
