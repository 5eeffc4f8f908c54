"""`assay calibrate` and `assay calibrate lint`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from accuracy_core.errors import ConfigurationError
from accuracy_core.outcome import ExitCode
from flows.cli.exits import exiting_on_errors

if TYPE_CHECKING:
    from accuracy_core.calibration import Calibration, CalibrationOrder

calibrate = typer.Typer(help="Measure tolerances before they are used.", invoke_without_command=True)


@calibrate.callback()
def measure(
    context: typer.Context,
    model: Annotated[
        str, typer.Option(help="`embedded`, a folder, or a seeded random model: random:llama-3.2-1b@0.125x16")
    ] = "embedded",
    dtype: Annotated[str, typer.Option(help="dtype of the target: bfloat16 or float16")] = "bfloat16",
    quick: Annotated[bool, typer.Option("--quick", help="20 seeds instead of 80")] = False,
    seeds: Annotated[int | None, typer.Option(help="prompts to measure on, at least 20")] = None,
    texts: Annotated[str | None, typer.Option(help="text file of paragraphs to measure a checkpoint on")] = None,
    output: Annotated[str | None, typer.Option(help="file to write (default: calibration.json)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the calibration as JSON, and no table")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="show Prefect's log")] = False,
) -> None:
    """Measure what equally right low-precision runs of a model differ by; write tolerances and a report.

    Exit code: 0 measured (warnings and all), 3 refused, 1 anything else.
    """
    if context.invoked_subcommand is not None:
        return
    console = Console(stderr=as_json)
    given = {"model": model, "dtype": dtype, "quick": quick, "seeds": seeds, "texts": texts, "output": output}
    with exiting_on_errors(console):
        _calibrate(_order(given), console, as_json=as_json, verbose=verbose)


@calibrate.command()
def lint(fixture: Annotated[Path, typer.Argument(help="safetensors file")]) -> None:
    """Look for defects of a fixture: span, energy, scales that are not exact, underflow.

    Exit code: 0 nothing found, 2 defects, 3 no fixture.
    """
    console = Console()
    with exiting_on_errors(console):
        from accuracy_core.calibration.lint import lint_fixture

        found = lint_fixture(fixture)
        for finding in found:
            console.print(Text(f"{finding.check}: {finding.evidence}\n  what to do: {finding.fix}", style="red"))
        console.print(Text(f"{fixture}: {len(found)} defects" if found else f"{fixture}: sound"), soft_wrap=True)
        raise typer.Exit(ExitCode.ACCURACY if found else ExitCode.PASSED)


def _order(given: dict[str, Any]) -> CalibrationOrder:
    from accuracy_core.calibration import CalibrationOrder

    try:
        return CalibrationOrder.model_validate({key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        lines = [f"--{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise ConfigurationError("; ".join(lines), fix="see assay calibrate --help") from error


def _calibrate(order: CalibrationOrder, console: Console, *, as_json: bool, verbose: bool) -> None:
    import os

    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "INFO" if verbose else "CRITICAL")
    from accuracy_core.calibration import read_calibration
    from accuracy_core.prompts.conclusion import Conclusion
    from flows.calibrate import calibrate_here
    from flows.cli.console import live_progress, show_conclusion

    with live_progress(console):
        found = calibrate_here(order)
    if isinstance(found, Conclusion):
        show_conclusion(console, found, None)
        raise typer.Exit(found.exit_code)
    calibration = read_calibration(Path(found.file))
    if as_json:
        typer.echo(calibration.to_json(), nl=False)
        return
    console.print(_table(calibration))
    for warning in calibration.warnings:
        console.print(Text(f"warning: {warning}", style="yellow"), soft_wrap=True)
    console.print(Text(f"calibration: {found.file}\nreport: {found.page}"), soft_wrap=True)


def _table(calibration: Calibration) -> Table:
    """The figures that decide, in one table."""
    envelope, stability = calibration.envelope, calibration.stability
    table = Table(
        "measured", "figure", title=f"{calibration.model_name} in {calibration.dtype} on {calibration.device}"
    )
    table.add_row("determinism floor", f"{calibration.determinism.floor:.3g}")
    for depth in sorted({item.depth for item in calibration.dtype_noise}):
        worst = max(item.errors["all"] for item in calibration.dtype_noise if item.depth == depth)
        table.add_row(f"dtype noise, worst variant, {depth} layers", f"{worst:.3g}")
    table.add_row("relative tolerance (2 x)", f"{calibration.relative_tolerance:.3g}", style="bold")
    table.add_row(
        f"spread over {stability.seeds} seeds", "exact" if stability.exact else f"{stability.spread:.3g} times"
    )
    table.add_row("clean envelope: L2, L-inf ratio", f"{envelope.l2_ratio:.3g}, {envelope.linf_ratio:.3g}")
    table.add_row("clean runs not fitted on", envelope.bound)
    if calibration.quantisation is not None:
        figures = calibration.quantisation
        told = f"{figures.against_fp32_weights:.3g} / {figures.against_same_bytes:.3g}"
        table.add_row("FP8: against FP32 weights / same bytes", told)
    for name, times in calibration.discrimination.wrong.items():
        table.add_row(f"discrimination: {name}", f"{times:.3g} times over the tolerance")
    return table
