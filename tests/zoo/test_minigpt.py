"""MiniGPT: its tie, its scales, its loss and its positions."""

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.zoo.minigpt_cases import CASES, IDS, TARGETS, drawn, wanted, wrong_weights
from tests.zoo.minigpt_torch import POSITIONS, SMALL, build, largest_gap, random_ids
from torch import nn

from tiebeam.errors import InputError, RangeError, ShapeError
from tiebeam.zoo.minigpt import EMBEDDING_DEFAULT_STD
from tiebeam.zoo.schemes import SCHEMES
from tiebeam.zoo.torch.blocks import Rotation
from tiebeam.zoo.torch.minigpt import MiniGPT, MiniGPTConfig
from tiebeam.zoo.torch.weights import assign_weights, weights_of

# ---- the tie


def test_a_tied_model_owns_one_table():
    model = build()
    assert model.head.weight is model.embed.weight
    untied = build(tie=False)
    assert untied.head.weight is not untied.embed.weight
    sizes = [sum(p.numel() for p in m.parameters()) for m in (model, untied)]
    assert sizes[1] - sizes[0] == 31 * 16


def test_both_roles_send_their_gradient_to_the_one_table():
    tied, untied = build(), build(tie=False)
    untied.load_state_dict(tied.state_dict())
    for model in (tied, untied):
        model.loss(random_ids(2, 8)).backward()
    torch.testing.assert_close(tied.embed.weight.grad, untied.embed.weight.grad + untied.head.weight.grad)


@pytest.mark.parametrize(
    "change",
    [
        copy.deepcopy,
        lambda m: m.double(),
        lambda m: m.to(torch.bfloat16),
        lambda m: m.to("meta").to_empty(device="cpu"),
    ],
    ids=["deepcopy", "double", "bfloat16", "off meta"],
)
def test_the_tie_outlives_what_torch_does_to_parameters(change):
    model = change(build())
    assert model.head.weight is model.embed.weight


def test_a_model_on_meta_costs_nothing_and_counts_as_gpt2_small():
    """Body 85,842,432; table 38,597,376; tied 124,439,808; untied 163,037,184."""
    with torch.device("meta"):
        config = MiniGPTConfig(vocab=50257, width=768, layers=12, heads=12, block_size=1024, bias=True)
        tied, untied = MiniGPT(config), MiniGPT(dataclasses.replace(config, tie=False))
    assert sum(p.numel() for p in tied.parameters()) == 124_439_808
    assert sum(p.numel() for p in untied.parameters()) == 163_037_184
    assert tied.embed.weight.numel() == 38_597_376
    assert tied(torch.zeros((1, 8), dtype=torch.int64, device="meta")).shape == (1, 8, 50257)


# ---- scales


def test_stds_are_what_the_config_says():
    model = build(width=128, layers=8, hidden=256, vocab=512, block_size=256, table_std=0.3, position_std=0.05)
    block = model.blocks[3]
    residual = math.sqrt(16)
    for weight, std in (
        (block.attention.qkv.weight, 128**-0.5),
        (block.attention.project.weight, 128**-0.5 / residual),
        (block.feed_forward.expand.weight, 128**-0.5),
        (block.feed_forward.project.weight, 256**-0.5 / residual),
        (model.embed.weight, 0.3),
        (model.positions.weight, 0.05),
    ):
        assert float(weight.detach().std()) == pytest.approx(std, rel=0.03)


def test_a_given_std_replaces_one_over_root_fan_in():
    model = build(width=128, std=0.02, bias=True, tie=False, vocab=512)
    assert float(model.blocks[0].attention.qkv.weight.detach().std()) == pytest.approx(0.02, rel=0.03)
    assert float(model.blocks[0].attention.project.weight.detach().std()) == pytest.approx(0.01, rel=0.03)
    assert float(model.head.weight.detach().std()) == pytest.approx(0.02, rel=0.03)
    assert not model.blocks[0].attention.qkv.bias.any()


def test_an_untouched_table_keeps_the_default_of_an_embedding():
    torch.manual_seed(0)
    default = nn.Embedding(512, 64).weight
    table = build(vocab=512, width=64, table_std=None).embed.weight
    for weight in (default, table):
        assert float(weight.detach().std()) == pytest.approx(EMBEDDING_DEFAULT_STD, rel=0.02)


def test_the_body_is_the_same_draw_whatever_the_table():
    a, b = build(table_std=1.0, vocab=31), build(table_std=0.1, vocab=60, tie=False)
    for (name, x), (_, y) in zip(a.blocks.named_parameters(), b.blocks.named_parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0, msg=name)


