"""`assay modules`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from flows.cli.exits import exiting_on_errors
from flows.cli.options import build_parameters, load_config, merge, with_engine_arguments
from flows.cli.run import execute, given

Many = list[str]


def modules(
    model: Annotated[str | None, typer.Option(help="HF folder or id; `embedded` is the bundled tiny model")] = None,
    kinds: Annotated[
        Many | None, typer.Option(help="kind of module, e.g. mlp; may be repeated (default: all that the model has)")
    ] = None,
    layers: Annotated[list[int] | None, typer.Option(help="decoder layer; may be repeated (default: 0)")] = None,
    inputs: Annotated[int | None, typer.Option(help="seeded inputs per module (default: 10)")] = None,
    prefill: Annotated[int | None, typer.Option(help="rows that come at once (default: 24)")] = None,
    decode: Annotated[int | None, typer.Option(help="rows that come one by one behind them (default: 4)")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of the first input")] = None,
    weights: Annotated[str | None, typer.Option(help="real (default) or seeded")] = None,
    executor: Annotated[str | None, typer.Option(help="engine (default), or one_layer: no engine")] = None,
    output: Annotated[str | None, typer.Option(help="run directory")] = None,
    engine: Annotated[str | None, typer.Option(help="vllm or transformers")] = None,
    platform: Annotated[str | None, typer.Option(help="cpu, cuda or neuron")] = None,
    dtype: Annotated[str | None, typer.Option(help="dtype of the target")] = None,
    tp: Annotated[int | None, typer.Option(help="tensor parallel size")] = None,
    engine_arg: Annotated[Many | None, typer.Option(help="any vLLM engine argument, KEY=VALUE")] = None,
    engine_python: Annotated[str | None, typer.Option(help="interpreter of the engine's environment")] = None,
    fault: Annotated[str | None, typer.Option(help="inject this fault, to see it found")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML or JSON file of parameters; options override it")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="show Prefect's log")] = False,
) -> None:
    """Compare single modules of a target with the reference's, on seeded inputs.

    Exit code: 0 passed, 2 accuracy, 3 configuration, 1 anything else.
    """
    console = Console(stderr=False)
    with exiting_on_errors(console):
        asked: dict[str, Any] = {
            "engine": with_engine_arguments(
                given(
                    model=model, engine=engine, platform=platform, dtype=dtype, tensor_parallel_size=tp,
                    python=engine_python, fault={"name": fault} if fault else None,
                ),
                engine_arg or [],
            ),
            "module_validation": given(
                kinds=kinds, layers=layers, n_inputs=inputs, prefill=prefill, decode=decode, seed=seed, weights=weights,
                executor=executor,
            ),
            "output_dir": output,
        }  # fmt: skip
        values = merge(load_config(config), asked)
        values["engine"] = {"model": "embedded", **values.get("engine", {})}
        parameters = build_parameters(values, command="modules")
    from flows.levels import modules_alone

    raise typer.Exit(execute(modules_alone(parameters), console, verbose))
