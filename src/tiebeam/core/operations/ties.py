"""Names of a tie as a model has them now: it may have been wrapped, or unwrapped, since they were taken."""

from collections.abc import Sequence


def as_named_now(tie: tuple[str, ...], names: Sequence[str]) -> tuple[str, ...]:
    """The names of a tie, with a wrapper's prefix more or less where that finds more of them.

    Args:
        tie: Names that were one parameter.
        names: Every path that the model has now.

    Returns:
        As many names; one that the model lacks stays as it would be called.

    Example:
        >>> as_named_now(("embed.weight", "head.weight"), ["module.embed.weight", "module.head.weight"])
        ('module.embed.weight', 'module.head.weight')
        >>> as_named_now(("module.embed.weight", "module.head.weight"), ["embed.weight", "head.weight_orig"])
        ('embed.weight', 'head.weight')
    """
    there = set(names)
    tries = [tie, *(tuple(prefix + n for n in tie) for prefix in _more(tie, names))]
    tries += [tuple(n.removeprefix(prefix) for n in tie) for prefix in _less(tie, names)]
    return max(tries, key=lambda t: sum(n in there for n in t))  # the first of several that are as good


def _more(tie: tuple[str, ...], names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(n.removesuffix(t) for t in tie for n in names if n.endswith(f".{t}")))


def _less(tie: tuple[str, ...], names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(t.removesuffix(n) for t in tie for n in names if t.endswith(f".{n}")))
