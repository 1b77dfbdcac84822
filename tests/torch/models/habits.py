"""One habit of popular code bases each, in the small residual model of the kit."""

from typing import Any

import torch
import torch.nn.functional as F
from tests.torch.models.codebases import rms
from tests.torch.models.kit import BATCH, VOCAB, WIDTH, Base, Truth, case, ids
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

T = "habits"


@case(T, Truth(readout_factor=None, numeric=False))
class NormalisedItems(Base):
    """Cosine scores against a normalised table, over a temperature; the lookup is raw."""

    def read(self, h: Tensor) -> Tensor:
        return F.normalize(h, dim=-1) @ F.normalize(self.table, dim=-1).t() / 0.07


@case(T, Truth(lookup_factor=None, readout_factor=None, numeric=False))
class CosineInBothRoles(Base):
    """One normalised table, computed once, looked up and read out."""

    def forward(self, ids: Tensor) -> Tensor:
        table = F.normalize(self.table, dim=-1)
        h = self.body(F.embedding(ids, table))
        return 8.0 * F.linear(F.normalize(h, dim=-1), table)


@case(T, Truth(lookup_factor=4.0, readout_factor=0.5))
class LearnedScalarsAtBothEnds(Base):
    """Two learned scalars: constants of this pass, whatever training makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Parameter(torch.tensor(4.0)), nn.Parameter(torch.tensor([0.5]))

    def look(self, ids: Tensor) -> Tensor:
        return super().look(ids) * self.inward

    def read(self, h: Tensor) -> Tensor:
        return super().read(h) * self.outward


@case(T, Truth(readout_factor=None))
class TemperatureOfEachToken(Base):
    """Logits over a temperature that is computed for each position."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Linear(WIDTH, 1)

    def read(self, h: Tensor) -> Tensor:
        return super().read(h) / F.softplus(self.temperature(h))


@case(T, Truth(lookup_factor=WIDTH**0.5))
class ScaleInABuffer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(WIDTH**0.5), persistent=False)

    def look(self, ids: Tensor) -> Tensor:
        return super().look(ids) * self.scale.to(self.table.dtype)


@case(T, Truth(counts=(1, 1, 2)))
class MicroChunksOfTheHead(Base):
    """The loss is computed chunk by chunk under checkpointing, so that logits are never all there."""

    def forward(self, ids: Tensor) -> Tensor:
        h = self.body(self.look(ids)).flatten(0, 1)
        y = ids.flatten()

        def part(h: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(self.read(h), y, reduction="sum")

        total = torch.zeros(())
        for a, b in zip(h.chunk(2), y.chunk(2), strict=True):
            total = total + checkpoint(part, a, b, use_reentrant=False)
        return total / y.numel()


@case(T, Truth(counts=(1, 1, 1), numeric=False, smooth=False))
class ReentrantCheckpoint(Base):
    """The head under the old checkpoint, whose first run records no gradient."""

    def read(self, h: Tensor) -> Tensor:
        return checkpoint(lambda h: F.linear(h, self.table), h, use_reentrant=True)


@case(T, Truth(names=("embed.weight",)))
class SparseGradients(Base):
    def __init__(self) -> None:
        super().__init__()
        del self.table
        self.embed = nn.Embedding(VOCAB, WIDTH, sparse=True)

    def look(self, ids: Tensor) -> Tensor:
        return self.embed(ids)

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, self.embed.weight)


@case(T, Truth(names=("embed.weight", "head.weight"), smooth=False))
class PretrainedAndFrozen(Base):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(self.table.detach().clone(), freeze=True)
        del self.table
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embed.weight

    def look(self, ids: Tensor) -> Tensor:
        return self.embed(ids)

    def read(self, h: Tensor) -> Tensor:
        return self.head(h)


@case(T, Truth(numeric=False))
class HalfPrecisionWithFloatLogits(Base):
    def __init__(self) -> None:
        super().__init__()
        self.bfloat16()

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h.float(), self.table.float())


@case(T, Truth(counts=(1, 1, 3)))
class EarlyExits(Base):
    """Every layer's stream is normalised and read out by the one table."""

    def forward(self, ids: Tensor) -> list[Tensor]:
        x, outs = self.look(ids), []
        for _ in range(3):
            x = x + torch.tanh(self.mid(x))
            outs.append(self.read(self.norm(x)))
        return outs


