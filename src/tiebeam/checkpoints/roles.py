"""Which stored tensor is the table, and which the readout: by names of known families, by words, by shapes.

Names come first because headers alone decide nothing else: a file says nothing of what a model does. A tie is then
judged by values, so that a wrong guess could only come out as "different"; where two tensors fit alike, none is chosen.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tiebeam.checkpoints.archive import Entry
from tiebeam.checkpoints.families import Family

# Ends of parameter paths, the most telling first. Of several that fit, the earlier row wins.
TABLES = tuple(
    """embed_tokens.weight wte.weight token_embd.weight tok_embeddings.weight word_embeddings.weight
    word_embedding.weight embed_in.weight shared.weight tokens_embed.weight token_embedding.weight
    token_embeddings.weight token_embedding_table word_embed.weight embedder.input_embedding
    token_embedder.embedding embed_tokens.embedding wte.embedding shared.embedding backbone.embeddings.weight
    backbone.embedding.weight model.embedding.weight language_model.embedding.word_embeddings.weight transformer.wte
    embed.weight emb.weight embedding.weight embeddings.weight transformer.w.weight embed.embedding
    embedding.embedding embedding W_E""".split()
)
READOUTS = tuple(
    """lm_head.weight embed_out.weight output.weight lm_head.decoder.weight predictions.decoder.weight
    lm_head.linear.weight lm_head.out_proj.weight output_projection.weight output_layer.weight proj_out.weight
    lm_loss.weight pred_layer.proj.weight vocab_projector.weight generator.weight decoder.lm_head.weight
    head.weight lm_head.kernel logits_dense.kernel output_head.weight unembed.weight unembedding.weight
    to_logits.weight classifier.weight final_proj.weight decoder.weight out.weight fc.weight
    wcls W_U lm_head""".split()
)
_PACKED = (".qweight", ".weight_packed", ".weight_quant", ".weight_q", ".q_weight")  # a weight that was quantised
COMPANIONS = (".scales", ".weight_scale", ".weight_scale_inv", ".qzeros", ".SCB", ".absmax", ".zeros",
              ".weight_zero_point", ".weight.absmax", ".weight.quant_map", ".g_idx", ".input_scale")  # fmt: skip
"""What stands beside a quantised weight, by the end that takes the place of ".weight"."""
_BESIDE = (".bias", *COMPANIONS)

_LOOKUP_WORDS = frozenset(
    "embed embeds embedding embeddings embedder emb embd wte token tokens tok word words lookup".split()
)
_READOUT_WORDS = frozenset(
    "head heads output outputs out logits logit unembed unembedding projection proj predictions generator decoder lm "
    "fc dense classifier reverse softmax".split()
)
_NO_TABLE = frozenset(
    "pos position positions positional wpe type types segment seg rel relative patch patches vision visual image video "
    "audio speech rotary rope norm layernorm ln bias time timestep entity entities lora adapter attention attn attend "
    "mlp ffn conv gate router expert experts query key value qkv".split()
)
_LAYERED = re.compile(r"(?:^|[./_])(?:layers?|h|blk|blocks?|encoder_layer|decoder_layer)[./_]?\d+(?=[./_]|$)")
_WORD = re.compile(r"[a-z]+|[A-Z][a-z]*")
_PADDING = 1024
_WRITERS_OWN = frozenset({"format"})
"""Metadata that writers set for themselves: never the name of a tensor."""
_MOST_NAME = 1000


@dataclass(frozen=True, slots=True)
class Roles:
    """What was found.

    Attributes:
        tables: Names that could be the table, the one chosen first.
        readouts: Names that could be the readout, likewise.
        ambiguous: Whether several fit alike, so that none is chosen.
    """

    tables: tuple[str, ...] = ()
    readouts: tuple[str, ...] = ()
    ambiguous: bool = False

    @property
    def table(self) -> str | None:
        return None if self.ambiguous or not self.tables else self.tables[0]

    @property
    def readout(self) -> str | None:
        return None if self.ambiguous or not self.readouts else self.readouts[0]


def find_roles(entries: Mapping[str, Entry], family: Family | None = None, vocab: int | None = None) -> Roles:
    """Find table and readout among stored tensors.

    Args:
        entries: What is stored; shapes may be unknown.
        family: Of the config, if known: its names count before all others.
        vocab: Number of tokens by the config, if known.

    Example:
        >>> shapes = {"a.wte.weight": (64, 8), "a.wpe.weight": (32, 8), "lm_head.weight": (64, 8)}
        >>> found = find_roles({name: Entry(name, shape) for name, shape in shapes.items()})
        >>> found.table, found.readout
        ('a.wte.weight', 'lm_head.weight')
    """
    fits = {name: entry for name in entries if _may_be(name, family) and _is_matrix(name, entry := entries[name])}
    tables = _by_name(fits, _ends(family.table if family else "", TABLES), vocab)
    readouts = _by_name(fits, _ends(family.readout if family else "", READOUTS), vocab)
    by_words = [r for r in _by_words(fits, _READOUT_WORDS) if r not in tables]
    if not tables:
        tall = {n: e for n, e in fits.items() if _is_tall(e, vocab) and n not in readouts}
        tables = _best(_by_words(tall, _LOOKUP_WORDS), _LOOKUP_WORDS)
    readouts = [r for r in readouts if r not in tables[:1]]
    if not tables:
        return _by_shape(fits, readouts, vocab)
    tables = _paired(tables, readouts or by_words, fits)
    if family is None or not family.readout:  # a known family would call it by its name
        readouts = (
            readouts or _fitting(fits, tables, by_words) or _of_one_layer(fits, tables) or _left_over(fits, tables)
        )
    tables = [t for t in tables if t not in readouts]
    return Roles(tuple(tables), tuple(readouts), _alike(tables, fits))


def _may_be(name: str, family: Family | None) -> bool:
    """Whether a name can be that of an end: the body's layers and other embeddings are none."""
    if family is not None and _plain(name) in (family.table, family.readout):
        return True
    if len(name) > _MOST_NAME or _LAYERED.search(name.lower()) or name.endswith(_BESIDE):
        return False
    return not _NO_TABLE.intersection(words(name))


