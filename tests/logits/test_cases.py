"""Every synthetic case gets its right verdict through the public entry, generation and all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from accuracy_core.logits import MultiPromptValidationResult, multi_prompt_logit_validation
from accuracy_core.outcome import Verdict

from . import documented_rule
from .shared_cases import Replay, load, per_prompt

make = load("make_cases")
CASES = {case.name: case for case in make.cases()}


@pytest.fixture(scope="module", autouse=True)
def _free_the_cases() -> Iterator[None]:
    yield
    CASES.clear()


def validate(name: str, **options: object) -> MultiPromptValidationResult:
    case = CASES[name]
    sampled = None if case.sampled is None else [ids.unsqueeze(1) for ids in case.sampled]
    target = Replay(per_prompt(case.target), sampled)
    expected, baseline = per_prompt(case.expected), per_prompt(case.baseline)
    return multi_prompt_logit_validation(target.inputs(), target, expected, baseline, **options)


@pytest.mark.parametrize("name", list(CASES))
def test_verdict_is_right(name: str) -> None:
    result = validate(name)
    assert result.verdict in CASES[name].right
    assert result.passed == (result.verdict is Verdict.PASS)
    if "pass" not in CASES[name].right:
        assert result.guards, "what is broken is caught by a guard, whatever the routes say"
        assert result.worst is not None
    else:
        assert not result.guards


@pytest.mark.parametrize(
    ("name", "guard", "prompt", "token"),
    [
        ("argmax-lowered-once", "winner_error", 2, 7),
        ("one-nan", "non_finite", 1, 3),
        ("padding-wins", "padding_wins", 3, 4),
        ("sampler-wrong", "argmax_flip", 0, 5),
    ],
)
def test_guard_names_the_very_row(name: str, guard: str, prompt: int, token: int) -> None:
    result = validate(name)
    assert {(h.prompt, h.token) for h in result.guards if h.guard == guard} == {(prompt, token)}
    assert (result.worst.prompt, result.worst.token) == (prompt, token)
    assert [p.prompt for p in result.per_prompt if p.verdict is not Verdict.PASS and p.guards] == [prompt]
    assert (result.phase, result.first_bad_token) == ("decode", token)


def test_missing_tokens_are_named_and_not_a_pass() -> None:
    result = validate("truncated-tokens")
    assert [(h.guard, h.prompt, h.token) for h in result.guards] == [("missing_tokens", p, 13) for p in range(6)]
    assert result.verdict is Verdict.SUSPECT


def test_one_position_is_located() -> None:
    result = validate("one-position-broken")
    assert {h.token for h in result.guards} == {9}
    assert (result.phase, result.first_bad_token) == ("decode", 9)


@pytest.mark.parametrize("name", ["argmax-lowered-once", "sampler-wrong", "better-bulk-worse-argmax"])
def test_the_plain_documented_rule_is_blind_to_what_guards_see(name: str) -> None:
    plain = validate(name, rescue="documented")
    assert plain.passed
    assert plain.guards, "guards are still reported"


def test_clean_inputs_are_not_changed() -> None:
    case = CASES["masked-on-both-sides"]
    before = [x.clone() for x in (case.baseline, case.expected, case.target)]
    validate("masked-on-both-sides")
    for x, y in zip(before, (case.baseline, case.expected, case.target), strict=True):
        assert torch.equal(x, y)


DOCS = Path(__file__).parents[2] / "docs" / "numerics.md"


def documented_table() -> dict[str, tuple[str, str, str]]:
    """case -> (right, ours, plain documented rule), from the table in the docs."""
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|", DOCS.read_text(), re.MULTILINE)
    return {name: (right.strip(), ours.strip(), plain.strip()) for name, right, ours, plain in rows}


def test_table_in_the_docs_lists_every_case_and_our_verdict() -> None:
    table = documented_table()
    assert set(table) == set(CASES)
    for name, case in CASES.items():
        assert table[name][0] == "/".join(sorted(case.right))
        assert table[name][1] == validate(name).verdict


@pytest.mark.slow
def test_table_in_the_docs_is_right_about_the_plain_rule() -> None:
    answers = {True: "pass", False: "fail"}
    for name, (_, _, plain) in documented_table().items():
        case = CASES[name]
        got = documented_rule.passes(case.baseline, case.expected, case.target)
        assert plain == answers.get(got, got), name
