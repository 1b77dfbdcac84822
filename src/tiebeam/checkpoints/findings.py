"""Findings on a checkpoint: where file, config and family say different things of one table."""

import math
from collections.abc import Iterator
from dataclasses import replace

from tiebeam.checkpoints.declared import FLAG, declare
from tiebeam.checkpoints.judging import Facts
from tiebeam.checkpoints.runtimes import LATELY
from tiebeam.checkpoints.scopes import read
from tiebeam.core.finding import Finding
from tiebeam.core.findings import in_order

_ALIKE = ("equal", "equal-after-cast", "transposed", "sliced")
_HOW = {
    "equal": "bit for bit",
    "equal-after-cast": "after a cast",
    "transposed": "once transposed",
    "sliced": "as far as the shorter goes",
}
_SHOWN = 4


def checkpoint_findings(facts: Facts) -> tuple[Finding, ...]:
    """All findings, the most severe first."""
    found = [*_files(facts), *_roles(facts), *_two_ends(facts), *_one_end(facts), *_config(facts), *_vocabulary(facts)]
    return in_order([_possible(facts, f) for f in (*found, *_adapter(facts))])


def _files(facts: Facts) -> Iterator[Finding]:
    archive = facts.archive
    if archive.missing:
        yield Finding(
            "missing-shards", "error", "",
            f"the index names {len(archive.missing)} file(s) that are not there: {_listed(archive.missing)}; what they "
            "hold would be drawn at random",
            hint="download or copy the files again",
        )  # fmt: skip
    if archive.strays:
        yield Finding(
            "index-disagrees", "error", archive.strays[0],
            f"index and files disagree on {_listed(archive.strays)}: a loader that goes by the one misses what the "
            "other has",
            hint="write the index anew from the files",
        )  # fmt: skip


def _roles(facts: Facts) -> Iterator[Finding]:
    if facts.roles.ambiguous:
        yield Finding(
            "several-tables", "warning", "",
            f"several tensors could be the table, and nothing tells them apart: {_listed(facts.roles.tables)}",
            hint="name them: tiebeam checkpoint PATH --table NAME --readout NAME",
        )  # fmt: skip
    elif facts.state == "no-table" and not facts.archive.adapter:
        shapes = {e.name: e.shape for e in facts.archive.entries.values() if e.shape is not None and len(e.shape) == 2}
        largest = max(shapes, key=lambda name: math.prod(shapes[name]), default=None)
        yield Finding(
            "no-table", "info", "", "no tensor of the file looks like a vocabulary table",
            hint=f"where one is: tiebeam checkpoint PATH --table NAME; the largest matrix is {largest!r}, "
            f"{shapes[largest][0]} x {shapes[largest][1]}" if largest is not None else "",
        )  # fmt: skip
    different = [name for name, likeness in facts.others if likeness == "different"]
    if facts.table is not None and different:
        yield Finding(
            "several-tables", "warning" if facts.ties and facts.state == "different" else "info", facts.table.name,
            f"the file holds further tables with other values: {_listed(different)}; which of them a loader ties to "
            "depends on the loader",
            hint="name them: tiebeam checkpoint PATH --table NAME --readout NAME",
        )  # fmt: skip


def _two_ends(facts: Facts) -> Iterator[Finding]:
    table, readout = facts.table, facts.readout
    if table is None or readout is None:
        return
    if facts.state in _ALIKE and not (facts.one_storage and facts.ties):
        yield from _alike(facts)
    elif facts.state == "different" and facts.ties:
        yield Finding(
            "tied-file-differs", "error", readout.name,
            f"{_who_ties(facts)}, and the file holds two different matrices, '{table.name}' and "
            f"'{readout.name}'{_apart(facts)}: which of them counts depends on the loader, the other is lost",
            hint="decide which counts: tiebeam checkpoint PATH --fix --out DIR --on-conflict untie (or embedding, "
            "readout, mean)",
        )  # fmt: skip
    elif facts.state == "different":
        yield Finding("untied", "info", readout.name, f"'{table.name}' and '{readout.name}' are two tables")
    elif facts.state == "unknown" and facts.ties and not facts.archive.has_values:
        yield Finding(
            "tie-not-shown", "warning", readout.name,
            f"{_who_ties(facts)}, and the index names '{readout.name}' beside '{table.name}': without the files it "
            "cannot be told whether they are one",
            hint="look at the files themselves",
        )  # fmt: skip
    if facts.quantised and (facts.ties or facts.state == "unknown") and facts.archive.format != "gguf":
        yield Finding(
            "quantised-end", "warning" if facts.ties and len(facts.quantised) == 1 else "info", facts.quantised[0],
            f"{' and '.join(map(repr, facts.quantised))} {'is' if len(facts.quantised) == 1 else 'are'} quantised"
            + (f", and {_who_ties(facts)}: a loader that ties drops one of two unlike ends" if facts.ties else "")
            + (f"; {facts.comparison.why}" if facts.comparison.why else ""),
            hint="quantise the table once for both roles, or untie and say so in the config",
        )  # fmt: skip