def test_factors_and_soft_cap_act_where_the_config_says():
    plain, model = build(), build(lookup_factor=3.0, readout_factor=-0.5, soft_cap=2.0)
    ids = random_ids(2, 5)
    captured = []
    model.drop.register_forward_hook(lambda module, args, out: captured.append(args[0]))
    hidden = model.stream(ids)
    torch.testing.assert_close(captured[0], 3.0 * plain.embed(ids) + plain.positions.weight[:5])
    expected = 2.0 * torch.tanh(-0.5 * (hidden @ model.embed.weight.T) / 2.0)
    torch.testing.assert_close(model(ids), expected)
    assert float(expected.detach().abs().max()) < 2.0


def initial_loss(name, width):
    model = MiniGPT.from_scheme(
        name, vocab=512, width=width, layers=2, block_size=32, generator=torch.Generator().manual_seed(1)
    )
    ids = random_ids(16, 33, vocab=512)
    with torch.no_grad():
        return float(model.loss(ids))


def test_a_table_of_std_one_starts_worse_the_wider_it_is():
    """Scheme A from 110 at width 128 to 905 at 1024 in the source; the shape at small sizes."""
    losses = [initial_loss("A", width) for width in (64, 128, 256)]
    assert losses[0] > 40
    assert losses[1] > 1.6 * losses[0]
    assert losses[2] > 1.6 * losses[1]


@pytest.mark.parametrize("name", ["B", "E", "F"])
def test_a_table_at_the_readouts_std_starts_near_log_vocab(name):
    for width in (64, 256):
        assert initial_loss(name, width) == pytest.approx(math.log(512), abs=1.0)


def test_lookup_factor_and_readout_factor_give_the_same_function_at_the_start():
    for width in (64, 256):
        models = [
            MiniGPT.from_scheme(name, vocab=128, width=width, generator=torch.Generator().manual_seed(1))
            for name in ("C", "D")
        ]
        ids = random_ids(2, 16, vocab=128)
        torch.testing.assert_close(models[0](ids), models[1](ids), rtol=1e-4, atol=1e-4)
    assert initial_loss("C", 256) > initial_loss("F", 256) + 1.0  # its own token is in the way


def test_every_scheme_builds_the_model_it_describes():
    for name, scheme in SCHEMES.items():
        model = MiniGPT.from_scheme(name, vocab=512, width=64, layers=1)
        assert (model.head.weight is model.embed.weight) == scheme.tie
        assert float(model.embed.weight.detach().std()) == pytest.approx(scheme.table_std(64), rel=0.03)
        if scheme.readout_std is not None:
            assert float(model.head.weight.detach().std()) == pytest.approx(scheme.readout_std(64), rel=0.03)
        assert (model.config.lookup_factor, model.config.readout_factor) == (
            scheme.lookup_factor(64),
            scheme.readout_factor(64),
        )
    assert SCHEMES["D'"].table_rate(64) == 8.0


# ---- forward and loss


@pytest.mark.parametrize("positions", POSITIONS)
def test_no_position_sees_what_comes_after_it(positions):
    model, ids = build(positions=positions), random_ids(1, 8)
    changed = ids.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 31
    before, after = model(ids), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5], rtol=0, atol=1e-6)
    assert largest_gap(before[:, 5:], after[:, 5:]) > 1e-3


@pytest.mark.parametrize(("positions", "told_apart"), [("learned", True), ("rotary", True), ("none", False)])
def test_only_positions_tell_the_order_of_earlier_tokens(positions, told_apart):
    model = build(positions=positions, position_std=0.5, layers=1)
    gap = largest_gap(model(torch.tensor([[1, 2, 3]]))[0, 2], model(torch.tensor([[2, 1, 3]]))[0, 2])
    assert (gap > 1e-4) == told_apart


def test_a_rotation_turns_by_the_distance_alone():
    q, k = torch.randn(2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turned = [Rotation.of(first, 1, 6, q.device).turn(x[None]) for first in (0, 3, 40, 43) for x in (q, k)]
    near = turned[2] @ turned[1].T  # query at 3, key at 0
    far = turned[6] @ turned[5].T  # query at 43, key at 40
    torch.testing.assert_close(near, far, rtol=1e-5, atol=1e-5)
    assert abs(float(near) - float(turned[6] @ turned[1].T)) > 1e-3
    torch.testing.assert_close(turned[4].norm(), q.norm(), rtol=1e-5, atol=1e-5)


def test_loss_without_targets_shifts_by_one():
    model, ids = build(), random_ids(3, 8)
    by_hand = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(model.loss(ids), by_hand)
    torch.testing.assert_close(model.loss(ids[:, :-1], ids[:, 1:]), by_hand)
    assert model.loss(random_ids(1, 9)).isfinite()  # one more than the block


def test_a_target_of_minus_100_does_not_count():
    model, ids = build(), random_ids(1, 6)
    targets = ids.roll(-1, dims=1)
    kept = model.loss(ids[:, :4], targets[:, :4])
    targets[:, 4:] = -100
    torch.testing.assert_close(model.loss(ids, targets), kept)


@pytest.mark.parametrize("positions", POSITIONS)
def test_half_precision_autocast_and_compilation_change_rounding_alone(positions):
    model, ids = build(positions=positions), random_ids(2, 8)
    exact = model(ids)
    with torch.autocast("cpu", torch.bfloat16):
        assert largest_gap(model(ids), exact) < 0.1
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(ids), exact)
    half = build(positions=positions).to(torch.bfloat16)
    assert half(ids).dtype == torch.bfloat16
    assert largest_gap(half(ids), exact) < 0.1
    assert torch.equal(half.generate(ids[:, :2], 9, top_k=1), half.generate(ids[:, :2], 9, greedy=True))


