"""Hugging Face configs as transformers' own classes: never a repository's code, never a pickle."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tiebeam.checkpoints.config_files import check_size, first_line
from tiebeam.checkpoints.meta import bounded, on_meta
from tiebeam.checkpoints.near import near
from tiebeam.errors import TargetError

# A config may name a kernel that transformers would fetch from the hub and run.
_NAMES_CODE = frozenset(f"{u}{part}_implementation" for u in ("", "_") for part in ("attn", "experts"))


def config_of_type(name: str, *, expected: str, hint: str = "") -> Any:
    """The default config of a transformers model type, such as `gpt2`.

    Args:
        expected: What the name could have been, for the message.
        hint: What to say then; "": which type may have been meant.

    Raises:
        TargetError: transformers knows no such type.
    """
    transformers = transformers_module()
    known = list(transformers.CONFIG_MAPPING.keys())
    if name not in known:
        raise TargetError(
            f"'{name}' is no file and no model type that transformers {transformers.__version__} knows",
            got=repr(name),
            expected=expected,
            hint=hint or near(name, known),
        )
    with quiet(), building(f"the model type '{name}'"):
        return transformers.CONFIG_MAPPING[name]()


def config_of(data: Mapping[str, Any], where: str) -> Any:
    """A config object of transformers' own class.

    Raises:
        TargetError: It names code of its own or a type that transformers does not know, or cannot be built.
    """
    check_size(data, where)
    if data.get("auto_map"):
        code = data["auto_map"]
        named = next(iter(code.values()), code) if isinstance(code, Mapping) else code
        raise TargetError(
            f"'{where}' names code of its own, which tiebeam never runs",
            got=f"auto_map: {named}",
            expected="a config for a class that transformers has itself",
            hint="build the model in a function of yours and inspect module:callable, or take auto_map out",
        )
    transformers = transformers_module()
    known = list(transformers.CONFIG_MAPPING.keys())
    kind = data.get("model_type")
    if not isinstance(kind, str) or kind not in known:
        raise TargetError(
            f"'{where}' has no model_type that transformers {transformers.__version__} knows",
            got=repr(kind),
            expected="one of its model types, such as 'gpt2'",
            hint=near(kind, known) if isinstance(kind, str) else _own_hint(data, where),
        )
    with quiet(), building(f"'{where}'"):
        return transformers.CONFIG_MAPPING[kind].from_dict(_without_code(data))


def _own_hint(data: Mapping[str, Any], where: str) -> str:
    """How to look at a model of the user's own, whose folder does not say what builds it."""
    weights = Path(where).parent / "model.safetensors"
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


def model_class(config: Any, *, named: bool = True) -> type[Any]:
    """The transformers class for a config: what `architectures` names, else what the auto classes choose.

    Args:
        named: Whether to ask `architectures` first.

    Raises:
        TargetError: transformers has no language model for this config.
    """
    transformers = transformers_module()
    for name in named_classes(config) if named else ():
        cls = getattr(transformers, name, None) if isinstance(name, str) and name.isidentifier() else None
        if isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel):
            wants = getattr(cls, "config_class", None)
            if wants is not None and isinstance(config, wants):
                return cls
    for mapping in _mappings(transformers, config):
        if type(config) in mapping:
            chosen = mapping[type(config)]
            return chosen[0] if isinstance(chosen, tuple | list) else chosen  # type: ignore[no-any-return]
    raise TargetError(
        f"transformers has no language model for the model type '{config.model_type}'",
        got=f"architectures {named_classes(config)}",
        expected="a causal, masked, sequence-to-sequence, speech or image-text model",
    )


def named_classes(config: Any) -> list[Any]:
    """What a config names as its classes, the first few: it may name anything."""
    named = config.architectures
    return list(named[:8]) if isinstance(named, list | tuple) else []


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


def meta_model(cls: type[Any], config: Any, what: str, *, seconds: float = math.inf) -> Any:
    """A model without memory for its weights, tied as transformers ties it.

    Args:
        seconds: After which to give up.

    Raises:
        TargetError: It cannot be built, or asks for more modules than any model has.
    """
    with quiet(), building(what), on_meta(), bounded(what, seconds=seconds):
        return cls._from_config(config)


def architecture_note(config: Any, cls: type[Any]) -> tuple[str, ...]:
    """What to say where another class was built than the config names."""
    names = [n for n in named_classes(config) if n != cls.__name__]
    unknown = names and cls.__name__ not in named_classes(config)
    return (f"transformers has no {names[0]} for this config; {cls.__name__} was built",) if unknown else ()


def transformers_module() -> Any:
    """The library itself.

    Raises:
        TargetError: It is missing, or torch is.
    """
    try:
        import transformers
    except ImportError as e:
        raise TargetError(
            "configs and model types need transformers", got=first_line(e), hint="pip install 'tiebeam[transformers]'"
        ) from e
    if find_spec("torch") is None:
        raise TargetError("transformers models need torch", got="no torch", hint="pip install 'tiebeam[torch]'")
    return transformers


@contextmanager
def building(what: str) -> Iterator[None]:
    """Whatever transformers raises about a config or a file is a target that cannot be built."""
    try:
        yield
    except TargetError:
        raise
    except Exception as e:
        got = f"{type(e).__name__}: {first_line(e)}"
        raise TargetError(f"transformers cannot build {what}", got=got, hint="--debug shows where") from e


@contextmanager
def quiet() -> Iterator[None]:
    """Run transformers without its chatter and progress bars; both are as before afterwards."""
    log = transformers_module().logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()
