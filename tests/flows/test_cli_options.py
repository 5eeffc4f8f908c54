"""Options become parameters; what is wrong is said by name."""

from __future__ import annotations

import pytest

from accuracy_core.errors import ConfigurationError
from flows.cli.options import build_parameters, load_config, merge, parse_pairs, with_engine_arguments


def test_pairs_split_at_the_last_equals_sign_and_read_json():
    pairs = parse_pairs(["a/b,c=d=0.5", "flag=true", "name=abc", 'map={"x": 1}'], "--x")
    assert pairs == {"a/b,c=d": 0.5, "flag": True, "name": "abc", "map": {"x": 1}}


@pytest.mark.parametrize("word", ["novalue", "=3", ""])
def test_a_word_that_is_no_pair_is_named(word):
    with pytest.raises(ConfigurationError, match="KEY=VALUE"):
        parse_pairs([word], "--engine-arg")


def test_a_key_given_twice_is_refused():
    with pytest.raises(ConfigurationError, match="twice"):
        parse_pairs(["a=1", "a=2"], "--threshold")


def test_options_override_the_file_key_by_key():
    file = {"engine": {"model": "m", "dtype": "float16"}, "output_dir": "x"}
    merged = merge(file, {"engine": {"dtype": "bfloat16"}, "output_dir": None})
    assert merged == {"engine": {"model": "m", "dtype": "bfloat16"}, "output_dir": "x"}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"evaluation": {"limit": 0}}, "evaluation.limit"),
        ({"engine": {"model": "m", "dtype": "int3"}}, "engine.dtype"),
        ({"engine": {"model": "m", "tensor_parallel_size": 0}}, "engine.tensor_parallel_size"),
        ({"prompt_analysis": {"prompts": []}}, "empty list"),
        ({"evaluation": {"tasks": []}}, "evaluation.tasks"),
        ({"no_such": 1}, "no_such"),
        ({"engine": {"model": "m", "engine_args": {"dtype": "half"}}}, "engine_args repeats dtype"),
    ],
)
def test_each_wrong_parameter_is_named(values, named):
    with pytest.raises(ConfigurationError, match=named):
        build_parameters(values)


def test_a_config_file_must_hold_a_mapping(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("- 1\n- 2\n")
    with pytest.raises(ConfigurationError, match="no mapping"):
        load_config(path)
    with pytest.raises(ConfigurationError, match="cannot read"):
        load_config(tmp_path / "missing.yaml")


def test_refresh_names_stages_of_the_run():
    assert build_parameters({"refresh": ["evaluate"]}).refresh == ["evaluate"]
    with pytest.raises(ConfigurationError, match="refresh names evaluate"):
        build_parameters({"refresh": ["evaluate"], "stages": ["report"]})
    with pytest.raises(ConfigurationError, match="refresh"):
        build_parameters({"refresh": ["evaluat"]})


def test_an_engine_argument_that_is_a_field_becomes_one():
    words = ["max_num_seqs=1", "kv-cache-dtype=fp8", "block-size=64"]
    engine = with_engine_arguments({"model": "embedded", "dtype": "float32"}, words)
    spec = build_parameters({"engine": engine}).engine
    assert (spec.dtype, spec.max_num_seqs, spec.kv_cache_dtype) == ("float32", 1, "fp8")
    assert spec.engine_args == {"block_size": 64}


@pytest.mark.parametrize("word", ["dtype=float32", "max-model-len=64"])
def test_an_engine_argument_beside_its_own_option_is_refused(word):
    with pytest.raises(ConfigurationError, match="given twice"):
        with_engine_arguments({"dtype": "bfloat16", "max_model_len": 128}, [word])