def _alike(facts: Facts) -> Iterator[Finding]:
    table, readout = facts.table, facts.readout
    if table is None or readout is None:
        return
    how = _HOW[facts.state]
    if facts.ties:
        yield Finding(
            "redundant-readout", "info", readout.name,
            f"'{readout.name}' is '{table.name}' {how}: {readout.nbytes:,} bytes that a tied model does not need",
            hint="drop it: tiebeam checkpoint PATH --fix --out DIR",
        )  # fmt: skip
        return
    if facts.one_storage and facts.tying.declared is not False:
        return  # the file itself has one storage, and nobody says otherwise
    said = f"{facts.tying.flag} says False" if facts.tying.declared is False else "nothing says that they are one"
    yield Finding(
        "equal-not-declared", "warning", readout.name,
        f"'{readout.name}' is '{table.name}' {how}, and {said}: a loader makes two of them, {readout.nbytes:,} bytes "
        "more, and training lets them drift apart",
        hint="tie them, flag and file: tiebeam checkpoint PATH --fix --out DIR --tie",
    )  # fmt: skip


def _one_end(facts: Facts) -> Iterator[Finding]:
    table = facts.table
    if table is None or facts.readout is not None or facts.archive.adapter:
        return
    for name, stands_for in facts.aliases.items():
        yield Finding(
            "alias-recorded", "info", stands_for,
            f"the file's metadata says that '{name}' is '{stands_for}': a strict loader that does not read it misses "
            "a key",
            hint="copy it under both names before a strict load",
        )  # fmt: skip
    if facts.archive.format == "gguf" and facts.tying.effective is not False:
        older = "versions before 2025" if _lately(facts) else "older versions"
        yield Finding(
            "runtime-fallback", "info", table.name,
            f"{facts.tying.why}; other runtimes, and {older}, may refuse the file",
        )  # fmt: skip
        return
    if facts.tying.effective is True or (facts.aliases and facts.tying.effective is None):
        return
    if facts.backbone:
        yield Finding(
            "backbone-only", "info", table.name,
            f"the file has no readout, and by its name the config's class, {facts.backbone}, has none either",
        )  # fmt: skip
        return
    said, sure = _nothing_ties(facts)
    yield Finding(
        "readout-missing", "error" if sure else "warning", table.name,
        f"the file has no readout, and {said}: a loader that builds one leaves it at random values or zero",
        hint="if it is a tied checkpoint, say so in the config: tiebeam checkpoint PATH --fix --out DIR --tie",
    )  # fmt: skip


def _possible(facts: Facts, finding: Finding) -> Finding:
    """The finding, its hint without a command that would refuse the file."""
    what, command, _ = finding.hint.partition(": tiebeam checkpoint PATH --fix")
    if not command or (facts.archive.format == "safetensors" and facts.archive.has_values):
        return finding
    why = f"; --fix mends safetensors alone, not {facts.archive.format}" if facts.archive.has_values else ""
    return replace(finding, hint=what + why)


def _lately(facts: Facts) -> bool:
    return (facts.archive.config or {}).get("gguf_architecture") in LATELY


def _nothing_ties(facts: Facts) -> tuple[str, bool]:
    tying = facts.tying
    if tying.effective is False:
        return (f"{tying.flag} says False" if tying.declared is False else tying.why or f"{FLAG} is False"), True
    if tying.declared is True:
        return tying.why or "the flag stands where its class may not read it", True
    return tying.why or "nothing says that the table is its readout", False


