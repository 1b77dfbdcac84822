"""The reference model in PyTorch."""

from collections.abc import Mapping

import numpy as np
import torch
from tests.measure.contract import REFERENCE, VOCAB, WIDTH, Built, MeasureContract, settings, single
from torch import Tensor, nn
from torch.nn import functional as F

from tiebeam.torch import TiedEmbedding


class Model(nn.Module):
    """Plain operations on one parameter."""

    def __init__(self) -> None:
        super().__init__()
        for name, array in REFERENCE.parameters.items():
            setattr(self, name, nn.Parameter(torch.from_numpy(single(array))))

    def body(self, x: Tensor) -> Tensor:
        return REFERENCE.res * x + torch.tanh(x @ self.w_in + self.b_in) @ self.w_out + self.b_out

    def forward(self, ids: Tensor) -> Tensor:
        h = self.body(F.embedding(ids, self.table) * REFERENCE.lookup_factor)
        return h @ self.table.T * REFERENCE.readout_factor


class OnBlock(Model):
    """The building block in place of the parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.block = TiedEmbedding(VOCAB, WIDTH, **settings())  # type: ignore[arg-type]
        self.block.weight = self.table
        del self.table

    def forward(self, ids: Tensor) -> Tensor:
        return self.block.readout(self.body(self.block(ids)))


class TestPlain(MeasureContract):
    def build(self) -> Built:
        return Built(Model())

    def arrays(self, built: Built) -> Mapping[str, np.ndarray]:
        return {n: p.detach().numpy().copy() for n, p in built.model.named_parameters()}


class TestBlock(TestPlain):
    def build(self) -> Built:
        return Built(OnBlock())
