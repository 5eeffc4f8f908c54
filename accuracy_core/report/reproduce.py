"""Commands that repeat a run, to copy."""

from __future__ import annotations

import json
import shlex
from typing import Any

from accuracy_core.report.evidence import RunEvidence


def reproduce_commands(found: RunEvidence) -> list[tuple[str, str]]:
    """(what it does, command). Values are quoted for a shell; they may come from anywhere."""
    parameters = found.parameters()
    root = _root(found)
    commands = []
    if parameters:
        commands.append(("Repeat the whole run", _run(parameters)))
        commands.append(
            ("Repeat the prompt analysis alone", _run(parameters, ["--stage", "prompt_analysis", "--stage", "report"]))
        )
        config = shlex.quote(f"{root}/run_config.json")
        extract = "import json, sys; json.dump(json.load(sys.stdin)['parameters'], sys.stdout)"
        commands.append(
            (
                "Repeat it with every parameter, those without an option too",
                f'python -c "{extract}" < {config} > parameters.json && assay run --config parameters.json',
            )
        )
    commands.append(("Build this report again", f"assay report {shlex.quote(root)}"))
    return commands


def _root(found: RunEvidence) -> str:
    """The run directory as others know it: what is read here may be a local copy of one on S3."""
    given = str(found.parameters().get("output_dir") or "")
    return given if given.startswith("s3://") else str(found.run_dir.root)


def _run(parameters: dict[str, Any], more: list[str] | None = None) -> str:
    engine = parameters.get("engine") or {}
    evaluation = parameters.get("evaluation") or {}
    prompts = parameters.get("prompt_analysis") or {}
    words = ["assay", "run"]
    for option, value, default in (
        ("--model", engine.get("model"), None),
        ("--engine", engine.get("engine"), "vllm"),
        ("--platform", engine.get("platform"), "cpu"),
        ("--dtype", engine.get("dtype"), "bfloat16"),
        ("--tp", engine.get("tensor_parallel_size"), 1),
        ("--max-model-len", engine.get("max_model_len"), None),
        ("--limit", evaluation.get("limit"), None),
        ("--include-path", evaluation.get("include_path"), None),
        ("--results", evaluation.get("results"), None),
        ("--reference-results", evaluation.get("reference_results"), None),
        ("--max-prompts", prompts.get("max_prompts"), 3),
        ("--output-length", prompts.get("output_length"), 16),
        ("--output", parameters.get("output_dir"), None),
    ):
        if value is not None and value != default:
            words += [option, str(value)]
    for task in evaluation.get("tasks") or []:
        words += ["--task", str(task)]
    if evaluation.get("chat"):
        words.append("--chat")
    for key, bound in (parameters.get("thresholds") or {}).items():
        words += ["--threshold", f"{key}={json.dumps(bound)}"]
    for name, value in (engine.get("engine_args") or {}).items():
        words += ["--engine-arg", f"{name}={json.dumps(value)}"]
    for text in prompts.get("prompts") or []:
        words += ["--prompt", str(text)]
    for name in (parameters.get("preflight") or {}).get("accept") or []:
        words += ["--accept", str(name)]
    fault = engine.get("fault")
    if isinstance(fault, dict) and fault.get("name"):
        words += ["--fault", str(fault["name"])]
    return shlex.join(words + (more or []))
