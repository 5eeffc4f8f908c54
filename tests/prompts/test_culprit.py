"""One culprit out of three witnesses: who is believed, and what is said when they disagree."""

from __future__ import annotations

import pytest
from prompt_rows import result, row, status
from witness_fakes import kv, tensors

from accuracy_core.outcome import Verdict
from accuracy_core.prompts.evidence import Evidence
from accuracy_core.prompts.triage import triage
from accuracy_core.prompts.triage_tree import load_triage_tree
from accuracy_core.schemas import KvPattern, Phase


def judged(bad, *, tensors=(), kv=(), not_measured=None, verdict=Verdict.FAIL):
    rows = [row(t, l2=6.0) if t in bad else row(t) for t in range(8)]
    evidence = Evidence(
        tensors={one.index: one for one in tensors}, kv={one.index: one for one in kv}, not_measured=not_measured or {}
    )
    found = triage([result(rows, verdict)], status(verdict), evidence=evidence, target="--model m", output="out")
    return found, {node.id for node in found.lit}


def test_the_first_divergent_module_becomes_the_culprit():
    found, lit = judged(range(8), tensors=[tensors("model.layers.0.mlp.down_proj", phase=Phase.BOTH)], kv=[kv()])
    culprit = found.culprit
    assert (culprit.module, culprit.layer, culprit.phase) == ("model.layers.0.mlp.down_proj", 0, Phase.BOTH)
    assert {"module_found", "mlp", "kv_clean"} <= lit
    assert "module_global" not in lit
    assert culprit.branch == "fails → token0; module: module_found → mlp; KV: kv_clean"
    assert culprit.suspects[0] == "gate and up projection swapped"
    assert "--module model.layers.0.mlp.down_proj" in culprit.next_command
    assert any("20× the dtype noise given its own inputs" in line for line in culprit.evidence)
    assert culprit.contradictions == []
    assert culprit.confirmed is None


def test_a_cache_at_fault_adds_head_and_position_to_the_attention_that_reads_it():
    place = tensors("model.layers.1.self_attn.attn", phase=Phase.DECODE, position=6)
    found, lit = judged(range(1, 8), tensors=[place], kv=[kv(KvPattern.SHIFTED, at=1, head=1, position=5)])
    culprit = found.culprit
    assert (culprit.module, culprit.layer, culprit.head, culprit.position) == (
        "model.layers.1.self_attn.attn", 1, 1, 5,
    )  # fmt: skip
    assert {"attention_kernel", "kv_bad", "kv_at_fault", "kv_shifted"} <= lit
    assert culprit.suspects[0].startswith("slot mapping")
    assert culprit.contradictions == []


def test_a_cache_that_keeps_what_was_wrong_before_is_not_at_fault():
    place = tensors("model.layers.0.self_attn.q_proj", phase=Phase.BOTH)
    found, lit = judged(range(8), tensors=[place], kv=[kv(KvPattern.SPREAD, at=1)])
    assert {"kv_bad", "kv_consequence"} <= lit
    assert "kv_at_fault" not in lit
    assert found.culprit.module == "model.layers.0.self_attn.q_proj"
    assert found.culprit.head is None
    assert found.culprit.contradictions == []


def test_a_consequence_in_the_cache_is_no_place_where_every_module_is_right():
    result = kv(KvPattern.HEADS, at=13, head=1, position=0).model_copy(update={"cache_fault": False})
    found, lit = judged({0}, tensors=[tensors(None)], kv=[result])
    assert {"modules_clean", "kv_consequence"} <= lit
    culprit = found.culprit
    assert (culprit.phase, culprit.layer, culprit.head, culprit.position) == (Phase.PREFILL, None, None, None)
    assert any("layer 13" in line for line in culprit.evidence), "it is told all the same"


@pytest.mark.parametrize(
    ("module", "at", "at_fault"),
    [
        ("model.layers.1.self_attn.attn", 1, True),  # reads the bad cache
        ("model.layers.1.self_attn.key", 1, False),  # wrong before it was cached
        ("model.layers.0.mlp.down_proj", 1, False),
        ("model.layers.1.self_attn.attn", 0, True),  # the layer behind the bad cache
        ("model.embed_tokens", 0, False),
        ("model.norm", 1, True),
        (None, 1, True),
    ],
)
def test_whether_the_cache_is_at_fault_depends_on_what_comes_before_it(module, at, at_fault):
    _, lit = judged({3}, tensors=[tensors(module)], kv=[kv(KvPattern.FROM_BLOCK, at=at)])
    assert ("kv_at_fault" in lit) is at_fault


@pytest.mark.parametrize(("cache_fault", "at_fault"), [(True, True), (False, False), (None, True)])
def test_what_attention_was_given_counts_more_than_the_pattern(cache_fault, at_fault):
    result = kv(KvPattern.ONE_SLOT).model_copy(update={"cache_fault": cache_fault})
    found, lit = judged({3}, kv=[result])
    assert ("kv_at_fault" in lit) is at_fault
    assert (found.culprit.module is not None) is at_fault


