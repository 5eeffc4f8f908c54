"""A key changes with everything that may change a result, and with nothing else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from accuracy_core.models import resolve_model
from accuracy_core.pipeline import identity, stage_keys
from accuracy_core.pipeline.run import Run
from accuracy_core.schemas import (
    DeviatedPrompt,
    DeviatedPrompts,
    EngineSpec,
    EvalParameters,
    FaultSpec,
    Platform,
    PreflightParameters,
    PromptParameters,
    RunParameters,
)
from tests.evals.results_maker import sample, write_run

PROMPT = "Q: 47+38\nA:"


def run_of(tmp_path, *, fault=None, model_fingerprint="f", engine=None, **parameters):
    spec = EngineSpec(model="embedded", engine="transformers", fault=fault, **(engine or {}))
    given = RunParameters(engine=spec, output_dir=str(tmp_path / "run"), **parameters)
    return Run(
        parameters=given,
        model_path=str(resolve_model("embedded")),
        model_name="tiny-llama",
        model_fingerprint=model_fingerprint,
        target_identity=spec.identity(model_fingerprint),
    )


FAULT = FaultSpec(name="mlp-scale")
SAME_EVALUATION = {
    "other thresholds": {"thresholds": {"exact_match,none": 0.5}},
    "another time limit": {"evaluation": EvalParameters(request_timeout_s=7)},
    "other prompts": {"prompt_analysis": PromptParameters(prompts=[PROMPT])},
    "another port": {"server_port": 4321},
    "refresh": {"refresh": ["evaluate"]},
}
OTHER_EVALUATION = {
    "fault": {"fault": FAULT},
    "weights": {"model_fingerprint": "g"},
    "dtype": {"engine": {"dtype": "float32"}},
    "environment": {"engine": {"env": {"VLLM_X": "1"}}},
    "engine argument": {"engine": {"engine_args": {"block_size": 32}}},
    "tasks": {"evaluation": EvalParameters(tasks=["assay_arith"])},
    "limit": {"evaluation": EvalParameters(limit=3)},
    "few-shot": {"evaluation": EvalParameters(num_fewshot=1)},
    "concurrency": {"evaluation": EvalParameters(num_concurrent=1)},
    "seed": {"evaluation": EvalParameters(seed=1)},
    "chat": {"evaluation": EvalParameters(chat=True)},
}


@pytest.mark.parametrize("name", SAME_EVALUATION)
def test_what_does_not_change_the_answers_does_not_change_the_key(tmp_path, name):
    changed = run_of(tmp_path, **SAME_EVALUATION[name])
    assert stage_keys.evaluation_key(changed) == stage_keys.evaluation_key(run_of(tmp_path))


@pytest.mark.parametrize("name", OTHER_EVALUATION)
def test_what_may_change_the_answers_changes_the_key(tmp_path, name):
    changed = run_of(tmp_path, **OTHER_EVALUATION[name])
    assert stage_keys.evaluation_key(changed) != stage_keys.evaluation_key(run_of(tmp_path))


def test_a_preflight_is_known_by_its_target_and_by_what_it_is_asked(tmp_path):
    def key(**more):
        return stage_keys.preflight_key(run_of(tmp_path, **more))

    before = key()
    assert key(thresholds={"exact_match,none": 0.5}, refresh=["preflight"]) == before
    accepting = {"preflight": PreflightParameters(accept=["dtype"])}
    for other in ({"engine": {"max_model_len": 9}}, {"evaluation": EvalParameters(chat=True)}, accepting):
        assert key(**other) != before


@pytest.mark.parametrize("key", [stage_keys.preflight_key, stage_keys.evaluation_key])
@pytest.mark.parametrize(
    ("argument", "file"),
    [
        ("chat_template", "t.jinja"),
        ("generation_config", "g/generation_config.json"),
        ("speculative_config", "g/config.json"),
    ],
)
def test_files_that_engine_arguments_name_count_by_content(tmp_path, key, argument, file):
    named = tmp_path / file
    named.parent.mkdir(exist_ok=True)
    named.write_text("a")
    given = str(named if named.suffix == ".jinja" else named.parent)
    value = {"model": given} if argument == "speculative_config" else given
    run = run_of(tmp_path, engine={"engine_args": {argument: value}})
    before = key(run)
    assert key(run) == before
    named.write_text("b")
    assert key(run) != before


def test_a_preflight_of_requests_is_known_by_the_bytes_of_the_results(tmp_path):
    written = write_run(tmp_path / "results", {"t": [sample(0, 1.0)]})
    run = run_of(tmp_path, evaluation=EvalParameters(results=str(written)))
    before = stage_keys.preflight_requests_key(run)
    (file,) = (tmp_path / "results").rglob("samples_*.jsonl")
    file.write_text(file.read_text().replace(" response 0", " response 1"))
    assert stage_keys.preflight_requests_key(run) != before


def test_own_task_files_count_by_content(tmp_path):
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "t.yaml").write_text("task: a")
    run = run_of(tmp_path, evaluation=EvalParameters(include_path=str(tasks)))
    before = stage_keys.evaluation_key(run)
    (tasks / "t.yaml").write_text("task: b")
    assert stage_keys.evaluation_key(run) != before


def test_task_analysis_depends_on_the_bytes_of_the_results_and_on_the_thresholds(tmp_path):
    written = write_run(tmp_path / "results", {"t": [sample(0, 1.0), sample(1, 0.0)]})
    given = EvalParameters(results=str(written))

    def key(**more):
        return stage_keys.task_analysis_key(run_of(tmp_path, evaluation=given, **more))

    before = key()
    assert key() == before
    assert key(thresholds={"exact_match,none": 0.5}) != before
    (file,) = (path for path in (tmp_path / "results").rglob("samples_*.jsonl"))
    file.write_text(file.read_text().replace(" response 1", " response 2"))
    assert key() != before


def test_prompt_analysis_depends_on_token_ids_tolerances_and_plugins(tmp_path):
    def key(**more):
        given = {"prompts": [PROMPT], "output_length": 4, **more}
        return stage_keys.prompt_analysis_key(run_of(tmp_path, prompt_analysis=PromptParameters(**given)))

    tolerances = tmp_path / "t.toml"
    default = (stage_keys.Path(identity.__file__).parents[1] / "numerics" / "tolerances.toml").read_text()
    tolerances.write_text(default)
    before = key()
    assert key(max_prompts=2) == before  # the prompts are the same ones
    assert key(prompts=[PROMPT, "Q: 1"]) != before
    assert key(output_length=5) != before
    assert key(tolerances=str(tolerances)) != before
    with_tolerances = key(tolerances=str(tolerances))
    tolerances.write_text(default.replace("l2_ratio = ", "l2_ratio = 1"))
    assert key(tolerances=str(tolerances)) != with_tolerances


def interpreter(folder):
    """An interpreter that imports from `folder`."""
    script = folder.parent / f"python-{folder.name}"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" -S "$@"\n')
    script.chmod(0o755)
    return script


def test_an_engine_that_was_rebuilt_under_the_same_version_is_another(tmp_path):
    package = tmp_path / "site" / "engine"
    package.mkdir(parents=True)
    kernel = package / "kernel.py"
    kernel.write_text("scale = 1.0\n")
    python = str(interpreter(tmp_path / "site"))
    install = identity._installation.__wrapped__
    before = install(python, "")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "kernel.pyc").write_text("")
    assert install(python, "") == before
    os.utime(kernel, ns=(1, 1))  # the same size, another time
    assert install(python, "") != before


def test_an_editable_installation_is_looked_at_where_it_lies(tmp_path):
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    site.mkdir()
    (source / "plugin.py").write_text("a")
    (site / "__editable__.plugin.pth").write_text(f"{source}\n")
    python = str(interpreter(site))
    install = identity._installation.__wrapped__
    before = install(python, "")
    (source / "plugin.py").write_text("longer")
    assert install(python, "") != before


def test_an_interpreter_that_cannot_be_asked_is_never_taken_for_the_same(tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    install = identity._installation.__wrapped__
    assert install(str(script), "") != install(str(script), "")


def test_environment_that_steers_an_engine_counts_and_free_cores_do_not(monkeypatch):
    spec = EngineSpec(model="embedded", engine="transformers")
    before = identity.engine_identity(spec)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("EDITOR", "vi")
    assert identity.engine_identity(spec) == before
    monkeypatch.setenv("NEURON_CC_FLAGS", "--fast-math")
    assert identity.engine_identity(spec) != before


@pytest.mark.slow
def test_what_libraries_set_when_they_are_imported_does_not_count():
    program = """
