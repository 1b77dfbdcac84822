"""Operations that are known to end a walk: what they compute is no constant times their input.

Everything that is neither here nor has a rule in `ops` could be such a multiplication, and the report says that it was
not looked into.
"""

import torch

from tiebeam.backends.torch.lowering.builder import Lowering, refs_of
from tiebeam.backends.torch.recording.record import Record
from tiebeam.ir import Op

#: Whole names.
BARRIERS = frozenset(
    "aminmax cdist celu col2im complex cross cummax cummin cumprod cumsum dist erfinv frac glu grid_sampler_2d "
    "grid_sampler_3d histc im2col kthvalue log_sigmoid_forward logcumsumexp median mode multinomial nanmedian "
    "nll_loss_forward nonzero_static pixel_shuffle pixel_unshuffle polar renorm rrelu_with_noise topk trace trapz "
    "unique_consecutive unique_dim".split()
)

#: Parts of names: families with a variant for every backend or dimension.
FAMILIES = (
    "attention", "batch_norm", "bilinear", "conv", "ctc_loss", "fft_", "gru", "linalg_", "lstm", "_loss", "_mm",
    "miopen", "pad", "pdist", "pool", "rnn", "trilinear", "unique", "upsample",
)  # fmt: skip


def known_barrier(name: str, outputs: list[torch.dtype]) -> bool:
    """Whether an operation without a rule hides no factor. Integers carry none.

    Example:
        >>> known_barrier("cumsum", [torch.float32]), known_barrier("_foreach_mul", [torch.float32])
        (True, False)
    """
    if not any(d.is_floating_point or d.is_complex for d in outputs):
        return True
    return name in BARRIERS or any(part in name for part in FAMILIES)


def opaque(low: Lowering, record: Record) -> None:
    """Append a node through which nothing is followed."""
    refs = refs_of((record.args, tuple(record.kwargs.values())))
    name, dtypes = record.schema.name, [low.drafts[v].geometry[3] for v in record.outputs]
    foreign = "." in name or not known_barrier(name, dtypes)  # a dot: a namespace of its own
    low.emit(Op.OPAQUE, refs, [None] * len(refs), record.outputs, foreign=foreign)
