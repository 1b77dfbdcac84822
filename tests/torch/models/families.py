"""Whole models of other families than the plain decoder: recommenders, codecs, translators, bytes, scripts."""

import math
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from tests.torch.models.codebases import HEAD, Block
from tests.torch.models.kit import BATCH, LENGTH, VOCAB, WIDTH, Truth, case, ids
from torch import Tensor, nn

T = "families"


@case(T, Truth(names=("item.weight",), lookup_factor=WIDTH**0.5, smooth=False))
class SasRec(nn.Module):
    """Items as tokens: scaled rows, masked padding, scores of every item for the last position."""

    def __init__(self) -> None:
        super().__init__()
        self.item, self.pos = nn.Embedding(VOCAB, WIDTH, padding_idx=0), nn.Embedding(LENGTH, WIDTH)
        self.block, self.last = Block(WIDTH), nn.LayerNorm(WIDTH)

    def encode(self, seq: Tensor) -> Tensor:
        x = self.item(seq) * self.item.embedding_dim**0.5
        x = x + self.pos(torch.arange(seq.shape[1]))
        x = x * (seq != 0).unsqueeze(-1)
        return self.last(self.block(x))

    def forward(self, seq: Tensor) -> Tensor:
        return self.encode(seq)[:, -1] @ self.item.weight.t()


class AnnotatedTransformer(nn.Module):
    """nn.Transformer between a shared table; log-probabilities are returned."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.core = nn.Transformer(WIDTH, 2, 1, 1, 16, dropout=0.0, batch_first=True)
        self.generator = nn.Linear(WIDTH, VOCAB)
        self.generator.weight = self.embed.weight

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        a, b = (self.embed(x) * math.sqrt(WIDTH) for x in (src, tgt))
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1])
        return F.log_softmax(self.generator(self.core(a, b, tgt_mask=mask)), dim=-1)


@case(T)
def annotated_transformer() -> Any:
    names = ("embed.weight", "generator.weight")
    truth = Truth(names=names, lookup_factor=WIDTH**0.5, readout_bias=True, counts=(1, 1, 1), smooth=False)
    return AnnotatedTransformer(), (ids(), ids().flip(1)), (truth,)


class CodecLm(nn.Module):
    """Four codebooks: rows summed, one head each, each tied to its own table."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.books = nn.ModuleList(nn.Embedding(VOCAB, WIDTH) for _ in range(4))
        self.norm, self.block = nn.LayerNorm(WIDTH), Block(WIDTH)
        self.heads = nn.ModuleList(nn.Linear(WIDTH, VOCAB, bias=False) for _ in range(4))
        if tied:
            for book, head in zip(self.books, self.heads, strict=True):
                head.weight = book.weight

    def forward(self, codes: Tensor) -> Tensor:
        x = sum(book(codes[:, k]) for k, book in enumerate(self.books))
        x = self.norm(self.block(x))
        return torch.stack([head(x) for head in self.heads], 1)


@case(T)
def codec_lm() -> Any:
    codes = torch.stack([ids().roll(k, 1) for k in range(4)], 1)
    return CodecLm(), (codes,), tuple(Truth(names=(f"books.{k}.weight", f"heads.{k}.weight")) for k in range(4))


@case(T)
def codec_lm_untied() -> Any:
    codes = torch.stack([ids().roll(k, 1) for k in range(4)], 1)
    truths = [
        t
        for k in range(4)
        for t in (
            Truth(names=(f"books.{k}.weight",), state="untied", readout_factor=None, counts=(1, 0, 0)),
            Truth(names=(f"heads.{k}.weight",), state="untied", lookup_factor=None, counts=(0, 1, 1)),
        )
    ]
    return CodecLm(tied=False), (codes,), tuple(truths)


