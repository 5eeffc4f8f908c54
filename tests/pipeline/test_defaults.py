"""The embedded model's thresholds are what HuggingFace FP32 scores on the bundled documents."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch

import accuracy_core.evals
from accuracy_core.models import resolve_model
from accuracy_core.pipeline.defaults import default_thresholds
from accuracy_core.schemas import EvalParameters

KEY = "assay_arith/exact_match,strict-match"
ANSWER = re.compile(r"#### (-?[0-9.,]+)")


def test_only_tasks_that_run_get_a_threshold():
    assert set(default_thresholds(EvalParameters(tasks=["assay_suite"]))) == {KEY}
    assert default_thresholds(EvalParameters(tasks=["assay_mc"])) == {}


def test_fewer_documents_mean_a_wider_bound():
    few = default_thresholds(EvalParameters(tasks=["assay_arith"], limit=4))[KEY]
    assert few["std"] == pytest.approx(math.sqrt(0.93 * 0.07 / 4))


@pytest.mark.slow
def test_mean_and_std_are_measured_ones():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = resolve_model("embedded")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    file = Path(accuracy_core.evals.__file__).parent / "tasks" / "arith_test.jsonl"
    documents = [json.loads(line) for line in file.read_text().splitlines()]
    right = 0
    for document in documents:
        ids = tokenizer(f"Q: {document['question']}\nA:", return_tensors="pt")
        with torch.no_grad():
            out = model.generate(**ids, max_new_tokens=40, do_sample=False)
        text = tokenizer.decode(out[0, ids.input_ids.shape[1] :], skip_special_tokens=True)
        given, wanted = ANSWER.search(text), ANSWER.search(document["answer"])
        assert wanted is not None
        right += given is not None and given[1] == wanted[1]
    mean = right / len(documents)
    threshold = default_thresholds(EvalParameters())[KEY]
    assert threshold["mean"] == pytest.approx(mean)
    assert threshold["std"] == pytest.approx(math.sqrt(mean * (1 - mean) / len(documents)), abs=1e-4)
