"""Models written the way popular code bases write them: training loops' habits rather than one trick each."""

import math
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from tests.torch.models.kit import BATCH, LENGTH, VOCAB, WIDTH, Base, Truth, case, ids
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

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


@case(T, Truth(readout_factor=None, numeric=False))
class NormalisedItems(Base):
    """Cosine scores against a normalised table, over a temperature; the lookup is raw."""

    def read(self, h: Tensor) -> Tensor:
        return F.normalize(h, dim=-1) @ F.normalize(self.table, dim=-1).t() / 0.07


@case(T, Truth(lookup_factor=None, readout_factor=None, numeric=False))
class CosineInBothRoles(Base):
    """One normalised table, computed once, looked up and read out."""

    def forward(self, ids: Tensor) -> Tensor:
        table = F.normalize(self.table, dim=-1)
        h = self.body(F.embedding(ids, table))
        return 8.0 * F.linear(F.normalize(h, dim=-1), table)


@case(T, Truth(lookup_factor=4.0, readout_factor=0.5))
class LearnedScalarsAtBothEnds(Base):
    """Two learned scalars: constants of this pass, whatever training makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Parameter(torch.tensor(4.0)), nn.Parameter(torch.tensor([0.5]))

    def look(self, ids: Tensor) -> Tensor:
        return super().look(ids) * self.inward

    def read(self, h: Tensor) -> Tensor:
        return super().read(h) * self.outward


@case(T, Truth(readout_factor=None))
class TemperatureOfEachToken(Base):
    """Logits over a temperature that is computed for each position."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Linear(WIDTH, 1)

    def read(self, h: Tensor) -> Tensor:
        return super().read(h) / F.softplus(self.temperature(h))


@case(T, Truth(lookup_factor=WIDTH**0.5))
class ScaleInABuffer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(WIDTH**0.5), persistent=False)

    def look(self, ids: Tensor) -> Tensor:
        return super().look(ids) * self.scale.to(self.table.dtype)


@case(T, Truth(counts=(1, 1, 2)))
class MicroChunksOfTheHead(Base):
    """The loss is computed chunk by chunk under checkpointing, so that logits are never all there."""

    def forward(self, ids: Tensor) -> Tensor:
        h = self.body(self.look(ids)).flatten(0, 1)
        y = ids.flatten()

        def part(h: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(self.read(h), y, reduction="sum")

        total = torch.zeros(())
        for a, b in zip(h.chunk(2), y.chunk(2), strict=True):
            total = total + checkpoint(part, a, b, use_reentrant=False)
        return total / y.numel()


@case(T, Truth(counts=(1, 1, 1), numeric=False, smooth=False))
class ReentrantCheckpoint(Base):
    """The head under the old checkpoint, whose first run records no gradient."""

    def read(self, h: Tensor) -> Tensor:
        return checkpoint(lambda h: F.linear(h, self.table), h, use_reentrant=True)


@case(T, Truth(names=("embed.weight",)))
class SparseGradients(Base):
    def __init__(self) -> None:
        super().__init__()
        del self.table
        self.embed = nn.Embedding(VOCAB, WIDTH, sparse=True)

    def look(self, ids: Tensor) -> Tensor:
        return self.embed(ids)

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h, self.embed.weight)


@case(T, Truth(names=("embed.weight", "head.weight"), smooth=False))
class PretrainedAndFrozen(Base):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(self.table.detach().clone(), freeze=True)
        del self.table
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embed.weight

    def look(self, ids: Tensor) -> Tensor:
        return self.embed(ids)

    def read(self, h: Tensor) -> Tensor:
        return self.head(h)


@case(T, Truth(numeric=False))
class HalfPrecisionWithFloatLogits(Base):
    def __init__(self) -> None:
        super().__init__()
        self.bfloat16()

    def read(self, h: Tensor) -> Tensor:
        return F.linear(h.float(), self.table.float())


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


@case(T, Truth(counts=(1, 1, 3)))
class EarlyExits(Base):
    """Every layer's stream is normalised and read out by the one table."""

    def forward(self, ids: Tensor) -> list[Tensor]:
        x, outs = self.look(ids), []
        for _ in range(3):
            x = x + torch.tanh(self.mid(x))
            outs.append(self.read(self.norm(x)))
        return outs


