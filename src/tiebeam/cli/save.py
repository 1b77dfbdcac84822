"""Write a model as `model.safetensors` and `config.json`: a folder that appears whole or not at all."""

import dataclasses
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoints.declared import declared_by
from tiebeam.checkpoints.scopes import fields
from tiebeam.cli.output import permissions
from tiebeam.cli.transformers_target import quiet
from tiebeam.errors import TargetError

if TYPE_CHECKING:
    from tiebeam.core.report import Report

WEIGHTS, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"


def check_out(out: Path, *, force: bool) -> None:
    """Refuse, before any work is done, a place that must not be written to. A link to a folder is that folder.

    Raises:
        TargetError: `out` is a file, its parent is missing, or it holds something and not `force`.
    """
    if out.exists() and not out.is_dir():
        raise TargetError(f"'{out}' cannot be the output folder", got="a file", expected="a folder, or nothing")
    if not out.resolve().parent.is_dir():
        missing = out.resolve().parent
        raise TargetError(f"'{out}' cannot be made", got=f"no folder '{missing}'", expected="its parent")
    if out.is_dir() and any(out.iterdir()) and not force:
        held = ", ".join(sorted(p.name for p in out.iterdir())[:5])
        raise TargetError(
            f"the output folder '{out}' is not empty",
            got=held,
            hint="name another folder, or add --force to replace the files of the same names",
        )


def save(model: Any, report: "Report", out: Path, *, force: bool = False) -> tuple[str, ...]:
    """Write weights and config, each tensor once.

    Everything is written to a temporary folder beside `out`, which then takes its name. With `force` and
    a folder that holds something, the new files replace those of the same name one by one, the weights
    first; other files stay.

    Args:
        model: A PyTorch module with real weights.
        report: What was done, for the config of a model that has none.
        out: The folder.
        force: Replace files in a folder that is not empty.

    Returns:
        Names of the files written.

    Raises:
        TargetError: The model is none of PyTorch's or on meta, or the folder cannot be written.
    """
    check_out(out, force=force)
    _check_model(model, report)
    place = out.resolve()  # a link stays, and the folder it points to is filled
    try:
        draft = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
        try:
            _write(model, report, draft)
            names = tuple(sorted(p.name for p in draft.iterdir()))
            for path in (draft, *draft.rglob("*")):
                path.chmod(permissions(folder=path.is_dir()))
            _publish(draft, place, names)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as e:
        raise TargetError(f"the folder '{out}' cannot be written", got=str(e)) from e
    return names


def _check_model(model: Any, report: "Report") -> None:
    if report.framework != "torch":
        raise TargetError(
            "only PyTorch models are written to files",
            got=f"a model of {report.framework}",
            hint="call tiebeam.initialize in Python and save with the framework's own means",
        )
    empty = [name for name, p in model.named_parameters() if p.device.type == "meta"]
    if empty:
        raise TargetError(f"the parameter '{empty[0]}' has no values", got="a meta tensor")


def _publish(draft: Path, out: Path, names: tuple[str, ...]) -> None:
    here = out == Path.cwd()  # replacing it would leave the shell in a folder that is gone
    if not out.is_dir() or (not any(out.iterdir()) and not here):
        draft.replace(out)  # over an empty folder too
        return
    for name in sorted(names, key=lambda n: n == CONFIG):
        (draft / name).replace(out / name)
    if INDEX not in names:
        (out / INDEX).unlink(missing_ok=True)  # it would speak of files that are no longer the model


def _write(model: Any, report: "Report", folder: Path) -> None:
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
