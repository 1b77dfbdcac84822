"""The block of PyTorch."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.blocks import reference
from tests.blocks.contract import BlockContract
from tests.blocks.reference import IDS
from tests.blocks.torch_kit import NewStorages
from torch import nn

import tiebeam
from tiebeam.core.initialising.draws import draw_block
from tiebeam.torch import TiedEmbedding
from tiebeam.zoo.minigpt import MiniGPTConfig
from tiebeam.zoo.schemes import SCHEMES
from tiebeam.zoo.torch.blocks import Block


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def ids_of(*shape, vocab, seed=0):
    return torch.randint(0, vocab, shape, generator=generator(seed))


class TestTorch(BlockContract):
    bias = "bias"
    names: ClassVar = {
        "table": "weight",
        "bias": "bias",
        "project_in": "project_in.weight",
        "project_out": "project_out.weight",
    }

    def make(self, seed=0, **arguments):
        return TiedEmbedding(**arguments, generator=generator(seed))

    def weights(self, block):
        return {name: self.turned(name, p.detach()).numpy() for name, p in block.named_parameters()}

    def turned(self, name, x):
        return x.T if name.startswith("project") else x

    def load(self, block, weights):
        block.load_state_dict({name: self.turned(name, torch.tensor(x)) for name, x in weights.items()})
        return block

    def look_up(self, block, ids):
        return block(torch.tensor(ids)).detach().numpy()

    def read_out(self, block, hidden):
        return block.readout(torch.tensor(hidden)).detach().numpy()

    def gradients(self, block, mixing, probe):
        hidden = block(torch.tensor(IDS)) @ torch.tensor(mixing)
        (block.readout(hidden) * torch.tensor(probe)).sum().backward()
        return {name: self.turned(name, p.grad).numpy() for name, p in block.named_parameters()}


class Model(nn.Module):
    """The smallest language model: lookup, body, norm, readout."""

    def __init__(self, block, body=()):
        super().__init__()
        self.embed, self.body = block, nn.ModuleList(body)
        self.norm = nn.LayerNorm(block.settings.width)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.body:
            x = layer(x, None, None, 0)
        return self.embed.readout(self.norm(x))


def gpt_body(width, layers=4, seed=0):
    """Blocks of the zoo's GPT, drawn by its rule: residual projections smaller by `sqrt(2 * layers)`."""
    config = MiniGPTConfig(vocab=8, width=width, layers=layers, heads=max(width // 64, 2), block_size=128)
    body, draws = [Block(config) for _ in range(layers)], generator(seed)
    for block in body:
        for name, p in block.named_parameters():
            if p.ndim == 2:
                std = p.shape[1] ** -0.5 / ((2 * layers) ** 0.5 if "project" in name else 1.0)
                nn.init.normal_(p, std=std, generator=draws)
    return body


# ---- what tiebeam says of it


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"lookup_factor": 1.0, "readout_factor": 0.125},
        {"lookup_factor": -4.0, "readout_factor": -2.0, "soft_cap": 30.0, "bias": True},
        {"table_width": 16},
        {"table_width": 256, "bias": True},
    ],
    ids=str,
)
def test_the_report_finds_the_tie_the_factors_and_unit_logits(arguments):
    block = TiedEmbedding(512, 64, **arguments, generator=generator())
    report = tiebeam.inspect(Model(block), ids_of(2, 32, vocab=512))
    report.assert_healthy()
    [table] = report.tables
    settings = block.settings
    assert (table.state, table.names) == ("tied", ("embed.weight",))
    assert (table.vocab, table.width) == (512, settings.table_width)
    assert table.lookup_factor == pytest.approx(settings.lookup_factor)
    assert table.readout_factor == pytest.approx(settings.readout_factor)
    assert (table.soft_cap, table.readout_bias) == (settings.soft_cap, block.bias is not None)
    assert table.predicted.logit_std == pytest.approx(1.0, rel=0.03)
    assert table.std == pytest.approx(settings.std, rel=0.02)
    assert table.target_std == pytest.approx(settings.std, rel=0.03)


def test_a_padding_row_is_seen_as_one_and_stays_zero_when_the_table_is_drawn_anew():
    model = Model(TiedEmbedding(512, 64, padding_idx=7, generator=generator()))
    ids = ids_of(2, 32, vocab=512)
    report = tiebeam.initialize(model, ids, seed=3)
    report.assert_healthy()
    assert report.tables[0].lookup_factor == pytest.approx(8.0)
    assert not model.embed.weight[7].any()
    assert model.embed.weight[6].any()


