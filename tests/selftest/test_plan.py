from __future__ import annotations

import pytest

from accuracy_core.errors import ConfigurationError
from accuracy_core.faults import FAULTS
from accuracy_core.selftest import make_plan
from accuracy_core.selftest.prompts import LEAST, MOST, OUTPUT_LENGTH, PROMPTS, selftest_prompts


def test_the_full_plan_holds_what_is_promised() -> None:
    """Every fault that shows in an accuracy run, most of them on six architectures or more, and 50 clean runs."""
    faults = [name for name in FAULTS if FAULTS[name].judged_by == "triage"]
    plan = make_plan("transformers")
    faulty = [case for case in plan.cases if case.fault is not None]
    wide = [name for name in faults if len({case.architecture for case in faulty if case.fault == name}) >= 6]
    assert {case.fault for case in faulty} == set(faults)
    assert len(wide) >= 19
    assert sum(case.fault is None for case in plan.cases) >= 50
    assert len(faulty) + sum(len(reasons) for reasons in plan.skipped.values()) == len(faults) * len(plan.architectures)


def test_the_quick_vllm_plan_holds_what_is_promised() -> None:
    plan = make_plan("vllm", quick=True)
    assert len(plan.architectures) == 2
    assert len({case.fault for case in plan.cases if case.fault is not None}) >= 12


def test_what_differs_without_a_fault_is_left_out_unless_asked_for() -> None:
    assert "deepseek-v2" not in make_plan("vllm").architectures
    assert make_plan("vllm", architectures=["deepseek-v2"]).architectures == ["deepseek-v2"]


def test_choices() -> None:
    plan = make_plan(faults=["kv-slot"], architectures=["embedded", "gemma2"], clean_seeds=1)
    assert [(case.architecture, case.fault) for case in plan.cases] == [
        ("embedded", None), ("gemma2", None), ("embedded", "kv-slot"), ("gemma2", "kv-slot"),
    ]  # fmt: skip
    assert [case.fault for case in plan.of("gemma2")] == [None, "kv-slot"]


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({"faults": ["kv-slit"]}, "unknown fault"),
        ({"faults": ["chunk-boundary"]}, "does nothing while one request runs at a time"),
        ({"architectures": ["gemma9"]}, "unknown architecture"),
        ({"faults": ["qk-norm-skipped"], "architectures": ["embedded"], "clean_seeds": 0}, "nothing is left to run"),
    ],
)
def test_wrong_choices(choice: dict[str, list[str]], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        make_plan(**choice)


def test_prompts_reach_over_blocks_and_windows_and_fit() -> None:
    for seed in range(20):
        prompts = selftest_prompts(seed)
        assert len(prompts) == PROMPTS
        assert all(LEAST <= len(prompt) <= MOST for prompt in prompts)
        assert all(len(prompt) + OUTPUT_LENGTH <= 160 for prompt in prompts)
        assert all(prompt[0] == 0 and 0 not in prompt[1:] for prompt in prompts), "one BOS, in front"
    assert selftest_prompts(1) == selftest_prompts(1)
    assert selftest_prompts(1) != selftest_prompts(2)
