"""Findings where what a config or class declares differs from what the tensors are."""

import re
from collections.abc import Iterator, Sequence

from tiebeam.checkpoints.declared import Declared
from tiebeam.core.facts import Table
from tiebeam.core.finding import Finding

_WRAPPED = re.compile(r"\.(original_module|base_layer|modules_to_save\.[^.]+)(?=\.)")  # an adapter's detour
FLAG = "tie_word_embeddings"


def declared_findings(
    declared: Declared | None, tables: Sequence[Table], shared: Sequence[tuple[str, ...]] = ()
) -> Iterator[Finding]:
    """Compare a declaration with the tables.

    Args:
        shared: Groups of parameter paths that are one object though no module is.
    """
    if declared is None:
        return
    tied = [t for t in tables if t.tied]
    place = "config." + (f"{declared.flag_path}." if declared.flag_path else "") + FLAG
    yield from _flag(declared, tied, place)
    yield from _scopes(declared, place)
    for field in declared.misspelt:
        name = field.rpartition(".")[2]
        yield Finding(
            "misspelt-flag", "warning", "",
            f"the config field {field!r} is read by nobody; the flag is {FLAG!r}, so it changed nothing",
            fix=f"vars(model.config).pop({name!r}, None)" if "." not in field else "",
            hint=f"rename it to {FLAG!r}",
        )  # fmt: skip
    if declared.keys_style == "list":
        targets = ", ".join(t for t, _ in declared.keys)
        yield Finding(
            "tied-keys-list", "warning", "",
            f"{declared.owner or 'the class'} declares its tied keys as a list ({targets}); a list names no source, "
            "and current loaders refuse it",
            hint="declare a mapping {target: source}",
        )  # fmt: skip
    if declared.adapter_wants_tie and not tied:
        yield Finding(
            "adapter-wants-tie", "warning", "",
            "the adapter was asked to keep lookup and readout tied, and this model has two tables: "
            "nothing is kept tied",
            hint="tie the base model first, or do not ask for it",
        )  # fmt: skip
    yield from _padding(declared, tables)
    yield from _undeclared(declared, tied, shared)


def _flag(declared: Declared, tied: list[Table], place: str) -> Iterator[Finding]:
    if declared.keys and not declared.flag_present:
        live = "tied" if tied else "not tied"
        yield Finding(
            "flag-missing", "warning", tied[0].name if tied else "",
            f"{declared.owner or 'the class'} declares a tie and {place} is absent, which means True to some versions "
            f"and False to others; these tensors are {live}",
            fix=f"model.{place} = {bool(tied)}",
            hint=f"write {FLAG} into the config",
        )  # fmt: skip
    elif tied and declared.flag_present and not declared.tied and declared.flag_path in dict(declared.scopes):
        if dict(declared.scopes)[declared.flag_path]:
            return  # the flag says tied; the class has no keys to do it by, the tensors are tied all the same
        yield Finding(
            "flag-contradicts-tensors", "warning", tied[0].name,
            f"{place} is False and the tensors are tied: a save drops one name, and a reload draws it at random",
            fix=f"model.{place} = True",
            hint=f"set {FLAG} to what the tensors are, or untie them (clone the readout) and keep the flag",
        )  # fmt: skip


def _scopes(declared: Declared, place: str) -> Iterator[Finding]:
    if declared.owner or not declared.scopes or (declared.scopes_agree and declared.flag_present):
        return  # a live class reads one scope, and the tensors show which value won
    said = ", ".join(f"{path or 'the top level'} says {flag}" for path, flag in declared.scopes)
    if not declared.flag_present:
        said += f", {declared.flag_path or 'the top level'} says nothing"
    yield Finding(
        "config-scopes-disagree", "warning", "",
        f"{said}: runtimes that read another scope than {place} build another model",
        hint=f"write the same {FLAG} in every scope",
    )  # fmt: skip


def _padding(declared: Declared, tables: Sequence[Table]) -> Iterator[Finding]:
    for t in tables:
        if declared.vocab is not None and t.readouts and 0 < t.vocab - declared.vocab <= max(1024, t.vocab // 10):
            yield Finding(
                "padded-vocabulary", "info", t.name,
                f"the table has {t.vocab:,} rows for {declared.vocab:,} tokens: the rows beyond take part in "
                "the softmax and can be sampled unless they are masked",
            )  # fmt: skip


def _undeclared(declared: Declared, tied: list[Table], shared: Sequence[tuple[str, ...]]) -> Iterator[Finding]:
    if not declared.owner:
        return  # no class of a library whose savers ask for a declaration
    known = {n for t in tied for n in t.names}
    for group in shared:
        owner = group[0]
        plain = [_WRAPPED.sub("", n) for n in group]
        rest = [n for n in plain[1:] if not any(declared.names(n, g) for g in plain)]
        if rest and not known.intersection(group):
            yield Finding(
                "undeclared-sharing", "warning", owner,
                f"{', '.join(group)} are one parameter, and {declared.owner or 'the class'} does not declare it: "
                "saving refuses, or stores it twice",
                hint="declare it in the class's tied keys, or clone the parameter",
            )  # fmt: skip
