"""`tiebeam.advise`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiebeam.api.look import look
from tiebeam.backends import entry_of
from tiebeam.checkpoints.config_files import check_size, read_config
from tiebeam.checkpoints.config_sizes import sizes_of
from tiebeam.checkpoints.file_sizes import Ends, count_archive, count_index, ends_of
from tiebeam.checkpoints.opening import CONFIG, INDEX_SUFFIX, open_archive
from tiebeam.core.advising.advice import Advice, Counted, Now, Setting, body_by_rule
from tiebeam.core.advising.advice import advise as weigh
from tiebeam.core.facts import Table
from tiebeam.errors import BackendError, RangeError, TargetError

CONFIGS = (".json", ".yml", ".yaml")
WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".npz", ".keras", ".h5")


def advise(
    target: Any = None,
    *,
    inputs: Any = None,
    config: Any = None,
    vocab: int | None = None,
    width: int | None = None,
    layers: int | None = None,
    body: int | None = None,
    batch: int = 8,
    length: int = 1024,
    dtype: str | None = None,
    optimizer: str = "adamw",
) -> Advice:
    """Weigh up a tie: what it saves, what it does not, whether to, and how sure that is.

    No weight is loaded. Where transformers knows a config's type the model is built without memory and counted exactly,
    as it would be tied; else its sizes go into a formula, and the answer says which.

    Args:
        target: A config (a dictionary, or an object with `to_dict`), a `config.json` or YAML file, a folder with one,
            weights in any format that `tiebeam.checkpoints.inspect` reads, an index of shards, a transformers model
            type such as "gpt2", or a model, which is run once as `inspect` runs it. None: the sizes below.
        inputs: For a model, as `inspect` takes them.
        config: The config that belongs to an index or file, in any of those ways; one beside it is found by itself.
        vocab, width: Rows and columns of a table.
        layers: Blocks; the body is then counted as `12 * layers * width**2`. 0 counts the two tables alone.
        body: Parameters beside the two tables, where they are known.
        batch, length: What logits are counted for. Unit: sequences; tokens of each.
        dtype: Of weights, gradients and logits: "float32" (the default), "bfloat16", "float16", "float8", "int8" or
            "int4".
        optimizer: "sgd", "momentum", "lion", "rmsprop", "adagrad", "adam" or "adamw".

    Returns:
        The figures: `tied`, `untied`, `saved` in parameters, `share` of the untied model, and the rest of `Advice`.

    Raises:
        TargetError: The target is none of these, is beyond any model, or says too little.
        CheckpointError: Weights are damaged, or in no format that is read.
        RangeError: A size is out of range; a dtype or optimizer is none of the above.
        InputError: A model refuses the inputs.

    Example:
        >>> import tiebeam
        >>> found = tiebeam.advise(vocab=50257, width=768, body=85842432)
        >>> found.tied, found.untied, found.saved, f"{found.share:.1%}", found.verdict
        (124439808, 163037184, 38597376, '23.7%', 'tie')
        >>> round(tiebeam.advise(vocab=50000, width=768, layers=0).bytes["float32"].saved / 2**20, 4)  # MiB
        146.4844
    """
    setting = Setting(batch, length, dtype or "float32", optimizer)
    if target is None and config is None:
        return weigh(f"{vocab} x {width}", _given(vocab, width, layers, body), setting)
    if layers is not None or body is not None:
        raise RangeError("sizes beside a target", got="layers or body", expected="a target, or sizes alone")
    if target is None:
        target, config = config, None
    if isinstance(target, str | Path):
        name, counted = _of_path(target, config, vocab, width, dtype)
    elif _is_model(target):
        name, counted = _of_model(target, inputs)
    else:
        data = _mapping(target, "the config")
        name, counted = str(data.get("model_type") or "the config"), _of_config(data, "the config", vocab)
    return weigh(name, counted, setting)


def _given(vocab: int | None, width: int | None, layers: int | None, body: int | None) -> Counted:
    if vocab is None or width is None or (layers is None) == (body is None):
        given = {"vocab": vocab, "width": width, "layers": layers, "body": body}
        raise RangeError(
            "sizes to advise on",
            got=", ".join(f"{k}={v}" for k, v in given.items() if v is not None) or "none",
            expected="vocab, width, and one of layers and body",
            hint="a config, a folder or a model type (tiebeam advise gpt2) says it all by itself; "
            "layers=0 counts the two tables alone",
        )
    if layers is None:
        return Counted(vocab, width, body)
    if layers < 0:
        raise RangeError("layers to advise on", got=str(layers), expected="at least 0")
    said = "12 x layers x width**2"
    return Counted(vocab, width, body_by_rule(layers, width), how="formula", formula=said, layers=layers or None)


def _of_path(
    target: str | Path, config: Any, vocab: int | None, width: int | None, dtype: str | None
) -> tuple[str, Counted]:
    path = Path(target).expanduser()
    if not path.exists():
        return str(target), _of_type(str(target))
    if path.is_dir() and (path / CONFIG).is_file():
        path /= CONFIG
    if path.suffix in CONFIGS and not path.name.endswith(INDEX_SUFFIX):
        data = read_config(path)
        if "weight_map" not in data:
            return str(target), _of_config(data, str(path), vocab)
    return str(target), _of_weights(path, config, vocab, width, dtype)


def _of_weights(path: Path, config: Any, vocab: int | None, width: int | None, dtype: str | None) -> Counted:
    given = _beside(path, config)
    archive = open_archive(path, given)
    if given is None and archive.has_values and not archive.missing:
        return count_archive(archive, str(path))
    ends = ends_of(archive)
    if given is None:
        return count_index(ends, vocab, width, dtype, str(path))
    counted = _of_config(given, str(path), vocab)
    return replace(counted, notes=(*counted.notes, *_held_against(ends, counted)))


def _held_against(ends: Ends, counted: Counted) -> list[str]:
    """What the files say beside a config's count."""
    notes = []
    if ends.now == "untied" and counted.now == "tied":
        table, readout = ends.names
        notes.append(f"the files hold {readout!r} beside {table!r}, which the model ties: stored twice")
    if counted.now == "untied" and ends.names and not ends.both:
        notes.append("the model is untied, and the files hold one table")
    if ends.total_size is not None and counted.body is not None:
        stored = counted.body + (2 if ends.both else 1) * counted.table
        notes.append(f"the files hold {ends.total_size / stored:.4g} bytes for each parameter")
    return notes


