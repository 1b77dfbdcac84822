"""Models from Hugging Face configs: transformers' own classes, never a repository's code or a pickle."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tiebeam.cli.beside import INDEX, WEIGHTS, check_held, check_loaded
from tiebeam.cli.building import bounded, on_meta, seeded
from tiebeam.cli.hub import config_file
from tiebeam.cli.target import Target, near
from tiebeam.errors import TargetError

MOST_PARAMETERS = 2_000_000_000
"""Random weights beyond this many parameters are not made: they would tell no more than `--meta`."""

_MOST_BYTES = 16 * 2**20  # of a config file
_WEIGHTS = (WEIGHTS, INDEX)
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_ADAPTER = "adapter_config.json"
# A config may name a kernel that transformers would fetch from the hub and run.
_NAMES_CODE = frozenset(f"{u}{part}_implementation" for u in ("", "_") for part in ("attn", "experts"))


def from_model_type(name: str, *, meta: bool, seed: int) -> Target:
    """The default model of a transformers model type, such as `gpt2`, with random weights."""
    transformers = _transformers()
    known = list(transformers.CONFIG_MAPPING.keys())
    if name not in known:
        raise TargetError(
            f"'{name}' is no file and no model type that transformers {transformers.__version__} knows",
            got=repr(name),
            expected="module:callable, a path, hf:org/name or one of its model types",
            hint=near(name, known),
        )
    with quiet(), _building(f"the model type '{name}'"):
        config = transformers.CONFIG_MAPPING[name]()
    return _build(config, f"the model type '{name}'", meta=meta, seed=seed)


def from_hub(name: str, *, meta: bool, seed: int) -> Target:
    """The model of a hub repository's `config.json`, with random weights.

    Args:
        name: `org/name`, with an optional `@revision`.
        meta: Build without memory for the weights.
        seed: Of the random weights.
    """
    path = config_file(name)
    config = _config(_read(path), f"hf:{name}")
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
        )
    if not file.is_file():
        raise TargetError(
            f"'{path}' holds no config.json",
            got=", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "an empty folder",
            expected="a Hugging Face config.json",
        )
    config = _config(_read(file), str(file))
    beside = file.name == "config.json"
    if not meta and beside and any((folder / w).exists() for w in _WEIGHTS):
        return _load(config, folder, seed)
    built = _build(config, f"'{path}'", meta=meta, seed=seed)
    left = [w for w in (*_WEIGHTS, *_PICKLES) if beside and (folder / w).exists()]
    notes = (f"the weights are {built.weights}: {left[0]} was not loaded",) if left else ()
    return Target(built.model, None, built.weights, (*built.notes, *notes))


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise TargetError(f"'{file}' is too large for a config", got=f"{file.stat().st_size} bytes")
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as e:
        raise TargetError(f"'{file}' cannot be read as JSON", got=_first_line(e)) from e
    if not isinstance(config, dict):
        raise TargetError(f"'{file}' is no config", got=f"a JSON {type(config).__name__}", expected="an object")
    return config


def _config(data: Mapping[str, Any], where: str) -> Any:
    """A config object of transformers' own class, or a refusal."""
    if data.get("auto_map"):
        code = data["auto_map"]
        named = next(iter(code.values()), code) if isinstance(code, Mapping) else code
        raise TargetError(
            f"'{where}' names code of its own, which tiebeam never runs",
            got=f"auto_map: {named}",
            expected="a config for a class that transformers has itself",
            hint="build the model in a function of yours and inspect module:callable, or take auto_map out",
        )
    transformers = _transformers()
    known = list(transformers.CONFIG_MAPPING.keys())
    kind = data.get("model_type")
    if not isinstance(kind, str) or kind not in known:
        raise TargetError(
            f"'{where}' has no model_type that transformers {transformers.__version__} knows",
            got=repr(kind),
            expected="one of its model types, such as 'gpt2'",
            hint=near(kind, known) if isinstance(kind, str) else _own_hint(data, where),
        )
    with quiet(), _building(f"'{where}'"):
        return transformers.CONFIG_MAPPING[kind].from_dict(_without_code(data))


def _own_hint(data: Mapping[str, Any], where: str) -> str:
    """How to look at a model of the user's own, whose folder does not say what builds it."""
    weights = Path(where).parent / WEIGHTS
    if not weights.is_file():
        return "for a model of your own name the function that builds it: module:callable"
    who = "tiebeam init wrote this from a model of your own" if "tiebeam" in data else "for a model of your own"
    return (
        f"{who}: name a function, module:callable, that builds the model, loads the weights with "
        f"safetensors.torch.load_model(model, '{weights}') and returns it"
    )


