"""A checkpoint of random weights with the configuration of another: modules are judged without the real weights."""

from __future__ import annotations

import shutil
from pathlib import Path

from accuracy_core.goldens.reference_config import load_config


def seeded_checkpoint(model: Path, folder: Path, seed: int) -> Path:
    """Write a checkpoint of `model`'s configuration, initialised as transformers does from `seed`, into `folder`.

    Tokenizer files are copied; weights are bfloat16. Raises what transformers raises for a model that it cannot make.
    """
    import torch
    from transformers import AutoModelForCausalLM

    config = load_config(str(model), None, None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    made.save_pretrained(folder)
    for path in model.iterdir():
        if path.is_file() and path.name.startswith(("tokenizer", "special_tokens", "vocab", "merges", "chat_template")):
            shutil.copyfile(path, folder / path.name)
    return folder
