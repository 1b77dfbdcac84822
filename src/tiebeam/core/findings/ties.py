"""Findings on the tie itself: aliased, cut, copied, drifted, untied; names; who trains."""

from collections.abc import Iterator

from tiebeam.core.facts import Lookup, Readout, Table
from tiebeam.core.finding import Finding, Severity
from tiebeam.core.findings.context import Context


def tie_findings(c: Context) -> Iterator[Finding]:
    """Findings of every table's state."""
    if c.silent:
        yield Finding(
            "no-logits", "warning", "",
            "the model returned no float tensor: whether a product with a table yields logits cannot be seen",
            hint="pass inputs with which it returns logits or a loss as tensors",
        )  # fmt: skip
    if not c.tables:
        yield Finding(
            "no-table",
            "info",
            "",
            "no lookup of a matrix by token id was seen in this pass: there is no table to speak of",
        )
    told: set[frozenset[str]] = set()
    for table in c.tables:
        if table.state == "aliased":
            yield _aliased(c, table)
        elif table.state == "cut":
            yield from _cut(table)
        elif table.partner is not None:
            pair = frozenset((table.name, table.partner))
            if pair not in told:
                told.add(pair)
                yield from _pair(c, table)
        elif table.state == "unknown":
            yield Finding("state-unknown", "info", table.name, "; ".join(table.notes))
        elif table.state == "untied":
            role = "lookup" if table.lookups else "readout"
            yield Finding("untied", "info", table.name, f"it is read as a {role} only: {'; '.join(table.notes)}")
        yield from _names(c, table)
        yield from _training(c, table)


def _aliased(c: Context, t: Table) -> Finding:
    paths = {use.name for use in t.lookups} | {use.name for use in t.readouts}
    owner = t.name
    other = next((n for n in t.names if n != owner and n in paths), t.names[-1])
    return Finding(
        "aliased-storage",
        "error",
        owner,
        f"{owner!r} and {other!r} are two parameters on one storage: each holds half of the gradient, the optimizer "
        "steps the same memory twice, and checks by identity do not see it",
        fix=c.fixes.tie(owner, other),
        hint="give both modules one parameter object",
    )


def _cut(t: Table) -> Iterator[Finding]:
    for role, uses in (("lookup", t.lookups), ("readout", t.readouts)):
        dead = [u for u in uses if not u.gradient]
        if dead:
            yield Finding(
                "gradient-cut",
                "error",
                t.name,
                f"the {role} in {_place(dead[0])} reads the table, but no gradient of the outputs reaches it that way: "
                f"the table is trained by its other role alone",
                hint="remove the detach, stop_gradient, .data or no_grad between the table and the outputs",
            )


def _place(use: Lookup | Readout) -> str:
    return repr(use.where) if use.where else "the model's own forward"


def _pair(c: Context, table: Table) -> Iterator[Finding]:
    partner = c.partner(table)
    if partner is None:
        return
    lookup, readout = (table, partner) if table.lookups else (partner, table)
    if table.tied or partner.tied:
        whole, extra = (table, partner) if table.tied else (partner, table)
        if extra.state == "untied":
            role = "lookup" if extra.lookups else "readout"
            yield Finding(
                "untied", "info", extra.name,
                f"it is one more {role}, beside {whole.name!r} which serves both roles, {_far(extra)} apart",
            )  # fmt: skip
            return
        lookup, readout = whole, extra
    same = lookup.vocab == readout.vocab and lookup.vocab_axis == readout.vocab_axis
    fix = c.fixes.tie(lookup.name, readout.name) if same and not readout.tied else ""
    cost = f"{readout.vocab * readout.width:,} parameters more than tied"
    severity: Severity = "info" if c.untied_on_purpose else "warning"
    where = readout.name
    if table.state == "copy":
        yield Finding(
            "copy-not-tie", severity, where,
            f"{readout.name!r} equals {lookup.name!r} in separate memory: they drift apart at the first step",
            fix=fix, hint="let both roles read one parameter",
        )  # fmt: skip
    elif table.state == "drifted":
        yield Finding(
            "drifted", severity, where,
            f"{readout.name!r} and {lookup.name!r} differ by {_far(table)} though they look like, or are declared, "
            "one table; a reload that ties them discards one",
            fix=fix, hint="decide whose values count, and let both roles read that parameter",
        )  # fmt: skip
    elif table.state == "unknown":
        yield Finding("state-unknown", "info", where, "; ".join(table.notes))
    else:
        yield Finding(
            "untied", "info", where,
            f"{lookup.name!r} is the lookup and {readout.name!r} the readout, {_far(table)} apart: {cost}",
        )  # fmt: skip
        yield from _fresh_partner(lookup, readout, fix)
    if lookup.trainable != readout.trainable and table.state != "unknown":
        frozen, trained = (lookup, readout) if readout.trainable else (readout, lookup)
        yield Finding(
            "one-side-trained", severity, frozen.name,
            f"{trained.name!r} is trained while {frozen.name!r} is frozen: what is learned at one end never "
            "shows at the other",
            fix=c.fixes.train(frozen.name, True), hint="train both, or tie them",
        )  # fmt: skip


