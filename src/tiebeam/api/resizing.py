"""`tiebeam.resize` and `resize_params`."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from tiebeam.api.inspection import report_of
from tiebeam.api.look import Look, look
from tiebeam.api.operating import Site, nothing, put, site_of
from tiebeam.backends.protocol import Functional
from tiebeam.checkpoints.settings import id_settings, vocab_settings
from tiebeam.checkpoints.writing_fields import Fields
from tiebeam.core.facts import Table
from tiebeam.core.operations import verify
from tiebeam.core.operations.beside import logits_of, with_those_beside
from tiebeam.core.operations.change import Change
from tiebeam.core.operations.ends import both_ends, check_bare
from tiebeam.core.operations.rows import How, RowPlan, plan_rows
from tiebeam.core.operations.transaction import Transaction
from tiebeam.errors import BackendError, InputError, TieError


def resize(
    model: Any,
    vocab: int | None = None,
    inputs: Any = None,
    *,
    multiple: int | None = None,
    ids: Mapping[int, int] | Sequence[int] | None = None,
    tokens: tuple[Mapping[str, int], Mapping[str, int]] | None = None,
    parts: Mapping[int, Sequence[int]] | None = None,
    rows: How = "covariance",
    seed: int = 0,
    lookup: str | None = None,
    readout: str | None = None,
    optimizer: Any = None,
) -> Change:
    """Give a live model's vocabulary other rows, at both ends, with the readout's bias.

    Rows that are kept are kept bit by bit, and so are their gradients and their optimizer state; parameters stay the
    same objects, so ties, groups and hooks stay. The config and the modules' sizes say the new number. A resize that
    changes nothing touches nothing.

    Args:
        model, inputs, lookup, readout, optimizer: As for `tie`.
        vocab: Rows wanted; smaller drops the last ones. None: as many as `ids` or `tokens` speak of, else as now.
        multiple: Round up to a multiple of it.
        ids: Where rows come from: of each new id the old one (negative, or absent from a mapping: a new row).
        tokens: The vocabularies of the old and the new tokenizer, token -> id: a token keeps its row.
        parts: New id -> old ids of the pieces that the old tokenizer cut its token into; its row is the mean of theirs.
        rows: What other new rows are, at each end by its own rows: drawn with their mean and covariance ("covariance"),
            with the table's std around 0 ("std"), their "mean", or "zeros". New entries of a bias are the mean of the
            others (0 for "zeros").
        seed: Of the draws, an integer of 0 or above.

    Returns:
        What was done.

    Raises:
        RangeError: A number lies outside its bounds.
        TieError: A table cannot be resized (an adapter, a mask, shards, quantised), the padding row would be dropped,
            or the optimizer's state does not say which rows are whose.
        InputError, BackendError: As for `tie`.

    Whatever is raised, the model, its config and the optimizer are as they were.

    Example:
        >>> import torch, tiebeam
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Embedding(300, 64), nn.LayerNorm(64), nn.Linear(64, 300))
        >>> model[2].weight = model[0].weight
        >>> print(tiebeam.resize(model, 301, torch.arange(8)[None], multiple=64))
        resize: 0.weight = 2.weight; 2.bias
          rows: 300 -> 320
          note: rows 301 to 319 are padding: no token has them
        >>> model[0].weight is model[2].weight, model[2].bias.shape
        (True, torch.Size([320]))
    """
    site = site_of(model, optimizer, "resize")
    seen = site.seen(inputs)
    tables, vocab_now = _meant(seen, lookup, readout)
    plan = plan_rows(
        vocab_now, vocab, multiple=multiple, ids=ids, tokens=tokens, parts=parts, rows=rows, seed=seed
    )  # fmt: skip
    if not plan.changes:
        return nothing("resize", [t.name for t in tables], seen)
    names = [t.names for t in tables]
    fields = Fields(model)
    ids_set, gone = id_settings(model, plan.before, plan.moved, fields)
    idle = _idle(seen, site, tables)
    with Transaction() as undo:
        biases = site.operator.resize(tables, plan, undo)
        config = put(vocab_settings(model, plan.before, plan.after, fields), undo) + put(ids_set, undo)
        after = site.again(seen, "resize", plan.after)
        for group in names:
            verify.check_sizes("resize", after.tables, group, plan.after)
        verify.check_same_reads("resize", seen.tables, after.tables)
        _check_states(seen.tables, after.tables, names)
    whole = [*(site.operator.names_of(group[0]) for group in names), *(site.operator.names_of(b) for b in biases)]
    return Change(
        "resize", tuple(dict.fromkeys(whole)), (plan.before, plan.after), config, site.operator.said,
        (*_notes(plan, seen, after, tables), *idle, *gone), report_of(after),
    )  # fmt: skip


def _meant(seen: Look, lookup: str | None, readout: str | None) -> tuple[list[Table], int]:
    """The tables of a vocabulary, and how many rows they have."""
    ends = both_ends(seen.tables, lookup, readout)
    vocab = _one_vocab(ends)
    tables = with_those_beside(seen.traced.graph, ends, seen.tables, vocab)
    check_bare(*tables)
    return tables, vocab


def _idle(seen: Look, site: Site, tables: Sequence[Table]) -> tuple[str, ...]:
    """Parameters of a table's shape that this pass did not read: an adapter's originals, say."""
    read = {n for v in seen.traced.graph.values if v.leaf is not None for n in v.leaf.names}
    left = dict.fromkeys(n for t in tables for n in site.operator.like(t.name) if n not in read)
    return tuple(f"{n} was not read in this pass and keeps its rows" for n in left)


def _notes(plan: RowPlan, before: Look, after: Look, tables: Sequence[Table]) -> tuple[str, ...]:
    notes = []
    if plan.padding is not None:
        notes.append(f"rows {plan.padding} to {plan.after - 1} are padding: no token has them")
    sizes = [logits_of(seen.traced.graph, seen.uses) for seen in (before, after)]
    if plan.after != plan.before and sizes[1] and sizes[0] == sizes[1]:
        notes.append(f"the model returns {max(sizes[1])} logits still: its code cuts them off")
    others = [t.name for t in before.tables if t.vocab == plan.before and t.name not in {u.name for u in tables}]
    notes += [f"{name} keeps its rows: other ids look it up, or it is read out beside" for name in others]
    return tuple(notes)


def _one_vocab(tables: Sequence[Table]) -> int:
    sizes = {t.vocab for t in tables}
    if len(sizes) > 1:
        raise TieError(
            "lookup and readout have vocabularies of their own",
            got=", ".join(f"{t.name}: {t.vocab}" for t in tables),
            expected="one size for both",
            hint="rows beside one of them are padding: give both as many when the model is built",
        )
    return sizes.pop()


def _check_states(before: Sequence[Table], after: Sequence[Table], names: Sequence[Sequence[str]]) -> None:
    """A resize does not tie or untie; two tables of equal values may come out with different new rows."""
    for group in names:
        old = next(t for t in before if set(t.names) & set(group))
        new = next(t for t in after if set(t.names) & set(group))
        if old.names != new.names or old.tied != new.tied:
            raise TieError(
                f"resize changed what {old.name!r} is, and was undone",
                got=f"{', '.join(new.names)}: {new.state}",
                expected=f"{', '.join(old.names)}: {old.state}",
            )


def resize_params(
    model: Any,
    vocab: int | None = None,
    inputs: Any = None,
    params: Any = None,
    *,
    opt_state: Any = None,
    resized: Any = None,
    multiple: int | None = None,
    ids: Mapping[int, int] | Sequence[int] | None = None,
    tokens: tuple[Mapping[str, int], Mapping[str, int]] | None = None,
    parts: Mapping[int, Sequence[int]] | None = None,
    rows: How = "covariance",
    seed: int = 0,
    lookup: str | None = None,
    readout: str | None = None,
) -> tuple[Any, Any, Change]:
    """Like `resize`, for JAX models whose arrays do not change: returns new trees.

    Args:
        model: A function `fn(params, *inputs)` or a linen module.
        inputs: As for `inspect`.
        params: The tree that it is applied to; only read.
        opt_state: What optax holds of the params; its arrays go with their rows.
        resized: The model for the new vocabulary, where its code says the size (a linen module does).
        vocab, multiple, ids, tokens, parts, rows, seed, lookup, readout: As for `resize`.

    Returns:
        The params and the optimizer's state with other rows, and what was done.

    Raises:
        BackendError: The model holds its arrays itself (nnx, Equinox: its fields say the size; build it anew), or is
            written in place.
        RangeError, TieError, InputError: As for `resize`.

    Example:
        >>> import jax, jax.numpy as jnp, tiebeam
        >>> def apply(params, ids):
        ...     return jnp.tanh(params["table"][ids]) @ params["table"].T
        >>> params = {"table": jax.random.normal(jax.random.key(0), (300, 64))}
        >>> params, _, change = tiebeam.resize_params(apply, 320, jnp.arange(8)[None], params)
        >>> params["table"].shape, change.vocab
        ((320, 64), (300, 320))
    """
    seen = look(model, inputs, params=params)
    _check_a_tree(seen.model, model)
    tables, vocab_now = _meant(seen, lookup, readout)
    plan = plan_rows(
        vocab_now, vocab, multiple=multiple, ids=ids, tokens=tokens, parts=parts, rows=rows, seed=seed
    )  # fmt: skip
    names = [t.names for t in tables]
    if not plan.changes:
        return params, opt_state, nothing("resize", [t.name for t in tables], seen)
    backend = import_module(f"tiebeam.backends.{seen.model.framework}.resizing")
    fresh, state, biases, said = backend.resize(seen.model, tables, plan, opt_state)
    args, kwargs = backend.within(seen.args, seen.kwargs, plan.after)
    try:
        after = look(model if resized is None else resized, kwargs or args, params=fresh)
    except InputError as error:
        raise TieError(
            "the model does not run with its new rows",
            got=str(error).splitlines()[0],
            expected="a model whose code takes the size from its params, or the one for the new vocabulary",
            hint=f"pass resized=, the same module built for {plan.after} rows",
        ) from error
    for group in names:
        verify.check_sizes("resize", after.tables, group, plan.after)
    verify.check_same_reads("resize", seen.tables, after.tables)
    notes = _notes(plan, seen, after, tables)
    changed = (*names, *((b,) for b in biases))
    return fresh, state, Change("resize", changed, (plan.before, plan.after), (), said, notes, report_of(after))


def _check_a_tree(backend: Any, model: Any) -> None:
    if isinstance(backend, Functional) and not getattr(backend, "whole", False):
        return
    raise BackendError(
        f"{type(model).__name__} holds its own arrays",
        got="resize_params",
        expected="a function of params, or a linen module beside its params",
        hint="tiebeam.resize(model, ...) for PyTorch; fields of an nnx or Equinox module say its size: build it anew, "
        "and resize the params of a function around it",
    )
