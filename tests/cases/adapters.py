"""Live models made of what a row of the cases holds, where it holds only pieces of one."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Names = dict[str, Any]
Live = tuple[nn.Module, Any]

IDS = torch.tensor([[1, 2, 3, 5, 8, 13, 2, 1]])


class Chain(nn.Module):
    """Steps one behind the other; what is a module is registered."""

    def __init__(self, **steps: nn.Module) -> None:
        super().__init__()
        for name, step in steps.items():
            self.add_module(name, step)

    def forward(self, ids: Tensor) -> Tensor:
        x = ids
        for step in self.children():
            x = step(x)
        return x


def plain(names: Names) -> Live:
    return names["model"], (IDS,)


def called(name: str) -> Any:
    return lambda names: (names[name], (IDS,))


def misspelt(names: Names) -> Live:
    """The loader drops the key it does not know; a config that is built, or read back, keeps it."""
    kept = names["LlamaConfig"](**names["conf"].to_dict(), tie_word_embedding=False)
    return names["LlamaForCausalLM"](kept), (IDS,)


def averaged(names: Names) -> Live:
    return names["ema"], (IDS,)


def exported(names: Names) -> Live:
    """An exported program takes ids of the shape it was exported with."""
    return names["ep"].module(), (torch.tensor([[1, 2, 3]]),)


def materialised(names: Names) -> Live:
    """What `to_empty` leaves is whatever the memory held; here, as in a fresh process, zeros."""
    for parameter in names["model"].parameters():
        nn.init.zeros_(parameter)
    return plain(names)


def pipeline(names: Names) -> Live:
    return Chain(first=names["first"], mid=names["mid"], tanh=nn.Tanh(), last=names["last"]), (IDS,)


def padded(names: Names) -> Live:
    return Chain(embed=names["embed"], mid=names["mid"], head=names["head"]), (IDS,)


def without_head_factor(names: Names) -> Live:
    """The port: rows of unit variance, a normalisation, the product, and no factor."""

    class Ported(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = names["W"], names["norm"]

        def forward(self, ids: Tensor) -> Tensor:
            return self.norm(F.embedding(ids, self.table)) @ self.table.T

    return Ported(), (IDS,)


def rounded_scale(names: Names) -> Live:
    """The reference implementation of the row, at its width and dtype."""

    class Reference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(16, names["D"])
            self.register_buffer("scale", torch.tensor(names["exact"]))

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids) * self.scale
            return F.linear(F.rms_norm(x, x.shape[-1:]), self.embed.weight)

    return Reference().to(torch.bfloat16), (IDS,)


def echo(names: Names) -> Live:
    class Echo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.block, self.norm = names["embed"], names["block"], names["norm"]

        def forward(self, ids: Tensor) -> Tensor:
            return names["logits"](ids)

    return Echo(), (names["ids"].unsqueeze(0),)


def two_scopes(names: Names) -> Live:
    """A composite model on this config, its tensors as the row's file has them."""
    from transformers import PretrainedConfig

    scopes = dict(names["config"])
    text, tied = scopes.pop("text_config"), "lm_head" not in str(names.get("checkpoint", ""))
    scopes.pop("vision_config", None)

    class Composite(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.config = PretrainedConfig(**scopes)
            self.config.text_config = PretrainedConfig(**text)
            self.embed_tokens = nn.Embedding(text["vocab_size"], text["hidden_size"])
            self.lm_head = nn.Linear(text["hidden_size"], text["vocab_size"], bias=False)
            if tied:
                self.lm_head.weight = self.embed_tokens.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.lm_head(self.embed_tokens(ids))

    return Composite(), (IDS,)


def only_modules(names: Names) -> Live:
    """Its class has no forward; read in the order in which its modules stand."""

    class Forward(type(names["model"])):
        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.n2(self.n1(self.embed(ids))))

    names["model"].__class__ = Forward
    return plain(names)


def list_keys(names: Names) -> Live:
    """The class cannot be built while it asks for the tie; built without, its list still stands."""

    class Forward(names["TinyLM"]):
        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.embed(ids))

    return Forward(names["TinyCfg"](tie_word_embeddings=False)), (IDS,)


def stale_cache(names: Names) -> Live:
    """The server as it generates: logits from the cached head."""

    class Server(type(names["server"])):
        def forward(self, ids: Tensor) -> Tensor:
            return F.linear(torch.tanh(self.mid(self.embed(ids))).float(), self.fp32_head)

    names["server"].__class__ = Server
    return names["server"], (IDS,)


def before_merge(names: Names) -> Live:
    """The adapter as it stands before the merge that does the damage."""
    base = names["LlamaForCausalLM"](names["cfg"](tie_word_embeddings=True))
    settings = names["LoraConfig"](r=4, target_modules=["lm_head"], init_lora_weights=False)
    return names["get_peft_model"](base, settings), (IDS,)


def upcast(names: Names) -> Live:
    model = names["model"]
    model.is_loaded_in_8bit = True  # what the function looks for
    return names["prepare_model_for_kbit_training"](model, use_gradient_checkpointing=False), (IDS,)


def seq2seq(names: Names) -> Live:
    return names["model"], {"input_ids": IDS, "decoder_input_ids": IDS}
