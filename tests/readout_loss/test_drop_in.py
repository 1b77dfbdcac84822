"""Models that compute their logits and their loss themselves, without the logits."""

import copy

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

import tiebeam
from tiebeam.backends.torch.readout.deferred import Deferred
from tiebeam.errors import InputError
from tiebeam.torch import TiedEmbedding, use_readout_loss

SMALL = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 8}
MODELS = {
    "GPT2": {"vocab_size": 61, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "Llama": SMALL | {"tie_word_embeddings": True},
    "Gemma2": GROUPED | {"final_logit_softcapping": 3.0, "query_pre_attn_scalar": 8},
    "Granite": SMALL | {"logits_scaling": 8.0, "embedding_multiplier": 12.0},
    "Cohere": SMALL | {"logit_scale": 0.0625},
    "GPTJ": {"vocab_size": 61, "n_embd": 16, "n_layer": 2, "n_head": 2, "rotary_dim": 4, "n_positions": 32},
    "OPT": {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 32,
            "word_embed_proj_dim": 8, "max_position_embeddings": 32},
}  # fmt: skip


def build(name):
    torch.manual_seed(0)
    given = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2} | MODELS[name]
    model = getattr(transformers, f"{name}ForCausalLM" if name not in ("GPT2",) else "GPT2LMHeadModel")
    return model(getattr(transformers, f"{name}Config")(**given)).eval()


def batch():
    ids = torch.randint(3, 61, (2, 12), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[0, :4] = -100
    return {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}


def gradients(model, **inputs):
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", MODELS)
def test_a_hugging_face_model_has_the_same_loss_and_gradients_without_its_logits(name):
    model, inputs = build(name), batch()
    report = tiebeam.inspect(model, {"input_ids": inputs["input_ids"]})
    want = gradients(model, **inputs)
    with use_readout_loss(model, report) as in_use:
        found = gradients(model, **inputs)
        assert (in_use.tally.losses, in_use.tally.logits) == (1, 0), in_use.tally.why
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(gradients(model, **inputs), want, rtol=0, atol=0)
    assert in_use.tally.losses == 1  # undone
    assert repr(in_use) == f"ReadoutLossInUse({in_use.tally}, removed)"


def test_a_number_of_items_divides_the_sum_as_the_trainer_wants_it():
    model, inputs = build("GPT2"), batch()
    report = tiebeam.inspect(model, {"input_ids": inputs["input_ids"]})
    want = gradients(model, **inputs, num_items_in_batch=7)
    with use_readout_loss(model, report) as in_use:
        torch.testing.assert_close(gradients(model, **inputs, num_items_in_batch=7), want)
    assert in_use.tally.logits == 0


def test_logits_that_are_looked_at_are_those_of_the_model():
    model, inputs = build("Gemma2"), batch()
    report = tiebeam.inspect(model, {"input_ids": inputs["input_ids"]})
    want = model(**inputs).logits
    with use_readout_loss(model, report) as in_use:
        out = model(**inputs)
        assert isinstance(out.logits, Deferred)
        assert (out.logits.shape, out.logits.dtype, in_use.tally.logits) == (want.shape, want.dtype, 0)
        assert torch.equal(out.logits.argmax(-1), want.argmax(-1))
        assert torch.equal(out.logits + 0.0, want)
    assert in_use.tally.logits == 1
    assert in_use.tally.why == ("argmax",)


def test_text_is_generated_as_before():
    model = build("Llama")
    ids = batch()["input_ids"]
    report = tiebeam.inspect(model, {"input_ids": ids})
    want = model.generate(ids, max_new_tokens=4, do_sample=False)
    with use_readout_loss(model, report):
        assert torch.equal(model.generate(ids, max_new_tokens=4, do_sample=False), want)


def test_bfloat16_and_autocast_keep_the_loss_in_float32():
    inputs = batch()
    model = build("Llama")
    report = tiebeam.inspect(model, {"input_ids": inputs["input_ids"]})
    exact, _ = gradients(model, **inputs)
    with use_readout_loss(model, report), torch.autocast("cpu", torch.bfloat16):
        loss, _ = gradients(model, **inputs)
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(float(exact), abs=0.02)
    narrow = copy.deepcopy(model).bfloat16()
    with use_readout_loss(narrow, report) as in_use:
        loss, grads = gradients(narrow, **inputs)
    assert in_use.tally.logits == 0
    assert float(loss) == pytest.approx(float(exact), abs=0.02)
    assert {g.dtype for g in grads.values()} == {torch.bfloat16}


# ---- what a model may do with its logits


class LM(nn.Module):
    """A tied pair whose logits go through `way` before the loss."""

    def __init__(self, way, bias=False):
        super().__init__()
        draws = torch.Generator().manual_seed(0)
        self.embed, self.head, self.way = nn.Embedding(31, 8), nn.Linear(8, 31, bias=bias), way
        with torch.no_grad():
            self.embed.weight.normal_(0.0, 0.5, generator=draws)
            if bias:
                self.head.bias.normal_(0.0, 0.5, generator=draws)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.way(self.head(self.embed(ids)))

    def loss(self, ids):
        logits = self(ids)
        return F.cross_entropy(logits[:, :-1].reshape(-1, 31), ids[:, 1:].reshape(-1))


WAYS = {
    "as it is": lambda z: z,
    "multiplied": lambda z: 0.5 * z * 3,
    "divided": lambda z: z / 7.0,
    "cast": lambda z: z.to(torch.float64).float().contiguous(),
    "a bias added": lambda z: 2.0 * z + torch.linspace(0.0, 1.0, 31)[None],
    "a bias added before a cap": lambda z: torch.tanh((0.5 * z + torch.linspace(0.0, 1.0, 31)) / 2.5) * 2.5,
    "capped": lambda z: torch.tanh(z / 2.5) * 2.5,
    "capped with a negative sign": lambda z: -2.5 * torch.tanh(z / 2.5),
    "scaled and capped": lambda z: 1.5 * (0.25 * z).tanh(),
}
LOOKS = {
    "shifted by one": lambda z: z + 1.0,
    "an activation": torch.relu,
    "capped twice": lambda z: torch.tanh(torch.tanh(z / 2.5) * 2.5 / 2.0) * 2.0,
    "a number of each token added": lambda z: z + torch.ones(9, 1),
    "a bias added after a cap": lambda z: torch.tanh(z / 2.5) * 2.5 + torch.linspace(0.0, 1.0, 31),
    "scaled by a tensor": lambda z: z * torch.tensor(0.5),
    "clipped": lambda z: z.clamp(max=0.5),
}


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("name", [*WAYS, *LOOKS])
def test_whatever_a_model_does_with_its_logits_the_loss_is_the_same(name, bias):
    model, ids = LM((WAYS | LOOKS)[name], bias), torch.randint(31, (3, 9), generator=torch.Generator().manual_seed(2))
    report = tiebeam.inspect(model, ids)
    want = model.loss(ids)
    wanted = torch.autograd.grad(want, list(model.parameters()))
    with use_readout_loss(model, report) as in_use:
        found = model.loss(ids)
        torch.testing.assert_close(found, want)
        torch.testing.assert_close(torch.autograd.grad(found, list(model.parameters())), wanted)
    assert (in_use.tally.losses, in_use.tally.logits) == ((1, 0) if name in WAYS else (0, 1))


VIEWS = {
    "reshaped": lambda z, t: (z.view(-1, 31), t.view(-1)),
    "reshaped to the end": lambda z, t: (z.reshape(27, -1), t.reshape(-1)),
    "flattened": lambda z, t: (z.flatten(0, 1), t.flatten()),
    "flattened by name": lambda z, t: (z.flatten(end_dim=1), t.flatten()),
    "one text": lambda z, t: (z[1], t[1]),
    "dots": lambda z, t: (z[..., 2:, :].flatten(0, 1), t[..., 2:].flatten()),
    "a mask": lambda z, t: (z[t > 9], t[t > 9]),
    "picked tokens": lambda z, t: (z[0, torch.tensor([1, 3])], t[0, torch.tensor([1, 3])]),
    "one token": lambda z, t: (z[0, 4], t[0, 4]),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1, "reduction": "sum", "ignore_index": 5}], ids=str)
