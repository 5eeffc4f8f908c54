from __future__ import annotations

from typing import Any

import pytest

from accuracy_core.engines.transformers_engine import TransformersEngine
from accuracy_core.outcome import Outcome
from accuracy_core.prompts.engine_checks import greedy_findings, prompt_findings
from accuracy_core.schemas import EngineSpec, FaultSpec, ReplayRequest, ReplayResult

REQUEST = ReplayRequest(request_id="a", prompt_token_ids=[0, 5, 6])


def answer(seen: list[int]) -> ReplayResult:
    return ReplayResult(request_id="a", token_ids=[1], seen_prompt_ids=seen)


def test_the_right_prompt_and_an_unknown_one_are_no_finding() -> None:
    assert prompt_findings([REQUEST], [answer([0, 5, 6])]) == []
    assert prompt_findings([REQUEST], [answer([])]) == []
    assert prompt_findings([REQUEST], []) == []


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        ([0, 0, 5, 6], "put [0] in front of the prompt: 3 ids sent, 4 seen"),
        ([0, 5, 7], "3 sent, 3 seen, first different at 2"),
        ([0, 5], "3 sent, 2 seen, first different at 2"),
    ],
)
def test_another_prompt_is_a_configuration_finding(seen: list[int], text: str) -> None:
    (finding,) = prompt_findings([REQUEST], [answer(seen)])
    assert text in finding.evidence
    assert finding.outcome is Outcome.CONFIGURATION
    assert finding.fix


@pytest.fixture(scope="module")
def engine() -> Any:
    with TransformersEngine(EngineSpec(model="embedded", engine="transformers")) as opened:
        yield opened


def test_faults_around_the_model_are_found_without_a_reference(engine: TransformersEngine) -> None:
    prompt = [0, 53, 30, 224, 24, 27]
    request = ReplayRequest(request_id="p", prompt_token_ids=prompt, forced_token_ids=[30, 31])
    assert prompt_findings([request], engine.replay([request])) == []
    assert greedy_findings(engine, prompt) == []
    engine.set_fault(FaultSpec(name="double-bos"))
    (finding,) = prompt_findings([request], engine.replay([request]))
    assert "put [0] in front" in finding.evidence
    engine.set_fault(FaultSpec(name="sampler-default"))
    assert prompt_findings([request], engine.replay([request])) == []
    (finding,) = greedy_findings(engine, prompt)
    assert "(4 of 4 steps)" in finding.evidence
    engine.set_fault(None)
    assert greedy_findings(engine, prompt) == []