def _far(t: Table) -> str:
    return "an unknown distance" if t.distance is None else f"a relative distance of {t.distance:.3g}"


def _fresh_partner(lookup: Table, readout: Table, fix: str) -> Iterator[Finding]:
    for fresh, trained in ((readout, lookup), (lookup, readout)):
        if fresh.fresh is True and trained.fresh is False:
            yield Finding(
                "fresh-partner", "warning", fresh.name,
                f"{fresh.name!r} looks freshly drawn while {trained.name!r} is trained: a loader found no "
                "values for it",
                fix=fix if fresh is readout else "", hint="load it, or tie it to its partner",
            )  # fmt: skip


def _names(c: Context, t: Table) -> Iterator[Finding]:
    if t.state == "tied" and len(t.names) > 1:
        yield Finding(
            "several-names", "info", t.name,
            f"one table under {len(t.names)} names ({', '.join(t.names)}): a state dict lists it {len(t.names)} times, "
            f"safetensors wants one, and a loader must know that all of them are {t.name!r}",
        )  # fmt: skip
    if t.state == "tied" and len(t.names) == 1:
        outside = [r for r in t.readouts if not _at_home(r, t)]
        if outside:
            yield Finding(
                "functional-tie", "info", t.name,
                f"the readout in {_place(outside[0])} has no parameter of its own: tools that look for an output layer "
                "(adapters, quantisers, counters) pass it over",
            )  # fmt: skip
    homes = [next((m for m in _ancestors(n) if m in c.devices), None) for n in t.names]
    devices = {c.devices[m] for m in homes if m is not None}
    if t.tied and len(devices) > 1:
        yield Finding(
            "split-devices", "warning", t.name,
            f"the device map puts {', '.join(t.names)} on {', '.join(sorted(devices))}: one tensor cannot be on both, "
            "so the table is copied",
            hint="put both ends on one device in the device map",
        )  # fmt: skip


def _at_home(r: Readout, t: Table) -> bool:
    """Whether the module that holds the table reads it out itself: that is a framework's own way to tie.

    A parameter's path may begin with the collection that it is in; the module that looks it up is then the rest of it.
    """
    home = _home(t.name)
    if r.where == home:
        return True
    looked_up = r.where in {use.where for use in t.lookups}
    return bool(r.where) and looked_up and home.endswith((f".{r.where}", f"/{r.where}"))


def _ancestors(name: str) -> Iterator[str]:
    """The closest module path first, "" (the whole model) last."""
    while name:
        name = _home(name)
        yield name


def _home(name: str) -> str:
    """The module that holds a parameter: paths are joined with dots, or with slashes."""
    return name[: max(name.rfind("."), name.rfind("/"), 0)]


def _training(c: Context, t: Table) -> Iterator[Finding]:
    if t.tied and not t.trainable:
        alone = c.trainable_elsewhere > 0.99
        yield Finding(
            "frozen-both-roles", "warning" if alone else "info", t.name,
            "the table is frozen in both roles, lookup and readout: they are one tensor",
            fix=c.fixes.train(t.name, True) if alone else "",
            hint="to train one end alone, untie first",
        )  # fmt: skip
    if not t.tied:
        return
    own = {name for other in c.tables if other.lookups for name in other.names}  # adapted in both roles
    for readout in t.readouts:
        delta = [name for name in readout.delta if name not in own]
        if delta:
            yield Finding(
                "adapter-on-readout", "warning", t.name,
                f"{', '.join(delta)} is added to the logits of a tied table and not to its lookup: merging it "
                "changes the lookup as well",
                hint="untie before merging, or adapt both roles as one",
            )  # fmt: skip
    altered = {
        role: {u.reparametrized for u in uses} for role, uses in (("lookup", t.lookups), ("readout", t.readouts))
    }
    # The roles of a table of integers undo its quantisation each in their own way.
    if altered["lookup"] != altered["readout"] and t.dtype.startswith(("float", "bfloat")):
        role = "readout" if any(altered["readout"]) else "lookup"
        what = next(a for a in sorted(altered[role], reverse=True))
        yield Finding(
            "reparametrized-role", "warning", t.name,
            f"the {role} does not read the table as it is ({what}), the other role does: one parameter, two "
            "effective tables",
            hint="apply it to the table itself, so that both roles see it, or untie",
        )  # fmt: skip
