"""`assay run`."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from accuracy_core.errors import AssayError
from accuracy_core.outcome import ExitCode, exit_code
from accuracy_core.schemas import RunParameters
from flows.cli.exits import exiting_on_errors
from flows.cli.options import build_parameters, load_config, merge, parse_pairs, with_engine_arguments

Many = list[str]


def run(
    model: Annotated[str | None, typer.Option(help="HF folder or id; `embedded` is the bundled tiny model")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="tokenizer's folder or id when it is not the model's")] = None,
    task: Annotated[Many | None, typer.Option(help="lm-eval task; may be repeated")] = None,
    threshold: Annotated[
        Many | None, typer.Option(help="`metric,filter=MIN` or `task/metric,filter=MIN`; may be repeated")
    ] = None,
    output: Annotated[str | None, typer.Option(help="run directory")] = None,
    limit: Annotated[int | None, typer.Option(help="documents per task")] = None,
    include_path: Annotated[str | None, typer.Option(help="directory with further task YAML files")] = None,
    chat: Annotated[bool | None, typer.Option("--chat", help="use the chat endpoint and template")] = None,
    results: Annotated[str | None, typer.Option(help="analyse this lm-eval output, run no evaluation")] = None,
    reference_results: Annotated[str | None, typer.Option(help="lm-eval output of a trusted run")] = None,
    prompt: Annotated[Many | None, typer.Option(help="analyse this text instead of deviated prompts")] = None,
    max_prompts: Annotated[int | None, typer.Option(help="deviated prompts to analyse")] = None,
    output_length: Annotated[int | None, typer.Option(help="tokens replayed per prompt")] = None,
    plugin: Annotated[
        Many | None,
        typer.Option(
            help="analysis: logit_validation (default), kv_cache, tensor_compare, engine_consistency; may be repeated"
        ),
    ] = None,
    module: Annotated[
        Many | None,
        typer.Option(
            help="modules for tensor_compare: `model.layers.0-31`, a name, a regular expression; may be repeated"
        ),
    ] = None,
    calibration: Annotated[
        str | None, typer.Option(help="judge by this calibration.json or tolerances.toml instead of the shipped limits")
    ] = None,
    force_calibration: Annotated[
        bool | None,
        typer.Option(
            "--force-calibration", help="use a calibration of another model, dtype or device; the report says so"
        ),
    ] = None,
    triage: Annotated[
        bool | None,
        typer.Option("--triage/--no-triage", help="when logits fail, find the module and prove it (default)"),
    ] = None,
    engine: Annotated[str | None, typer.Option(help="vllm or transformers")] = None,
    platform: Annotated[str | None, typer.Option(help="cpu, cuda or neuron")] = None,
    dtype: Annotated[str | None, typer.Option(help="dtype of the target")] = None,
    tp: Annotated[int | None, typer.Option(help="tensor parallel size")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="longest prompt plus output")] = None,
    engine_arg: Annotated[Many | None, typer.Option(help="any vLLM engine argument, KEY=VALUE")] = None,
    engine_python: Annotated[str | None, typer.Option(help="interpreter of the engine's environment")] = None,
    fault: Annotated[str | None, typer.Option(help="inject this fault, to see it found")] = None,
    stage: Annotated[Many | None, typer.Option(help="run only these stages; may be repeated")] = None,
    refresh: Annotated[
        Many | None, typer.Option(help="compute this stage again, use no earlier run's result; may be repeated")
    ] = None,
    accept: Annotated[
        Many | None, typer.Option(help="preflight check whose errors are meant so; may be repeated")
    ] = None,
    port: Annotated[int | None, typer.Option(help="port of the server")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML or JSON file of parameters; options override it")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="show Prefect's log")] = False,
) -> None:
    """Evaluate a model on an engine, replay what went wrong, and say whether the numerics are to blame.

    Exit code: 0 passed, 2 accuracy, 3 configuration, 1 anything else.
    """
    console = Console(stderr=False)
    with exiting_on_errors(console):
        values = load_config(config)
        values = merge(
            values,
            {
                "engine": with_engine_arguments(
                    given(
                        model=model, tokenizer=tokenizer, engine=engine, platform=platform, dtype=dtype,
                        tensor_parallel_size=tp, max_model_len=max_model_len, python=engine_python,
                        fault={"name": fault} if fault else None,
                    ),
                    engine_arg or [],
                ),
                "preflight": given(accept=accept),
                "evaluation": given(
                    tasks=task, limit=limit, include_path=include_path, chat=chat, results=results,
                    reference_results=reference_results,
                ),
                "prompt_analysis": given(
                    max_prompts=max_prompts, output_length=output_length, prompts=prompt, plugins=plugin,
                    modules=module, triage=triage, tolerances=calibration, force_calibration=force_calibration,
                ),
                "thresholds": parse_pairs(threshold or [], "--threshold"),
                "stages": stage,
                "refresh": refresh,
                "output_dir": output,
                "server_port": port,
            },
        )  # fmt: skip
        values["engine"] = {"model": "embedded", **values.get("engine", {})}
        parameters = build_parameters(values)
    raise typer.Exit(execute(parameters, console, verbose))


def given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None and value != {}}


def execute(parameters: RunParameters, console: Console, verbose: bool) -> int:
    """Check the parameters, then run the flow. Returns the exit code."""
    # the run's log in the API is complete; the terminal shows progress and the verdict, no traceback of a task
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "INFO" if verbose else "CRITICAL")
    from accuracy_core.pipeline.run import resolve_run, with_output_dir
    from flows.cli.console import live_progress, show_conclusion, show_error

    try:
        parameters = with_output_dir(parameters)
        with console.status("checking the parameters"):
            resolve_run(parameters)
    except AssayError as error:
        show_error(console, error)
        return exit_code(error.outcome, None)
    try:
        with live_progress(console):
            from flows.accuracy_debugger import run_here

            conclusion, report = run_here(parameters)
    except AssayError as error:
        show_error(console, error)
        return exit_code(error.outcome, None)
    except Exception as error:
        console.print(Text(f"unexpected {type(error).__name__}: {error}", style="red"))
        console.print(Text("".join(traceback.format_exception(error)[-3:])))
        return ExitCode.ERROR
    show_conclusion(console, conclusion, report)
    return conclusion.exit_code
