"""How many ties and factors tiebeam and its nearest relative see right, on the small models of the tests.

The truths were worked out by hand and are held against numbers by the tests. A model counts as seen right where the
tie is (there is one, or there is none); of a model that is tied, each factor counts that is right to 1e-4, sign
included. AnyInit traces a model to initialise all of it, and looks for ties on the way; of JAX it takes linen modules
on one positional input, so those are counted apart as well. What a package refuses counts as not seen.

    python benchmarks/bench_peers.py [--only jax keras] [--list]

AnyInit is no dependency; where it is absent, the benchmark says how to have it.
"""

import argparse
import importlib
import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tiebeam

ROOT = Path(__file__).resolve().parents[1]
PEER = "anyinit"
INSTALL = """To have it beside tiebeam, without what else it would install:

    pip install --no-deps --target build/peers anyinit==0.4.0
    PYTHONPATH=build/peers python benchmarks/bench_peers.py"""
TIGHT = 1e-4
FACTORS = ("lookup_factor", "readout_factor")
#: folders of models, and what their process needs in its environment
KITS = {"jax": {}, "keras": {"KERAS_BACKEND": os.environ.get("KERAS_BACKEND", "jax")}}


@dataclass
class Seen:
    """What a package says of one model.

    Attributes:
        tied: None where it says nothing; `why` then tells.
    """

    tied: bool | None = None
    lookup_factor: float | None = None
    readout_factor: float | None = None
    why: str = ""


def by_tiebeam(case: Any) -> Seen:
    """Public calls alone."""
    params = getattr(case, "params", None)
    report = tiebeam.inspect(case.model, case.inputs, params=params)
    tables = [t for t in report.tables if set(t.names) & set(case.truth.names)]
    if len(tables) != 1:
        return Seen(why=f"{len(tables)} tables")
    return Seen(tables[0].tied, tables[0].lookup_factor, tables[0].readout_factor)


def by_anyinit(case: Any) -> Seen:
    """What it finds before it initialises: its report says no more of a tie than the scale that follows."""
    from anyinit import backends
    from anyinit.core import tying

    backend = backends.resolve(case.model)
    backend.begin(case.model, getattr(case, "params", None))
    inputs = case.inputs[0] if isinstance(case.inputs, tuple) else case.inputs
    tables = tying.find(backend.build_graph(case.model, inputs))
    if len(tables) > 1:
        return Seen(why=f"{len(tables)} tables")
    return Seen(True, tables[0].lookup_factor, tables[0].output_factor) if tables else Seen(False)


PACKAGES: dict[str, Callable[[Any], Seen]] = {"tiebeam": by_tiebeam, PEER: by_anyinit}


def judged(seen: Seen, truth: Any) -> dict[str, bool | None]:
    """Which answers are right; None where the model has no such answer."""
    tied = truth.state in ("tied", "aliased")
    right: dict[str, bool | None] = {"tie": seen.tied == tied}
    for factor in FACTORS:
        got, want = getattr(seen, factor), getattr(truth, factor)
        same = got is None if want is None else got is not None and math.isclose(got, want, rel_tol=TIGHT)
        right[factor] = None if not tied else bool(seen.tied) and same
    return right


def answers(kit: str) -> Iterator[dict[str, Any]]:
    """The child's part: one line for each model and package."""
    cases = importlib.import_module(f"tests.{kit}.models.kit").load()
    packages = [p for p in PACKAGES if find_spec(p)]
    for name, build in cases.items():
        for package in packages:
            case = build()  # anew: what one did to it is not the other's
            try:
                seen = PACKAGES[package](case)
            except Exception as e:  # noqa: BLE001 - whatever a package raises is its answer
                seen = Seen(why=f"{type(e).__name__}: {e}".splitlines()[0][:100])
            module = getattr(case, "params", None) is not None and hasattr(case.model, "apply")
            taken = kit != "jax" or (module and isinstance(case.inputs, tuple) and len(case.inputs) == 1)
            yield {"model": name, "package": package, "taken": taken, **asdict(seen), **judged_line(seen, case.truth)}


def judged_line(seen: Seen, truth: Any) -> dict[str, Any]:
    """The judgement and the truth, in plain data."""
    want = {f"true_{f}": getattr(truth, f) for f in FACTORS}
    return {"right": judged(seen, truth), "state": truth.state, **want}


def lines_of(kit: str) -> list[dict[str, Any]]:
    """Answers from a process of its own: frameworks do not share one."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **KITS[kit], "PYTHONPATH": path}
    command = [sys.executable, __file__, "--child", kit]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def table(title: str, lines: list[dict[str, Any]]) -> str:
    """Right answers over answers that there are, a row for each package."""
    rows = [("", "ties", "lookup factors", "readout factors", "refused")]
    for package in PACKAGES:
        own = [line for line in lines if line["package"] == package]
        if not own:
            rows.append((package, "absent", "", "", ""))
            continue
        cells = []
        for what in ("tie", *FACTORS):
            told = [line["right"][what] for line in own if line["right"][what] is not None]
            cells.append(f"{sum(told)} of {len(told)}")
        rows.append((package, *cells, str(sum(line["tied"] is None for line in own))))
    wide = [max(len(row[i]) for row in rows) for i in range(5)]
    body = ["  " + "  ".join(cell.ljust(n) for cell, n in zip(row, wide, strict=True)).rstrip() for row in rows]
    return "\n".join([f"\n{title}", *body])


def main() -> int:
    """Compare and print; 1 where tiebeam misses one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(KITS), default=list(KITS))
    parser.add_argument("--list", action="store_true", help="every wrong answer, too")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        warnings.simplefilter("ignore")
        for line in answers(args.child):
            print(json.dumps(line))
        return 0
    if find_spec(PEER) is None:
        print(f"{PEER} is absent: tiebeam stands alone here.\n{INSTALL}")
    missed = 0
    for kit in args.only:
        if not (ROOT / "tests" / kit / "models" / "kit.py").is_file():
            print(f"\n{kit}: there are no models of it in tests/{kit}")
            continue
        lines = lines_of(kit)
        print(table(f"{kit}: {len({line['model'] for line in lines})} models", lines))
        taken = [line for line in lines if line["taken"]]
        if len(taken) < len(lines):
            print(table(f"{kit}, linen modules on one input: {len({x['model'] for x in taken})} models", taken))
        wrong = [line for line in lines if False in line["right"].values()]
        for line in wrong if args.list else ():
            told = line["why"] or {k: line[k] for k in ("tied", *FACTORS)}
            print(
                f"    {line['package']:8} {line['model']}: {told}; true: {[v for k, v in line.items() if 'true' in k]}"
            )
        missed += sum(line["package"] == "tiebeam" for line in wrong)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
