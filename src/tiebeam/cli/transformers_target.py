"""Models from Hugging Face configs: transformers' own classes, never a repository's code or a pickle."""

import shlex
from pathlib import Path
from typing import Any

from tiebeam.checkpoints.config_files import read_json
from tiebeam.checkpoints.transformers_configs import (
    architecture_note,
    building,
    config_of,
    config_of_type,
    meta_model,
    model_class,
    quiet,
)
from tiebeam.cli.beside import INDEX, WEIGHTS, check_held, check_loaded
from tiebeam.cli.building import seeded
from tiebeam.cli.hub import config_file
from tiebeam.cli.target import Target
from tiebeam.errors import TargetError

MOST_PARAMETERS = 2_000_000_000
"""Random weights beyond this many parameters are not made: they would tell no more than `--meta`."""

_WEIGHTS = (WEIGHTS, INDEX)
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_ADAPTER = "adapter_config.json"


def from_model_type(name: str, *, meta: bool, seed: int, hint: str = "") -> Target:
    """The default model of a transformers model type, such as `gpt2`, with random weights.

    Args:
        name: The type.
        meta: Build without memory for the weights.
        seed: Of the random weights.
        hint: What to say where there is no such type; "": which one may have been meant.
    """
    expected = "module:callable, a path, hf:org/name or one of its model types"
    config = config_of_type(name, expected=expected, hint=hint)
    return _build(config, f"the model type '{name}'", meta=meta, seed=seed)


def from_hub(name: str, *, meta: bool, seed: int) -> Target:
    """The model of a hub repository's `config.json`, with random weights.

    Args:
        name: `org/name`, with an optional `@revision`.
        meta: Build without memory for the weights.
        seed: Of the random weights.
    """
    path = config_file(name)
    config = config_of(read_json(path), f"hf:{name}")
    return _build(config, f"'hf:{name}'", meta=meta, seed=seed)


def from_path(path: Path, *, meta: bool, seed: int) -> Target:
    """The model of a folder with a `config.json`, or of such a file; its weights if they lie beside."""
    folder = path if path.is_dir() else path.parent
    named = path.is_file() and path.suffix == ".json" and path.name not in _WEIGHTS
    file = path if named else folder / "config.json"
    if (folder / _ADAPTER).exists():
        raise TargetError(
            f"'{path}' is an adapter, not a model", got=_ADAPTER, hint="name the folder of its base model"
        )
    if path.is_file() and path.name not in _WEIGHTS and path.suffix != ".json":
        raise TargetError(
            f"'{path}' is no file that tiebeam builds a model from",
            got=path.suffix or "no suffix",
            expected="config.json, or model.safetensors beside one; pickled weights are never loaded",
            hint=f"tiebeam checkpoint {shlex.quote(str(path))} looks at a file of weights by itself",
        )
    if not file.is_file():
        raise TargetError(
            f"'{path}' holds no config.json",
            got=", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "an empty folder",
            expected="a Hugging Face config.json",
        )
    config = config_of(read_json(file), str(file))
    beside = file.name == "config.json"
    if not meta and beside and any((folder / w).exists() for w in _WEIGHTS):
        return _load(config, folder, seed)
    built = _build(config, f"'{path}'", meta=meta, seed=seed)
    left = [w for w in (*_WEIGHTS, *_PICKLES) if beside and (folder / w).exists()]
    notes = (f"the weights are {built.weights}: {left[0]} was not loaded",) if left else ()
    return Target(built.model, None, built.weights, (*built.notes, *notes))


def _build(config: Any, what: str, *, meta: bool, seed: int) -> Target:
    cls = model_class(config)
    model = meta_model(cls, config, what)
    size = sum(p.numel() for p in model.parameters())
    if not meta:
        if size > MOST_PARAMETERS:
            raise TargetError(
                f"{what} has {size / 1e9:.1f} billion parameters",
                got=f"{size * 4 / 2**30:.0f} GiB of random weights to make",
                expected=f"at most {MOST_PARAMETERS / 1e9:.0f} billion without --meta",
                hint="add --meta: structure, ties and factors are seen without memory",
            )
        with quiet(), building(what), seeded(seed):
            model = cls._from_config(config)
    return Target(model.eval(), None, "meta" if meta else "random", architecture_note(config, cls))


def _load(config: Any, folder: Path, seed: int) -> Target:
    cls = model_class(config)
    with quiet(), building(f"'{folder}'"), seeded(seed):
        check_held(cls, config, folder)
        model, info = cls.from_pretrained(
            folder,
            config=config,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    missing, unexpected = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    check_loaded(model, missing, config, folder)
    notes = [f"not in the file, so random: {', '.join(missing[:5])}" for _ in missing[:1]]
    notes += [f"in the file, not in the model: {', '.join(unexpected[:5])}" for _ in unexpected[:1]]
    return Target(model.eval(), None, "file", (*architecture_note(config, cls), *notes))
