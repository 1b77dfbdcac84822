"""MiniGPTs that use every option between them, with drawn weights, and what each must return.

No process loads two frameworks, so each of them compares its model with the NumPy one, on the same weights.
"""

import numpy as np

from tiebeam.zoo.minigpt import MiniGPTConfig
from tiebeam.zoo.numpy import minigpt as reference

SIZES = {"vocab": 31, "width": 16, "layers": 1, "heads": 2, "block_size": 8}
CASES = {
    "tied, learned positions, a lookup factor, biases": MiniGPTConfig(
        **SIZES | {"layers": 2}, lookup_factor=3.0, bias=True
    ),
    "untied, rotary positions, a readout factor, a soft cap": MiniGPTConfig(
        **SIZES, tie=False, positions="rotary", readout_factor=-0.5, soft_cap=2.0
    ),
    "tied, no positions, both factors, another hidden width": MiniGPTConfig(
        **SIZES, positions="none", lookup_factor=0.5, readout_factor=2.0, soft_cap=5.0, hidden=24
    ),
}
DROPPING = MiniGPTConfig(**SIZES, bias=True, dropout=0.5)
IDS = np.random.default_rng(1).integers(0, 31, (2, 8)).astype(np.int32)
TARGETS = np.where(np.arange(8) < 5, np.roll(IDS, -1, axis=1), -100).astype(np.int32)


def drawn(config):
    """Weights of a config, gains and biases too, so that none can be mistaken for another."""
    rng = np.random.default_rng(0)
    width, hidden = config.width, config.hidden_width
    linear = {
        "attention.qkv": (3 * width, width),
        "attention.project": (width, width),
        "feed_forward.expand": (hidden, width),
        "feed_forward.project": (width, hidden),
    }
    shapes = {"embed.weight": (config.vocab, width), "norm.weight": (width,), "norm.bias": (width,)}
    shapes |= {"positions.weight": (config.block_size, width)} if config.positions == "learned" else {}
    shapes |= {} if config.tie else {"head.weight": (config.vocab, width)}
    for layer in range(config.layers):
        for name, shape in linear.items():
            shapes[f"blocks.{layer}.{name}.weight"] = shape
            shapes |= {f"blocks.{layer}.{name}.bias": shape[:1]} if config.bias else {}
        for norm in ("attention_norm", "feed_forward_norm"):
            shapes |= {f"blocks.{layer}.{norm}.{part}": (width,) for part in ("weight", "bias")}
    return {
        name: ((1.0 if "norm.weight" in name else 0.0) + 0.25 * rng.normal(size=shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def wanted(config, weights):
    """Logits, the loss with its shift, and the loss of targets."""
    return (
        reference.logits(config, weights, IDS),
        reference.loss(config, weights, IDS),
        reference.loss(config, weights, IDS, TARGETS),
    )


def wrong_weights(weights):
    """A mapping that lacks one, one with one more, and one of another shape."""
    lacking = {name: array for name, array in weights.items() if name != "norm.bias"}
    return lacking, {**weights, "more": weights["norm.bias"]}, {**weights, "norm.bias": np.zeros(3, np.float32)}
