"""From what the user named to what is measured."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from accuracy_core.calibration.corpus import bundled_texts, corpus_prompts, texts_of
from accuracy_core.calibration.material import Inputs, Source
from accuracy_core.calibration.measurement import Subject
from accuracy_core.calibration.order import CalibrationOrder
from accuracy_core.calibration.random_model import llama_shape
from accuracy_core.calibration.seed_stability import check_seeds
from accuracy_core.errors import ConfigurationError
from accuracy_core.models import model_fingerprint, resolve_model
from accuracy_core.models.architectures import architecture_config
from accuracy_core.schemas import fingerprint

LLAMA = "llama-3.2-1b"
LLAMA_LAYERS, LLAMA_VOCAB, LEAST_VOCAB = 16, 128_256, 1024
#: counts up when the initialisation of random models changes: the same name then means another model
RECIPE = 1
_RANDOM = re.compile(r"random:(?P<name>.+?)(@(?P<width>\d*\.?\d+))?(x(?P<layers>\d+))?")


def resolve_order(order: CalibrationOrder) -> tuple[Subject, Inputs]:
    """The subject and the seeded inputs of an order; loads no weights.

    Raises ConfigurationError for a model that is not there, a shape that cannot be made, texts or seeds that are too
    few.
    """
    check_seeds(order.seed_count)
    if order.model.startswith("random:"):
        config = _random_config(order.model)
        made = {"recipe": RECIPE, "config": _plain(config), "seed": 0}
        subject = Subject(Source(config=config), order.model, fingerprint(made), order.dtype)
        return subject, Inputs(order.seed_count, order.tokens, order.rows)
    folder = resolve_model(order.model)
    if not isinstance(folder, Path):
        raise ConfigurationError(
            f"{order.model!r} is not on this machine", fix="download the checkpoint and give its folder"
        )
    subject = Subject(Source(checkpoint=folder), order.model, model_fingerprint(folder), order.dtype)
    return subject, Inputs(order.seed_count, order.tokens, order.rows, _prompts(folder, order))


def _prompts(folder: Path, order: CalibrationOrder) -> tuple[tuple[int, ...], ...]:
    from transformers import AutoTokenizer

    texts = bundled_texts() if order.texts_file is None else texts_of(order.texts_file)
    prompts = corpus_prompts(AutoTokenizer.from_pretrained(folder), texts, order.tokens)
    if not prompts:
        raise ConfigurationError(f"no text reaches {order.tokens} tokens", fix="give longer texts, or fewer tokens")
    return tuple(tuple(prompt) for prompt in prompts)


def _random_config(text: str) -> Any:
    """Configuration that `random:NAME[@WIDTH][xLAYERS]` names."""
    parts = _RANDOM.fullmatch(text)
    if parts is None:
        raise ConfigurationError(
            f"{text!r} names no random model", fix="write random:NAME, random:NAME@WIDTH or random:NAME@WIDTHxLAYERS"
        )
    name, layers = parts["name"], int(parts["layers"]) if parts["layers"] else None
    if layers == 0:
        raise ConfigurationError(f"{text!r} has no layers", fix="ask for one at least")
    if name == LLAMA:
        return _llama(float(parts["width"] or 1), layers or LLAMA_LAYERS)
    if parts["width"]:
        raise ConfigurationError(f"the width of {name!r} cannot be scaled", fix=f"scale {LLAMA}, or leave @ out")
    if Path(name).expanduser().is_dir():
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(Path(name).expanduser())
        if layers is not None:
            config.get_text_config().num_hidden_layers = layers
        return config
    return architecture_config(name, **({"num_hidden_layers": layers} if layers else {}))


def _llama(width: float, layers: int) -> Any:
    """The vocabulary shrinks with the width: at an eighth it would be most of the model."""
    if not 0 < width <= 4:
        raise ConfigurationError(f"a width of {width:g} times the original cannot be made", fix="use 0.125 to 4")
    return llama_shape(width, layers, max(LEAST_VOCAB, round(LLAMA_VOCAB * width)))


def _plain(config: Any) -> Any:
    from accuracy_core.goldens.reference_config import config_for_key

    return config_for_key(config)
