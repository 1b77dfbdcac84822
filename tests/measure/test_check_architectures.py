"""`check_gradients` on real architectures, whose backward passes are PyTorch's own: no false alarm, none undecided."""

from typing import Any

import pytest
import torch
from tests.checkpoints.tiny import tiny
from torch import Tensor, nn

import tiebeam

pytestmark = [pytest.mark.slow, pytest.mark.wide, pytest.mark.filterwarnings("ignore")]

TIED = {"tie_word_embeddings": True}
#: Architecture -> what its config says beside `tests.checkpoints.tiny`. Every one is tied, and every gradient is right.
RIGHT: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {},
    "LlamaForCausalLM": TIED,
    "MistralForCausalLM": TIED,
    "Qwen2ForCausalLM": TIED,
    "Gemma2ForCausalLM": {},
    "Gemma3ForCausalLM": {},
    "GraniteForCausalLM": TIED,
    "CohereForCausalLM": {},
    "GPTNeoXForCausalLM": TIED,
    "BloomForCausalLM": {},
    "OPTForCausalLM": {},  # a factorised table
    "XLNetLMHeadModel": {},  # positions first: its rows are no positions of the batch, so it wants a loss
    "BertForMaskedLM": {},
    "RobertaForMaskedLM": {},
    "DistilBertForMaskedLM": {},
    "AlbertForMaskedLM": {},
    "ElectraForMaskedLM": {},
    "T5ForConditionalGeneration": {},  # kinks of its ReLU within a step, for its layers start large
    "BartForConditionalGeneration": {},
    "MBartForConditionalGeneration": {},
    "PegasusForConditionalGeneration": {},
}
IDS = torch.arange(5, 17).view(2, 6)


def batch_for(model: nn.Module) -> dict[str, Tensor]:
    return {"input_ids": IDS} | ({"decoder_input_ids": IDS} if model.config.is_encoder_decoder else {})


def own_loss(output: Any, batch: dict[str, Tensor]) -> Tensor:
    logits = output.logits
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, -2), batch["input_ids"][:, 1:].flatten())


def built(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model: nn.Module = tiny(name, **RIGHT[name])
    return model


# Of OPT the lookup's share of the loss is below what float32 in its softmax leaves: undecided, which is no alarm.
UNDECIDED = {"OPTForCausalLM": ("unknown", "kept")}


@pytest.mark.parametrize("name", RIGHT)
def test_the_gradient_of_a_real_architecture_is_right(name: str) -> None:
    model = built(name)
    found = tiebeam.check_gradients(
        model, batch_for(model), loss=own_loss if name == "XLNetLMHeadModel" else None, rows=2
    )
    assert (found.lookup, found.readout) == UNDECIDED.get(name, ("kept", "kept")), str(found)
    assert all(probe.right is not False for probe in found.probes)
    assert found.wrong_rows == 0
    assert found.held == IDS.numel()


@pytest.mark.parametrize("seed", range(1, 4))
def test_kinks_within_a_step_raise_no_false_alarm(seed: int) -> None:
    """T5's ReLUs bend the loss between two points of a difference: rows looked wrong by 10 %, and were not."""
    model = built("T5ForConditionalGeneration", seed)
    found = tiebeam.check_gradients(model, batch_for(model), seed=seed)
    assert found.ok, str(found)


class Lost(torch.autograd.Function):
    """What it is given, whose gradient comes back `times`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, times: float) -> Tensor:
        ctx.times = times
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.times, None


class Wrong(nn.Module):
    """A module whose weight's gradient arrives so many times, in the lookup or the readout."""

    def __init__(self, inner: nn.Module, times: float) -> None:
        super().__init__()
        self.weight, self.times, self.inner = inner.weight, times, [inner]

    def forward(self, x: Tensor) -> Tensor:
        weight = Lost.apply(self.weight, self.times)
        if isinstance(self.inner[0], nn.Embedding):
            return nn.functional.embedding(x, weight)
        return nn.functional.linear(x, weight)


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "T5ForConditionalGeneration", "LlamaForCausalLM"])
@pytest.mark.parametrize(("role", "times", "verdict"), [("readout", 0.0, "dropped"), ("lookup", 2.0, "doubled")])
def test_a_lost_or_doubled_path_in_a_real_architecture_is_found(
    name: str, role: str, times: float, verdict: str
) -> None:
    """The check above can tell: the same architectures with one path spoilt."""
    model = built(name)
    if role == "readout":
        model.lm_head = Wrong(model.lm_head, times)
    else:
        wrong = Wrong(model.get_input_embeddings(), times)
        for holder in [m for m in model.modules() if not isinstance(m, Wrong)]:
            for child, module in holder.named_children():
                if isinstance(module, nn.Embedding) and module.weight is wrong.weight:
                    setattr(holder, child, wrong)
    found = tiebeam.check_gradients(model, batch_for(model), rows=3)
    assert getattr(found, role) == verdict, str(found)
    assert not found.ok


def test_an_untied_architecture_is_refused_with_the_reason() -> None:
    model = tiny("LlamaForCausalLM")
    with pytest.raises(tiebeam.InputError, match="untied"):
        tiebeam.check_gradients(model, batch_for(model))
