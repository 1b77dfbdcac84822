"""From a graph to records and tables, by the same calls as the public functions; weights are NumPy arrays."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from tests.core.build import Build

from tiebeam.core.facts import Lookup, Readout, Table
from tiebeam.core.reading.contract import contracted
from tiebeam.core.reading.provenance import provenance
from tiebeam.core.reading.reads import Reads, find_reads
from tiebeam.core.reading.records import Use, build_uses
from tiebeam.core.statistics import Distance, TableStatistics
from tiebeam.core.tables import build_tables
from tiebeam.ir import Graph, Leaf


def reads_of(graph: Graph) -> Reads:
    graph = contracted(graph)
    graph.validate()
    return find_reads(graph, provenance(graph))


def uses_of(graph: Graph) -> list[Use]:
    graph = contracted(graph)
    flags = provenance(graph)
    return build_uses(graph, flags, find_reads(graph, flags))


def lookups_of(g: Build, **facts: object) -> list[Lookup]:
    return [u.fact for u in uses_of(g.graph(**facts)) if isinstance(u.fact, Lookup)]


def readouts_of(g: Build, **facts: object) -> list[Readout]:
    return [u.fact for u in uses_of(g.graph(**facts)) if isinstance(u.fact, Readout)]


def lookup_of(g: Build, **facts: object) -> Lookup:
    (found,) = lookups_of(g, **facts)
    return found


def readout_of(g: Build, **facts: object) -> Readout:
    (found,) = readouts_of(g, **facts)
    return found


@dataclass(frozen=True)
class Arrays:
    """`core.statistics.Weights` over NumPy arrays, by parameter path; a path that is missing has no values."""

    of: Mapping[str, np.ndarray] = field(default_factory=dict)

    def _rows(self, leaf: Leaf, vocab_axis: int) -> np.ndarray | None:
        found = next((self.of[n] for n in leaf.names if n in self.of), None)
        return None if found is None else np.asarray(found if vocab_axis == 0 else found.T, np.float64)

    def statistics(self, leaf: Leaf, vocab_axis: int) -> TableStatistics:
        rows = self._rows(leaf, vocab_axis)
        if rows is None:
            return TableStatistics()
        finite = bool(np.isfinite(rows).all())
        norms = np.sqrt((rows**2).sum(1))
        kept = norms[norms > 0]
        zero = np.flatnonzero(norms == 0)
        return TableStatistics(
            std=float(np.sqrt((rows**2).mean())) if finite and rows.size else None,
            finite=finite,
            spread=float(kept.std() / kept.mean() * np.sqrt(2 * rows.shape[1])) if len(kept) > 1 and finite else None,
            zero_rows=tuple(map(int, zero[:8])),
            constant=bool(rows.size) and bool((rows == rows.flat[0]).all()),
            zero_count=len(zero),
        )

    def distance(self, a: Leaf, axis_a: int, b: Leaf, axis_b: int) -> Distance | None:
        x, y = self._rows(a, axis_a), self._rows(b, axis_b)
        if x is None or y is None:
            return None
        n = min(len(x), len(y))
        x, y = x[:n], y[:n]
        size = np.sqrt(((x**2).sum() + (y**2).sum()) / 2)
        relative = float(np.sqrt(((x - y) ** 2).sum()) / size) if size > 0 else 0.0
        return Distance(relative, bool(np.array_equal(x, y)), n)


def never(a: str, b: str) -> bool:
    return False


def always(a: str, b: str) -> bool:
    return True


def tables_of(
    g: Build, of: Mapping[str, np.ndarray] | None = None, declares: Callable[[str, str], bool] = never, **facts: object
) -> tuple[Table, ...]:  # fmt: skip
    graph = g.graph(**facts)
    return build_tables(uses_of(graph), Arrays(of or {}), declares, meta=graph.meta, repeats=graph.repeats)


def table_of(g: Build, of: Mapping[str, np.ndarray] | None = None, **facts: object) -> Table:
    (table,) = tables_of(g, of, **facts)
    return table
