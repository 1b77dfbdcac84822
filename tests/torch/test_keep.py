"""Tensors whose memory a forward exchanges are as before, whatever memory and geometry do not tell of them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tiebeam
from tiebeam.errors import TiebeamError

IDS = torch.arange(16).view(2, 8)


class Exchanging(nn.Module):
    """Its buffer's memory is another's when the pass is over."""

    def __init__(self, kept: Tensor, other: Callable[[Tensor], Tensor], fails: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(300, 64)
        self.norm = nn.LayerNorm(64)
        self.register_buffer("kept", kept)
        self.kept: Tensor
        self.other = other
        self.fails = fails

    def forward(self, ids: Tensor) -> Tensor:
        self.embed.weight.data = self.embed.weight.data * 2.0
        self.kept.data = self.other(self.kept)
        if self.fails:
            raise ValueError("after all")
        return self.norm(self.embed(ids)) @ self.embed.weight.T


def turned() -> Tensor:
    return torch.view_as_complex(torch.randn(4, 2, generator=torch.Generator().manual_seed(0)))


def of_inference() -> Tensor:
    with torch.inference_mode():
        return torch.randn(4)


def zeros(t: Tensor) -> Tensor:
    return torch.zeros(t.shape, dtype=t.dtype)


CASES: list[tuple[str, Callable[[], Tensor], Callable[[Tensor], Tensor]]] = [
    ("conjugate", lambda: turned().conj(), zeros),
    ("conjugated in place", turned, lambda t: t.data.conj()),
    ("negated", lambda: turned().conj().imag, zeros),
    (
        "quantised",
        lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 3, torch.qint8),
        lambda t: torch.quantize_per_tensor(torch.zeros(4), 0.2, 3, torch.qint8),
    ),
    ("of inference", of_inference, zeros),
    ("a part", lambda: torch.arange(12.0)[5:11].view(2, 3).T, zeros),
    ("half", lambda: torch.ones(4).half(), lambda t: torch.zeros(4)),
]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("fails", [False, True], ids=["", "fails"])
@pytest.mark.parametrize("inference", [False, True], ids=["", "in inference mode"])
@pytest.mark.parametrize(("make", "other"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_tensor_whose_memory_was_exchanged_is_what_it_was(
    make: Callable[[], Tensor], other: Callable[[Tensor], Tensor], inference: bool, fails: bool
) -> None:
    kept = make()
    model = Exchanging(kept, other, fails)
    tensors = [kept, model.embed.weight]
    before = [(t.detach().clone(), _told(t)) for t in tensors]
    with torch.inference_mode(inference):
        if fails:
            with pytest.raises(TiebeamError):
                tiebeam.inspect(model, IDS)
        else:
            tiebeam.inspect(model, IDS)
    assert [_told(t) for t in tensors] == [told for _, told in before]
    assert all(torch.equal(t, values) for t, (values, _) in zip(tensors, before, strict=True))


def _told(t: Tensor) -> tuple[object, ...]:
    lies = t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride(), t.dtype
    return *lies, t.is_conj(), t.is_neg(), t.is_quantized, t.is_inference(), t.requires_grad