@case(T, Truth(counts=None))
class MultiTokenPrediction(Base):
    """Extra heads predict further tokens: each looks up the next token and shares the readout."""

    def __init__(self) -> None:
        super().__init__()
        self.joins = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        h = self.body(self.look(ids))
        outs = [self.read(h)]
        for depth, join in enumerate(self.joins, 1):
            ahead = torch.roll(ids, -depth, 1)
            h = self.norm(join(torch.cat([rms(h), rms(self.look(ahead))], -1)))
            outs.append(self.read(h))
        return torch.stack(outs, 1)


@case(T, Truth(counts=(1, 1, 1)))
class MixtureOfSoftmaxes(Base):
    """Three softmaxes of one table, mixed as probabilities; the log of the mixture is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.latent, self.prior = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3, bias=False)

    def read(self, h: Tensor) -> Tensor:
        b, t, _ = h.shape
        latent = torch.tanh(self.latent(h)).view(b * t * 3, WIDTH)
        logit = super().read(latent).view(-1, 3, VOCAB)
        prior = F.softmax(self.prior(h).view(-1, 3), -1)
        prob = (F.softmax(logit, -1) * prior.unsqueeze(2)).sum(1)
        return torch.log(prob + 1e-8).view(b, t, VOCAB)


class SampledSoftmax(Base):
    """A few candidate rows, the targets among them, are read out: the vocabulary is never whole."""

    def forward(self, ids: Tensor, candidates: Tensor) -> Tensor:
        h = self.body(self.look(ids))
        return h @ self.table.index_select(0, candidates).t()


@case(T)
def sampled_softmax() -> Any:
    model = SampledSoftmax()
    return model, (ids(), torch.arange(0, VOCAB, 3)), (Truth(counts=None, numeric=False),)


class SelfConditionedDiffusion(Base):
    """A denoiser: expected embeddings under the model's own first guess are fed back in."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Linear(1, WIDTH)

    def forward(self, ids: Tensor, t: Tensor) -> Tensor:
        x = self.look(ids) + self.time(t[:, None, None])
        guess = self.read(self.body(x)).softmax(-1) @ self.table  # attention over the rows: no readout
        return self.read(self.body(x + guess))


@case(T)
def self_conditioned_diffusion() -> Any:
    return SelfConditionedDiffusion(), (ids(), torch.rand(BATCH)), (Truth(counts=(1, 1, 1), numeric=False),)


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


@case(T, Truth(smooth=False))
class DecoratedNoGrad(Base):
    @torch.no_grad()
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids)


@case(T, Truth(smooth=False))
class StringBesideLogits(Base):
    """What comes back is a mixture of things."""

    def forward(self, ids: Tensor) -> Any:
        logits = super().forward(ids)
        return {"text": "generated", "none": None, "n": 3, "out": [(logits,), "x"]}


@case(T, Truth(lookup_factor=None, readout_factor=None, numeric=False))
class NormedTable(Base):
    """Rows of the table are RMS-normalised on the fly for both roles."""

    def look(self, ids: Tensor) -> Tensor:
        return rms(self.table)[ids]

    def read(self, h: Tensor) -> Tensor:
        return h @ rms(self.table).t()


@case(T, Truth(counts=(1, 1, 1), numeric=False))
class VmapOverHeads(Base):
    """The readout is vmapped over the batch."""

    def read(self, h: Tensor) -> Tensor:
        return torch.vmap(lambda x: F.linear(x, self.table))(h)


@case(T, Truth(readout_factor=2.0, readout_bias=False, numeric=False))
class DistanceToRows(Base):
    """Negative squared distance to every row: -|h|^2 + 2 h.E - |E|^2 has the readout inside."""

    def read(self, h: Tensor) -> Tensor:
        return 2.0 * super().read(h) - self.table.square().sum(-1) - h.square().sum(-1, keepdim=True)


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


@case(T, Truth(numeric=False))
class ScaledResidualInHalf(Base):
    """Depth-scaled residuals behind a float32 normalisation: the cast before it must not change the walk."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.bfloat16()

    def unit(self, x: Tensor) -> Tensor:
        y = x.float()
        return self.gain * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    def body(self, x: Tensor) -> Tensor:
        return self.unit(self.mid(self.unit(x)) * 0.7 + x * 0.7)


@case(T)
class ScaledResidual(ScaledResidualInHalf):
    def __init__(self) -> None:
        super().__init__()
        self.float()


@case(T, Truth(lookup_factor=1.0, numeric=False))
class DropoutOnTheTable(Base):
    """Whole rows dropped for one step of training: a mask, whose scale is no factor."""

    def look(self, ids: Tensor) -> Tensor:
        keep = torch.empty(VOCAB, 1).bernoulli_(0.9) / 0.9
        return F.embedding(ids, self.table * keep)


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
