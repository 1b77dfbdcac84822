"""What to warn of while a model trains: a tie that breaks, a role that dies, an own-token bias that stays."""

from dataclasses import dataclass, field

from tiebeam.core.measuring.measurement import Measurement

UNLEARNED = 100
"""Steps after which the bias towards the token just read should be gone: 25 did in AnyInit's models."""
FIRST = 2.0
"""Mean rank below which the model still says its own input first."""
_TIED = ("tied", "aliased")


@dataclass
class Alarms:
    """Judges one measurement after another; each alarm sounds once.

    Example:
        >>> Alarms().sounding(0, None)
        []
    """

    sounded: set[str] = field(default_factory=set)
    tied: set[str] = field(default_factory=set)
    start: int | None = None

    def sounding(self, step: int, found: Measurement | None) -> list[str]:
        """What this measurement gives reason to say, in words.

        Args:
            step: Of training.
            found: None where nothing could be measured.
        """
        if found is None:
            return []
        alarms = {**self._broken(found), **self._dead(found), **self._own(step, found)}
        new = {k: v for k, v in alarms.items() if k not in self.sounded}
        self.sounded |= set(new)
        return [f"step {step}: {text}" for text in new.values()]

    def _broken(self, found: Measurement) -> dict[str, str]:
        now = {t.name: t.state for t in found.tables}
        self.tied |= {name for name, state in now.items() if state in _TIED}
        return {
            f"tie {name}": f"the tie of {name!r} broke: {_became(now.get(name))}"
            for name in sorted(self.tied)
            if now.get(name) not in _TIED
        }

    def _dead(self, found: Measurement) -> dict[str, str]:
        return {
            f"{role} {g.table}": f"the {role} of {g.table!r} sends no gradient"
            for role, g in found.roles.items()
            if g.grad_norm == 0.0
        }

    def _own(self, step: int, found: Measurement) -> dict[str, str]:
        if self.start is None:
            self.start = step
        rank, chance = found.own_rank, found.chance_rank
        # Where most tokens repeat, saying the own one is right.
        if rank is None or chance is None or chance < 10 * FIRST or (found.repeats or 0.0) > 0.5 or rank > FIRST:
            return {}
        if step - self.start < UNLEARNED:
            return {}
        vocab = round(2 * chance) - 1
        return {"own": f"the token just read still ranks {rank:.2g} of {vocab}: a tied table's bias is not unlearned"}


def _became(state: str | None) -> str:
    return "the two are now copies" if state == "copy" else f"it is now {state or 'read by nothing'}"