@case(T, Truth(counts=None))
class MultiTokenPrediction(Base):
    """Extra heads predict further tokens: each looks up the next token and shares the readout."""

    def __init__(self) -> None:
        super().__init__()
        self.joins = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        h = self.body(self.look(ids))
        outs = [self.read(h)]
        for depth, join in enumerate(self.joins, 1):
            ahead = torch.roll(ids, -depth, 1)
            h = self.norm(join(torch.cat([rms(h), rms(self.look(ahead))], -1)))
            outs.append(self.read(h))
        return torch.stack(outs, 1)


@case(T, Truth(counts=(1, 1, 1)))
class MixtureOfSoftmaxes(Base):
    """Three softmaxes of one table, mixed as probabilities; the log of the mixture is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.latent, self.prior = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3, bias=False)

    def read(self, h: Tensor) -> Tensor:
        b, t, _ = h.shape
        latent = torch.tanh(self.latent(h)).view(b * t * 3, WIDTH)
        logit = super().read(latent).view(-1, 3, VOCAB)
        prior = F.softmax(self.prior(h).view(-1, 3), -1)
        prob = (F.softmax(logit, -1) * prior.unsqueeze(2)).sum(1)
        return torch.log(prob + 1e-8).view(b, t, VOCAB)


class SelfConditionedDiffusion(Base):
    """A denoiser: expected embeddings under the model's own first guess are fed back in."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Linear(1, WIDTH)

    def forward(self, ids: Tensor, t: Tensor) -> Tensor:
        x = self.look(ids) + self.time(t[:, None, None])
        guess = self.read(self.body(x)).softmax(-1) @ self.table  # attention over the rows: no readout
        return self.read(self.body(x + guess))


@case(T)
def self_conditioned_diffusion() -> Any:
    return SelfConditionedDiffusion(), (ids(), torch.rand(BATCH)), (Truth(counts=(1, 1, 1), numeric=False),)


@case(T, Truth(smooth=False))
class DecoratedNoGrad(Base):
    @torch.no_grad()
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids)


@case(T, Truth(smooth=False))
class StringBesideLogits(Base):
    """What comes back is a mixture of things."""

    def forward(self, ids: Tensor) -> Any:
        logits = super().forward(ids)
        return {"text": "generated", "none": None, "n": 3, "out": [(logits,), "x"]}


@case(T, Truth(lookup_factor=None, readout_factor=None, numeric=False))
class NormedTable(Base):
    """Rows of the table are RMS-normalised on the fly for both roles."""

    def look(self, ids: Tensor) -> Tensor:
        return rms(self.table)[ids]

    def read(self, h: Tensor) -> Tensor:
        return h @ rms(self.table).t()


@case(T, Truth(counts=(1, 1, 1), numeric=False))
class VmapOverHeads(Base):
    """The readout is vmapped over the batch."""

    def read(self, h: Tensor) -> Tensor:
        return torch.vmap(lambda x: F.linear(x, self.table))(h)


@case(T, Truth(readout_factor=2.0, readout_bias=False, numeric=False))
class DistanceToRows(Base):
    """Negative squared distance to every row: -|h|^2 + 2 h.E - |E|^2 has the readout inside."""

    def read(self, h: Tensor) -> Tensor:
        return 2.0 * super().read(h) - self.table.square().sum(-1) - h.square().sum(-1, keepdim=True)


@case(T, Truth(numeric=False))
class ScaledResidualInHalf(Base):
    """Depth-scaled residuals behind a float32 normalisation: the cast before it must not change the walk."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.bfloat16()

    def unit(self, x: Tensor) -> Tensor:
        y = x.float()
        return self.gain * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    def body(self, x: Tensor) -> Tensor:
        return self.unit(self.mid(self.unit(x)) * 0.7 + x * 0.7)


@case(T)
class ScaledResidual(ScaledResidualInHalf):
    def __init__(self) -> None:
        super().__init__()
        self.float()


@case(T, Truth(lookup_factor=1.0, numeric=False))
class DropoutOnTheTable(Base):
    """Whole rows dropped for one step of training: a mask, whose scale is no factor."""

    def look(self, ids: Tensor) -> Tensor:
        keep = torch.empty(VOCAB, 1).bernoulli_(0.9) / 0.9
        return F.embedding(ids, self.table * keep)
