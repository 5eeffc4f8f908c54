"""Commands to copy are the run's own, and nothing in them reaches the shell unquoted."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess

from report_run_dirs import Recipe, build

from accuracy_core.report.evidence import RunEvidence
from accuracy_core.report.reproduce import reproduce_commands


def commands(tmp_path, change=None, recipe=None) -> list[str]:
    run_dir = build(tmp_path, recipe or Recipe(fault="kv-slot"))
    config = json.loads(run_dir.run_config.read_text())
    if change is not None:
        change(config["parameters"])
    run_dir.run_config.write_text(json.dumps(config))
    return [command for _, command in reproduce_commands(RunEvidence(run_dir))]


def test_every_option_is_there(tmp_path):
    def change(parameters):
        parameters["engine"].update(tensor_parallel_size=8, dtype="float16", engine_args={"block_size": 32})
        parameters["thresholds"] = {"acc,none": 0.5, "t/acc,none": {"mean": 0.9, "std": 0.01, "n_sigma": 2}}
        parameters["preflight"] = {"accept": ["dtype"]}
        parameters["evaluation"].update(limit=20, chat=True)
        parameters["prompt_analysis"].update(prompts=["it's"], output_length=4)

    words = shlex.split(commands(tmp_path, change)[0])
    assert words[:2] == ["assay", "run"]
    pairs = list(itertools.pairwise(words))
    for pair in (
        ("--model", "embedded"), ("--tp", "8"), ("--dtype", "float16"), ("--limit", "20"), ("--fault", "kv-slot"),
        ("--threshold", "acc,none=0.5"), ("--threshold", 't/acc,none={"mean": 0.9, "std": 0.01, "n_sigma": 2}'),
        ("--engine-arg", "block_size=32"), ("--prompt", "it's"), ("--output-length", "4"), ("--task", "assay_suite"),
        ("--accept", "dtype"),
    ):  # fmt: skip
        assert pair in pairs
    assert "--chat" in words


def test_defaults_are_left_out(tmp_path):
    words = shlex.split(commands(tmp_path)[0])
    assert not {"--tp", "--dtype", "--engine", "--platform", "--chat", "--limit"} & set(words)


def test_hostile_values_stay_one_word(tmp_path):
    evil = "x; touch owned $(touch owned) `touch owned` 'q'"

    def change(parameters):
        parameters["engine"]["model"] = evil

    words = shlex.split(commands(tmp_path, change)[0])
    assert words[words.index("--model") + 1] == evil


def test_the_parameters_command_gives_the_parameters(tmp_path):
    found = commands(tmp_path)
    extract = found[2].split(" > ")[0]
    done = subprocess.run(["bash", "-c", extract.replace("python -c", "python3 -c", 1)], capture_output=True, text=True)
    assert json.loads(done.stdout)["engine"]["model"] == "embedded"


def test_without_a_configuration_only_the_report_can_be_repeated(tmp_path):
    run_dir = build(tmp_path)
    run_dir.run_config.unlink()
    found = reproduce_commands(RunEvidence(run_dir))
    assert [command.split()[1] for _, command in found] == ["report"]
