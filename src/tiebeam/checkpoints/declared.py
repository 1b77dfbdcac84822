"""What a config and a model class *say* about the tie, to be held against what the model does.

Hugging Face decides it so (transformers 5, `get_expanded_tied_weights_keys`): every sub-model reads
`tie_word_embeddings` of *its own* config scope, an absent flag counts as false, and a true one ties
the parameters that the class's `_tied_weights_keys` names, a mapping from target to source. Version
4 took a list of targets there and an absent flag for true.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any, Literal

from tiebeam.checkpoints.scopes import ABSENT, class_constant, fields, known_names, read, walk

FLAG = "tie_word_embeddings"
KEYS = "_tied_weights_keys"

_LIKE_A_TYPO = 0.88
_TIE_WORDS = frozenset({"tie", "tied", "ties", "tying"})
_TABLE_WORDS = frozenset({
    "word", "words", "token", "tokens", "embedding", "embeddings", "embed", "embeds", "emb", "embs",
    "weight", "weights", "input", "output", "lm", "head", "in", "out", "and",
})  # fmt: skip

Keys = Mapping[str, str] | Sequence[str]
Style = Literal["mapping", "list"]


@dataclass(frozen=True)
class Declared:
    """What was declared; facts only.

    Attributes:
        tied: Whether config and class together ask for a tie. Where no class is known: the flag,
            or None if the config does not hold it.
        scopes: Every scope that holds the flag, outermost first: (path, flag); "" is the whole config.
            A config *class* fills in its defaults, so scopes of a live config may differ harmlessly.
        flag_path: The scope whose flag the owning class reads.
        flag_present: Whether that scope holds the flag.
        keys: (target, source) as the class names them, with the path of the sub-model that declares
            them before each; the source is "" in a list.
        keys_style: How the class wrote them, or None where it declares none or is not known.
        owner: Class that declares the keys, or "".
        misspelt: Paths of unknown config fields that look like the flag.
        adapter_wants_tie: An adapter's `ensure_weight_tying`, or None without an adapter that has it.
        vocab: `vocab_size` of the owning scope, else of the first scope that has one.
    """

    tied: bool | None
    scopes: tuple[tuple[str, bool], ...] = ()
    flag_path: str = ""
    flag_present: bool = False
    keys: tuple[tuple[str, str], ...] = ()
    keys_style: Style | None = None
    owner: str = ""
    misspelt: tuple[str, ...] = ()
    adapter_wants_tie: bool | None = None
    vocab: int | None = None

    @property
    def scopes_agree(self) -> bool:
        """Whether every scope that holds the flag holds the same."""
        return len({flag for _, flag in self.scopes}) <= 1

    @cached_property
    def _patterns(self) -> tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]:
        return tuple((_pattern(t), _pattern(s)) for t, s in self.keys)

    def names(self, target: str, source: str) -> bool:
        """Whether the keys name this pair of parameter paths, in either order.

        Keys may be paths, paths of modules, or regular expressions; all match from the start.

        Example:
            >>> declare({}, {"lm_head.weight": "embed.weight"}).names("lm_head.weight", "embed.weight")
            True
        """
        return any(
            bool(t.match(a)) and bool(s.match(b))
            for t, s in self._patterns
            for a, b in ((target, source), (source, target))
        )

    def groups(self, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """Groups of these parameter paths that the keys declare to be one, the source of each first.

        A key that names one source ties every target to it; several sources go with as many targets, in order. A list
        names no source, so it declares no group.

        Example:
            >>> keys = {"lm_head.weight": "embed.weight", "decoder.embed.weight": "embed.weight"}
            >>> declare({}, keys).groups(["decoder.embed.weight", "embed.weight", "lm_head.weight", "norm.weight"])
            (('embed.weight', 'lm_head.weight', 'decoder.embed.weight'),)
        """
        found: list[list[str]] = []
        for (_, named), (target, source) in zip(self.keys, self._patterns, strict=True):
            if not named:
                continue
            targets = [n for n in names if target.match(n)]
            sources = [n for n in names if source.match(n) and n not in targets]
            if len(sources) == 1:
                sources *= len(targets)
            for s, t in zip(sources, targets, strict=False):
                home = [g for g in found if s in g or t in g]
                merged = list(dict.fromkeys([*(n for g in home for n in g), s, t]))
                found = [*(g for g in found if g not in home), merged]
        return tuple(map(tuple, found))


def declare(
    config: object, keys: Keys | None = None, *, peft_config: object = None, scope: str = "", owner: str = ""
) -> Declared:
    """Read what a config, and the keys of the class that reads it, declare.

    Args:
        config: A mapping or config object, as read from `config.json` or found on a model. Only its
            data is read: no property or method runs.
        keys: The class's `_tied_weights_keys`. None: the class is not known. Empty: it declares none.
        peft_config: Adapter name to adapter config, or one adapter config.
        scope: Path of the scope that the class reads.
        owner: Name of the class, for messages.

    Example:
        >>> d = declare({"text_config": {"tie_word_embeddings": True, "vocab_size": 64}})
        >>> d.tied, d.flag_present, d.scopes, d.vocab
        (None, False, (('text_config', True),), 64)
    """
    scopes = tuple(walk(config))
    flags = tuple((path, bool(flag)) for path, level in scopes if (flag := _flag(level)) is not None)
    flag = dict(flags).get(scope)
    pairs, style = _pairs(keys)
    return Declared(
        tied=flag if keys is None else bool(flag) and bool(pairs),
        scopes=flags,
        flag_path=scope,
        flag_present=flag is not None,
        keys=pairs,
        keys_style=style,
        owner=owner,
        misspelt=tuple(_misspelt(scopes)),
        adapter_wants_tie=_adapter(peft_config),
        vocab=_vocab(scopes, scope),
    )


def declared_by(model: object) -> Declared | None:
    """Read what a live model declares: its config, and the keys of itself and of its sub-models.

    Wrappers (adapters, compiled or parallel) are looked through, as any sub-model is: what matters is
    which module declares keys and which scope of the config that module holds.

    Returns:
        None where no config and no keys are found (a plain module declares nothing).
    """
    every = list(parts(model))
    configs = [config for _, part in every if (config := attribute(part, "config")) is not ABSENT]
    owners = [(path, part) for path, part in every if isinstance(attribute(part, KEYS), Mapping | list | tuple | set)]
    if not configs and not owners:
        return None
    root = configs[0] if configs else {}
    peft = next((p for _, part in every[:3] if (p := attribute(part, "peft_config")) is not ABSENT), None)
    found = [_owned(root, path, part, peft) for path, part in owners]
    found = [d for d in found if d.keys] or found
    if not found:
        return declare(root, (), peft_config=peft)
    first = next((d for d in found if d.tied), found[0])
    return replace(first, keys=tuple(dict.fromkeys(k for d in found if d.tied == first.tied for k in d.keys)))


def _owned(root: object, path: str, part: object, peft: object) -> Declared:
    """What one module declares, its keys written from the model's root."""
    keys = attribute(part, KEYS)
    prefix = f"{path}." if path else ""
    keys = (
        {f"{prefix}{t}": f"{prefix}{s}" for t, s in keys.items()}
        if isinstance(keys, Mapping)
        else [f"{prefix}{t}" for t in keys]
    )
    own = attribute(part, "config")
    scope = "" if own is ABSENT else _path_of(root, own)
    if scope is None:  # a config of its own, outside the model's
        root, scope = own, ""
    return declare(root, keys, peft_config=peft, scope=scope, owner=type(part).__name__)


