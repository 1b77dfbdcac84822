"""How many parameters weights files hold, by their headers: no value is read."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from tiebeam.checkpoints.config_files import first_line, read_json
from tiebeam.core.advice import BITS, Counted
from tiebeam.errors import TargetError

LOOKUPS = (
    "embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight", "tok_embeddings.weight",
    "token_embedding.weight", "shared.weight", "embeddings.weight", "embedding.weight", "embed.weight", "emb.weight",
)  # fmt: skip
READOUTS = (
    "lm_head.weight", "embed_out.weight", "output_projection.weight", "predictions.decoder.weight",
    "output_layer.weight", "output.weight", "head.weight",
)  # fmt: skip
"""Ends of the names that families give the two tables, most telling first."""

_PACKED = ("U8", "I8", "I32", "F4", "F6_E2M3")


@dataclass(frozen=True, slots=True)
class Index:
    """What a safetensors index says: names and one size, no shapes.

    Attributes:
        lookup, readout: Names of the two tables, where there are such.
        total_size: Bytes of all tensors, or None.
        files: Names of the files, inside the index's folder.
    """

    lookup: str | None
    readout: str | None
    total_size: int | None
    files: tuple[str, ...]


def read_index(file: Path) -> Index:
    """Read a safetensors index.

    Raises:
        TargetError: It is none, or names files elsewhere.
    """
    data = read_json(file)
    names = data.get("weight_map")
    if not isinstance(names, Mapping) or not all(isinstance(v, str) for v in names.values()):
        raise TargetError(f"'{file}' is no index", got=", ".join(list(data)[:8]), expected="a weight_map of file names")
    files = sorted(set(names.values()))
    for name in files:
        path = PurePath(name)
        if path.is_absolute() or path.drive or ".." in path.parts:
            raise TargetError(f"'{file}' names a file outside its folder", got=repr(name))
    said = data.get("metadata")
    size = said.get("total_size") if isinstance(said, Mapping) else None
    whole = isinstance(size, int) or (isinstance(size, float) and size.is_integer())
    total = int(size) if whole and size is not None and size > 0 else None
    return Index(ended(names, LOOKUPS), ended(names, READOUTS), total, tuple(files))


def ended(names: Iterable[str], ends: tuple[str, ...]) -> str | None:
    """The first name with the most telling of the ends.

    Example:
        >>> ended(["lm_head.weight", "model.embed_tokens.weight"], LOOKUPS)
        'model.embed_tokens.weight'
    """
    known = sorted(names, key=lambda name: (len(name), name))
    return next((n for end in ends for n in known if n == end or n.endswith(f".{end}")), None)


def count_files(files: Iterable[Path], what: str) -> Counted:
    """Count safetensors.

    Args:
        files: All the files of one model.
        what: For messages.

    Raises:
        TargetError: One cannot be read, or they hold no table.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    packed = 0
    for file in files:
        for name, shape, kind in _header(file):
            shapes[name] = shape
            packed += math.prod(shape) if kind in _PACKED else 0
    lookup, readout = ended(shapes, LOOKUPS), ended(shapes, READOUTS)
    table = readout or lookup
    if table is None or len(shapes[table]) != 2:
        raise TargetError(
            f"'{what}' holds no table that could be tied",
            got=", ".join(list(shapes)[:8]) or "no tensors",
            expected=f"a matrix by a name such as {LOOKUPS[0]} or {READOUTS[0]}",
            hint="pass config=, or the sizes alone: vocab=, width=, body=",
        )
    total = sum(math.prod(s) for s in shapes.values())
    both = lookup is not None and readout is not None
    held = [shapes[n] for n in (lookup, readout) if n is not None]
    notes = [] if both else [f"the file holds {table!r} alone: tied, or it has no readout; its config says which"]
    if packed > total // 2:
        notes.append("the file is quantised: stored numbers were counted, of which one may hold several parameters")
    rows, columns = shapes[table]
    return Counted(
        vocab=rows,
        width=columns,
        body=total - sum(math.prod(s) for s in held),
        now="untied" if both else "unknown",
        how="file",
        other=math.prod(held[0]) if both and held[0] != held[1] else 0,
        notes=tuple(notes),
    )


def _header(file: Path) -> list[tuple[str, tuple[int, ...], str]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "numpy") as held:
            named = [(name, held.get_slice(name)) for name in held.keys()]  # noqa: SIM118 - it is no mapping
            return [(name, tuple(s.get_shape()), s.get_dtype()) for name, s in named]
    except (OSError, SafetensorError) as e:
        raise TargetError(f"'{file}' cannot be read as safetensors", got=first_line(e)) from e


def count_index(index: Index, vocab: int | None, width: int | None, dtype: str | None, what: str) -> Counted:
    """Count by an index alone: it has one size for all, so shapes of the table and the dtype must be given.

    Raises:
        TargetError: They were not, or do not fit.
    """
    missing = [n for n, v in (("vocab", vocab), ("width", width), ("dtype", dtype)) if v is None]
    if index.total_size is None or vocab is None or width is None or dtype is None:
        names = [n for n in (index.lookup, index.readout) if n]
        raise TargetError(
            f"'{what}' alone does not say how large the tables are",
            got=f"{' and '.join(names) or 'no table'}, {index.total_size or 'no'} bytes in all, no shapes",
            expected="config=, the files beside it, or " + " and ".join(missing or ["a total_size"]),
            hint="a config.json beside the index is found by itself",
        )
    total, table = index.total_size * 8 // BITS.get(dtype, 32), vocab * width
    body = total - table * (2 if index.lookup and index.readout else 1)
    if body < 0:
        raise TargetError(
            f"'{what}' is too small for its tables", got=f"{total:,} parameters", expected=f"{table:,} each"
        )
    now: Any = "untied" if index.lookup and index.readout else "unknown"
    return Counted(vocab, width, body, now, "file", notes=(f"parameters are its bytes as {dtype}",))
