"""Models as popular code bases write them: every tie is seen, and nothing is said against a healthy one."""

from threading import Event, Thread, current_thread

import pytest
import torch
from tests.torch.expect import all_of, check, check_factors, check_roles, table_of
from tests.torch.models.kit import Builder, load
from torch import nn

import tiebeam

ON_PURPOSE = {"init-scale", "frozen-both-roles"}  # a table drawn at 0.3, a table frozen by its builder
TWO_TABLES = {"NormalisedItems"}  # normalised at one end alone: a warning is right


@pytest.mark.parametrize("build", all_of("codebases", "families", "habits"))
def test_models_of_popular_code_bases_are_read_right(build: Builder) -> None:
    case = build()
    report = tiebeam.inspect(case.model, case.inputs)
    for truth in case.truths:
        if truth.state == "none":
            carried = [t.names for t in report.tables if set(truth.names) & set(t.names)]
            assert carried == [], f"{carried} are layers of the body, as wide as the vocabulary by chance"
            continue
        table = table_of(report, truth)
        check_roles(table, truth)
        check_factors(table, truth)


@pytest.mark.parametrize("build", [p for p in all_of("codebases", "families", "habits") if p.id not in TWO_TABLES])
def test_nothing_is_said_against_them(build: Builder) -> None:
    case = build()
    findings = tiebeam.inspect(case.model, case.inputs).findings
    said = [(f.code, f.message) for f in findings if f.severity != "info" and f.code not in ON_PURPOSE]
    assert said == []


def test_initializing_leaves_layers_alone_that_are_as_wide_as_the_vocabulary() -> None:
    case = load()["families"]["byte_level_with_cache"]()
    before = {n: p.detach().clone() for n, p in case.model.named_parameters()}
    tiebeam.initialize(case.model, case.inputs)
    moved = {n for n, p in case.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {"wte.weight"}


def test_a_table_whose_std_changes_nothing_keeps_a_sane_one() -> None:
    case = load()["habits"]["CosineInBothRoles"]()
    tiebeam.initialize(case.model, case.inputs)
    assert 0.01 < float(case.model.table.detach().std()) < 10


def test_inspecting_under_inference_mode_gives_the_same_factors() -> None:
    case = load()["codebases"]["MuReadout"]()
    with torch.inference_mode():
        check(case)


def test_inputs_made_in_inference_mode_are_taken() -> None:
    case = load()["codebases"]["NanoChat"]()
    with torch.inference_mode():
        ids = case.inputs[0].clone()
    assert tiebeam.inspect(case.model, (ids,)).tables[0].tied


def test_threads_may_inspect_one_model_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    case = load()["codebases"]["nano_gpt_with_targets"]()
    want = tiebeam.inspect(case.model, case.inputs).tables[0]
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(lambda _: tiebeam.inspect(case.model, case.inputs).tables[0], range(24)))
    places = {(t.state, t.lookups[0].where, t.readouts[0].where) for t in seen}
    assert places == {(want.state, want.lookups[0].where, want.readouts[0].where)}
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in case.model.modules())


def test_threads_that_inspect_at_once_leave_the_compiler_as_it_was() -> None:
    """What it is told is told to the whole process: passes that overlap must not put back what another has set."""

    class Meeting(nn.Module):
        """Lets the pass that came first end while the other is under way."""

        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(32, 8)
            self.head = nn.Linear(8, 32, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            (begun if current_thread() is first else met).set()
            met.wait(60) if current_thread() is first else first.join(60)
            return self.head(self.embed(ids))

    compiled: list[object] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        compiled.append(graph)
        return graph

    torch.compiler.reset()
    double = torch.compile(lambda x: x * 2, backend=backend)
    double(torch.ones(2))
    begun, met = Event(), Event()
    first, last = (Thread(target=tiebeam.inspect, args=(Meeting(), torch.arange(8)[None])) for _ in range(2))
    first.start()
    begun.wait(60)
    last.start()
    last.join()
    double(torch.ones(2, 2, dtype=torch.int64))
    assert len(compiled) == 2