def _config(facts: Facts) -> Iterator[Finding]:
    config = facts.archive.config
    if config is None:
        return
    said = declare(config)
    if not said.scopes_agree or (said.scopes and not said.flag_present):
        words = [f"{path or 'the top level'} says {flag}" for path, flag in said.scopes]
        words += [] if said.flag_present else ["the top level says nothing"]
        reads = "which one is read is not known" if facts.tying.effective is None else (
            f"transformers 5 builds {'one table' if facts.tying.effective else 'two tables'}"
        )  # fmt: skip
        sure = facts.tying.family is not None and facts.tying.effective is (facts.readout is None)
        yield Finding(
            "config-scopes-disagree", "info" if sure else "warning", "",
            f"{', '.join(words)}: {reads}, other runtimes may read another scope",
            hint=f"write the same {FLAG} in every scope",
        )  # fmt: skip
    for field in said.misspelt:
        yield Finding(
            "misspelt-flag", "warning", "",
            f"the config field {field!r} is read by nobody; the flag is {FLAG!r}",
            hint=f"rename it to {FLAG!r}",
        )  # fmt: skip
    family = facts.tying.family
    if family is not None and family.always and facts.tying.declared is False and facts.table is not None:
        yield Finding(
            "flag-without-effect", "info", "",
            f"{FLAG} is False, and transformers 5 ties '{family.kind}' all the same: in this family the flag once said "
            "whether the hidden state is scaled",
        )  # fmt: skip


def _vocabulary(facts: Facts) -> Iterator[Finding]:
    table, vocab = facts.table, facts.vocab
    if table is None or table.shape is None or vocab is None or vocab < 1 or len(table.shape) != 2:
        return
    rows = table.shape[0]
    if vocab in table.shape:
        return
    if 0 < rows - vocab <= max(1024, rows // 10):
        yield Finding(
            "padded-vocabulary", "info", table.name,
            f"the table has {rows:,} rows and the config {vocab:,} tokens: {rows - vocab:,} rows are never tokens",
        )  # fmt: skip
    elif rows < vocab:
        yield Finding(
            "short-vocabulary", "error", table.name,
            f"the table has {rows:,} rows and the config {vocab:,} tokens: ids from {rows:,} on have no row",
            hint="resize the table, or mend vocab_size",
        )  # fmt: skip


def _adapter(facts: Facts) -> Iterator[Finding]:
    adapter = facts.archive.adapter
    if not adapter:
        return
    base = read(adapter, "base_model_name_or_path")
    if facts.table is None:
        yield Finding(
            "adapter-only", "info", "",
            f"the file is an adapter{f' of {base}' if isinstance(base, str) and base else ''}: it holds no table",
        )  # fmt: skip
    targets = [str(t) for key in ("target_modules", "modules_to_save") for t in _names(read(adapter, key))]
    on_readout = [t for t in targets if t.rpartition(".")[2] in ("lm_head", "embed_out", "output", "head", "proj_out")]
    on_table = [t for t in targets if "emb" in t.lower() or t.rpartition(".")[2] in ("wte", "shared")]
    if (
        on_readout
        and not on_table
        and facts.tying.effective is not False
        and read(adapter, "ensure_weight_tying") is not True
    ):
        tied = "is tied" if facts.tying.effective else "may be tied"
        yield Finding(
            "adapter-on-readout", "warning", on_readout[0],
            f"the adapter changes the readout and the base model {tied}: kept beside the base it is right, merged it "
            "changes the lookup too",
            hint="untie before merging, or adapt both roles as one",
        )  # fmt: skip


def _names(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple | set) else [value] if isinstance(value, str) else []


def _who_ties(facts: Facts) -> str:
    tying = facts.tying
    if tying.declared is True:
        return f"{tying.flag or FLAG} says True"
    return tying.why if tying.effective and tying.why else "the file's metadata makes them one"


def _apart(facts: Facts) -> str:
    gap = facts.comparison.gap
    if gap is None:
        return f" ({facts.comparison.why})" if facts.comparison.why else ""
    seen = "" if gap.rows_seen == gap.rows else f" of {gap.rows_seen:,} looked at"
    ends = [s.std for s in facts.stored()]
    scale = ""
    if len(ends) == 2 and ends[0] and ends[1] and not 0.1 < ends[0] / ends[1] < 10:
        scale = f", their entries {ends[0]:.3g} and {ends[1]:.3g} in size"
    sizes = f"relative distance {gap.distance:.3g}, largest gap {gap.largest:.3g}"
    return f" ({sizes}, {gap.rows_differing:,} rows{seen} differ{scale})"


def _listed(names: tuple[str, ...] | list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
