"""What the plugins found about the prompts of a run directory, read from its typed files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from accuracy_core.schemas import KvResult, PluginStatus, PromptResult, RunDir, TensorCompareResult
from accuracy_core.schemas.base import Schema

LOGITS = "logit_validation"
TENSORS = "tensor_compare"
KV = "kv_cache"
CONSISTENCY = "engine_consistency"

Kind = TypeVar("Kind", bound=Schema)


@dataclass(frozen=True)
class Evidence:
    """Results per prompt index. `not_measured`: plugin -> why it has no result at all."""

    logits: dict[int, PromptResult] = field(default_factory=dict)
    tensors: dict[int, TensorCompareResult] = field(default_factory=dict)
    kv: dict[int, KvResult] = field(default_factory=dict)
    not_measured: dict[str, str] = field(default_factory=dict)


def read_evidence(
    run_dir: RunDir,
    prompts: Iterable[int],
    plugins: Mapping[str, PluginStatus],
    not_measured: Mapping[str, str] | None = None,
) -> Evidence:
    """Results of `prompts`. Only of plugins that `plugins` knows: a file of an earlier analysis says nothing.

    `not_measured` are reasons that are known besides: a plugin that was not run at all. Raises ConfigurationError for a
    damaged file.
    """
    indices = list(prompts)
    reasons = dict(not_measured or {})
    for name in (TENSORS, KV):
        status = plugins.get(name)
        if status is not None and status.verdict is None:
            reasons[name] = "; ".join(dict.fromkeys(status.errors.values())) or "nothing was compared"
    return Evidence(
        logits=_read(run_dir, LOGITS, PromptResult, indices, plugins),
        tensors=_read(run_dir, TENSORS, TensorCompareResult, indices, plugins),
        kv=_read(run_dir, KV, KvResult, indices, plugins),
        not_measured=reasons,
    )


def _read(
    run_dir: RunDir, plugin: str, kind: type[Kind], prompts: Iterable[int], plugins: Mapping[str, PluginStatus]
) -> dict[int, Kind]:
    if plugin not in plugins:
        return {}
    paths = {index: run_dir.prompt_result(index, plugin) for index in prompts}
    return {index: run_dir.read(path, kind) for index, path in paths.items() if path.exists()}
