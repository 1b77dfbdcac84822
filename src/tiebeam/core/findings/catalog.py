"""Every finding there is: stable code, highest severity, and what it is about. The docs list this table."""

from dataclasses import dataclass

from tiebeam.core.finding import Severity


@dataclass(frozen=True, slots=True)
class Entry:
    """One kind of finding.

    Attributes:
        severity: The highest it takes.
    """

    code: str
    severity: Severity
    summary: str


CATALOG = (
    Entry("adapter-on-readout", "warning", "an adapter changes the logits of a tied table, but not its lookup"),
    Entry("adapter-only", "info", "a file holds an adapter and no table"),
    Entry("adapter-wants-tie", "warning", "an adapter was asked to keep a tie that the model does not have"),
    Entry("alias-recorded", "info", "a file stores the table once and says in its metadata what else it is called"),
    Entry("aliased-storage", "error", "two parameters share one storage: the optimizer steps it twice"),
    Entry("backbone-only", "info", "a file and the config's class have a table and no readout"),
    Entry("config-scopes-disagree", "warning", "the tie flag differs between scopes of a nested config"),
    Entry("constant-rows", "warning", "all entries of the table are one number: tokens cannot be told apart"),
    Entry("copy-not-tie", "warning", "two tables hold equal values in separate memory and will drift apart"),
    Entry("dead-logits", "error", "the readout factor is zero or infinite"),
    Entry("decay-without-gradient", "info", "weight decay shrinks rows of a lookup that get no gradient"),
    Entry("drifted", "warning", "two tables are close, or declared tied, but differ"),
    Entry("dtype-mixed", "info", "the table has another dtype than the rest of the model"),
    Entry("empty-table", "warning", "the table has no rows"),
    Entry("equal-not-declared", "warning", "a file stores two equal matrices, and nothing says that they are one"),
    Entry("factor-unknown", "info", "a factor is no known constant"),
    Entry("flag-contradicts-tensors", "warning", "the config says untied, the tensors are tied"),
    Entry("flag-missing", "warning", "the class declares a tie, and its config does not hold the flag"),
    Entry("flag-without-effect", "info", "the family of the config ties whatever its flag says"),
    Entry("fresh-partner", "warning", "one of two untied tables is trained, the other looks freshly drawn"),
    Entry("frozen-both-roles", "warning", "freezing a tied table froze both of its roles"),
    Entry("functional-tie", "info", "the readout has no module of its own: tools that look for one miss it"),
    Entry("gradient-cut", "error", "a role reads the table, but its gradient does not reach it"),
    Entry("index-disagrees", "error", "an index of shards and its files name different tensors"),
    Entry("init-scale", "error", "a fresh table's std gives logits far from unit variance"),
    Entry("left-alone", "warning", "a table was not drawn: it could be read out in a way that was not seen"),
    Entry("logits-small", "info", "the logits start far below unit variance"),
    Entry("lookup-small", "info", "looked-up rows enter a residual stream with a small root mean square"),
    Entry("meta-left", "error", "some parameters have no values while others do"),
    Entry("missing-shards", "error", "an index names files that are not there"),
    Entry("misspelt-flag", "warning", "a config field looks like the tie flag and is none"),
    Entry("no-logits", "warning", "the model returned neither logits nor a loss, so no readout can be seen"),
    Entry("no-table", "info", "no vocabulary table was found"),
    Entry("non-finite", "error", "the table holds NaN or infinity"),
    Entry("not-settled", "warning", "initialising could not bring the logits to unit variance"),
    Entry("one-side-trained", "warning", "one table of a pair is trained, the other is frozen"),
    Entry("optimizer-stale", "error", "the optimizer holds tensors that are no parameter of the model"),
    Entry("optimizer-unknown", "info", "no rule is known for the optimizer that steps a table"),
    Entry("own-token", "info", "at the start the model predicts the token it has just read"),
    Entry("padded-vocabulary", "info", "the table has more rows than the config has tokens"),
    Entry("quantised-end", "warning", "an end of the table is quantised"),
    Entry("readout-missing", "error", "a file has no readout, and nothing ties the table to it"),
    Entry("redundant-readout", "info", "a tied model's file stores its readout too"),
    Entry("reparametrized-role", "warning", "one role reads the table through a mask or reparametrisation"),
    Entry("rounded-factor", "info", "a factor of sqrt(width) was rounded to a narrow dtype"),
    Entry("runtime-fallback", "info", "a file has no readout, and the runtime decides what is read instead"),
    Entry("scale-unsure", "info", "the logits would be too large for a fresh table, and this one may be trained"),
    Entry("schedule-flattens-ratio", "warning", "a schedule does not keep the table's rate at its ratio"),
    Entry("several-names", "info", "the table has several names: savers and loaders must agree on one"),
    Entry("several-tables", "warning", "several tensors of a file could be the table"),
    Entry("short-vocabulary", "error", "the table has fewer rows than the config has tokens"),
    Entry("split-devices", "warning", "a device map puts the two ends of one table on different devices"),
    Entry("state-unknown", "info", "whether two tables are tied cannot be told"),
    Entry("stepped-twice", "error", "two parameters on one storage are both stepped"),
    Entry("table-in-two-groups", "error", "a table is in two groups of an optimizer"),
    Entry("table-not-stepped", "error", "a trainable table is in no group of the optimizer"),
    Entry("table-rate", "warning", "a table is not trained at the rate that its scale asks for"),
    Entry("table-settings", "info", "eps or decay of a table does not follow its scale, though its rate does"),
    Entry("table-under-muon", "warning", "a table is stepped by an optimizer for matrices of the body"),
    Entry(
        "tie-not-shown",
        "warning",
        "an index names two ends where one is asked for, and has no values to compare",
    ),
    Entry("tied-file-differs", "error", "the config asks for one table, and the file holds two that differ"),
    Entry("tied-keys-list", "warning", "tied keys are declared as a list, where a mapping is needed"),
    Entry("undeclared-sharing", "warning", "parameters share memory and the class does not declare it"),
    Entry("untied", "info", "lookup and readout have a table each"),
)

CODES = frozenset(e.code for e in CATALOG)