def _path_of(root: object, config: object) -> str | None:
    return next((path for path, scope in walk(root) if scope is config), None)


def parts(model: object) -> Iterator[tuple[str, object]]:
    """The model and its sub-modules, outermost first, each once."""
    level, seen = [("", model)], {id(model)}
    while level:
        yield from level
        below = []
        for path, part in level:
            children = vars(part).get("_modules") if hasattr(part, "__dict__") else None
            for name, child in (children or {}).items():
                if child is not None and id(child) not in seen:
                    seen.add(id(child))
                    below.append((f"{path}.{name}" if path else name, child))
        level = below


def attribute(part: object, name: str) -> Any:
    """An attribute held by the object or, as data, by its class; `None` counts as absent."""
    held = vars(part) if hasattr(part, "__dict__") else {}
    value = held[name] if name in held else class_constant(type(part), name)
    return ABSENT if value is None else value


def _flag(scope: object) -> Any:
    value = read(scope, FLAG)
    return None if value is ABSENT else value


def _pairs(keys: Keys | None) -> tuple[tuple[tuple[str, str], ...], Style | None]:
    if not keys:
        return (), None
    if isinstance(keys, Mapping):
        return tuple((str(t), str(s)) for t, s in keys.items()), "mapping"
    return tuple((str(t), "") for t in ([keys] if isinstance(keys, str) else keys)), "list"


def _pattern(key: str) -> re.Pattern[str]:
    """A key as transformers reads it: from the start, the rest free where it names a module."""
    if not key:
        return re.compile("")  # a list names no source: any will do
    try:
        return re.compile(f"{key}$" if key.endswith(("weight", "bias")) else rf"{key}(\.|$)")
    except re.error:
        return re.compile(re.escape(key))


def _misspelt(scopes: Iterable[tuple[str, object]]) -> Iterator[str]:
    for path, scope in scopes:
        known: frozenset[str] | None = None
        for name in fields(scope):
            if name == FLAG or not _looks_like_flag(name):
                continue
            known = known_names(scope) if known is None else known
            if name not in known:
                yield f"{path}.{name}" if path else name


def _looks_like_flag(name: str) -> bool:
    words = [w for w in re.split(r"[^a-z]+", name.lower()) if w]
    about_tables = any(w.startswith(("emb", "weight")) for w in words)
    if about_tables and words[0] in _TIE_WORDS | {"weight", "embedding", "embeddings"}:
        rest = [w for w in words if w not in _TIE_WORDS]
        if len(rest) < len(words) and all(w in _TABLE_WORDS for w in rest):
            return True
    return name[:1].lower() == "t" and SequenceMatcher(None, name.lower(), FLAG).ratio() >= _LIKE_A_TYPO


def _adapter(peft_config: object) -> bool | None:
    if not peft_config:
        return None
    adapters = [peft_config, *fields(peft_config).values()]
    wishes = [bool(w) for a in adapters if (w := read(a, "ensure_weight_tying")) is not ABSENT and w is not None]
    return any(wishes) if wishes else None


def _vocab(scopes: Sequence[tuple[str, object]], scope: str) -> int | None:
    order = [s for path, s in scopes if path == scope] + [s for _, s in scopes]
    for level in order:
        size = read(level, "vocab_size")
        if isinstance(size, int) and not isinstance(size, bool):
            return size
    return None
