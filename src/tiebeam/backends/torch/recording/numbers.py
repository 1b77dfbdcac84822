"""Numbers measured while the pass runs: activations are gone afterwards.

Which tensor the analysis will ask for is known only at the end, so a few cheap numbers are taken at
every product that may be a readout: the root mean square of the hidden state, and the cosine of the last
few tensors of the residual stream with the rows that were looked up.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from tiebeam.backends.torch.recording.ledger import PLAIN, Draft, geometry, order, storage_of
from tiebeam.backends.torch.recording.schema import GATHERS, PRODUCTS, Schema
from tiebeam.backends.torch.recording.shadow import tensors_in
from tiebeam.core.reading.reads import near

STREAM = 12  # tensors of the residual stream held: a decomposed norm and a head's transform fit
ROWS = 512  # rows that a cosine is averaged over
TINY = 1e-30  # a length is at least


class Looked(NamedTuple):
    """Numbers of a product that may read out: root mean squares by operand, cosines by the stream's keys."""

    rms: list[tuple[int, float]]
    cosines: list[tuple[Any, float]]


class Measures:
    """Takes `rms`, `cosine` and, on request, `logit_std`, by value id.

    Args:
        logits: Also take the std of what descends from a possible readout (a pass over logits each).
    """

    def __init__(self, drafts: Sequence[Draft], *, logits: bool = False) -> None:
        self._drafts = drafts
        self.rms: dict[int, float] = {}
        self.cosine: dict[tuple[int, int], float] = {}
        self.logit_std: dict[int, float] = {}
        self.logits = logits
        self._vocabs: set[int] = set()
        self._wide: dict[tuple[int, ...], bool] = {}  # shapes with an axis as long as a vocabulary, or as part of one
        self.tables: set[int] = set()  # addresses of what was looked up
        self._tallest = 0
        self.numel = -1  # elements of a tensor of the residual stream
        self._stream: deque[tuple[Any, torch.Tensor, int]] = deque(maxlen=STREAM)  # key, tensor, address
        self._rows: torch.Tensor | None = None  # that were looked up, each of length 1
        self.repeats: float | None = None
        self._descends: set[int] = set()
        self._looks = 0
        self.ids: dict[int, torch.Tensor] = {}  # integers that rows were looked up at

    def overwritten(self, *written: Any) -> None:
        """Let go of what the residual stream holds under an older value, also where a part alone was written."""
        if self._stream:
            raws = [storage_of(t) for t in tensors_in(written) if t.numel()]
            addresses = {raw._cdata for raw in raws if raw is not None}
            self._stream = deque([s for s in self._stream if s[2] not in addresses], maxlen=STREAM)

    def after(self, index: int, schema: Schema, args: Any, refs: Any, out: Any, outputs: tuple[int, ...]) -> None:
        """Called after every recorded operation."""
        name = schema.name
        told = schema.telling
        if not told and self._rows is None:
            return
        if not (told or self.logits) and type(out) is torch.Tensor and out.numel() != self.numel:
            return  # most: neither a role nor the residual stream
        first = out if isinstance(out, torch.Tensor) else out[0] if isinstance(out, tuple) and out else None
        if not isinstance(first, torch.Tensor) or not _real(first):
            return
        # A one-hot matrix in the making, of integers mostly.
        self._add_vocab(first.shape[-1:] if name == "scatter" else ())
        if not first.is_floating_point():
            return
        if name in GATHERS:
            self._gathered(schema, args, refs, first, outputs[0])
        elif name in PRODUCTS:
            self._product(index, args, refs, first, outputs[0])
        if self.of_stream(first) is not None:
            address = first.untyped_storage()._cdata
            if not self.flows_at(address, first):
                self.flow(outputs[0], first, address)
        if self.logits:
            self._follow(refs, first, outputs[0])

    def concerns(self, schema: Schema) -> bool:
        """Whether `after` has to look at an operation's tensors at once: a lookup, or a product that may be one."""
        return self.logits or schema.name not in PRODUCTS or (self._rows is None and bool(self._vocabs))

    def of_stream(self, out: Any) -> torch.Tensor | None:
        """The tensor of the residual stream that an operation made, if any; its memory may be gone later."""
        first = out[0] if type(out) is tuple and out else out
        if not isinstance(first, torch.Tensor) or first.numel() != self.numel or first.ndim < 2:
            return None
        if self._rows is None or first.shape[-1] != self._rows.shape[-1]:
            return None
        if not first.is_floating_point() or first.is_meta or first._is_zerotensor():
            return None
        return first

    def flow(self, key: Any, t: torch.Tensor, address: int) -> None:
        """The residual stream goes on to `t`, whose value is `key` or follows (`settled`)."""
        self._stream.append((key, t, address))

    def flows_at(self, address: int, t: torch.Tensor) -> bool:
        """Whether a step of the stream lies there: a view of its rows is no step of its own, and takes no step's place.

        Other rows, as the second half of what is twice as large, are a step; so are the same in another order.
        """
        return any(other == address and _same_rows(step, t) for _, step, other in self._stream)

    def settled(self, values: Mapping[int, int]) -> None:
        """Values of what flowed before it had one, by the id of its key."""
        known = [(key if type(key) is int else values.get(id(key)), t, address) for key, t, address in self._stream]
        self._stream = deque([s for s in known if s[0] is not None], maxlen=STREAM)

    def _gathered(self, schema: Schema, args: Any, refs: Any, out: torch.Tensor, value: int) -> None:
        table = args[0]
        if not isinstance(table, torch.Tensor) or table.ndim != 2 or not out.ndim:
            return
        if not any(self._drafts[v].varying for v in _values(refs[1:])):
            return  # positions, not tokens
        self.ids.update((v, t) for v, t in zip(_values(refs[1:]), tensors_in(args[1:]), strict=True))
        vocab = table.shape[1] if table.shape[0] == out.shape[-1] != table.shape[1] else table.shape[0]
        self._add_vocab((vocab,))
        self.tables.add(table.untyped_storage()._cdata)
        self.rms[value] = rms(out[:ROWS] if out.ndim == 2 else out)
        if schema.name in ("embedding", "index", "index_select") and vocab >= self._tallest:
            self._tallest = vocab
            self._hold(out)
            self.repeats = _repeats(args[1:])

    def _hold(self, rows: torch.Tensor) -> None:
        """Look at the stream that starts from these rows."""
        held = rows.detach().reshape(-1, rows.shape[-1])[:ROWS].float()
        self._rows = held / torch.linalg.vector_norm(held, dim=1, keepdim=True).clamp_min(TINY)
        self.numel = rows.numel()
        self._stream.clear()  # of another sequence

    def _product(self, index: int, args: Any, refs: Any, out: torch.Tensor, value: int) -> None:
        if not self._may_be_role(args, out):
            return
        operands = [(a, r.value) for a, r in zip(args, refs, strict=True) if isinstance(a, torch.Tensor)]
        over = operands[0][0].shape[-1:]
        if self._rows is None and self._vocabs.intersection(over) and over != out.shape[-1:]:
            self.rms[value] = rms(out)  # a one-hot matrix times the table: a lookup
            self._hold(out)
        looked = self.look(args, out)
        if looked is None:
            return
        self.keep(index, refs, looked, {})
        if self.logits:
            self._descends.add(value)
            self.logit_std.setdefault(value, std(out))

    def look(self, args: Any, out: torch.Tensor) -> Looked | None:
        """Numbers of what a product read that may be a readout, or None; `keep` puts them where they belong."""
        if not self._vocabs or not out.is_floating_point() or not self._may_read_out(args, out) or not _real(out):
            return None
        operands = [(i, a) for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
        hidden = [
            (i, a) for i, a in operands if not set(a.shape) & self._vocabs and not self._of_a_table(a)
        ] or operands
        # Never the table, where it can be told: that would cost a pass over it.
        with torch.no_grad():
            return Looked([(i, rms(a)) for i, a in hidden if _real(a)], self._cosines())

    def keep(self, index: int, refs: Sequence[Any], looked: Looked, values: Mapping[int, int]) -> None:
        """Note what `look` saw.

        Args:
            index: Of the product's record.
            values: Those of the stream's tensors that had none then, by the id of their key.
        """
        for i, number in looked.rms:
            self.rms.setdefault(refs[i].value, number)
        for key, number in looked.cosines:
            value = key if type(key) is int else values.get(id(key))
            if value is not None:  # else it was an alias after all
                self.cosine[index, value] = number

    def _may_be_role(self, args: Any, out: torch.Tensor) -> bool:
        """Whether a product may look rows up (then one operand is as wide as a vocabulary) or read out."""
        return bool(self._vocabs) and (self._rows is None or self._may_read_out(args, out))

    def wide(self, shape: tuple[int, ...]) -> bool:
        """Whether an axis is as long as a vocabulary, or as part of one."""
        wide = self._wide.get(shape)
        if wide is None:
            big = max(self._vocabs, default=0) * 0.5
            wide = self._wide[shape] = any(n >= big or any(near(n, v) for v in self._vocabs) for n in shape)
        return wide

    def _may_read_out(self, args: Any, out: torch.Tensor) -> bool:
        return self.wide(out.shape) or any(map(self._of_a_table, args))

    def _of_a_table(self, a: Any) -> bool:
        """Whether an operand is a piece of a table that was looked up."""
        plain = type(a) in PLAIN and a.layout is torch.strided
        return plain and a.untyped_storage()._cdata in self.tables and _real(a)

    def _add_vocab(self, sizes: Iterable[int]) -> None:
        if not self._vocabs.issuperset(sizes):
            self._vocabs.update(sizes)
            self._wide.clear()

    def _cosines(self) -> list[tuple[Any, float]]:
        """The cosine of each tensor of the stream with the rows, by its key."""
        if self._rows is None or not self._stream or self._looks > 64:
            return []
        self._looks += 1
        rows, width = self._rows, self._rows.shape[-1]
        found = []
        for key, t, _ in self._stream:
            if t.shape[-1] != width or not _real(t):
                continue
            other = t.reshape(-1, width)[:ROWS].float()
            if other.shape == rows.shape:  # `cosine_similarity` would take twice as many kernels
                lengths = torch.linalg.vector_norm(other, dim=1).clamp_min(TINY)
                found.append((key, float(((other * rows).sum(1) / lengths).mean())))
        return found

    def _follow(self, refs: Any, out: torch.Tensor, value: int) -> None:
        if value in self._descends or len(self.logit_std) >= 64 or out.numel() < 2:
            return
        if self._descends.intersection(_values(refs)):
            self._descends.add(value)
            self.logit_std[value] = std(out)


def _values(refs: Any) -> list[int]:
    if isinstance(refs, tuple):
        return [v for r in refs for v in _values(r)]
    return [refs.value] if hasattr(refs, "value") else []


def _same_rows(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether tensors of one memory and one width hold the same rows in the same order."""
    if a.is_contiguous() and b.is_contiguous():
        return a.storage_offset() == b.storage_offset()
    return order(geometry(a)) == order(geometry(b))


def rms(t: torch.Tensor) -> float:
    """Root mean square, in float32."""
    if t.numel() == 0:
        return float("nan")
    wide = None if t.dtype in (torch.float32, torch.float64) else torch.float32
    norm = float(torch.linalg.vector_norm(t.detach(), dtype=wide))
    return norm / math.sqrt(t.numel())


def std(t: torch.Tensor) -> float:
    """Standard deviation of all elements, accumulated in float32 or wider, without a copy."""
    mean = float(t.detach().sum(dtype=torch.float64)) / t.numel()
    return math.sqrt(max(rms(t) ** 2 - mean**2, 0.0))


def _repeats(args: Any) -> float | None:
    """Share of positions whose next token is the same token, in the ids of a lookup."""
    ids = next((t for t in tensors_in(args) if not t.is_floating_point() and t.ndim and t.shape[-1] > 1), None)
    return None if ids is None else float((ids[..., 1:] == ids[..., :-1]).float().mean())


def _real(t: torch.Tensor) -> bool:
    """Whether there is anything to measure: elements, in plain memory that is there (and was not given back)."""
    plain = type(t) in PLAIN and t.layout == torch.strided and not t._is_zerotensor()
    return plain and t.device.type != "meta" and t.numel() > 0 and t.untyped_storage().nbytes() > 0
