"""Do the safetensors beside a config hold the model that the config asks for? Judged from their headers."""

import json
import math
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

from tiebeam.checkpoints.meta import bounded, on_meta
from tiebeam.errors import TargetError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

LEAST_HELD = 0.5
"""Share of a model's parameters that its file must hold: what is missing would be random, and tell nothing."""

_PACKED = 16
"""Quantised files pack up to this many parameters into one number (2 bits of an int32)."""


def check_held(cls: type[Any], config: Any, folder: Path) -> None:
    """Refuse weights that are far fewer than the model needs, before memory is taken for it.

    Raises:
        TargetError: The file holds less than half of the parameters.
    """
    with on_meta(), bounded(f"'{folder}'"):
        model = cls._from_config(config)
    needed = sum(p.numel() for p in model.parameters())
    held = sum(math.prod(shape) for shape in shapes(folder))
    packed = _PACKED if getattr(config, "quantization_config", None) else 1
    if held * packed < LEAST_HELD * needed:
        raise _unfit(cls, config, folder, needed, got=f"{held:,} parameters in the safetensors")


def check_loaded(model: Any, missing: list[str], config: Any, folder: Path) -> None:
    """Refuse weights of other names than the model's.

    Raises:
        TargetError: Less than half of the parameters came from the file.
    """
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    needed = sum(sizes.values())
    random = sum(sizes.get(name, 0) for name in missing)
    if needed - random < LEAST_HELD * needed:
        names = f"{', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}"
        raise _unfit(type(model), config, folder, needed, got=f"a file without {names}")


def _unfit(cls: type[Any], config: Any, folder: Path, needed: int, *, got: str) -> TargetError:
    return TargetError(
        f"the weights in '{folder}' are not those of its config.json",
        got=got,
        expected=f"the {needed:,} parameters of {cls.__name__} (model_type '{config.model_type}')",
        hint="mend config.json, or see the model that it describes, without the weights: tiebeam inspect --meta",
    )


def shapes(folder: Path) -> Iterator[tuple[int, ...]]:
    """Shapes of all tensors of `model.safetensors`, or of the files that its index names."""
    from safetensors import safe_open

    files = [WEIGHTS]
    if not (folder / WEIGHTS).exists():
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        files = sorted(set(index["weight_map"].values()))
        _check_inside(files, folder)
    for file in files:
        with safe_open(folder / file, "pt") as held:
            for name in held.keys():  # noqa: SIM118 - it is no mapping
                yield tuple(held.get_slice(name).get_shape())


def _check_inside(files: list[str], folder: Path) -> None:
    """Refuse an index that names files elsewhere: what it says would be opened."""
    for file in files:
        path = PurePath(file)
        if path.is_absolute() or path.drive or ".." in path.parts:
            raise TargetError(
                f"'{folder / INDEX}' names a file outside its folder",
                got=repr(file),
                expected="safetensors beside the index",
                hint="mend the index, or look at the config alone: tiebeam inspect --meta",
            )