def test_dropout_acts_in_training_alone():
    model, ids = build(dropout=0.5), random_ids(1, 8)
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert torch.equal(model(ids), model(ids))


def test_a_few_steps_learn_a_text_by_heart():
    model, ids = build(), random_ids(2, 9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(80):
        optimizer.zero_grad()
        loss = model.loss(ids)
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.1
    assert torch.equal(model.generate(ids[:, :3], 6, greedy=True)[:, 3:], ids[:, 3:])


# ---- in other frameworks


@pytest.mark.parametrize("case", CASES)
def test_the_same_weights_give_the_references_logits_and_losses(case):
    config = CASES[case]
    weights, model = drawn(config), MiniGPT(config)
    assign_weights(model, weights)
    ids, targets = (torch.from_numpy(a).long() for a in (IDS, TARGETS))
    found = model(ids), model.loss(ids), model.loss(ids, targets)
    for got, right in zip(found, wanted(config, weights), strict=True):
        np.testing.assert_allclose(got.detach().numpy(), right, rtol=0, atol=1e-5)
    assert (model.head.weight is model.embed.weight) == config.tie


def test_the_weights_come_back_as_they_were_given():
    weights, model = drawn(SMALL), build()
    assign_weights(model, weights)
    back = weights_of(model)
    assert set(back) == set(weights)
    assert all(np.array_equal(back[name], weights[name]) for name in weights)
    for wrong, error in zip(wrong_weights(weights), (InputError, InputError, ShapeError), strict=True):
        with pytest.raises(error, match=r"norm\.bias|more"):
            assign_weights(model, wrong)


# ---- what is refused


@pytest.mark.parametrize(
    ("call", "error", "word"),
    [
        (lambda m: m(random_ids(8)), InputError, r"Hint: add a batch axis"),
        (lambda m: m(torch.rand(1, 4)), InputError, "float32"),
        (lambda m: m(torch.ones(1, 4, dtype=torch.bool)), InputError, "bool"),
        (lambda m: m(torch.tensor([[31]])), InputError, "0 to 30"),
        (lambda m: m(torch.tensor([[-1]])), InputError, "from -1"),
        (lambda m: m(random_ids(1, 9)), RangeError, "at most 8 tokens"),
        (lambda m: m.loss(random_ids(1, 10)), RangeError, r"\(1, 9\)"),
        (lambda m: m.loss(random_ids(2, 1)), InputError, "no next token"),
        (lambda m: m.loss(random_ids(2, 4), random_ids(2, 3)), ShapeError, r"\(2, 3\)"),
        (
            lambda m: m.loss(random_ids(1, 2), torch.tensor([[-100, 31]])),
            InputError,
            r"targets .*\n.*31 at index \(0, 1\)",
        ),
        (lambda m: m.generate(random_ids(1, 0), 3), InputError, "prefix is empty"),
        (lambda m: m.generate(torch.tensor([[40]]), 3), InputError, "prefix lie outside"),
        (lambda m: m.generate(random_ids(1, 2), -1), RangeError, "max_new_tokens"),
        (lambda m: m.generate(random_ids(1, 2), 3, temperature=0.0), RangeError, "greedy=True"),
        (lambda m: m.generate(random_ids(1, 2), 3, top_k=0), RangeError, "top_k"),
        (lambda m: m.generate(random_ids(1, 2), 3, top_p=1.5), RangeError, "top_p"),
    ],
)
def test_what_the_model_cannot_read_is_refused_with_the_reason(call, error, word):
    with pytest.raises(error, match=word):
        call(build())


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"vocab": 0}, "vocab"),
        ({"width": 2.0}, "width"),
        ({"heads": 3}, "does not divide"),
        ({"width": 6, "positions": "rotary"}, "pairs of channels"),
        ({"positions": "sinusoidal"}, "one of"),
        ({"dropout": 1.0}, "dropout"),
        ({"soft_cap": 0.0}, "soft_cap"),
        ({"table_std": -1.0}, "table_std"),
        ({"lookup_factor": math.inf}, "lookup_factor"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(changes, word):
    with pytest.raises(RangeError, match=word):
        dataclasses.replace(SMALL, **changes)


def test_an_unknown_scheme_names_those_there_are():
    with pytest.raises(RangeError, match="A, B, C, D, D', E, F"):
        MiniGPTConfig.from_scheme("G", vocab=10, width=8)