def test_a_right_cache_and_wrong_attention_is_the_read_side():
    _, lit = judged({3}, tensors=[tensors("model.layers.1.self_attn.attn", phase=Phase.DECODE)], kv=[kv()])
    assert {"kv_clean", "kv_read"} <= lit


def test_kv_alone_names_layer_head_and_position():
    found, lit = judged({1, 2}, kv=[kv(KvPattern.ONE_SLOT, at=1, head=0, position=5)])
    culprit = found.culprit
    assert (culprit.layer, culprit.head, culprit.position) == (1, 0, 5)
    assert culprit.module == "model.layers.1.self_attn.attn"
    assert culprit.phase is Phase.DECODE
    assert "modules_clean" not in lit


def test_what_is_missing_ends_its_branch_with_the_reason():
    found, lit = judged({0}, not_measured={"tensor_compare": "no hooks", "kv_cache": "no access"})
    assert {"modules_not_measured", "kv_not_measured"} <= lit
    text = " ".join(found.culprit.evidence)
    assert "tensor compare: not measured (no hooks)" in text
    assert "KV cache: not measured (no access)" in text
    assert found.culprit.module is None
    assert found.culprit.suspects[0].startswith("the first module whose inputs are fine")


@pytest.mark.parametrize(
    ("bad", "given", "words"),
    [
        (range(8), {"tensors": [tensors("model.layers.0.self_attn.attn", phase=Phase.DECODE)]}, "token 0 deviates"),
        ({3}, {"tensors": [tensors("model.layers.0", phase=Phase.PREFILL)]}, "token 0 is clean"),
        ({3}, {"tensors": [tensors(None)]}, "every compared module is within its limits"),
        ({3}, {"tensors": [tensors(None)], "kv": [kv(KvPattern.SCALE)]}, "no module's output is"),
        (
            range(8),
            {"tensors": [tensors("model.layers.1.mlp.down_proj")], "kv": [kv(KvPattern.SPREAD, at=0)]},
            "layer 0 is wrong, yet the first divergent module is in layer 1",
        ),
        (
            range(8),
            {"tensors": [tensors("model.layers.1.mlp.down_proj")], "kv": [kv(KvPattern.SPREAD, at=1)]},
            "model.layers.1.mlp.down_proj comes behind them",
        ),
        (
            range(8),
            {"tensors": [tensors("model.layers.1.self_attn.key")], "kv": [kv(KvPattern.SCALE, at=1)]},
            "is a cache fault's",
        ),
        (
            range(8),
            {"tensors": [tensors("model.norm"), tensors("model.layers.0", index=1)]},
            "prompts name different modules",
        ),
    ],
)
def test_contradictions_are_shown(bad, given, words):
    found, _ = judged(bad, **given)
    assert words in " ".join(found.culprit.contradictions)


def test_passing_logits_and_a_wrong_module_name_the_module():
    found, lit = judged(set(), tensors=[tensors("model.layers.1")], verdict=Verdict.PASS)
    assert found.culprit.module == "model.layers.1"
    assert found.phase is Phase.NONE
    assert "pass" in lit


def test_passing_witnesses_blame_nobody():
    found, _ = judged(set(), tensors=[tensors(None)], kv=[kv()], verdict=Verdict.PASS)
    assert found.culprit is None


def test_a_global_finding_is_marked_as_such_and_gives_way_to_a_local_one():
    found, lit = judged({0}, tensors=[tensors("model.layers.0", local=False)])
    assert "module_global" in lit
    assert "against the reference's own run" in " ".join(found.culprit.evidence)
    found, lit = judged({0}, tensors=[tensors("model.layers.0", local=False), tensors("model.layers.1", index=1)])
    assert found.culprit.module == "model.layers.1"
    assert found.culprit.prompt == 1
    assert "module_global" not in lit


def test_every_kind_of_module_and_every_pattern_has_a_branch():
    tree = load_triage_tree()
    ids = {node.id for node in tree.node}
    assert {kind.id for kind in tree.kind} <= ids
    for pattern in set(KvPattern) - {KvPattern.NONE, KvPattern.SPREAD}:
        assert any(["kv_pattern", "==", pattern.value] == list(rule) for node in tree.node for rule in node.when)


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        ("model.embed_tokens", "embedding"),
        ("model.layers.3.post_attention_layernorm", "norm"),
        ("model.layers.3.self_attn.k_norm", "norm"),
        ("model.layers.3.self_attn.kv_a_proj_with_mqa", "projection"),
        ("model.layers.3.self_attn.query", "rope"),
        ("model.layers.3.self_attn.attn", "attention_kernel"),
        ("model.layers.3.self_attn.o_proj", "attention_output"),
        ("model.layers.3.mlp.gate_proj", "mlp"),
        ("model.layers.3.mlp.gate", "experts"),
        ("model.layers.3.block_sparse_moe.experts", "experts"),
        ("model.layers.3.residual_mid", "residual"),
        ("model.layers.31", "residual"),
        ("lm_head", "head"),
        ("transformer.h.3.mlp.c_fc", "mlp"),
        ("something.else", "other"),
    ],
)
def test_kinds_of_modules_by_name(module, kind):
    assert load_triage_tree().kind_of(module) == kind