import os
from accuracy_core.pipeline.identity import engine_identity
from accuracy_core.schemas import EngineSpec
spec = EngineSpec(model="embedded", engine="transformers")
before, environment = engine_identity(spec), dict(os.environ)
import lm_eval.models, torch._inductor.runtime.runtime_utils, transformers
transformers.AutoModelForCausalLM
import sklearn
assert dict(os.environ) != environment, "nothing was set: this tests nothing"
assert engine_identity(spec) == before
"""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("KMP_", "TORCHINDUCTOR_"))}
    done = subprocess.run([sys.executable, "-c", program], env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_device_and_code_are_told(monkeypatch):
    assert identity.device_identity(Platform.CPU).startswith("cpu ")
    assert identity.device_identity(Platform.NEURON) != identity.device_identity(Platform.CPU)
    assert len(identity.code_identity()) == 64


def test_answers_are_reused_for_the_same_installation_and_not_when_refreshed(tmp_path, monkeypatch):
    from accuracy_core.pipeline import evaluation
    from accuracy_core.pipeline.session import EvaluationSession

    def identity_of(session=None, **more):
        run = run_of(tmp_path, **more)
        return evaluation.answers_identity(run, session or EvaluationSession(run, tmp_path / "server.log"))

    before = identity_of()
    assert identity_of() == before
    assert identity_of(fault=FAULT) != before
    refreshed = EvaluationSession(run_of(tmp_path), tmp_path / "server.log")
    again = [identity_of(refreshed, refresh=["evaluate"]) for _ in range(2)]
    assert again[0] == again[1] != before  # a second try of the same evaluation asks only what is missing
    assert identity_of(refresh=["evaluate"]) not in (before, again[0])
    monkeypatch.setattr(evaluation, "engine_identity", lambda spec: "rebuilt")
    assert identity_of() != before


def test_prompts_that_bring_their_ids_need_no_tokenizer(tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("the tokenizer was loaded")

    run = run_of(tmp_path)
    prompt = DeviatedPrompt(task="t", doc_id=1, prompt=PROMPT, token_ids=[1, 2, 3])
    run.run_dir.write(run.run_dir.deviated_prompts, DeviatedPrompts(prompts=[prompt]))
    with_tokenizer = stage_keys.prompt_analysis_key(run)
    monkeypatch.setattr(stage_keys, "load_tokenizer", refuse)
    assert stage_keys.prompt_analysis_key(run) == with_tokenizer
    run.run_dir.write(run.run_dir.deviated_prompts, DeviatedPrompts(prompts=[]))  # then the curated ones are taken
    with pytest.raises(AssertionError, match="loaded"):
        stage_keys.prompt_analysis_key(run)
