"""The bundled tasks: their data, and that lm-eval loads them from anywhere, offline."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from accuracy_core.evals.bundled import bundled_tasks_dir
from accuracy_core.evals.tasks.make_data import MODEL_SEED, generate, write
from accuracy_core.models.arithmetic import problem, problems


def test_data_is_what_the_script_writes(tmp_path: Path) -> None:
    write(tmp_path)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_bytes() for path in bundled_tasks_dir().glob("*.jsonl")}
    assert {name: len(rows) for name, rows in generate().items()} == {
        "arith_test.jsonl": 100,
        "arith_fewshot.jsonl": 10,
        "mc_add.jsonl": 40,
        "mc_sub.jsonl": 20,
    }


def test_documents_are_held_out_and_few_shot_examples_are_not() -> None:
    train, held = ({f"{a}{op}{b}" for a, op, b in part} for part in problems(MODEL_SEED))
    rows = generate()
    used = [row["question"] for name, part in rows.items() if name != "arith_fewshot.jsonl" for row in part]
    assert set(used) <= held
    assert len(set(used)) == len(used), "no document serves two tasks"
    assert {row["question"] for row in rows["arith_fewshot.jsonl"]} <= train


@pytest.mark.parametrize("name", ["mc_add.jsonl", "mc_sub.jsonl"])
def test_one_choice_is_right_and_the_others_are_plausible(name: str) -> None:
    for row in generate()[name]:
        a, op, b = re.fullmatch(r"(\d+)([+-])(\d+)", row["question"]).groups()
        result = int(a) + int(b) if op == "+" else int(a) - int(b)
        numbers = [int(choice.split("#### ")[1]) for choice in row["choices"]]
        assert [index for index, number in enumerate(numbers) if number == result] == [row["gold"]]
        assert row["choices"][row["gold"]] == problem(int(a), op, int(b))[1].strip()
        assert len(set(row["choices"])) == 4
        assert min(numbers) >= 0


def test_lm_eval_loads_them_from_another_directory_offline(tmp_path: Path) -> None:
    code = (
        "import json, socket\n"
        "def refuse(*a, **k): raise AssertionError('no network')\n"
        "socket.getaddrinfo = socket.socket.connect = refuse\n"
        "from lm_eval.tasks import TaskManager\n"
        f"manager = TaskManager(include_path={str(bundled_tasks_dir())!r}, include_defaults=False)\n"
        "loaded = manager.load(['assay_suite'])\n"
        "print(json.dumps({name: len(task.eval_docs) for name, task in loaded['tasks'].items()}))\n"
        "task = loaded['tasks']['assay_arith']\n"
        "task.set_config(key='num_fewshot', value=1)\n"
        "print(json.dumps(task.fewshot_context(task.eval_docs[0], num_fewshot=1)))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={"PATH": "/usr/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    counts, prompt = map(json.loads, run.stdout.strip().split("\n"))
    assert counts == {"assay_arith": 100, "assay_mc_add": 40, "assay_mc_sub": 20}
    assert re.fullmatch(r"Q: \S+\nA: [^\n]+\n#### \d+\n\nQ: \S+\nA:", prompt)
