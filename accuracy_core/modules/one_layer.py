"""A transformers model with one decoder layer of a checkpoint, whose weights alone are read."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from accuracy_core.errors import ConfigurationError, NotMeasuredError
from accuracy_core.goldens.reference_config import attention_implementation, load_config
from accuracy_core.models.checkpoint import weight_files
from accuracy_core.models.quiet import quiet_transformers

#: rows of the vocabulary where embeddings play no part: the output layer is not looked at
_SMALL_VOCABULARY = 8
_LAYER = re.compile(r"^(?P<head>.*\blayers)\.(?P<number>\d+)\.(?P<tail>.+)$")
_EMBEDDING = re.compile(r"(^|\.)embed_tokens\.weight$")
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def load_one_layer(
    checkpoint: str | Path, layer: int, dtype: torch.dtype, *, embeddings: bool = False, config: Any = None
) -> Any:
    """A causal model in evaluation mode whose only layer, `model.layers.0`, is the checkpoint's layer `layer`.

    Its inputs are `inputs_embeds` (batch, tokens, hidden), the residual stream that enters the layer; with `embeddings`
    the checkpoint's embedding is loaded too and `input_ids` work. Masks, rotary embeddings and KV cache are
    transformers' own. Tensors of other layers are not read. `config` replaces the checkpoint's.

    Raises ConfigurationError for a layer that does not exist, NotMeasuredError where the layer cannot stand alone.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    config = load_config(str(checkpoint), None, None) if config is None else config
    count = config.get_text_config().num_hidden_layers
    if not 0 <= layer < count:
        raise ConfigurationError(
            f"layer {layer} asked for, the model has {count}", fix=f"choose a layer from 0 to {count - 1}"
        )
    tensors = dict(_tensors(Path(checkpoint), layer, embeddings))
    if not tensors:
        raise NotMeasuredError(f"the checkpoint has no tensors named …layers.{layer}.…")
    attention = attention_implementation(config)  # the default would drop a soft cap of the scores
    with quiet_transformers():
        small = one_layer_config(config, layer, embeddings)
        kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(small)]
        model, info = kind.from_pretrained(
            None,
            config=small,
            state_dict=tensors,
            dtype=dtype,
            output_loading_info=True,
            **({} if attention == "auto" else {"attn_implementation": attention}),
        )
    wanted = ("model.layers.0.", "model.embed_tokens") if embeddings else ("model.layers.0.",)
    missing = sorted(name for name in info["missing_keys"] if name.startswith(wanted))
    wrong = [*missing, *sorted(info["unexpected_keys"]), *(str(item) for item in info["mismatched_keys"])]
    if wrong:
        raise NotMeasuredError(f"layer {layer} cannot be loaded alone: {', '.join(wrong[:3])} do not fit")
    return model.eval()


def one_layer_config(config: Any, layer: int, embeddings: bool = False) -> Any:
    """`config` for a model whose layer 0 is of the same kind as this one's layer `layer`."""
    small = copy.deepcopy(config)
    text = small.get_text_config()
    text.num_hidden_layers = 1
    if getattr(text, "layer_types", None):
        text.layer_types = [text.layer_types[layer]]
    # settings that make some layers dense and others mixtures of experts, by their number
    if getattr(text, "first_k_dense_replace", None) is not None:
        text.first_k_dense_replace = int(layer < text.first_k_dense_replace)
    if getattr(text, "mlp_only_layers", None):
        text.mlp_only_layers = [0] if layer in text.mlp_only_layers else []
    step = getattr(text, "decoder_sparse_step", None)
    if step and (layer + 1) % step:
        text.mlp_only_layers = [0]
    if step:
        text.decoder_sparse_step = 1
    if embeddings:
        text.tie_word_embeddings = small.tie_word_embeddings = True
    else:
        text.vocab_size = _SMALL_VOCABULARY
        for name in _TOKEN_IDS:
            if getattr(text, name, None) is not None:
                setattr(text, name, 0)
    return small


def _tensors(folder: Path, layer: int, embeddings: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """The layer's tensors, renamed to layer 0, and the embedding's if asked for."""
    from safetensors import safe_open

    for file in weight_files(folder):
        if file.suffix != ".safetensors":
            raise NotMeasuredError(f"{file.name}: single layers are read out of safetensors only")
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118 - not a dict
                found = _LAYER.match(name)
                if found and int(found["number"]) == layer:
                    yield f"{found['head']}.0.{found['tail']}", content.get_tensor(name)
                elif embeddings and _EMBEDDING.search(name):
                    yield name, content.get_tensor(name)