class CachedStep(nn.Module):
    """One new token with a cache of keys and values, as a generation loop runs it."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.q, self.kv = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.norm, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor, past: tuple[Tensor, Tensor] | None = None) -> dict[str, Any]:
        x = self.wte(idx)
        k, v = self.kv(x).chunk(2, -1)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        x = self.norm(x + F.scaled_dot_product_attention(self.q(x), k, v))
        return {"logits": self.lm_head(x), "past": (k, v)}


@case(T)
def cached_step() -> Any:
    past = (torch.randn(BATCH, 4, WIDTH), torch.randn(BATCH, 4, WIDTH))
    return CachedStep(), {"idx": ids()[:, :1], "past": past}, (Truth(names=HEAD),)


class ByteLevel(nn.Module):
    """As many bytes as numbers in the stream: keys and values that are returned are as wide as the vocabulary."""

    def __init__(self, vocab: int = 16, width: int = 16) -> None:
        super().__init__()
        self.wte, self.q = nn.Embedding(vocab, width), nn.Linear(width, width)
        self.k, self.v = nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor) -> dict[str, Any]:
        x = self.wte(idx)
        k, v = self.k(x), self.v(x)
        x = x + F.scaled_dot_product_attention(self.q(x), k, v)
        return {"logits": self.lm_head(self.norm(x)), "cache": [(k, v)]}


BYTES = Truth(names=HEAD, vocab=16, width=16, numeric=False)


@case(T)
def byte_level_with_cache() -> Any:
    none = Truth(names=("k.weight", "v.weight"), state="none", counts=None, numeric=False)
    return ByteLevel(), (ids(16),), (BYTES, none)


@case(T)
def characters_one_more_than_width_with_cache() -> Any:
    none = Truth(names=("k.weight", "v.weight"), state="none", counts=None, numeric=False)
    truth = Truth(names=HEAD, vocab=17, width=16, numeric=False)
    return ByteLevel(vocab=17), (ids(17),), (truth, none)


class ScriptedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.norm = nn.Embedding(VOCAB, WIDTH), nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor) -> Tensor:
        return self.lm_head(self.norm(self.wte(idx) * 2.0)) * 0.5


SCRIPTED = Truth(names=HEAD, lookup_factor=2.0, readout_factor=0.5, norm_after_lookup=True, numeric=False, smooth=False)


@case(T)
def scripted_module() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.script.* is deprecated")
        return torch.jit.script(ScriptedHead()), (ids(),), (SCRIPTED,)


@case(T)
def adaptive_softmax_tied() -> Any:
    class Adaptive(nn.Module):
        """Three clusters of the vocabulary, each with its own width and table, tied one by one."""

        def __init__(self) -> None:
            super().__init__()
            self.cut, widths = (0, 12, 24, VOCAB), (8, 6, 5)
            sizes = [b - a for a, b in zip(self.cut, self.cut[1:], strict=False)]
            self.emb = nn.ModuleList(nn.Embedding(n, w) for n, w in zip(sizes, widths, strict=True))
            self.proj = nn.ParameterList(nn.Parameter(torch.randn(WIDTH, w) / w**0.5) for w in widths)
            self.out = nn.ModuleList(nn.Linear(w, n) for n, w in zip(sizes, widths, strict=True))
            self.cluster, self.norm = nn.Linear(WIDTH, 2), nn.LayerNorm(WIDTH)
            for a, b in zip(self.emb, self.out, strict=True):
                b.weight = a.weight

        def forward(self, idx: Tensor) -> Tensor:
            flat = idx.flatten()
            rows = torch.zeros(flat.numel(), WIDTH)
            for k, (a, b) in enumerate(zip(self.cut, self.cut[1:], strict=False)):
                at = ((flat >= a) & (flat < b)).nonzero().squeeze(-1)
                mine = F.linear(self.emb[k](flat.index_select(0, at) - a), self.proj[k])
                rows = rows.index_copy(0, at, mine)
            h = self.norm(rows * WIDTH**0.5)
            head = torch.cat([self.out[0](h @ self.proj[0]), self.cluster(h)], -1).log_softmax(-1)
            tails = [head[:, 11 + k : 12 + k] + self.out[k](h @ self.proj[k]).log_softmax(-1) for k in (1, 2)]
            return torch.cat([head[:, :12], *tails], -1)

    sizes = ((12, 8), (12, 6), (13, 5))
    truths = tuple(
        Truth(names=(f"emb.{k}.weight", f"out.{k}.weight"), vocab=v, width=w, readout_bias=True, numeric=False)
        for k, (v, w) in enumerate(sizes)
    )
    return Adaptive(), (torch.arange(VOCAB)[None],), truths
