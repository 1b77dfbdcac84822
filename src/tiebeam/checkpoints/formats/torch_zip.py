"""PyTorch's zip file: one pickle that describes tensors, and one member for each storage."""

from pathlib import Path

from tiebeam.checkpoints.archive import Archive, Entry, Span, reach
from tiebeam.checkpoints.formats.torch_pickle import MOST_BYTES, Machine, Tensor, tensors_in
from tiebeam.checkpoints.formats.zips import Member, members, read_member, source_of
from tiebeam.errors import CheckpointError


def read(path: Path) -> Archive:
    """A file as `torch.save` writes it since 1.6.

    Names that share a storage keep doing so: their entries have one place in the file.

    Raises:
        CheckpointError: It is no such file, names code, or holds less than its tensors need.
    """
    inside = members(path)
    pickles = [name for name in inside if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise CheckpointError(
            f"'{path}' is no file of torch.save", got=", ".join(list(inside)[:6]), expected="one member data.pkl"
        )
    prefix = pickles[0].removesuffix("data.pkl")
    order = inside.get(f"{prefix}byteorder")
    if order is not None and read_member(path, order, 64).strip() == b"big":
        raise CheckpointError(f"'{path}' was written on a big-endian machine", expected="little-endian numbers")
    value = Machine(read_member(path, inside[pickles[0]], MOST_BYTES), str(path)).run()
    spans: dict[str, Span] = {}
    entries = {name: _entry(name, t, path, inside, prefix, spans) for name, t in tensors_in(value).items()}
    return Archive(path, "torch", entries, (path.name,))


def _entry(
    name: str, tensor: Tensor, path: Path, inside: dict[str, Member], prefix: str, spans: dict[str, Span]
) -> Entry:
    key = tensor.storage.key
    if key not in spans:
        spans[key] = _span(name, tensor, path, inside.get(f"{prefix}data/{key}"))
    whole, item = spans[key], tensor.dtype.bits // 8
    start = whole.start + tensor.offset * item
    stop = start + reach(tensor.shape, tensor.strides) * item
    if stop > whole.stop or start > whole.stop:
        raise CheckpointError(
            f"{name!r:.80} in '{path}' reaches beyond its storage",
            got=f"{whole.stop - whole.start:,} bytes",
            expected=f"offset {tensor.offset:,}, shape {tensor.shape}, strides {tensor.strides}",
        )
    strides = None if tensor.strides == row_major(tensor.shape) else tensor.strides
    return Entry(name, tensor.shape, tensor.dtype, Span(path, start, stop), strides, path.name)


def _span(name: str, tensor: Tensor, path: Path, member: Member | None) -> Span:
    if member is None:
        raise CheckpointError(f"the storage of {name!r:.80} is not in '{path}'", got=tensor.storage.key[:40])
    source = source_of(path, member)
    if not isinstance(source, Span):
        raise CheckpointError(
            f"'{path}' was packed anew", got="a compressed storage", expected="as torch.save writes it"
        )
    return source


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor, in elements.

    Example:
        >>> row_major((2, 3, 4))
        (12, 4, 1)
    """
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
