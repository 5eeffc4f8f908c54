from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from accuracy_core.logits import MultiPromptValidationResult, compare_prompts
from accuracy_core.logits.settings import effective_tolerances
from accuracy_core.numerics import DEFAULT_TOLERANCE_MAP, default_tolerances
from accuracy_core.outcome import Verdict
from accuracy_core.schemas import PromptResult, Tolerances

from .shared_cases import load, per_prompt

make = load("make_cases")


@pytest.fixture(scope="module")
def result() -> MultiPromptValidationResult:
    f = make.base(4, 3, 5, 900)
    e, t = make.noisy(f, 5), make.noisy(f, 6)
    t[1, 2] = make.noisy(f[1, 2], 7, std=1.0)
    return compare_prompts(per_prompt(f), per_prompt(e), per_prompt(t))


def test_documented_fields(result: MultiPromptValidationResult) -> None:
    assert result.passed is False
    assert [passed for passed, _ in result.per_prompt_results] == [
        p.two_way_passed and not p.guards for p in result.per_prompt
    ]
    assert result.per_prompt_results[1][0] is False
    per_batch = result.per_prompt_results[1][1]
    assert (len(per_batch), len(per_batch[0])) == (1, 5)
    assert per_batch[0][2]["guards"]
    assert {"sigma_ratio", "agg_bc", "max_linf_ratio", "mean_kl", "top1_agreement"} <= set(result.aggregate_metrics)
    assert all(type(v) in (int, float) for v in result.aggregates.values())


def test_worst_row_is_the_broken_one(result: MultiPromptValidationResult) -> None:
    assert (result.worst.prompt, result.worst.token) == (1, 2)
    assert (result.worst_guard.prompt, result.worst_guard.token) == (1, 2)
    assert [p.verdict for p in result.per_prompt][1] is not Verdict.PASS
    assert (result.per_prompt[1].phase, result.per_prompt[1].first_bad_token) == ("decode", 2)
    assert result.per_prompt[0].first_bad_token is None


def test_rows_go_into_a_prompt_result_and_back(result: MultiPromptValidationResult) -> None:
    document = PromptResult(index=1, plugin="logit_validation", rows=result.prompt_rows(1), guards=result.guards)
    assert repr(PromptResult.from_json(document.to_json())) == repr(document)
    assert math.isnan(document.rows[0].bc), "not measured: 900 errors are too few"


def test_a_clean_result_still_names_its_largest_row() -> None:
    f = make.base(4, 2, 3, 900)
    clean = compare_prompts(per_prompt(f), per_prompt(make.noisy(f, 5)), per_prompt(make.noisy(f, 6)))
    assert clean.worst.metric == "l2_ratio"
    assert clean.worst.value == max(r.l2_ratio for r in clean.rows)
    assert clean.worst_guard is None


def test_default_map_is_the_documented_one() -> None:
    assert DEFAULT_TOLERANCE_MAP == {
        "5": (1e-5, 0.011), "50": (1e-5, 0.02), "1000": (1e-5, 0.03), "all": (1e-5, 0.05),
    }  # fmt: skip


def test_every_limit_has_a_provenance() -> None:
    tolerances = default_tolerances()
    names = {"calibration", "top_k", "n_ulps"}
    names |= {f"aggregate.{n}" for n in type(tolerances.aggregate).model_fields}
    names |= {f"guards.{n}" for n, v in tolerances.guards.model_dump().items() if v is not None}
    names |= {f"extra.{part}.{n}" for part, limits in tolerances.extra.items() for n in limits}
    assert set(tolerances.provenance) == names
    assert all(len(str(text)) > 20 for text in tolerances.provenance.values())


def test_default_tolerances_survive_a_round_trip() -> None:
    tolerances = default_tolerances()
    assert Tolerances.from_json(tolerances.to_json()) == tolerances


