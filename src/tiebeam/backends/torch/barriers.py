"""Operations that are known to end a walk: what they compute is no constant times their input.

Everything that is neither here nor has a rule in `ops` could be such a multiplication, and the report says that it was
not looked into.
"""

import torch

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