def test_tokens_may_be_picked_and_reshaped(name, options):
    model, ids = LM(WAYS["multiplied"]), torch.randint(31, (3, 9), generator=torch.Generator().manual_seed(2))
    report = tiebeam.inspect(model, ids)
    logits, targets = VIEWS[name](model(ids), ids.roll(1))
    want = F.cross_entropy(logits, targets, **options)
    with use_readout_loss(model, report) as in_use:
        logits, targets = VIEWS[name](model(ids), ids.roll(1))
        torch.testing.assert_close(nn.CrossEntropyLoss(**options)(logits, targets), want)
        assert in_use.tally.logits == 0
        assert torch.equal(logits + 0.0, VIEWS[name](in_use_free(model, ids), ids.roll(1))[0])


def in_use_free(model, ids):
    """The logits of the model as it was."""
    return model.way(F.linear(model.embed(ids), model.embed.weight))


NEEDS = {
    "classes on the second axis": lambda z, t: F.cross_entropy(z.transpose(1, 2), t),
    "probabilities as targets": lambda z, t: F.cross_entropy(z.flatten(0, 1), torch.softmax(torch.ones(27, 31), -1)),
    "one logit of each": lambda z, t: z[..., 3].sum(),
    "a few logits of each": lambda z, t: z[..., :3].sum(),
    "another last axis": lambda z, t: z.view(9, -1).sum(),
    "two together": lambda z, t: torch.cat([z, z]).sum(),
    "a reduction": lambda z, t: torch.logsumexp(z, -1).sum(),
    "a new axis": lambda z, t: z[None].sum(),
    "a product of two": lambda z, t: (z * z).sum(),
}


