"""`assay selftest`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from accuracy_core.errors import ConfigurationError
from accuracy_core.outcome import ExitCode
from flows.cli.exits import exiting_on_errors

if TYPE_CHECKING:
    from accuracy_core.selftest import CaseResult, Plan, SelftestReport
    from accuracy_core.selftest.plan import EngineName

Many = list[str]
_ENGINES = {"vllm": "vllm", "hf": "transformers", "transformers": "transformers"}


def selftest(
    engine: Annotated[str, typer.Option(help="vllm or hf")] = "vllm",
    quick: Annotated[bool, typer.Option("--quick", help="two architectures and a fault of every kind")] = False,
    fault: Annotated[Many | None, typer.Option(help="only this fault; may be repeated")] = None,
    arch: Annotated[Many | None, typer.Option(help="only this architecture; may be repeated")] = None,
    clean: Annotated[int | None, typer.Option(min=0, help="clean runs per architecture")] = None,
    output: Annotated[Path | None, typer.Option(help="keep selftest.json and goldens in this directory")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="with --output: keep the runs that are there")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON, and no table")] = False,
) -> None:
    """Inject faults into tiny models and see whether each is found where it is, and whether clean runs stay clean.

    Exit code: 0 when every fault was detected, at least 95 % with the right phase and first module, and no clean run
    raised an alarm; 2 otherwise, 3 for a wrong command line.
    """
    from accuracy_core.selftest import make_plan

    console = Console(stderr=as_json)
    with exiting_on_errors(console):
        plan = make_plan(_engine(engine), quick=quick, faults=fault or [], architectures=arch or [], clean_seeds=clean)
        report = _run(plan, quick, output, resume, console)
    if output is not None:
        (output / "selftest.json").write_text(report.to_json(), encoding="utf-8")
    if as_json:
        typer.echo(report.to_json(), nl=False)
    else:
        for table in tables(report):
            console.print(table)
        console.print(Text(report.summary(), style="green" if report.passed else "red"), soft_wrap=True)
    raise typer.Exit(ExitCode.PASSED if report.passed else ExitCode.ACCURACY)


def _engine(name: str) -> EngineName:
    if name not in _ENGINES:
        raise ConfigurationError(f"selftest has no engine {name!r}", fix="choose vllm or hf")
    return "transformers" if _ENGINES[name] == "transformers" else "vllm"


def _run(plan: Plan, quick: bool, output: Path | None, resume: bool, console: Console) -> SelftestReport:
    from accuracy_core.selftest import CaseResult, run_selftest

    console.print(Text(f"{len(plan.cases)} runs on {len(plan.architectures)} architectures, engine {plan.engine}"))
    journal = None
    known: list[CaseResult] = []
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        journal = output / "cases.jsonl"
        if resume and journal.exists():
            known = [CaseResult.model_validate_json(line) for line in journal.read_text(encoding="utf-8").splitlines()]
        else:
            journal.unlink(missing_ok=True)

    def show(case: CaseResult, done: int, total: int) -> None:
        line = f"[{done}/{total}] {case.architecture} {case.fault or 'clean'}: {word(case)}"
        console.print(Text(line), soft_wrap=True)
        if journal is not None:
            with journal.open("a", encoding="utf-8") as file:
                file.write(case.model_dump_json() + "\n")

    work = output / "work" if output is not None else None
    return run_selftest(plan, work_dir=work, quick=quick, known=known, on_case=show)


def word(case: CaseResult) -> str:
    """One run in a few words."""
    if case.error:
        return f"not run: {case.error}"
    if case.fault is None:
        return f"FALSE ALARM ({', '.join(case.by)})" if case.detected else "clean"
    if not case.detected:
        return "MISSED"
    where = case.module or ", ".join(case.by)
    return f"found, {case.phase.value}, {where}" + ("" if case.placed else " (WRONG PLACE)")


def tables(report: SelftestReport) -> list[Table]:
    """Faults by architectures, and every run that is not as it should be."""
    names = list(dict.fromkeys(case.architecture for case in report.cases))
    matrix = Table("fault", *names, title="found / placed right", show_lines=False)
    found = {(case.fault, case.architecture): case for case in report.faulty}
    for fault in dict.fromkeys(case.fault for case in report.faulty):
        matrix.add_row(str(fault), *(_cell(found.get((fault, name))) for name in names))
    alarms = [(sum(case.detected for case in runs), len(runs)) for runs in _by_name(report, names)]
    matrix.add_row("clean runs", *(f"{bad} of {total} alarms" for bad, total in alarms), style="bold")
    odd = [case for case in report.cases if case.error or (case.fault is None) == case.detected or case.placed is False]
    if not odd:
        return [matrix]
    misses = Table("run", "result", "expected", "evidence", title="not as it should be")
    for case in odd:
        expected = f"{case.expected_phase.value}, {' or '.join(case.expected_modules)}" if case.fault else "no finding"
        run = f"{case.architecture}: {case.fault or f'clean, prompts {case.seed}'}"
        misses.add_row(run, Text(word(case)), expected, Text("\n".join(case.evidence[:3])))
    return [matrix, misses]


def _by_name(report: SelftestReport, names: list[str]) -> list[list[CaseResult]]:
    return [[case for case in report.clean if case.architecture == name] for name in names]


def _cell(case: CaseResult | None) -> Text:
    if case is None:
        return Text("–", style="dim")
    if case.error:
        return Text("not run", style="red")
    if not case.detected:
        return Text("missed", style="red")
    return Text("yes / yes", style="green") if case.placed else Text("yes / no", style="yellow")
