"""A whole calibration: what it must contain, what it refuses, and that its figures come again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from accuracy_core.calibration import Calibration, Inputs, Source, calibrate
from accuracy_core.calibration.measurement import STEPS
from accuracy_core.calibration.quantisation import holding, quantise_linears
from accuracy_core.calibration.random_model import MOST_TRAINED_GROWTH, soundness
from accuracy_core.calibration.variants import VARIANTS
from accuracy_core.errors import ConfigurationError
from tests.calibration.conftest import INPUTS, tiny_config


def test_every_measurement_is_there(measured):
    found, steps = measured
    assert found.determinism.floor == 0.0
    assert {(item.variant, item.depth) for item in found.dtype_noise} == {(v, d) for v in VARIANTS for d in (1, 2)}
    assert all(0 < item.errors["all"] < 0.05 for item in found.dtype_noise)
    assert found.stability.seeds == len(found.stability.errors) == 20
    assert set(found.envelope.by_variant) == set(VARIANTS) - {"fused"}
    assert found.spans
    assert [step[2] for step in steps] == list(STEPS)
    assert Calibration.from_json(found.to_json()) == found


def test_the_tolerance_is_twice_the_worst_variant_at_full_depth(measured):
    found, _ = measured
    worst = max(item.errors["all"] for item in found.dtype_noise if item.depth == 2)
    assert found.relative_tolerance == pytest.approx(2 * worst)
    assert min(found.discrimination.right.values()) == pytest.approx(2.0)
    assert min(found.discrimination.wrong.values()) > 10


def test_limits_follow_from_the_worst_clean_row(measured):
    found, _ = measured
    for key, (_, rtol) in found.tolerances.top_k.items():
        assert rtol == pytest.approx(2 * found.envelope.topk_error[key])
    assert found.tolerances.guards.l2_ratio == pytest.approx(max(3.0, 1.5 * found.envelope.l2_ratio))
    assert "tiny in bfloat16" in str(found.tolerances.provenance["calibration"])


def test_a_second_run_reproduces_the_numbers(subject, measured):
    again = calibrate(subject, INPUTS, versions={"torch": "2"})
    assert again.id == measured[0].id
    assert again.date > measured[0].date


def test_fp8_is_measured_against_the_same_bytes(measured):
    noise = measured[0].quantisation
    assert noise.layers == 14
    assert noise.against_fp32_weights > 5 * noise.against_same_bytes


def test_both_models_hold_the_same_bytes_and_get_their_own_back(subject):
    fp32, narrow = subject.source.build(torch.float32), subject.source.build(torch.bfloat16)
    stored = quantise_linears(fp32)
    before = narrow.model.layers[0].mlp.up_proj.weight.clone()
    with holding(fp32, stored), holding(narrow, stored):
        for name in stored:
            wide, low = fp32.get_submodule(name).weight, narrow.get_submodule(name).weight
            assert torch.equal(wide.bfloat16(), low)
    assert torch.equal(narrow.model.layers[0].mlp.up_proj.weight, before)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"inputs": replace(INPUTS, seeds=19)}, "19 seeds are too few"),
        ({"dtype": "float32"}, "float32 has no noise"),
    ],
)
def test_what_is_refused(subject, changed, message):
    inputs = changed.pop("inputs", INPUTS)
    with pytest.raises(ConfigurationError, match=message):
        calibrate(replace(subject, **changed), inputs, versions={})


@pytest.mark.parametrize(
    ("factor", "message"), [(1e5, "activations diverge.* by layer 1"), (float("nan"), "not finite from layer 1 on")]
)
def test_a_checkpoint_that_diverges_is_refused_with_the_layer(tmp_path, subject, factor, message):
    model = subject.source.build(torch.float32)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(factor)
    model.save_pretrained(tmp_path)
    checkpoint = replace(subject, source=Source(checkpoint=tmp_path))
    with pytest.raises(ConfigurationError, match=message):
        calibrate(checkpoint, INPUTS, versions={})


def test_unscaled_random_weights_are_refused_where_trained_growth_is_not(subject):
    model = subject.source.build(torch.float32)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(50)
    ids = [[1, 2, 3]]
    with pytest.raises(ConfigurationError, match="layer 1"):
        soundness(model, ids)
    assert 10 < soundness(model, ids, most_growth=MOST_TRAINED_GROWTH).growth < MOST_TRAINED_GROWTH


def test_random_models_of_one_seed_are_equal_and_sound():
    first, again, other = (Source(config=tiny_config(), seed=seed).build(torch.float32) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    found = soundness(first, [[1, 2, 3, 4]])
    assert found.growth < 10
    assert 0.5 < found.logit_std < 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 9}, "9 rows cannot be taken of 8"),
        ({"prompts": ((1, 2),)}, "must have 8 tokens"),
        ({"prompts": ((1,) * 8,)}, "give 1 prompts of 8 tokens, 20 seeds"),
    ],
)
def test_inputs_that_do_not_fit(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        Inputs(**{"seeds": 20, "tokens": 8, "rows": 4, **settings})