@pytest.mark.parametrize("look", NEEDS.values(), ids=NEEDS)
def test_what_needs_the_logits_computes_them(look):
    model, ids = LM(WAYS["as it is"]), torch.randint(31, (3, 9), generator=torch.Generator().manual_seed(2))
    report = tiebeam.inspect(model, ids)
    want = look(model(ids), ids)
    with use_readout_loss(model, report) as in_use:
        torch.testing.assert_close(look(model(ids), ids), want)
        assert in_use.tally.logits == 1


# ---- undone, and refused


def test_it_is_undone_also_after_an_error_and_when_asked_twice():
    model, ids = LM(WAYS["as it is"]), torch.arange(6)[None]
    report = tiebeam.inspect(model, ids)
    own = model.head.forward
    with pytest.raises(IndexError), use_readout_loss(model, report):
        model(ids + 31)
    assert type(model(ids)) is torch.Tensor
    in_use = use_readout_loss(model, report)
    in_use.remove()
    in_use.remove()
    assert model.head.forward == own
    assert "forward" not in vars(model.head)


def test_a_forward_that_somebody_else_had_set_is_set_again():
    model, ids = LM(WAYS["as it is"]), torch.arange(6)[None]
    report, own = tiebeam.inspect(model, ids), model.head.forward

    def theirs(hidden):
        return own(hidden) + 0.0

    model.head.forward = theirs
    with use_readout_loss(model, report):
        assert isinstance(model(ids), Deferred)
    assert model.head.forward is theirs


def test_a_compiled_model_sees_the_model_as_it_was():
    model, ids = LM(WAYS["as it is"]), torch.arange(6)[None]
    report = tiebeam.inspect(model, ids)
    with use_readout_loss(model, report):
        found = torch.compile(model, backend="eager", fullgraph=True)(ids)
    torch.testing.assert_close(found, model(ids))
    torch.compiler.reset()


def test_a_compiled_wrapper_takes_the_report_of_the_model_inside_and_its_own():
    model, ids = LM(WAYS["as it is"]), torch.arange(6)[None]
    compiled = torch.compile(model, backend="eager")
    want = compiled(ids)
    for report in (tiebeam.inspect(model, ids), tiebeam.inspect(compiled, ids)):
        with pytest.warns(UserWarning, match="changes nothing of a model under torch.compile"):
            in_use = use_readout_loss(compiled, report)
        with in_use:
            torch.testing.assert_close(compiled(ids), want)
            assert isinstance(model(ids), Deferred)  # the layer inside is the one that was meant
        assert not isinstance(model(ids), Deferred)
    torch.compiler.reset()


def test_a_layer_that_is_not_compiled_with_the_rest_needs_no_word():
    model, ids = LM(WAYS["as it is"]), torch.arange(6)[None]
    report = tiebeam.inspect(model, ids)
    model.embed.compile(backend="eager")
    with use_readout_loss(model, report):  # a warning would be an error
        pass
    model.compile(backend="eager")
    with pytest.warns(UserWarning, match="compile the part that ends in the hidden state"):
        use_readout_loss(model, report).remove()


class Direct(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(31, 8)

    def forward(self, ids):
        return F.linear(self.embed(ids), self.embed.weight)


class OfABlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = TiedEmbedding(31, 8)

    def forward(self, ids):
        return self.embed.readout(self.embed(ids))


@pytest.mark.parametrize("build_model", [Direct, OfABlock])
def test_a_readout_that_is_no_linear_layer_is_refused_with_what_to_do_instead(build_model):
    model, ids = build_model(), torch.arange(6)[None]
    with pytest.raises(InputError, match=r"no linear layer(.|\n)*Hint: call tiebeam\.torch\.readout_loss"):
        use_readout_loss(model, tiebeam.inspect(model, ids))


def test_a_report_of_another_model_is_refused():
    model, ids = LM(WAYS["as it is"]), torch.arange(6)[None]
    with pytest.raises(InputError, match="another model"):
        use_readout_loss(OfABlock(), tiebeam.inspect(model, ids))
    with pytest.raises(InputError, match="no readout"):
        use_readout_loss(model, tiebeam.inspect(nn.Embedding(31, 8), ids))
    with pytest.raises(InputError, match=r"a report on the model is needed(.|\n)*Hint: report = tiebeam\.inspect"):
        use_readout_loss(model, None)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_an_adapter_of_the_readout_is_refused():
    import peft

    model = build("GPTJ")
    model = peft.get_peft_model(model, peft.LoraConfig(target_modules=["lm_head"], r=2))
    with pytest.raises(InputError, match=r"a low-rank product: .*lora"):
        use_readout_loss(model, tiebeam.inspect(model, {"input_ids": batch()["input_ids"]}))
