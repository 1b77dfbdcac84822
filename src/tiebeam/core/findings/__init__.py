"""Rules: findings as pure functions of facts."""

from tiebeam.core.finding import Finding
from tiebeam.core.findings.catalog import CATALOG as CATALOG
from tiebeam.core.findings.catalog import CODES as CODES
from tiebeam.core.findings.context import Context as Context
from tiebeam.core.findings.context import Fixes as Fixes
from tiebeam.core.findings.scale import scale_findings
from tiebeam.core.findings.ties import tie_findings

_ORDER = {"error": 0, "warning": 1, "info": 2}


def findings_of(context: Context) -> tuple[Finding, ...]:
    """All findings, the most severe first."""
    return in_order([*tie_findings(context), *scale_findings(context)])


def in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    """Errors, warnings, infos; each as found."""
    return tuple(sorted(findings, key=lambda f: _ORDER[f.severity]))
