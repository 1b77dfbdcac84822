"""A PyTorch model as `model.safetensors` and `config.json`, each tensor once."""

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoints.declared import declared_by
from tiebeam.checkpoints.scopes import fields
from tiebeam.checkpoints.transformers_configs import quiet
from tiebeam.errors import TargetError

if TYPE_CHECKING:
    from tiebeam.core.report import Report

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def write(model: Any, params: None, report: "Report", folder: Path) -> None:
    """Write `model.safetensors` and `config.json`.

    Raises:
        TargetError: The model is on meta.
    """
    empty = [name for name, p in model.named_parameters() if p.device.type == "meta"]
    if empty:
        raise TargetError(f"the parameter '{empty[0]}' has no values", got="a meta tensor")
    extra = _undeclared_aliases(model)
    if hasattr(model, "save_pretrained"):
        state = None
        if extra:
            state = {n: t.clone() if n in extra else t for n, t in model.state_dict().items()}
        with quiet() if "transformers" in sys.modules else nullcontext():
            model.save_pretrained(folder, state_dict=state, max_shard_size="1TB")
    else:
        _write_module(model, folder)
        text = json.dumps(_config(model, report), indent=2, default=str)
        (folder / CONFIG).write_text(text + "\n", encoding="utf-8")


def _write_module(model: Any, folder: Path) -> None:
    """As `safetensors.torch.load_model` reads it: a tensor once, its other names in the metadata."""
    from safetensors.torch import save_file

    state = model.state_dict()
    aliases = {alias: owner for owner, *others in _shared(state) for alias in others}
    tensors = {n: t.detach().contiguous() for n, t in state.items() if n not in aliases}
    save_file(_apart(tensors), folder / WEIGHTS, metadata={"format": "pt", **aliases})


def _apart(tensors: dict[str, Any]) -> dict[str, Any]:
    """Views of one storage that are not the same tensor (a fused weight, say) get memory of their own."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        if storage in seen or tensor.untyped_storage().nbytes() != tensor.nbytes:
            tensors[name] = tensor.clone()
        seen.add(storage)
    return tensors


def _shared(state: Mapping[str, Any]) -> Iterator[list[str]]:
    """Groups of names that are one tensor, in order of the state."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, t in state.items():
        if t.numel():
            key = (t.untyped_storage().data_ptr(), t.storage_offset(), tuple(t.shape), t.stride(), t.dtype)
            groups.setdefault(key, []).append(name)
    yield from (names for names in groups.values() if len(names) > 1)


def _undeclared_aliases(model: Any) -> frozenset[str]:
    """Names of shared tensors whose sharing config and class do not declare.

    A loader would leave them random if the file held the tensor once, so each is written in full.
    """
    declared = declared_by(model)
    return frozenset(
        alias
        for owner, *others in _shared(model.state_dict())
        for alias in others
        if not (declared and declared.tied and declared.names(alias, owner))
    )


def _config(model: Any, report: "Report") -> dict[str, Any]:
    """What a module without a Hugging Face config can say of itself."""
    own = getattr(model, "config", None)
    held = dataclasses.asdict(own) if dataclasses.is_dataclass(own) and not isinstance(own, type) else fields(own)
    import tiebeam

    return {
        "architectures": [type(model).__name__],
        **{k: v for k, v in held.items() if not k.startswith("_")},
        "tiebeam": {
            "version": tiebeam.__version__,
            "init": [{"table": i.name, "std": i.std, "mode": i.mode, "seed": i.seed} for i in report.init],
        },
    }
