"""How many parameters a config asks for, by formula: for models that no library at hand builds.

Field names of many families are data here. What a config does not say is not guessed but left to a coarser formula, and
the answer says which one it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiebeam.checkpoints.scopes import ABSENT, read, walk
from tiebeam.core.advising.advice import Counted, body_by_rule
from tiebeam.errors import TargetError

VOCAB = ("padded_vocab_size", "vocab_size", "n_vocab", "num_embeddings")
WIDTH = ("hidden_size", "d_model", "n_embd", "emb_dim", "dim", "embed_dim")
LAYERS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers", "num_decoder_layers")
ENCODER = ("num_encoder_layers", "encoder_layers")
HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads")
KV_HEADS = ("num_key_value_heads", "n_kv_heads", "num_kv_heads", "multi_query_group_num")
HEAD_WIDTH = ("head_dim", "kv_channels", "d_kv", "head_width")
FEED_FORWARD = ("intermediate_size", "ffn_hidden_size", "d_ff", "mlp_dim", "n_inner", "ff_intermediate_size")
EXPERT = ("moe_intermediate_size", "expert_intermediate_size")
EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
RATIO = ("mlp_ratio",)
ACTIVATION = ("hidden_act", "activation_function", "hidden_activation", "ff_act", "activation")

TIES = ("tie_word_embeddings", "weight_tying", "logits_via_embedding")
"""Flags that are true where a model ties; `no_weight_tying` is the other way round."""
UNTIES = ("no_weight_tying",)

_GATED = ("silu", "swish", "swiglu", "geglu", "reglu")


@dataclass(frozen=True, slots=True)
class _Scope:
    """One level of a config, read by any of several names."""

    level: object

    def number(self, names: tuple[str, ...]) -> int | None:
        for name in names:
            value = read(self.level, name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return None

    def words(self, names: tuple[str, ...]) -> str:
        return " ".join(str(v) for name in names if isinstance(v := read(self.level, name), str)).lower()

    @property
    def sizes(self) -> tuple[int | None, int | None, int | None]:
        """Vocabulary, width, layers."""
        return self.number(VOCAB), self.number(WIDTH), self.number(LAYERS)


def sizes_of(data: Mapping[str, Any], where: str, *, vocab: int | None = None) -> Counted:
    """Count by formula.

    Args:
        data: The config, as it stands in its file.
        where: For messages.
        vocab: Rows of the table where the config does not say.

    Raises:
        TargetError: It names no vocabulary or no width.

    Example:
        >>> data = {"vocab_size": 125696, "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 11008,
        ...         "num_attention_heads": 32, "hidden_act": "silu", "tie_word_embeddings": False}
        >>> found = sizes_of(data, "config.json")
        >>> found.body, found.formula, found.now
        (6476005376, 'layers x (2*width*(q + kv) + 3*width*ff)', 'untied')
    """
    scopes = [_Scope(level) for _, level in walk(data)]
    scope = max(scopes, key=lambda s: sum(n is not None for n in s.sizes))
    found, width, layers = scope.sizes
    rows, columns = _table(scope, vocab or found, width)
    if rows is None or columns is None or width is None:
        missing = [n for n, v in (("vocabulary", rows), ("width", columns)) if v is None]
        raise TargetError(
            f"'{where}' names no {' and no '.join(missing)}",
            got=f"the fields {', '.join(str(k)[:40] for k in list(data)[:12]) or 'of none'}",
            expected=f"such as {VOCAB[1]} and {WIDTH[0]}",
            hint="pass vocab=, or the sizes alone: vocab=, width=, layers=",
        )
    body, formula, sparse = _body(scope, width, layers)
    notes = ["the count is an estimate: norms, biases and positions are left out"] if body is not None else []
    if "2*width*ff" in formula and not scope.words(ACTIVATION) and read(scope.level, "mlp_activations") is ABSENT:
        notes.append("no activation is named: two matrices in a feed-forward part were counted; a gated one has three")
    if len(scopes) > 1 and scope is not scopes[0]:
        notes.append("only the language part was counted")
    if body is None:
        notes.append("the config does not say how many layers: the rest of the model was not counted")
    return Counted(rows, columns, body, _now(scopes), "formula", formula, 0, sparse, layers, tuple(notes))


def _table(scope: _Scope, vocab: int | None, width: int | None) -> tuple[int | None, int | None]:
    """Rows and columns: an `embedding_size` is padded rows, or the width of a factorised table."""
    own = scope.number(("embedding_size",))
    if own is None or vocab is None or width is None:
        return vocab, width
    return (own, width) if own >= vocab else (vocab, own)


def _body(scope: _Scope, width: int, layers: int | None) -> tuple[int | None, str, bool]:
    """Parameters beside the tables, by which formula, and whether only some of them work on a token."""
    experts = scope.number(EXPERTS) or 1
    if layers is None:
        return None, "", experts > 1
    heads, ff = scope.number(HEADS), scope.number(FEED_FORWARD)
    if ff is None and (ratio := scope.number(RATIO)):
        ff = ratio * width
    if heads is None or ff is None:
        return body_by_rule(layers, width), "12 x layers x width**2", experts > 1
    each = scope.number(HEAD_WIDTH) or max(1, width // heads)
    q, kv = heads * each, (scope.number(KV_HEADS) or heads) * each
    matrices = 3 if _gated(scope) else 2
    attention = 2 * width * (q + kv)
    if experts > 1:
        ff = scope.number(EXPERT) or ff
    forward = matrices * width * ff * experts
    encoder = scope.number(ENCODER) or 0
    crossed = layers * attention if encoder else 0
    body = (layers + encoder) * (attention + forward) + crossed
    said = f"2*width*(q + kv) + {matrices}*width*ff" + (" x experts" if experts > 1 else "")
    return body, f"layers x ({said})", experts > 1


def _gated(scope: _Scope) -> bool:
    several = read(scope.level, "mlp_activations")
    if isinstance(several, list):
        return len(several) > 1
    return any(word in scope.words(ACTIVATION) for word in _GATED)


def _now(scopes: list[_Scope]) -> Any:
    for scope in scopes:
        for names, right in ((TIES, True), (UNTIES, False)):
            for name in names:
                value = read(scope.level, name)
                if value is not ABSENT and isinstance(value, bool):
                    return "tied" if value is right else "untied"
    return "unknown"
