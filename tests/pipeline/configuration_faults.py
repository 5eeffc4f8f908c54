"""Fourteen ways to set a run up wrongly, each injected into a right one; where each must show, and in which part."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.pipeline.setups import WEIGHTS, Setup

HEAD = "lm_head.weight"
SCALED_ROPE = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
FP8_PER_ROW = {
    "quant_method": "compressed-tensors", "format": "float-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}},
}  # fmt: skip


@dataclass(frozen=True)
class ConfigurationFault:
    """`inject` spoils a right set-up; `finding` is what must be found, and `fix` a word of what to do about it.

    `seen` False: the files and parameters give it away, nothing needs to run. True: the evaluation's requests do.
    """

    inject: Callable[[Setup], None]
    finding: str
    fix: str
    seen: bool = False


def _double_bos(setup: Setup) -> None:
    setup.ids = lambda ids: [ids[0], *ids]


def _no_bos(setup: Setup) -> None:
    setup.ids = lambda ids: ids[1:]


def _wrong_template(setup: Setup) -> None:
    setup.chat = True
    setup.template = "{{ bos_token }}{% for m in messages %}User: {{ m['content'] }}\n{% endfor %}Assistant:"


def _sampling_default(setup: Setup) -> None:
    setup.engine["engine_args"] = {"override_generation_config": {"temperature": 0.7, "top_p": 0.9}}


def _fp16_on_bf16(setup: Setup) -> None:
    setup.engine["dtype"] = "float16"


def _rope_factor_dropped(setup: Setup) -> None:
    setup.edit("config.json", rope_parameters=SCALED_ROPE)
    dropped = {"rope_type": "default", "rope_theta": SCALED_ROPE["rope_theta"]}
    setup.engine["hf_overrides"] = {"rope_parameters": dropped}


def _longer_than_trained(setup: Setup) -> None:
    setup.engine["max_model_len"] = 4096


def _padded_head(setup: Setup) -> None:
    def pad(tensors: dict[str, Any]) -> None:
        head = tensors[HEAD]
        tensors[HEAD] = torch.cat([head, torch.zeros(12, head.shape[1], dtype=head.dtype)])

    setup.weights(pad)


def _tied_flag_flipped(setup: Setup) -> None:
    setup.edit("config.json", tie_word_embeddings=True)


def _other_tokenizer(setup: Setup) -> None:
    other = setup.folder / "tokenizer"
    shutil.copytree(setup.model, other)
    path = other / "tokenizer.json"
    data = json.loads(path.read_text("utf-8"))
    vocabulary = data["model"]["vocab"]
    first, second = (next(key for key, value in vocabulary.items() if value == index) for index in (40, 41))
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(data), "utf-8")
    setup.engine["tokenizer"] = str(other)


def _truncated(setup: Setup) -> None:
    setup.finish, setup.max_gen_toks = "length", 2


def _missing_weights(setup: Setup) -> None:
    setup.weights(lambda tensors: tensors.pop("model.layers.2.mlp.down_proj.weight"))


def _other_scales(setup: Setup) -> None:
    """Weights quantised per row, and beside them the scales of a quantisation in blocks: two revisions mixed."""
    setup.edit("config.json", quantization_config=FP8_PER_ROW)
    tensors, scales = load_file(setup.model / WEIGHTS), {}
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        wide = tensors[name].float()
        scale = wide.abs().amax(1, keepdim=True) / 448
        tensors[name] = (wide / scale).to(torch.float8_e4m3fn)
        blocks = wide.unfold(0, 16, 16).unfold(1, 16, 16).abs().amax((2, 3)) / 448
        scales[f"{name}_scale"] = blocks
    save_file(tensors, setup.model / WEIGHTS, metadata={"format": "pt"})
    save_file(scales, setup.model / "scales.safetensors", metadata={"format": "pt"})
    index = {**dict.fromkeys(tensors, WEIGHTS), **dict.fromkeys(scales, "scales.safetensors")}
    text = json.dumps({"metadata": {}, "weight_map": index})
    (setup.model / "model.safetensors.index.json").write_text(text, "utf-8")


def _filter_without_match(setup: Setup) -> None:
    setup.pattern = "The answer is \\(([A-D])\\)"


FAULTS = {
    "double BOS": ConfigurationFault(_double_bos, "double_bos", "add_special_tokens=false", seen=True),
    "no BOS": ConfigurationFault(_no_bos, "missing_bos", "add_special_tokens=true", seen=True),
    "wrong template": ConfigurationFault(_wrong_template, "chat_template", "template", seen=True),
    "sampling default": ConfigurationFault(_sampling_default, "sampling_defaults", "take it out"),
    "fp16 on bf16": ConfigurationFault(_fp16_on_bf16, "dtype", "--dtype bfloat16"),
    "rope factor dropped": ConfigurationFault(_rope_factor_dropped, "rope_scaling", "take it out of hf_overrides"),
    "longer than trained": ConfigurationFault(_longer_than_trained, "max_model_len", "--max-model-len 256"),
    "lm_head padded": ConfigurationFault(_padded_head, "vocabulary", "vocab_size"),
    "tied flag flipped": ConfigurationFault(_tied_flag_flipped, "tied_embeddings", "tie_word_embeddings to false"),
    "another tokenizer": ConfigurationFault(_other_tokenizer, "tokenizer", "leave --tokenizer out"),
    "truncated generations": ConfigurationFault(_truncated, "truncation", "max_gen_toks", seen=True),
    "missing weights": ConfigurationFault(_missing_weights, "weights", "download the checkpoint again"),
    "wrong scale file": ConfigurationFault(_other_scales, "quantization", "one revision"),
    "filter never matches": ConfigurationFault(_filter_without_match, "filter", "pattern", seen=True),
}
