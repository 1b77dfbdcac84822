"""The catalogue lists every finding that a rule can emit, at the highest severity it takes, and nothing else."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest
from tests.checkpoints.checkpoint_findings_examples import FIRES as CHECKPOINTS
from tests.core import findings_examples
from tests.core.test_declared_findings import FIRES as DECLARED
from tests.core.test_declared_findings import found
from tests.optim.examples import FIRES as OPTIMIZERS
from tests.optim.examples import SILENT as OPTIMIZERS_SILENT

import tiebeam
from tiebeam.core.findings import CATALOG, CODES

SOURCE = Path(tiebeam.__file__).parent
ORDER = ("info", "warning", "error")
#: Rules that need a framework's model: tested beside their backend.
ELSEWHERE = {
    "left-alone": "api/initialization.py",
    "meta-left": "backends/torch/diagnose.py",
    "not-settled": "api/drawing.py",
}


def emitted(text: str) -> list[tuple[str, set[str]]]:
    """Code and possible severities of every `Finding(...)` in a module."""
    tree = ast.parse(text)
    named = defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None:
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            for target in targets:
                if isinstance(target, ast.Name):
                    named[target.id] |= severities(node.value)
    calls = [
        n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "Finding"
    ]
    return [(code_of(c), severities(c.args[1]).union(*(named[n] for n in names_in(c.args[1])))) for c in calls]


def code_of(call: ast.Call) -> str:
    """A code is a literal: a rule whose code is computed could not be listed."""
    first = call.args[0]
    if not (isinstance(first, ast.Constant) and isinstance(first.value, str)):
        raise TypeError(f"line {call.lineno}: the code of a finding is no literal")
    return first.value


def severities(node: ast.AST) -> set[str]:
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and n.value in ORDER}


def names_in(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


@pytest.fixture(scope="module")
def sources():
    """Path below the package: what it emits."""
    found = {p.relative_to(SOURCE).as_posix(): emitted(p.read_text(encoding="utf-8")) for p in SOURCE.rglob("*.py")}
    return {path: codes for path, codes in found.items() if codes}


def test_every_finding_that_a_rule_can_emit_is_in_the_catalogue(sources):
    assert {code for codes in sources.values() for code, _ in codes} <= CODES


def test_every_code_of_the_catalogue_is_emitted_by_a_rule(sources):
    assert {code for codes in sources.values() for code, _ in codes} >= CODES


def test_the_catalogue_names_the_highest_severity(sources):
    highest = defaultdict(set)
    for codes in sources.values():
        for code, taken in codes:
            assert taken, code
            highest[code] |= taken
    assert {e.code: e.severity for e in CATALOG} == {c: max(s, key=ORDER.index) for c, s in highest.items()}


def test_every_code_of_the_catalogue_fires_in_a_test():
    told = set(findings_examples.FIRES) | set(DECLARED) | set(OPTIMIZERS) | set(CHECKPOINTS)
    assert told | set(ELSEWHERE) == CODES


def test_rules_of_core_and_of_declarations_all_fire_here_and_are_kept_silent_here(sources):
    optimizers = {c for c, _ in sources["core/findings/optimizers.py"]}
    core = {c for path, codes in sources.items() if path.startswith("core/") for c, _ in codes} - optimizers
    assert set(findings_examples.FIRES) == set(findings_examples.SILENT) == core
    assert set(OPTIMIZERS) == set(OPTIMIZERS_SILENT) == optimizers
    assert set(DECLARED) == {c for c, _ in sources["checkpoints/declared_findings.py"]}
    assert set(CHECKPOINTS) == {c for c, _ in sources["checkpoints/findings.py"]}


def test_the_rules_tested_elsewhere_are_where_they_are_said_to_be(sources):
    assert {c: path for path, codes in sources.items() for c, _ in codes if c in ELSEWHERE} == ELSEWHERE


def test_no_example_makes_a_rule_speak_louder_than_the_catalogue_says():
    loudest = {e.code: ORDER.index(e.severity) for e in CATALOG}
    examples = [c for cases in findings_examples.FIRES.values() for c in cases]
    spoken = [f for c in examples for f in c.findings()] + [f for c in DECLARED.values() for k in c for f in found(**k)]
    assert all(ORDER.index(f.severity) <= loudest[f.code] for f in spoken)


def test_the_examples_reach_the_highest_severity_of_every_rule_of_core():
    reached = {
        code: max((c.severity for c in cases), key=ORDER.index) for code, cases in findings_examples.FIRES.items()
    }
    assert reached == {e.code: e.severity for e in CATALOG if e.code in reached}


def test_codes_are_unique_sorted_and_written_alike():
    codes = [e.code for e in CATALOG]
    assert codes == sorted(set(codes))
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", c) for c in codes)
    assert all(e.summary and not e.summary.endswith(".") for e in CATALOG)


def test_the_reader_of_sources_sees_conditional_and_named_severities():
    text = (
        'severity = "info" if x else "error"\nFinding("a", severity, "")\nFinding("b", "info" if x else "warning", "")'
    )
    assert emitted(text) == [("a", {"info", "error"}), ("b", {"info", "warning"})]


def test_the_reader_of_sources_refuses_a_computed_code():
    with pytest.raises(TypeError, match="no literal"):
        emitted('Finding("a-" + kind, "info", "")')
