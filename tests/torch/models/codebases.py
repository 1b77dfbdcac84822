"""Models written the way popular code bases write them: training loops' habits rather than one trick each."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from tests.torch.models.kit import BATCH, LENGTH, VOCAB, WIDTH, Truth, case, ids
from torch import Tensor, nn

T = "codebases"
HEAD = ("wte.weight", "lm_head.weight")


def rms(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],))


class Attention(nn.Module):
    """Causal self-attention with one projection for q, k and v."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, extra: Tensor | None = None) -> Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.c_attn(x).split(c, dim=2))
        if extra is not None:
            v = v + extra.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGpt(nn.Module):
    """Loss and logits; positions added; a module dict; the head only on the last position without targets."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCAB, width),
                "wpe": nn.Embedding(16, width),
                "drop": nn.Dropout(0.1),
                "h": nn.ModuleList(Block(width) for _ in range(2)),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, VOCAB, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1], :]), None
        logits = self.lm_head(x)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss


NANO = ("transformer.wte.weight", "lm_head.weight")


@case(T)
def nano_gpt_with_targets() -> Any:
    return NanoGpt(), (ids(), ids().roll(-1, 1)), (Truth(names=NANO),)


@case(T)
def nano_gpt_last_position() -> Any:
    return NanoGpt(), (ids(),), (Truth(names=NANO),)


@case(T)
def nano_gpt_functional_call() -> Any:
    class Called(nn.Module):
        """Weights handed in by name, as meta-learning and ensembles do."""

        def __init__(self) -> None:
            super().__init__()
            self.net = NanoGpt()

        def forward(self, idx: Tensor) -> Tensor:
            given = dict(self.net.named_parameters(remove_duplicate=False))
            return torch.func.functional_call(self.net, given, (idx,))[0]

    return Called(), (ids(),), (Truth(names=("net.lm_head.weight",)),)


class SpeedRun(nn.Module):
    """Value embeddings, a skip from x0, normalised rows, a sigmoid soft cap and logits in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCAB, WIDTH)
        self.value = nn.ModuleList(nn.Embedding(VOCAB, WIDTH) for _ in range(2))
        self.attn = nn.ModuleList(Attention(WIDTH) for _ in range(2))
        self.lambdas = nn.Parameter(torch.tensor([[0.9, 0.1], [1.1, 0.2]]))
        self.mix = nn.Parameter(torch.tensor([0.5, 0.5]))
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Tensor:
        x = x0 = rms(self.wte(idx))
        for i, attn in enumerate(self.attn):
            x = self.lambdas[i, 0] * x + self.lambdas[i, 1] * x0
            x = x + attn(rms(x), self.value[i](idx) * self.mix[i])
        logits = self.lm_head(rms(x)).float()
        logits = 30 * torch.sigmoid(logits / (7.5 * WIDTH**0.5))
        if targets is None:
            return logits
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


SPEED = Truth(names=HEAD, readout_factor=1 / WIDTH**0.5, soft_cap=15.0, norm_after_lookup=True, numeric=False)


@case(T)
def speed_run_logits() -> Any:
    return SpeedRun(), (ids(),), (SPEED,)


@case(T)
def speed_run_loss_alone() -> Any:
    return SpeedRun(), (ids(), ids().roll(-1, 1)), (SPEED,)


@case(T, Truth(names=HEAD, soft_cap=15.0, norm_after_lookup=True))
class NanoChat(nn.Module):
    """Rows normalised at once, no gains anywhere, tanh cap in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.attn = nn.Embedding(VOCAB, WIDTH), Attention(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor) -> Tensor:
        x = rms(self.wte(idx))
        x = x + self.attn(rms(x))
        logits = self.lm_head(rms(x))
        return 15 * torch.tanh(logits.float() / 15)


class Llama2C(nn.Module):
    """Gain and norm by hand in float32; the last loss is kept on the module, logits alone are returned."""

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings, self.attn = nn.Embedding(VOCAB, WIDTH), Attention(WIDTH)
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.output = nn.Linear(WIDTH, VOCAB, bias=False)
        self.tok_embeddings.weight = self.output.weight
        self.last_loss: Tensor | None = None

    def norm(self, x: Tensor) -> Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.gain

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        h = F.dropout(self.tok_embeddings(tokens), 0.1, self.training)
        h = self.norm(h + self.attn(self.norm(h)))
        if targets is not None:
            logits = self.output(h)
            self.last_loss = F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1), ignore_index=-1)
        else:
            logits = self.output(h[:, [-1], :])
            self.last_loss = None
        return logits


LLAMA = Truth(names=("tok_embeddings.weight", "output.weight"))


@case(T)
def llama2_c_training() -> Any:
    return Llama2C(), (ids(), ids().roll(-1, 1)), (LLAMA,)


@case(T)
def llama2_c_inference() -> Any:
    return Llama2C(), (ids(),), (LLAMA,)


@case(T, Truth(names=HEAD, vocab=64))
class PaddedVocabulary(nn.Module):
    """Rows up to a multiple of 64; the padding is cut from the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.block = nn.Embedding(64, WIDTH), Block(WIDTH)
        self.norm, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor) -> Tensor:
        return self.lm_head(self.norm(self.block(self.wte(idx))))[..., :VOCAB]