def _beside(path: Path, config: Any) -> Mapping[str, Any] | None:
    """The config that belongs to a file: the one given, or the one in its folder."""
    if isinstance(config, str | Path):
        given = Path(config).expanduser()
        return read_config(given / CONFIG if given.is_dir() else given)
    if config is not None:
        return _mapping(config, "config=")
    found = (path if path.is_dir() else path.parent) / CONFIG
    return read_config(found) if found.is_file() else None


def _is_model(target: Any) -> bool:
    if isinstance(target, Mapping) or hasattr(target, "to_dict"):
        return False
    try:
        entry_of(target)
    except BackendError:
        return False
    return True


def _of_model(model: Any, inputs: Any) -> tuple[str, Counted]:
    """Counted as it is, the tie by what one pass shows."""
    seen = look(model, inputs)
    total = seen.model.parameters()
    read_out = max((t for t in seen.tables if t.readouts), key=_elements, default=None)
    looked_up = max((t for t in seen.tables if t.lookups), key=_elements, default=None)
    table = read_out or looked_up
    if table is None:
        raise TargetError(f"{seen.model.name} has no table that could be tied", expected="a model with a vocabulary")
    if read_out is None or read_out.lookups:
        held = (2 if table.state == "aliased" else 1) * _elements(table)  # two parameters on one storage
        now: Now = "tied" if read_out is not None else "no-readout"
        return seen.model.name, Counted(table.vocab, table.width, total - held, now, "seen")
    apart = _elements(looked_up) if looked_up is not None else 0
    fits = looked_up is None or (looked_up.vocab, looked_up.width) == (table.vocab, table.width)
    now = "untied" if looked_up is not None else "unknown"
    body = total - _elements(table) - apart
    return seen.model.name, Counted(table.vocab, table.width, body, now, "seen", other=0 if fits else apart)


def _elements(table: Table) -> int:
    return table.vocab * table.width


def _mapping(config: Any, what: str) -> Mapping[str, Any]:
    data = config.to_dict() if not isinstance(config, Mapping) and hasattr(config, "to_dict") else config
    if not isinstance(data, Mapping):
        raise TargetError(
            f"{what} is no config", got=type(config).__name__, expected="a dictionary, a path, or a model type"
        )
    return data


def _of_config(data: Mapping[str, Any], where: str, vocab: int | None) -> Counted:
    """Built and counted where that can be; else by formula, with the reason."""
    check_size(data, where)
    try:
        from tiebeam.checkpoints.counting import count_config

        return count_config(data, where)
    except TargetError as refused:
        why = f"{refused.what}: {refused.got}" if refused.got else refused.what
        try:
            counted = sizes_of(data, where, vocab=vocab)
        except TargetError as unsaid:
            both = "; ".join(filter(None, (refused.got, unsaid.got)))
            what = f"{refused.what}, and {unsaid.what}"
            raise TargetError(what, got=both, expected=unsaid.expected) from refused
    return replace(counted, notes=(*counted.notes, f"not built: {why}"))


def _of_type(name: str) -> Counted:
    from tiebeam.checkpoints.counting import count_type

    if any(c in name for c in "/\\") or name.endswith((*CONFIGS, *WEIGHTS)) or not name:
        raise TargetError(f"there is no file or folder '{name}'", hint="paths are taken from the current folder")
    if ":" in name:
        raise TargetError(
            f"'{name}' is code of yours, which is not run for advice",
            expected="a config, a folder, an index, safetensors, or a model type",
            hint="tiebeam.advise(model, inputs=...) in Python, or --vocab, --width and --layers",
        )
    return count_type(name)