def test_documented_overrides() -> None:
    changed = effective_tolerances(
        None,
        {5: (0.0, 0.5)},
        {"agg_sigma_ratio_threshold": 1.2, "agg_bc_threshold": 0.9, "l2_multiplier": 2.0, "guard_l2_ratio": 9.0,
         "guards": {"bias_p": None}},
    )  # fmt: skip
    assert changed.top_k == {"5": (0.0, 0.5)}
    assert (changed.aggregate.sigma_ratio, changed.aggregate.bc, changed.aggregate.l2_ratio) == (1.2, 0.9, 2.0)
    assert (changed.guards.l2_ratio, changed.guards.bias_p, changed.guards.linf_ratio) == (9.0, None, 5.0)
    assert default_tolerances().guards.l2_ratio == 3.0


def test_own_map_and_thresholds_decide() -> None:
    f = make.base(4, 1, 3, 900)
    e, t = per_prompt(make.noisy(f, 5)), per_prompt(make.noisy(f, 6, std=0.03))
    strict = effective_tolerances(None, {"all": (0, 1e-6)}, {"agg_sigma_ratio_threshold": 0.5})
    assert compare_prompts(per_prompt(f), e, t).passed
    failed = compare_prompts(per_prompt(f), e, t, tolerances=strict)
    assert failed.verdict is Verdict.FAIL
    assert {r.route: r.passed for r in failed.routes} == {
        "two_way": False, "sigma_ratio": False, "agg_bc": None, "typical_ratio": False
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sides_may_have_their_own_dtypes(dtype: torch.dtype) -> None:
    f = make.base(4, 2, 3, 900)
    e = make.noisy(f, 5)
    as_stored = compare_prompts(per_prompt(f), [x.bfloat16() for x in per_prompt(e)], per_prompt(f.to(dtype)))
    wide = compare_prompts(per_prompt(f), per_prompt(e), per_prompt(f.to(dtype).float()))
    assert repr(as_stored.rows) == repr(wide.rows)


def test_finer_dtypes_have_finer_floors() -> None:
    f = make.base(4, 2, 3, 900)
    e = per_prompt(f)  # a reference without noise: only the target's rounding step explains an error
    t = per_prompt(f + 0.01 * torch.randn(f.shape, generator=torch.Generator().manual_seed(1)))
    assert compare_prompts(per_prompt(f), e, t, target_dtype="bfloat16").passed
    assert not compare_prompts(per_prompt(f), e, t, target_dtype="float32").passed


def test_logits_that_need_grad_or_are_views_are_taken_as_they_are() -> None:
    f = make.base(4, 2, 3, 900).transpose(0, 1).contiguous().transpose(0, 1)
    target = make.noisy(f, 6).requires_grad_()
    assert compare_prompts(per_prompt(f), per_prompt(make.noisy(f, 5)), per_prompt(target)).passed


@pytest.mark.slow
def test_importing_changes_no_global_switch_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, torch; before = (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype());"
        "import accuracy_core.logits, accuracy_core.numerics;"
        "assert before == (torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype());"
        "heavy = {'plotly', 'pandas', 'transformers', 'vllm', 'scipy'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_target_as_noisy_as_bf16_passes_though_its_sigma_ratio_is_just_above_1() -> None:
    f = make.base(4, 3, 8, 900)
    e, t = per_prompt(make.noisy(f, 5)), per_prompt(make.noisy(f, 6, std=0.0206))
    strict = effective_tolerances(None, {"all": (0, 1e-6)}, {})
    result = compare_prompts(per_prompt(f), e, t, tolerances=strict)
    routes = {r.route: r for r in result.routes}
    assert 1.0 < routes["sigma_ratio"].value < 1.1
    assert (routes["two_way"].passed, routes["sigma_ratio"].passed, routes["typical_ratio"].passed) == (
        False, False, True,
    )  # fmt: skip
    assert result.passed
    assert result.guards == []
    plain = compare_prompts(per_prompt(f), e, t, tolerances=strict, rescue="documented")
    assert "typical_ratio" not in {r.route for r in plain.routes}
    assert plain.verdict is Verdict.FAIL
