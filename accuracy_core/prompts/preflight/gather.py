"""Facts from the checkpoint's files: headers only, except for what a check asks for by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy_core.engines.checkpoint import read_config
from accuracy_core.errors import ConfigurationError
from accuracy_core.models.checkpoint import weight_files
from accuracy_core.models.quiet import quiet_transformers
from accuracy_core.prompts.preflight.facts import LoadReport, PreflightFacts, TensorInfo
from accuracy_core.schemas import EngineSpec

if TYPE_CHECKING:
    import torch


def checkpoint_facts(spec: EngineSpec, folder: Path, *, load: bool = True, chat: bool = False) -> PreflightFacts:
    """What the files say: config, generation config, headers of the weights, tokenizers, and a load without data.

    `load` False leaves out the load on the meta device (for checkpoints that transformers does not know); `chat`: the
    evaluation will send conversations. Raises ConfigurationError for files that cannot be read.
    """
    other = spec.tokenizer is not None and Path(spec.tokenizer).resolve() != folder.resolve()
    own_tokenizer = any(folder.glob("tokenizer*")) or any(folder.glob("*.model"))
    tokenizer, problem = _tokenizer(str(folder), None if own_tokenizer else spec.tokenizer)
    return PreflightFacts(
        spec=spec,
        folder=folder,
        chat=chat,
        config=read_config(folder),
        generation_config=_optional_json(folder / "generation_config.json"),
        tensors=dict(tensor_headers(folder)),
        tokenizer=tokenizer,
        tokenizer_problem=problem,
        target_tokenizer=_tokenizer(str(folder), spec.tokenizer)[0] if other and own_tokenizer else None,
        loads=(report,) if load and (report := reference_load(spec, folder)) is not None else (),
    )


def tensor_headers(folder: Path) -> Iterator[tuple[str, TensorInfo]]:
    """Name, shape and dtype of every tensor in the safetensors files; nothing for other formats."""
    from safetensors import safe_open

    for file in weight_files(folder):
        if file.suffix != ".safetensors":
            continue
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118 - not a dict
                part = content.get_slice(name)
                yield name, TensorInfo(tuple(part.get_shape()), part.get_dtype())


def read_tensor(folder: Path, name: str) -> torch.Tensor:
    """One tensor of the checkpoint, by name. Raises ConfigurationError when no file has it."""
    from safetensors import safe_open

    for file in weight_files(folder):
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as content:
                if name in content.keys():  # noqa: SIM118 - not a dict
                    return content.get_tensor(name)
    raise ConfigurationError(f"{folder} has no tensor {name!r}")


def reference_load(spec: EngineSpec, folder: Path) -> LoadReport | None:
    """What transformers says when it loads the checkpoint without its data: names and shapes are compared all the
    same. None for quantised weights that have no reference here.

    FP8 weights are loaded as the reference loads them: plain, their scales beside them.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    from accuracy_core.goldens.fp8_checkpoint import is_beside_weights, is_fp8

    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(folder, trust_remote_code=spec.trust_remote_code)
            if getattr(config, "quantization_config", None) is not None:
                if not is_fp8(config):
                    return None
                del config.quantization_config
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                output_loading_info=True,
                device_map="meta",
                trust_remote_code=spec.trust_remote_code,
                ignore_mismatched_sizes=True,
            )
        info: dict[str, Any] = loaded[1]
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        return LoadReport("reference", error=f"{type(error).__name__}: {error}"[:500])
    mismatched = {str(item[0] if isinstance(item, tuple) else item) for item in info["mismatched_keys"]}
    unexpected = {name for name in info["unexpected_keys"] if not is_beside_weights(name)}
    return LoadReport(
        "reference", tuple(sorted(info["missing_keys"])), tuple(sorted(unexpected)), tuple(sorted(mismatched))
    )


def _tokenizer(folder: str, other: str | None) -> tuple[Any, str]:
    """(tokenizer, '') or (None, why not): transformers reads config.json for it, which may be what is wrong."""
    from accuracy_core.prompts.tokens import load_tokenizer

    try:
        return load_tokenizer(folder, other), ""
    except ConfigurationError as error:
        return None, error.message


def _optional_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}", fix="copy the checkpoint again") from error
    return data if isinstance(data, dict) else {}