def test_drawing_it_anew_by_the_report_keeps_the_std_of_the_rule():
    model = Model(TiedEmbedding(512, 64, readout_factor=0.5, generator=generator()))
    [done] = tiebeam.initialize(model, ids_of(2, 32, vocab=512), seed=0).init
    assert done.std == pytest.approx(model.embed.settings.std)
    rows = draw_block(0, "table", 0, 0, 64, 64, done.std)  # what every framework gets from the seed, bit for bit
    np.testing.assert_array_equal(model.embed.weight[:64].detach(), rows)


# ---- the recipes of the documents that the project grew from


def test_it_is_the_recipe_of_an_embedding_times_root_width_and_a_tied_linear():
    embed, head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
    head.weight = embed.weight
    block = TiedEmbedding(50, 16)
    block.load_state_dict(embed.state_dict())
    ids = ids_of(2, 7, vocab=50)
    torch.testing.assert_close(block(ids), embed(ids) * 4.0)
    torch.testing.assert_close(block.readout(block(ids)), head(embed(ids) * 4.0))


def scheme_model(name, width, vocab):
    scheme = SCHEMES[name]
    block = TiedEmbedding(
        vocab, width, lookup_factor=scheme.lookup_factor(width), readout_factor=scheme.readout_factor(width)
    )
    nn.init.normal_(block.weight, std=scheme.table_std(width), generator=generator(1))
    return Model(block, gpt_body(width))


PUBLISHED = {
    # scheme: (initial loss at width 128, at 1024)
    "A": (110.0, 905.0),
    "B": (10.4, 10.7),
    "C": (11.2, 28.3),
    "D": (11.2, 28.3),
    "F": (10.8, 11.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize(("width", "column"), [(128, 0), (1024, 1)])
def test_a_gpt_of_four_layers_starts_at_the_published_loss_of_its_scheme(name, width, column):
    """Random ids stand in for the text, where the next token repeats the last in 1.3 % of places."""
    vocab, repeats = 33_527, 0.01255
    model, ids = scheme_model(name, width, vocab), ids_of(2, 65, vocab=vocab)
    with torch.no_grad():
        logits = model(ids[:, :-1])
    loss = float(F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))
    own = float(logits.gather(-1, ids[:, :-1, None]).mean())
    assert loss - repeats * own == pytest.approx(PUBLISHED[name][column], rel=0.03)


@pytest.mark.slow
def test_the_report_predicts_the_loss_that_a_gpt_starts_with():
    model, ids = scheme_model("C", 128, 33_527), ids_of(2, 65, vocab=33_527)
    report = tiebeam.inspect(model, ids[:, :-1])
    with torch.no_grad():
        loss = float(F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()))
    assert report.tables[0].predicted.initial_loss == pytest.approx(loss, rel=0.02)


def test_an_untied_pair_is_two_blocks_each_in_one_role():
    """Scheme E: the lookup's std is 1, the readout's `1/sqrt(width)`."""

    class Untied(nn.Module):
        def __init__(self):
            super().__init__()
            self.look, self.norm = TiedEmbedding(512, 64, lookup_factor=8.0), nn.LayerNorm(64)
            self.read = TiedEmbedding(512, 64)

        def forward(self, ids):
            return self.read.readout(self.norm(self.look(ids)))

    report = tiebeam.inspect(Untied(), ids_of(2, 8, vocab=512))
    look, read = report.tables
    assert (look.state, read.state) == ("untied", "untied")
    assert look.predicted.lookup_rms == pytest.approx(1.0, rel=0.03)
    assert read.predicted.logit_std == pytest.approx(1.0, rel=0.03)


def test_tying_leaves_out_one_of_two_tables():
    block = TiedEmbedding(50_000, 4096, device="meta")
    assert sum(p.numel() for p in block.parameters()) == 204_800_000


# ---- what torch does to modules


def test_a_state_dict_holds_the_table_once_and_refuses_another_shape():
    block = TiedEmbedding(11, 6)
    assert list(block.state_dict()) == ["weight"]
    with pytest.raises(RuntimeError, match="size mismatch"):
        block.load_state_dict(TiedEmbedding(12, 6).state_dict())


