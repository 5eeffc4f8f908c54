"""What the server saw against what was meant, and what became of the answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accuracy_core.models import embedded_model
from accuracy_core.outcome import Outcome
from accuracy_core.prompts.preflight import (
    FilterFacts,
    PreflightFacts,
    SeenRequest,
    ServerFacts,
    run_preflight,
)
from accuracy_core.prompts.tokens import load_tokenizer
from accuracy_core.schemas import EngineSpec, Severity

TEXT = "Q: 12+34\nA:"
MESSAGES = [{"role": "user", "content": "12+34"}]


@pytest.fixture(scope="module")
def facts() -> PreflightFacts:
    return PreflightFacts(spec=EngineSpec(model="embedded"), tokenizer=load_tokenizer(str(embedded_model()), None))


@pytest.fixture(scope="module")
def right(facts) -> list[int]:
    ids = facts.tokenizer(TEXT).input_ids
    assert ids[0] == facts.tokenizer.bos_token_id  # what the cases below rely on
    return ids


def findings(facts, *requests, needs=("requests",)):
    return run_preflight(replace(facts, seen=requests), list(needs)).findings


def errors(facts, *requests):
    return [item for item in findings(facts, *requests) if item.severity is Severity.ERROR]


def test_the_right_tokens_give_no_error(facts, right):
    chat = facts.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=True)["input_ids"]
    requests = (SeenRequest(text=TEXT, token_ids=right), SeenRequest(messages=MESSAGES, token_ids=list(chat)))
    assert errors(facts, *requests) == []


@pytest.mark.parametrize(
    ("check", "change"),
    [
        ("double_bos", lambda ids: [ids[0], *ids]),
        ("missing_bos", lambda ids: ids[1:]),
        ("tokenisation", lambda ids: [*ids[:-1], ids[-1] + 1]),
        ("tokenisation", lambda ids: ids[:-2]),
    ],
)
def test_wrong_tokens_are_named_with_a_fix(facts, right, check, change):
    (finding,) = errors(facts, SeenRequest(text=TEXT, token_ids=change(right)), SeenRequest(text=TEXT, token_ids=right))
    assert finding.check == check
    assert finding.evidence.startswith("1 of 2 requests")
    assert finding.fix


def test_another_chat_template(facts):
    other = facts.tokenizer("user: 12+34\nassistant:").input_ids
    (finding,) = errors(facts, SeenRequest(messages=MESSAGES, token_ids=other))
    assert finding.check == "chat_template"
    assert "template" in finding.fix


def test_a_conversation_without_a_template(facts):
    from copy import copy

    plain = copy(facts.tokenizer)
    plain.chat_template = None
    for given in (replace(facts, seen=(SeenRequest(messages=MESSAGES),)), replace(facts, chat=True)):
        report = run_preflight(replace(given, tokenizer=plain), ["tokenizer"])
        assert [item.check for item in report.errors] == ["chat_template"]
    assert run_preflight(replace(facts, tokenizer=plain), ["tokenizer"]).errors == []  # plain texts need none


@pytest.mark.parametrize(
    ("template", "wrong"),
    [
        ("{{ bos_token }}{% for m in messages %}User: {{ m['content'] }}\n{% endfor %}", True),
        ("OWN", False),
        ("/no/such/template.jinja", False),
    ],
)
def test_a_template_of_the_engine(facts, template, wrong):
    given = facts.tokenizer.chat_template if template == "OWN" else template
    spec = EngineSpec(model="embedded", engine_args={"chat_template": given})
    report = run_preflight(replace(facts, chat=True, spec=spec), ["tokenizer"])
    assert bool(report.errors) is wrong
    assert [item.check for item in report.errors] == ["chat_template"] * wrong


def test_without_token_ids_nothing_was_measured(facts):
    found = [item for item in findings(facts, SeenRequest(text=TEXT)) if item.check == "tokens"]
    assert [item.outcome for item in found] == [Outcome.NOT_MEASURED]


@pytest.mark.parametrize(
    ("cut", "of", "fits", "severity"),
    [
        (0, 20, False, None),
        (1, 40, False, None),
        (2, 20, False, Severity.WARNING),
        (10, 20, False, Severity.ERROR),
        (10, 20, True, Severity.WARNING),  # the limit is long enough: an engine that never stops looks the same
        (10, 20, None, Severity.WARNING),
        (3, 3, False, Severity.WARNING),
    ],
)
def test_answers_cut_off_by_the_limit(facts, cut, of, fits, severity):
    requests = [
        SeenRequest(task="t", finish_reason="length" if index < cut else "stop", answer_fits=fits)
        for index in range(of)
    ]
    found = [item for item in findings(facts, *requests) if item.check == "truncation"]
    assert [item.severity for item in found] == ([severity] if severity else [])
    assert all(f"{cut} of {of}" in item.evidence and item.fix for item in found)


@pytest.mark.parametrize(
    ("unmatched", "fits_examples", "right_elsewhere", "severity"),
    [
        (0, True, 0, None),
        (5, True, 0, None),
        (8, False, 20, Severity.WARNING),
        (20, False, 0, Severity.ERROR),
        (20, True, 12, Severity.ERROR),
        (20, True, 4, Severity.WARNING),  # noise of a wrong engine matches nothing either
        (20, None, 0, Severity.WARNING),
    ],
)
def test_a_filter_that_finds_nothing(facts, unmatched, fits_examples, right_elsewhere, severity):
    strict = FilterFacts("gsm", "strict", samples=20, unmatched=unmatched, matches_examples=fits_examples)
    flexible = FilterFacts("gsm", "flexible", samples=20, unmatched=0, right=right_elsewhere)
    other_task = FilterFacts("other", "flexible", samples=20, unmatched=0, right=20)
    made = replace(facts, filters=(strict, flexible, other_task))
    found = [item for item in run_preflight(made, ["requests"]).findings if item.check == "filter"]
    assert [item.severity for item in found] == ([severity] if severity else [])


def test_a_server_that_samples_by_default(facts):
    server = ServerFacts("http://127.0.0.1:1", greedy_agrees=0.75)
    report = run_preflight(replace(facts, server=server), ["server"])
    (finding,) = report.errors
    assert (finding.check, "75%" in finding.evidence) == ("server_sampling", True)
    fine = run_preflight(replace(facts, server=replace(server, greedy_agrees=1.0)), ["server"])
    assert fine.findings == []
