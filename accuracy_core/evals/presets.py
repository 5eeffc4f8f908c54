"""The documented helpers: known benchmarks by name, each a call of `run_lm_eval`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from accuracy_core.evals.runner import run_lm_eval

Scores = dict[str, float]
#: preset -> lm-eval tasks
PRESETS: dict[str, list[str]] = {
    "gsm8k": ["gsm8k"],
    "gsm8k_cot": ["gsm8k_cot"],
    "mmlu": ["mmlu"],
    "mmlu_pro": ["mmlu_pro"],
    "bbh": ["bbh_cot_fewshot"],
    "ifeval": ["ifeval"],
    "longbench": ["longbench"],
    "assay": ["assay_suite"],
}


def run_preset(
    name: str,
    base_url: str,
    model: str,
    results_dir: str | Path,
    *,
    limit: int | None = None,
    tokenizer: str | Path | None = None,
    **settings: Any,
) -> tuple[Scores, Path]:
    """Evaluate the preset `name`; returns (scores by `task/metric,filter`, the directory that holds lm-eval's files).

    `tokenizer` defaults to the checkpoint the server says it loaded, else to `model`. `settings` go to `run_lm_eval`.
    Raises what that raises; offline, a ConfigurationError names the data set that is missing.
    """
    from accuracy_core.errors import ConfigurationError
    from accuracy_core.evals.endpoint import served_model, server_root

    if name not in PRESETS:
        raise ConfigurationError(f"no preset {name!r}", fix=f"there are: {', '.join(sorted(PRESETS))}")
    if tokenizer is None:
        tokenizer = served_model(server_root(base_url), model, api_key=None).root or model
    run = run_lm_eval(
        PRESETS[name],
        base_url=base_url,
        model=model,
        tokenizer=tokenizer,
        results_dir=results_dir,
        limit=limit,
        **settings,
    )
    return run.scores, run.results_dir


def _named(preset: str) -> Callable[..., tuple[Scores, Path]]:
    def run(
        base_url: str, model: str, results_dir: str | Path, limit: int | None = None, **settings: Any
    ) -> tuple[Scores, Path]:
        return run_preset(preset, base_url, model, results_dir, limit=limit, **settings)

    run.__name__ = run.__qualname__ = f"run_accuracy_{preset}"
    run.__doc__ = f"`run_preset({preset!r}, …)`: {', '.join(PRESETS[preset])} against a running server."
    return run


run_accuracy_gsm8k = _named("gsm8k")
run_accuracy_gsm8k_cot = _named("gsm8k_cot")
run_accuracy_mmlu = _named("mmlu")
run_accuracy_mmlu_pro = _named("mmlu_pro")
run_accuracy_bbh = _named("bbh")
run_accuracy_ifeval = _named("ifeval")
run_accuracy_longbench = _named("longbench")
run_accuracy_assay = _named("assay")
