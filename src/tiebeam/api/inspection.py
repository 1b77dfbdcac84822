"""`tiebeam.inspect`."""

from typing import Any

from tiebeam.api.look import Look, look
from tiebeam.api.refusals import UnloadedError
from tiebeam.api.versions import versions
from tiebeam.backends import resolve
from tiebeam.checkpoints.declared import Declared
from tiebeam.checkpoints.declared_findings import declared_findings
from tiebeam.core.finding import Finding
from tiebeam.core.findings import Context, findings_of, in_order
from tiebeam.core.reading.gathered import gathered_leaves
from tiebeam.core.reading.records import barriers
from tiebeam.core.report import Report


def inspect(model: Any, inputs: Any = None, *, params: Any = None) -> Report:
    """See what a model really does with its vocabulary table.

    The model runs once on `inputs` and is watched: which parameter is gathered by token id, which one is
    multiplied into logits, and which constants the signal meets in between. Where a number in the program
    could be a size of the inputs, a second, shorter pass confirms that it is not. Parameters, buffers,
    modes, hooks and random generators are as before. Of a JAX model it is the jaxpr that is read; values are
    computed where params have them.

    Args:
        model: A PyTorch `nn.Module`, on real, fake or meta tensors, wrapped or not; a Flax linen, Flax nnx or
            Equinox module; a Keras model or layer that is built; or a function `fn(params, *inputs)` of JAX arrays.
        inputs: What the model takes. A tuple is positional, a dict is keyword arguments, a single tensor
            or array is one argument; a Keras model takes a dict as its one positional argument. Omitted: token
            ids `(1, 8)` are made from the model's config or its signature (of `forward`, or a Keras model's inputs).
        params: What a linen module or a function is applied to: a pytree of arrays, or of shapes as
            `jax.eval_shape` gives them. Models that hold their own parameters take none.

    Returns:
        The report: `tables`, `findings`, and renderings of both.

    Raises:
        BackendError: `model` is no model of a framework that tiebeam knows.
        InputError: The model refuses the inputs (its own error is chained), they are empty, or none could be made.
        ShapeError: A shared table does not fit one of its modules.
        TraceError: On meta tensors, an operation needs activations to go on; a JAX function asks for the value of
            an array.

    Example:
        >>> import torch, tiebeam
        >>> from torch import nn
        >>> class Tiny(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embed = nn.Embedding(300, 64)
        ...         self.norm = nn.LayerNorm(64)
        ...     def forward(self, ids):
        ...         return self.norm(self.embed(ids)) @ self.embed.weight.T
        >>> report = tiebeam.inspect(Tiny(), torch.arange(8)[None])
        >>> report.tables[0].state, round(report.tables[0].target_std, 4)
        ('tied', 0.125)
        >>> [f.code for f in report.findings if f.severity == "error"]
        ['init-scale']
    """
    try:
        return report_of(look(model, inputs, params=params))
    except UnloadedError as unloaded:
        backend = resolve(model, params)
        return Report(
            model=backend.name,
            framework=backend.framework,
            findings=(unloaded.finding,),
            parameters=backend.parameters(),
            notes=("the model could not be run",),
            versions=versions(backend.packages, backend.model),
        )


def report_of(seen: Look) -> Report:
    """The report of a look."""
    graph = seen.traced.graph
    return Report(
        model=seen.model.name,
        framework=seen.model.framework,
        tables=seen.tables,
        findings=_findings(seen),
        parameters=seen.model.parameters(),
        meta=graph.meta,
        notes=(*graph.notes, *barriers(graph), *(() if seen.tables else gathered_leaves(graph))),
        versions=versions(seen.model.packages, seen.model.model),
    )


def _findings(seen: Look) -> tuple[Finding, ...]:
    names = [n for t in seen.tables for n in t.names]
    declared = seen.declared
    context = Context(
        tables=seen.tables,
        fixes=seen.model.fixes(),
        untied_on_purpose=untied_on_purpose(declared),
        trainable_elsewhere=seen.model.trainable_elsewhere(names),
        body_dtype=seen.model.body_dtype(names),
        devices=seen.model.devices(),
        silent=silent(seen),
    )
    left = seen.model.diagnose()
    found = [*findings_of(context), *declared_findings(declared, seen.tables, _shared(seen))]
    if isinstance(left, Finding):
        found.append(left)
    return in_order(found)


def untied_on_purpose(declared: Declared | None) -> bool:
    """Whether a config says that lookup and readout are two tables."""
    return declared is not None and dict(declared.scopes).get(declared.flag_path) is False


def _shared(seen: Look) -> list[tuple[str, ...]]:
    """Parameters that are one object though no module is, and that this pass read."""
    read = {n for v in seen.traced.graph.values if v.leaf is not None for n in v.leaf.names}
    return [group for group in seen.model.shared() if read.intersection(group)]


def silent(seen: Look) -> bool:
    """Whether the model returned no float tensor."""
    graph = seen.traced.graph
    return all(graph.values[v].integral for v in graph.outputs)
