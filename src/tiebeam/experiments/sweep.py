"""From what a user asks for to the runs of a sweep: settings, text, device; everything is checked before any run."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tiebeam.errors import BackendError, InputError
from tiebeam.experiments.config import fingerprint
from tiebeam.experiments.corpus import check_length
from tiebeam.experiments.data import STANDARD_LIBRARY, SYNTHETIC, WIKITEXT, Source, Tokens, prepare_tokens
from tiebeam.experiments.records import Run, Sweep
from tiebeam.experiments.spec import Experiment
from tiebeam.experiments.store import Store


@dataclass(frozen=True)
class Asked:
    """A sweep, ready to run.

    Attributes:
        configs: Of all runs, in their order; each once, however often it was asked for.
        tokens: The text, or None.
        device: "cpu" or "cuda".
    """

    configs: tuple[dict[str, Any], ...]
    tokens: Tokens | None
    device: str


def ask(
    experiment: Experiment,
    profile: str,
    changes: Mapping[str, Any],
    *,
    data: Sequence[str] = (),
    tokenizer: Path | None = None,
    cache: Path,
) -> Asked:
    """Make the configs of all runs.

    Args:
        experiment: Of what.
        profile: Name of its settings.
        changes: To them.
        data: "stdlib", "wikitext-2", "synthetic", or text files; empty is what the profile says.
        tokenizer: A `tokenizer.json`.
        cache: Where tokens are kept.

    Raises:
        BackendError: A package is missing.
        InputError: A text or tokenizer is missing or does not fit; a text is shorter than a block.
        RangeError: There is no such profile or setting.
    """
    if missing := [name for name in experiment.packages if find_spec(name) is None]:
        raise BackendError(
            f"'{experiment.name}' cannot run",
            got=f"no {' and no '.join(missing)}",
            hint=f"pip install {' '.join(missing)}",
        )
    if experiment.needs == "nothing" and (data or tokenizer):
        raise InputError(f"'{experiment.name}' reads no text", got="--data or --tokenizer")
    settings = experiment.settings(profile, changes)
    device = _device(experiment)
    tokens = None
    if experiment.needs == "text":
        tokens = prepare_tokens(_source(settings, data, tokenizer), cache)
        for ids in (tokens.train, tokens.validation):
            check_length(ids, settings["block"] + 1)
    configs = [_completed(config, tokens, device) for config in experiment.runs(settings)]
    # A seed or rate given twice is one run: counted twice it would pass for two, and their agreement for certainty.
    once = {fingerprint(experiment.name, config): config for config in reversed(configs)}
    return Asked(tuple(reversed(once.values())), tokens, device)


def last_runs(store: Store, experiment: Experiment) -> tuple[Sweep, list[Run], int]:
    """What was last asked for, those of its runs that are done, in its order, and how many are not.

    Raises:
        InputError: Nothing was asked for yet.
    """
    sweep = store.last_sweep(experiment.name)
    if sweep is None:
        raise InputError(
            f"the store '{store.path}' has no run of '{experiment.name}'",
            hint=f"tiebeam experiment run {experiment.name} --profile smoke --store {shlex.quote(str(store.path))}",
        )
    by_hash = {run.hash: run for run in store.runs(experiment.name) if run.status in ("finished", "diverged")}
    there = [by_hash[key] for key in sweep.hashes if key in by_hash]
    return sweep, there, len(sweep.hashes) - len(there)


def _source(settings: Mapping[str, Any], data: Sequence[str], tokenizer: Path | None) -> Source:
    names = list(data) or [settings["data"]]
    known = (STANDARD_LIBRARY, WIKITEXT, SYNTHETIC)
    if len(names) == 1 and names[0] in known:
        if names[0] == SYNTHETIC and tokenizer is not None:
            raise InputError("synthetic ids are not cut by a tokenizer", got=f"--tokenizer {tokenizer}")
        return Source(names[0], tokenizer=tokenizer, vocab=settings["vocab"])
    files = tuple(Path(name) for name in names)
    if mixed := [name for name in names if name in known and not Path(name).is_file()]:
        raise InputError("a text is one of those that have names, or files", got=f"{mixed[0]} among {len(names)} texts")
    if absent := [str(path) for path in files if not path.is_file()]:
        raise InputError(f"no text at {', '.join(map(repr, absent))}", expected=f"files, or one of {', '.join(known)}")
    return Source("files", files, tokenizer, settings["vocab"])


def _device(experiment: Experiment) -> str:
    if "torch" not in experiment.packages:
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _completed(config: dict[str, Any], tokens: Tokens | None, device: str) -> dict[str, Any]:
    made = dict(config)
    if tokens is not None:
        made["data"] = tokens.config
    if made.get("precision") == "auto":
        made["precision"] = "bf16" if device == "cuda" else "fp32"
    return made
