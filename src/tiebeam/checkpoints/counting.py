"""Exact counts of a config's model: built by transformers without memory for its weights."""

from collections.abc import Mapping
from typing import Any

from tiebeam.checkpoints.config_sizes import EXPERTS
from tiebeam.checkpoints.transformers_configs import (
    architecture_note,
    building,
    config_of,
    config_of_type,
    meta_model,
    model_class,
    named_classes,
)
from tiebeam.core.advising.advice import Counted
from tiebeam.errors import TargetError

SECONDS = 10.0
"""To build a model in: the largest public ones take one."""


def count_config(data: Mapping[str, Any], where: str) -> Counted:
    """Build a config's model and count it.

    Args:
        data: The config, as it stands in its file. Code that it names is left out, not run.
        where: For messages.

    Raises:
        TargetError: transformers is missing, does not know the type, or cannot build it.
    """
    kept = {k: v for k, v in data.items() if k != "auto_map"}
    notes = ("the config names code of its own: counted as transformers' own class",) if kept != dict(data) else ()
    return _count(config_of(kept, where), where, notes)


def count_type(name: str) -> Counted:
    """Count the default model of a transformers model type.

    Raises:
        TargetError: There is no such type, or transformers is missing.
    """
    config = config_of_type(name, expected="a config, a folder, an index, safetensors, or a model type")
    return _count(config, f"the model type '{name}'", ())


def _count(config: Any, what: str, notes: tuple[str, ...]) -> Counted:
    cls = model_class(config)
    model = meta_model(cls, config, what, seconds=SECONDS)
    with building(what):
        headless = _weight(model.get_output_embeddings()) is None
    if headless:
        other = model_class(config, named=False)
        if other is not cls:
            model, cls = meta_model(other, config, what, seconds=SECONDS), other
            named = ", ".join(map(str, named_classes(config)[:2]))
            notes = (*notes, f"{named} reads nothing out over the vocabulary: counted as {cls.__name__}")
    else:
        notes = (*notes, *architecture_note(config, cls))
    with building(what):  # a class may not say where its tables are
        lookup, readout = _weight(model.get_input_embeddings()), _weight(model.get_output_embeddings())
    total = sum(p.numel() for p in model.parameters())
    table = readout if readout is not None else lookup
    if table is None or table.ndim != 2:
        raise TargetError(
            f"{what} has no table that could be tied", got=cls.__name__, expected="a model with a vocabulary"
        )
    rows, columns = table.shape
    tied = readout is not None and readout is lookup
    held = sum(t.numel() for t in {id(t): t for t in (lookup, readout) if t is not None}.values())
    return Counted(
        vocab=rows,
        width=columns,
        body=total - held,
        now="no-readout" if readout is None else "tied" if tied else "untied",
        how="built",
        other=lookup.numel() if lookup is not None and lookup.shape != table.shape else 0,
        sparse=_sparse(config),
        layers=_layers(config),
        notes=notes,
    )


def _weight(module: Any) -> Any:
    """The table of an embedding or a linear layer, or None."""
    weight = getattr(module, "weight", None)
    return weight if hasattr(weight, "numel") else None


def _sparse(config: Any) -> bool:
    text = config.get_text_config()
    return any(isinstance(n := getattr(text, name, None), int) and n > 1 for name in EXPERTS)


def _layers(config: Any) -> int | None:
    found = getattr(config.get_text_config(), "num_hidden_layers", None)
    return found if isinstance(found, int) and not isinstance(found, bool) else None