@pytest.mark.parametrize(
    "change",
    [
        copy.deepcopy,
        lambda m: pickle.loads(pickle.dumps(m)),
        lambda m: m.double(),
        lambda m: m.to(torch.bfloat16),
        lambda m: m.to("meta").to_empty(device="cpu"),
    ],
    ids=["deepcopy", "pickle", "double", "bfloat16", "off meta"],
)
def test_what_torch_does_to_parameters_leaves_one_table_in_both_roles(change):
    model = change(Model(TiedEmbedding(31, 16, padding_idx=2, bias=True)))
    model.embed.reset_parameters()
    model.norm.reset_parameters()
    [table] = tiebeam.inspect(model, ids_of(1, 8, vocab=31)).tables
    assert table.state == "tied"
    assert [name for name, _ in model.embed.named_parameters()] == ["weight", "bias"]


def test_a_block_from_meta_is_drawn_like_one_that_never_was_there():
    arguments = {"vocab": 31, "width": 16, "table_width": 8, "padding_idx": 2, "bias": True}
    with torch.device("meta"):
        late = TiedEmbedding(**arguments)
    assert late(torch.zeros((2, 3), dtype=torch.int64, device="meta")).shape == (2, 3, 16)
    late.to_empty(device="cpu").reset_parameters(generator(5))
    for (name, a), (_, b) in zip(
        late.named_parameters(), TiedEmbedding(**arguments, generator=generator(5)).named_parameters(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=0, msg=name)


def test_dtype_and_device_are_those_of_the_table():
    block = TiedEmbedding(31, 16, table_width=8, bias=True, dtype=torch.bfloat16)
    assert {p.dtype for p in block.parameters()} == {torch.bfloat16}
    rows = block(ids_of(2, 3, vocab=31))
    assert rows.dtype == block.readout(rows).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        block = TiedEmbedding(31, 16)
        rows = block(ids_of(2, 3, vocab=31))
        assert (rows.dtype, block.readout(rows).dtype) == (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("name", reference.CASES)
def test_compilation_changes_nothing_and_breaks_no_graph(name):
    block = TestTorch().loaded(reference.CASES[name])
    model, ids = Model(block), torch.tensor(IDS)
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(ids), model(ids))


def test_no_pass_copies_or_transposes_the_table():
    block = TiedEmbedding(4096, 32, padding_idx=0, bias=True, soft_cap=5.0, readout_factor=0.5)
    with NewStorages(block.weight.numel()) as seen, torch.no_grad():
        block.readout(block(torch.arange(8)))
    assert not seen.made
    with NewStorages(block.weight.numel()) as seen:
        block.weight.detach().T.contiguous()
    assert seen.made  # it would be noticed


def test_both_roles_go_through_hooks_of_the_module():
    """What shards or offloads parameters fetches them in such hooks."""
    block, calls = TiedEmbedding(11, 6), []
    block.register_forward_pre_hook(lambda module, args: calls.append(args[0].shape))
    block.readout(block(torch.tensor([[1, 2]])))
    assert calls == [(1, 2), (1, 2, 6)]


@pytest.mark.slow
def test_sharded_and_replicated_training_sum_both_roles_too(tmp_path):
    """DDP, FSDP2 of the whole model, and FSDP2 of the block by itself: two processes on a CPU."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.blocks.torch_parallel", str(tmp_path / "rendezvous")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_an_id_outside_the_table_is_torchs_own_error_on_a_cpu():
    for ids in ([11], [-1]):
        with pytest.raises(IndexError):
            TiedEmbedding(11, 6)(torch.tensor(ids))


def test_it_prints_what_is_not_at_its_default():
    assert repr(TiedEmbedding(11, 16)) == "TiedEmbedding(vocab=11, width=16, lookup_factor=4)"
    full = TiedEmbedding(11, 16, readout_factor=0.5, soft_cap=30.0, padding_idx=1, bias=True, table_width=4)
    assert "table_width=4, lookup_factor=2, readout_factor=0.5, soft_cap=30, padding_idx=1, bias=True" in repr(full)


def test_ids_of_int32_are_as_good_as_int64():
    block = TiedEmbedding(11, 6)
    np.testing.assert_array_equal(*(block(torch.tensor(IDS, dtype=d)).detach() for d in (torch.int32, torch.int64)))
