"""What a run says: outcome, verdict, banner and exit code, in one table."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """What kind of statement a run makes. The four are never confused."""

    NUMERICS = "numerics"
    CONFIGURATION = "configuration"
    INFRASTRUCTURE = "infrastructure"
    NOT_MEASURED = "not_measured"


class Verdict(StrEnum):
    """Judgement on numerics. `SUSPECT`: the documented rule passes, a guard does not."""

    PASS = "pass"
    SUSPECT = "suspect"
    FAIL = "fail"


class Banner(StrEnum):
    GREEN = "green"
    YELLOW = "yellow"
    RED = "red"
    GREY = "grey"


class ExitCode:
    PASSED = 0
    ERROR = 1
    ACCURACY = 2
    CONFIGURATION = 3
    TIMED_OUT = 4


_SEVERITY = {Verdict.PASS: 0, Verdict.SUSPECT: 1, Verdict.FAIL: 2}


def worst(verdicts: list[Verdict]) -> Verdict:
    """The worst of `verdicts`. Raises ValueError on an empty list: nothing measured is not a pass."""
    if not verdicts:
        raise ValueError("no verdict to combine: nothing was measured")
    return max(verdicts, key=_SEVERITY.__getitem__)


def banner(outcome: Outcome, verdict: Verdict | None) -> Banner:
    """Colour of the status banner. Grey whenever no numerics were judged."""
    if outcome is not Outcome.NUMERICS or verdict is None:
        return Banner.GREY
    return {Verdict.PASS: Banner.GREEN, Verdict.SUSPECT: Banner.YELLOW, Verdict.FAIL: Banner.RED}[verdict]


def exit_code(outcome: Outcome, verdict: Verdict | None) -> int:
    """Exit code of the command line for an outcome and a verdict."""
    if outcome is Outcome.CONFIGURATION:
        return ExitCode.CONFIGURATION
    if outcome is not Outcome.NUMERICS or verdict is None:
        return ExitCode.ERROR
    return ExitCode.PASSED if verdict is Verdict.PASS else ExitCode.ACCURACY