def _without_code(data: Any, depth: int = 8) -> Any:
    if not isinstance(data, Mapping) or depth == 0:
        return data
    return {k: _without_code(v, depth - 1) for k, v in data.items() if k not in _NAMES_CODE}


def model_class(config: Any) -> type[Any]:
    """The transformers class for a config: what `architectures` names, else what the auto classes choose.

    Raises:
        TargetError: transformers has no language model for this config.
    """
    transformers = _transformers()
    for name in config.architectures or ():
        named = getattr(transformers, name, None) if isinstance(name, str) and name.isidentifier() else None
        if isinstance(named, type) and issubclass(named, transformers.PreTrainedModel):
            wants = getattr(named, "config_class", None)
            if wants is not None and isinstance(config, wants):
                return named
    for mapping in _mappings(transformers, config):
        if type(config) in mapping:
            chosen = mapping[type(config)]
            return chosen[0] if isinstance(chosen, tuple | list) else chosen  # type: ignore[no-any-return]
    raise TargetError(
        f"transformers has no language model for the model type '{config.model_type}'",
        got=f"architectures {config.architectures}",
        expected="a causal, masked, sequence-to-sequence, speech or image-text model",
    )


def _mappings(transformers: Any, config: Any) -> list[Any]:
    """The auto mappings to ask, best first."""
    # An encoder that is in both reads both ways unless its config says that it decodes.
    text = ["CAUSAL_LM", "MASKED_LM"] if getattr(config, "is_decoder", False) else ["MASKED_LM", "CAUSAL_LM"]
    pairs = ["SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ"]
    images = ["IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM"]
    order = [*pairs, *images, *text] if config.is_encoder_decoder else [*images, *text, *pairs]
    auto = transformers.models.auto.modeling_auto
    found = (getattr(auto, f"MODEL_FOR_{kind}_MAPPING", None) for kind in (*order, "PRETRAINING"))
    return [mapping for mapping in found if mapping is not None]


def _build(config: Any, what: str, *, meta: bool, seed: int) -> Target:
    cls = model_class(config)
    with quiet(), _building(what):
        with on_meta(), bounded(what):
            model = cls._from_config(config)
        size = sum(p.numel() for p in model.parameters())
        if not meta:
            if size > MOST_PARAMETERS:
                raise TargetError(
                    f"{what} has {size / 1e9:.1f} billion parameters",
                    got=f"{size * 4 / 2**30:.0f} GiB of random weights to make",
                    expected=f"at most {MOST_PARAMETERS / 1e9:.0f} billion without --meta",
                    hint="add --meta: structure, ties and factors are seen without memory",
                )
            with seeded(seed):
                model = cls._from_config(config)
    return Target(model.eval(), None, "meta" if meta else "random", _architecture_note(config, cls))


def _architecture_note(config: Any, cls: type[Any]) -> tuple[str, ...]:
    names = [n for n in config.architectures or () if n != cls.__name__]
    unknown = names and cls.__name__ not in (config.architectures or ())
    return (f"transformers has no {names[0]} for this config; {cls.__name__} was built",) if unknown else ()


def _load(config: Any, folder: Path, seed: int) -> Target:
    cls = model_class(config)
    with quiet(), _building(f"'{folder}'"), seeded(seed):
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
    return Target(model.eval(), None, "file", (*_architecture_note(config, cls), *notes))


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as e:
        raise TargetError(
            "configs and model types need transformers", got=_first_line(e), hint="pip install transformers"
        ) from e
    if find_spec("torch") is None:
        raise TargetError("transformers models need torch", got="no torch", hint="pip install torch")
    return transformers


@contextmanager
def _building(what: str) -> Iterator[None]:
    """Whatever transformers raises about a config or a file is a target that cannot be built."""
    try:
        yield
    except TargetError:
        raise
    except Exception as e:
        got = f"{type(e).__name__}: {_first_line(e)}"
        raise TargetError(f"transformers cannot build {what}", got=got, hint="--debug shows where") from e


@contextmanager
def quiet() -> Iterator[None]:
    """Run transformers without its chatter and progress bars; both are as before afterwards."""
    log = _transformers().logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
