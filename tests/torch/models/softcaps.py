"""Soft caps in each spelling, before and behind factors."""

import math

import torch
from tests.torch.models.factors import Scaled
from tests.torch.models.kit import VOCAB, Truth, case
from torch import nn

T = "softcaps"


def cap(name, fn, soft_cap, read, setup=None, **truth):
    def init(self):
        Scaled.__init__(self)
        if setup:
            setup(self)

    made = type(name, (Scaled,), {"__init__": init, "logits": fn})
    case(T, Truth(soft_cap=soft_cap, readout_factor=read, **truth))(made)


def in_place(_, z):
    z = z / 30.0
    z = torch.tanh(z)
    return z * 30.0


cap("TanhCap", in_place, 30.0, 1.0)
cap("TanhCapInPlace", lambda _, z: 30 * z.div_(30).tanh_(), 30.0, 1.0)
cap("TanhCapOfFive", lambda _, z: 5.0 * torch.tanh(z / 5.0), 5.0, 1.0)
cap("TanhWithOtherSlope", lambda _, z: 20 * torch.tanh(z * 0.1), 20.0, 2.0)
cap("TanhAlone", lambda _, z: torch.tanh(z), 1.0, 1.0)
cap("TanhOfNegative", lambda _, z: -10 * torch.tanh(z / 20), 10.0, -0.5)
cap("SigmoidCap", lambda _, z: 30 * torch.sigmoid(z / 7.5), 15.0, 1.0)
cap("CentredSigmoidCap", lambda _, z: 30.0 * (2 * torch.sigmoid(2 * z / 30.0) - 1), 30.0, 1.0)
cap("CapAfterFactor", lambda _, z: 30 * torch.tanh(z * 0.125 / 30), 30.0, 0.125)
cap("CapThenFactor", lambda _, z: 0.5 * (30 * torch.tanh(z / 30)), 15.0, 0.5)
cap("CapInFloatThenSliced", lambda _, z: (30 * torch.tanh(z.double() / 30)).float()[:, -2:], 30.0, 1.0)
cap(
    "CapFromBuffer",
    lambda m, z: m.c * torch.tanh(z / m.c),
    50.0,
    1.0,
    setup=lambda m: m.register_buffer("c", torch.tensor(50.0)),
)
cap(
    "CapBehindBias",
    lambda m, z: 30 * torch.tanh((z + m.bias) / 30),
    30.0,
    1.0,
    setup=lambda m: setattr(m, "bias", nn.Parameter(torch.zeros(VOCAB))),
    readout_bias=True,
)

assert math.isclose(30 / 4 / 7.5, 1.0)  # the slope of 30 * sigmoid(z / 7.5) at 0