class Fairseq(nn.Module):
    """share_all_embeddings: scaled lookups at both sides, padding zeroed, time first, incremental mask."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Embedding(VOCAB, WIDTH, padding_idx=1)
        self.dec, self.out = nn.Embedding(VOCAB, WIDTH, padding_idx=1), nn.Linear(WIDTH, VOCAB, bias=False)
        self.dec.weight = self.out.weight = self.enc.weight
        self.embed_scale = math.sqrt(WIDTH)
        self.register_buffer("sinusoids", torch.randn(16, WIDTH), persistent=False)
        self.cross = nn.MultiheadAttention(WIDTH, 2)
        self.norm = nn.LayerNorm(WIDTH)

    def embed(self, table: nn.Embedding, tokens: Tensor) -> Tensor:
        mask = tokens.ne(1)
        positions = (torch.cumsum(mask.type_as(tokens), dim=1) * mask).long()
        return self.embed_scale * table(tokens) + self.sinusoids.index_select(0, positions.view(-1)).view(
            *tokens.shape, -1
        )

    def forward(self, src: Tensor, prev: Tensor) -> Tensor:
        pad = src.eq(1)
        memory = self.embed(self.enc, src)
        memory = (memory * (1 - pad.unsqueeze(-1).type_as(memory))).transpose(0, 1)
        x = self.embed(self.dec, prev).transpose(0, 1)
        x = self.norm(x + self.cross(x, memory, memory, key_padding_mask=pad)[0])
        return self.out(x.transpose(0, 1))


@case(T)
def fairseq_share_all() -> Any:
    names = ("enc.weight", "dec.weight", "out.weight")
    truth = Truth(names=names, lookup_factor=WIDTH**0.5, counts=(2, 1, 1), smooth=False)
    return Fairseq(), {"src": ids(), "prev": ids().flip(1)}, (truth,)


class WeightDropped(nn.Module):
    """AWD-LSTM: rows dropped by a mask over the vocabulary, locked dropout, a decoder with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(VOCAB, WIDTH), nn.LSTM(WIDTH, WIDTH, 2)
        self.decoder = nn.Linear(WIDTH, VOCAB)
        self.decoder.weight = self.encoder.weight

    def forward(self, inputs: Tensor, hidden: tuple[Tensor, Tensor]) -> tuple[Tensor, Any]:
        table = self.encoder.weight
        if self.training:
            keep = table.new_empty((table.size(0), 1)).bernoulli_(0.9).expand_as(table) / 0.9
            table = keep * table
        rows = F.embedding(inputs, table)
        if self.training:
            locked = rows.new_empty(1, rows.size(1), rows.size(2)).bernoulli_(0.6) / 0.6
            rows = rows * locked
        output, hidden = self.rnn(rows, hidden)
        decoded = self.decoder(output.view(output.size(0) * output.size(1), output.size(2)))
        return decoded.view(output.size(0), output.size(1), decoded.size(1)), hidden


def _lstm_inputs() -> Any:
    return ids().t().contiguous(), (torch.zeros(2, BATCH, WIDTH), torch.zeros(2, BATCH, WIDTH))


AWD = Truth(names=("encoder.weight", "decoder.weight"), readout_bias=True, smooth=False)


@case(T)
def awd_lstm() -> Any:
    return WeightDropped().eval(), _lstm_inputs(), (AWD,)


@case(T)
def awd_lstm_in_training() -> Any:
    truth = Truth(names=AWD.names, readout_bias=True, numeric=False)
    return WeightDropped().train(), _lstm_inputs(), (truth,)


@case(T, Truth(names=("decoder.weight", "encoder.weight"), readout_factor=0.25, lookup_factor=3.0))
class MuReadout(nn.Module):
    """The output is divided by a width multiplier inside the readout's own forward."""

    def __init__(self) -> None:
        super().__init__()

        class Readout(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(0.5 * x / 2.0)

        self.encoder, self.block = nn.Embedding(VOCAB, WIDTH), Block(WIDTH)
        self.norm, self.decoder = nn.LayerNorm(WIDTH), Readout(WIDTH, VOCAB, bias=False)
        self.decoder.weight = self.encoder.weight

    def forward(self, idx: Tensor) -> Tensor:
        return self.decoder(self.norm(self.block(3.0 * self.encoder(idx))))


@case(T, Truth(names=("word.weight", "decoder.weight"), width=6, readout_bias=True, norm_after_lookup=True))
class Factorised(nn.Module):
    """ALBERT: a narrow table, a projection up, and a transform down before the decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.kind = nn.Embedding(VOCAB, 6, padding_idx=0), nn.Embedding(2, 6)
        self.first, self.up = nn.LayerNorm(6), nn.Linear(6, WIDTH)
        self.block, self.down, self.last = Block(WIDTH), nn.Linear(WIDTH, 6), nn.LayerNorm(6)
        self.decoder = nn.Linear(6, VOCAB)
        self.decoder.weight = self.word.weight

    def forward(self, idx: Tensor) -> Tensor:
        x = self.first(self.word(idx) + self.kind(torch.zeros_like(idx)))
        x = self.block(self.up(x))
        return self.decoder(self.last(F.gelu(self.down(x))))


class CharactersInWordsOut(nn.Module):
    """A character CNN reads bytes; a table of words is read out alone."""

    def __init__(self) -> None:
        super().__init__()
        self.chars, self.conv = nn.Embedding(30, 4), nn.Conv1d(4, WIDTH, 3, padding=1)
        self.norm, self.words = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, chars: Tensor) -> Tensor:
        b, t, c = chars.shape
        x = self.conv(self.chars(chars.view(b * t, c)).transpose(1, 2)).amax(-1)
        return self.words(self.norm(torch.relu(x)).view(b, t, -1))


@case(T)
def characters_in_words_out() -> Any:
    chars = torch.randint(0, 30, (BATCH, LENGTH, 7), generator=torch.Generator().manual_seed(4))
    truth = Truth(names=("chars.weight",), state="untied", readout_factor=None, counts=(1, 0, 0), vocab=30, width=4)
    return CharactersInWordsOut(), (chars,), (truth,)
