"""How alike the rows are that were looked up and what enters the last normalisation: which tensors are steps."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tiebeam
from tiebeam.backends.torch import trace as tracing
from tiebeam.backends.torch.recording.batch import BatchRecorder
from tiebeam.backends.torch.recording.numbers import STREAM
from tiebeam.backends.torch.recording.record import Recorder

IDS = torch.arange(16).view(2, 8)


class Tied(nn.Module):
    def __init__(self, body: Callable[["Tied", Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(300, 64)
        self.mid = nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)
        self.body = body
        self.enters: Tensor | None = None

    def forward(self, ids: Tensor) -> Tensor:
        x = self.body(self, self.embed(ids))
        self.enters = x.detach().clone()
        return self.norm(x).reshape(2, 8, 64) @ self.embed.weight.T


def is_seen_often(model: Tied, x: Tensor) -> Tensor:
    y = x * 2.0
    for _ in range(2 * STREAM):
        y.view(-1, 64)
    return y


def is_seen_often_and_read_in_another_shape(model: Tied, x: Tensor) -> Tensor:
    return is_seen_often(model, x).view(2, 2, 4, 64)


def is_the_second_half(model: Tied, x: Tensor) -> Tensor:
    both = torch.cat([model.mid(x), x], -1)
    halves = [both[..., :64], both[..., 64:]]
    return halves[1]


def is_one_of_a_stack(model: Tied, x: Tensor) -> Tensor:
    both = torch.stack([model.mid(x), x])
    pieces = [both[0], both[1]]
    return pieces[1]


def goes_by_position_first(model: Tied, x: Tensor) -> Tensor:
    y = x.transpose(0, 1)
    return (y + model.mid(y)).transpose(0, 1)


def goes_by_position_first_in_memory_of_its_own(model: Tied, x: Tensor) -> Tensor:
    y = x.transpose(0, 1).contiguous()
    return (y + model.mid(y)).transpose(0, 1)


def is_a_sum_over_named_axes(model: Tied, x: Tensor) -> Tensor:
    return torch.einsum("btw,wo->bto", x, model.mid.weight)  # lies there in another shape on its way


def is_written_in_part(model: Tied, x: Tensor) -> Tensor:
    y = x * 2.0
    y[:, :4] = model.mid(x)[:, :4]
    return y.view(2, 2, 4, 64)


def is_the_real_part_and_written(model: Tied, x: Tensor) -> Tensor:
    part = (torch.complex(x, x) * 1.0).real
    part += model.mid(x)  # autograd looks at it through the whole from here on
    return part


def is_written_nowhere(model: Tied, x: Tensor) -> Tensor:
    y = x * 2.0
    y[:, :0] = 1.0  # of a prefix that is empty
    return y


def is_made_of_heads(model: Tied, x: Tensor) -> Tensor:
    return (x.view(2, 8, 4, 16) * 2.0).view(2, 8, 64)


def looks_back_at_much_that_was_before(model: Tied, x: Tensor) -> Tensor:
    before = [x + float(n) for n in range(2 * STREAM)]
    y = x * 2.0
    for t in before[:STREAM]:
        t[...]  # an alias is no step
    return y


def looks_at_what_was_made_elsewhere(model: Tied, x: Tensor) -> Tensor:
    y = x * 2.0
    for n in range(STREAM - 3):  # with the copy and the normalised all that are held
        x + float(n)
    torch.from_numpy(np.zeros((2, 8, 64), dtype=np.float32))
    return y


@pytest.mark.parametrize("recorder", [BatchRecorder, Recorder])
@pytest.mark.parametrize(
    "body",
    [
        is_seen_often,
        is_seen_often_and_read_in_another_shape,
        is_the_second_half,
        is_one_of_a_stack,
        goes_by_position_first,
        goes_by_position_first_in_memory_of_its_own,
        is_a_sum_over_named_axes,
        is_written_in_part,
        is_the_real_part_and_written,
        is_written_nowhere,
        is_made_of_heads,
        looks_back_at_much_that_was_before,
        looks_at_what_was_made_elsewhere,
    ],
)
def test_kappa_is_of_what_enters_the_norm_however_it_lies(
    body: Callable[[Tied, Tensor], Tensor], recorder: type[Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view of rows that flow takes no step's place and has their cosine; other rows of that memory have their own."""
    monkeypatch.setattr(tracing, "BatchRecorder", recorder)
    model = Tied(body)
    ((readout,),) = [t.readouts for t in tiebeam.inspect(model, IDS).tables]
    with torch.no_grad():
        model(IDS)
        assert model.enters is not None
        cosine = nn.functional.cosine_similarity(model.enters.reshape(2, 8, 64), model.embed(IDS), dim=-1).mean()
    assert readout.kappa == pytest.approx(float(cosine), rel=1e-4)


@pytest.mark.parametrize("flips", [False, True], ids=["", "flipped"])
def test_no_cosine_is_told_of_what_was_written_over(flips: bool) -> None:
    """Behind the norm other numbers lie there than those that entered it; those of before flow in another order."""

    class Body(Tied):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids) * 1.0
            x = x.flip(-1) if flips else x
            h = self.norm(x)
            with torch.no_grad():
                x[:, :4] = 1.0
            return h @ self.embed.weight.T

    ((readout,),) = [t.readouts for t in tiebeam.inspect(Body(lambda _, x: x), IDS).tables]
    assert readout.kappa is None