def _is_matrix(name: str, entry: Entry) -> bool:
    return entry.shape is None or len(entry.shape) == 2 or _is_packed(name)


@lru_cache(maxsize=4096)
def words(name: str) -> frozenset[str]:
    """The words of a parameter path, lower case.

    Example:
        >>> sorted(words("model.embed_tokens.weight"))
        ['embed', 'model', 'tokens', 'weight']
    """
    return frozenset(w.lower() for w in _WORD.findall(name))


def _ends(first: str, others: Sequence[str]) -> list[str]:
    ends = [first] if first else []
    return ends + [e for e in others if e != first]


def _is_packed(name: str) -> bool:
    return name.endswith(_PACKED)


def _plain(name: str) -> str:
    """The name that the weight had before it was quantised."""
    if not name.endswith(_PACKED):
        return name
    return f"{name.removesuffix(next(e for e in _PACKED if name.endswith(e)))}.weight"


def _by_name(fits: Mapping[str, Entry], ends: Sequence[str], vocab: int | None) -> list[str]:
    ranked = []
    for at, name in enumerate(fits):
        plain = _plain(name)
        rank = next((i for i, end in enumerate(ends) if _has_end(plain, (end,))), None)
        if rank is not None:
            wrong_size = _fits_vocab(fits[name], vocab) is False
            ranked.append((wrong_size, rank, _depth(plain, ends[rank]), at, name))
    return [name for *_, name in sorted(ranked)]


def _depth(name: str, end: str) -> tuple[bool, int]:
    """An encoder's own table counts after a decoder's or the model's; a shorter path before a longer."""
    before = name.removesuffix(end)
    return "encoder" in before and "decoder" not in before, before.count(".")


def _by_words(fits: Mapping[str, Entry], wanted: frozenset[str]) -> list[str]:
    """Names with any of the words; those with most of them first, then the largest tensor."""
    found = [(-len(wanted & words(n)), -e.elements, n) for n, e in fits.items() if wanted & words(n)]
    return [name for *_, name in sorted(found)]


def _best(names: Sequence[str], wanted: frozenset[str]) -> list[str]:
    """The first of some names, and those with as many of the words."""
    return [n for n in names if len(wanted & words(n)) == len(wanted & words(names[0]))]


def _by_shape(fits: Mapping[str, Entry], readouts: Sequence[str], vocab: int | None) -> Roles:
    """No name tells: what has the vocabulary's size, if it is one tensor."""
    if vocab is None and not readouts:
        return Roles()
    tall = [n for n, e in fits.items() if n not in readouts[:1] and e.shape is not None]
    if readouts:
        tall = [n for n in tall if _same_sides(fits[n], fits[readouts[0]])]
    else:
        tall = [n for n in tall if _fits_vocab(fits[n], vocab)]
    return Roles(tuple(tall), tuple(readouts), ambiguous=len(tall) > 1)


