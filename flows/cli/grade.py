"""`assay grade`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.cli.exits import exiting_on_errors

if TYPE_CHECKING:
    from accuracy_core.grading import GradeResult


def grade(
    submission: Annotated[str, typer.Argument(help="Python file with build(config, weights) -> step(ids, cache)")],
    task: Annotated[str, typer.Option(help="bf16, fp8 or long-context")] = "bf16",
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    scale: Annotated[str, typer.Option(help="small: an eighth of the 1B shape's width; 1b: all of it")] = "small",
    json_file: Annotated[Path | None, typer.Option("--json", help="write the result to this file as well")] = None,
    output: Annotated[str | None, typer.Option(help="run directory of result and report")] = None,
    seed: Annotated[int | None, typer.Option(help="repeat the sequences of an earlier grading")] = None,
    baselines: Annotated[bool, typer.Option("--baselines/--no-baselines", help="measure the reference too")] = True,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="show Prefect's log")] = False,
) -> None:
    """Grade a decode step: correct, few launches, one dominant kernel; then tokens per second. Else it scores 0.

    Exit code: 0 score above 0, 2 a gate failed, 3 the submission cannot be used or the task does not exist, 1 anything
    else.
    """
    console = Console()
    values = {"submission": submission, "task": task, "device": device, "scale": scale, "seed": seed,
              "baselines": baselines, "output_dir": output}  # fmt: skip
    with exiting_on_errors(console):
        raise typer.Exit(_grade(values, json_file, console, verbose=verbose))


def _grade(values: dict[str, Any], json_file: Path | None, console: Console, *, verbose: bool) -> int:
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "INFO" if verbose else "CRITICAL")
    from accuracy_core.grading import GradeOrder, GradeResult
    from accuracy_core.grading.result import FILE
    from flows.cli.console import show_conclusion
    from flows.cli.options import checked
    from flows.grade_kernel import grade_here

    with console.status("grading"):
        conclusion, run_dir = grade_here(checked(GradeOrder, values, command="grade"))
    file = run_dir.root / FILE
    if not file.exists():
        show_conclusion(console, conclusion, None)
        return conclusion.exit_code
    result = run_dir.read(file, GradeResult)
    if json_file is not None:
        json_file.write_text(result.to_json(), encoding="utf-8")
    console.print(gates_table(result))
    console.print(Text(_baselines(result)), soft_wrap=True)
    show_conclusion(console, conclusion, str(run_dir.report_html))
    return conclusion.exit_code


def gates_table(result: GradeResult) -> Table:
    """Every gate with its figure, limit and detail; the submission's words are printed as they are, not as markup."""
    table = Table("gate", "passed", "figure", "limit", "detail", title=f"{result.task} on {result.device}")
    words = {True: Text("yes", style="green"), False: Text("no", style="red"), None: Text("not measured", style="dim")}
    for gate in result.gates:
        limit = f"{'>=' if gate.name == 'dominant' else '<='} {gate.limit:.4g}"
        table.add_row(gate.name, words[gate.passed], f"{gate.value:.4g}", limit, Text(gate.detail))
    return table


def _baselines(result: GradeResult) -> str:
    base = result.baselines
    figures = {"this": result.seconds_per_step, "eager": base.eager, "eager, operators only": base.eager_busy,
               "compiled or graph": base.compiled, "bandwidth floor": base.floor}  # fmt: skip
    told = [f"{name} {1e3 * value:.3g} ms" for name, value in figures.items() if value == value]
    told += [f"{name} not measured: {why}" for name, why in base.notes.items()]
    return "per step: " + ", ".join(told) if told else ""