def _fits_vocab(entry: Entry, vocab: int | None) -> bool | None:
    """Whether a side is the vocabulary, padding granted; None where either is not known."""
    if vocab is None or entry.shape is None or len(entry.shape) != 2 or vocab < 1:
        return None
    return any(0 <= side - vocab <= max(_PADDING, vocab // 10) for side in entry.shape)


def _is_tall(entry: Entry, vocab: int | None) -> bool:
    known = _fits_vocab(entry, vocab)
    if known is not None:
        return known
    return entry.shape is None or max(entry.shape) >= 2 * min(entry.shape)


def _fitting(fits: Mapping[str, Entry], tables: Sequence[str], by_words: Sequence[str]) -> list[str]:
    """Readouts that a word suggests: of the table's size, or, if it is one alone, with the table's rows at a side."""
    table, others = fits[tables[0]], [r for r in by_words if r not in tables]
    same = _best([r for r in others if _same_sides(table, fits[r])], _READOUT_WORDS)
    if same or table.shape is None:
        return same
    across = [r for r in others if table.shape[0] in (fits[r].shape or ()) and table.shape[0] > table.shape[1]]
    return across if len(across) == 1 else []


def _of_one_layer(fits: Mapping[str, Entry], tables: Sequence[str]) -> list[str]:
    """The second array of a layer that owns both ends, as Keras numbers them: `vars/0` and `vars/1`."""
    parent = tables[0].rpartition("/")[0]
    return [
        t for t in tables[1:] if parent and t.rpartition("/")[0] == parent and _same_sides(fits[tables[0]], fits[t])
    ]


def _left_over(fits: Mapping[str, Entry], tables: Sequence[str]) -> list[str]:
    """The one other tensor of the table's size, whatever its name: nothing else in a model has a row for each token."""
    table = fits[tables[0]]
    if table.shape is None or not _is_tall(table, None):
        return []
    others = [n for n, e in fits.items() if n not in tables and e.shape is not None and _same_sides(table, e)]
    return others if len(others) == 1 and not _LOOKUP_WORDS & words(others[0]) else []


def _same_sides(a: Entry, b: Entry) -> bool:
    return a.shape is None or b.shape is None or sorted(a.shape) == sorted(b.shape)


def _paired(tables: list[str], readouts: Sequence[str], fits: Mapping[str, Entry]) -> list[str]:
    """Of several tables, first the one that has the size of the readout."""
    if not readouts or len(tables) < 2:
        return tables
    return sorted(tables, key=lambda n: not any(_same_sides(fits[n], fits[r]) for r in readouts[:1]))


def _alike(tables: Sequence[str], fits: Mapping[str, Entry]) -> bool:
    """Whether nothing tells the first two tables apart: ends, paths and shapes are alike."""
    if len(tables) < 2 or any(part in n for n in tables[:2] for part in ("encoder", "decoder", "shared")):
        return False
    first, second = (n.replace("/", ".") for n in tables[:2])
    same_end = first.rpartition(".")[2] == second.rpartition(".")[2] and first.count(".") == second.count(".")
    return same_end and fits[tables[0]].shape == fits[tables[1]].shape


def companions(name: str, entries: Mapping[str, Entry]) -> tuple[str, ...]:
    """Names of the scales and zeros that stand beside a quantised weight."""
    stem = _plain(name).removesuffix(".weight")
    return tuple(f"{stem}{end}" for end in COMPANIONS if f"{stem}{end}" in entries)


def aliases(metadata: Mapping[str, str], entries: Mapping[str, Entry], table: str | None) -> dict[str, str]:
    """Names of the other role that a file's metadata says stand for the table.

    A file says so of any storage that had two names: of shared layers, or of an encoder's copy of the table. Only
    what reads out makes a tie; where the stored name is the readout's, what looks up does.

    Example:
        >>> said = {"head.weight": "embed.weight", "enc.embed.weight": "embed.weight", "format": "pt"}
        >>> aliases(said, {"embed.weight": Entry("embed.weight")}, "embed.weight")
        {'head.weight': 'embed.weight'}
    """
    if table is None or table not in entries:
        return {}
    names = [a for a, b in metadata.items() if b == table and a not in entries and a not in _WRITERS_OWN]
    kept_readout = _has_end(table, READOUTS)
    return {a: table for a in names if kept_readout or _has_end(a, READOUTS) or not _has_end(a, TABLES)}


def _has_end(name: str, ends: Sequence[str]) -> bool:
    return any(name == end or name.endswith((f".{end}", f"/{end}")) for end in ends)


def any_layered(names: Iterable[str]) -> bool:
    """Whether a body's layers are among the names: a file without them is a part of a model."""
    return any(_LAYERED.search(n.lower()) for n in names)
