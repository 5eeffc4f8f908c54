"""Injection of numerical faults into a loaded vLLM model; the counterpart of `accuracy_core.faults` for Hugging Face.

Needs eager execution: a compiled model never calls the hooks. Weights of the CPU backend are packed after loading, so
faults change outputs and attributes, never `weight`.
"""

import re
from typing import Any, Callable, Dict, List, Tuple

import torch

#: names of the feed-forward block; its last linear, when it has one, so that finer taps see the fault too
_MLP = r"\.layers\.%d\.(?:mlp|feed_forward|block_sparse_moe)(?:\.down_proj)?$"
_ATTENTION = r"\.layers\.%d\..*\.attn$"


class FaultNotApplicable(ValueError):
    """The model or this vLLM has no place for the fault.

    The text starts with a fixed phrase that ends up in the log.
    """

    def __init__(self, reason: str) -> None:
        super().__init__("assay fault not applicable: " + reason)


def inject(runner: Any, fault: Dict[str, Any]) -> List[str]:
    """Put `fault` (name, layer, strength, position, params) into the runner's model. Returns the modules concerned."""
    try:
        injection = INJECTIONS[fault["name"]]
    except KeyError:
        raise FaultNotApplicable("%r is unknown inside the engine" % fault["name"]) from None
    return injection(runner, fault)


def modules(runner: Any, pattern: str) -> List[Tuple[str, Any]]:
    model = runner.get_model() if hasattr(runner, "get_model") else runner.model
    found = [(name, module) for name, module in model.named_modules() if re.search(pattern, "." + name)]
    if not found:
        raise FaultNotApplicable("no module matches %s" % pattern)
    return found


class StepTokens:
    """Which tokens run in the current step: their positions, and how long their prompts are. int64 (tokens,), CPU."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.positions = torch.empty(0, dtype=torch.long)
        self.prompt_lengths = torch.empty(0, dtype=torch.long)
        self._scheduled: Dict[str, int] = {}
        execute = runner.execute_model

        def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            self._scheduled = dict(scheduler_output.num_scheduled_tokens)
            try:
                return execute(scheduler_output, *args, **kwargs)
            finally:
                self._scheduled = {}

        runner.execute_model = execute_model
        model = runner.get_model() if hasattr(runner, "get_model") else runner.model
        model.register_forward_pre_hook(self._before_forward, with_kwargs=True)

    def _before_forward(self, model: Any, args: Any, kwargs: Dict[str, Any]) -> None:
        """Runs after the batch was put in order, which is why it is here and not in `execute_model`."""
        positions = kwargs.get("positions", args[1] if len(args) > 1 else None)
        lengths: List[int] = []
        if self._scheduled:
            batch = self.runner.input_batch
            for index, request in enumerate(batch.req_ids):
                lengths += [int(batch.num_prompt_tokens[index])] * self._scheduled.get(request, 0)
        self.prompt_lengths = torch.tensor(lengths, dtype=torch.long)
        if positions is None or not lengths:  # a warm-up run
            self.positions = torch.empty(0, dtype=torch.long)
        else:
            self.positions = positions.reshape(-1)[: len(lengths)].to("cpu", torch.long)

    @property
    def decoded(self) -> torch.Tensor:
        """bool (tokens,): True for tokens past their prompt."""
        return self.positions >= self.prompt_lengths[: len(self.positions)]


def _mlp_scale(runner: Any, fault: Dict[str, Any]) -> List[str]:
    found = modules(runner, _MLP % fault["layer"])
    last = [item for item in found if item[0].endswith("down_proj")] or found
    factor, first_position = fault["strength"], fault["position"]
    step = StepTokens(runner) if first_position else None

    def scale(module: Any, args: Any, output: Any) -> None:
        value = output[0] if isinstance(output, tuple) else output
        scaled = value * factor
        if step is not None:
            affected = torch.zeros(len(value), dtype=torch.bool)
            affected[: len(step.positions)] = step.positions >= first_position
            scaled = torch.where(affected.to(value.device).unsqueeze(-1), scaled, value)
        value.copy_(scaled)  # in place: the output may be a tuple, and may be aliased

    for _, module in last:
        module.register_forward_hook(scale)
    return [name for name, _ in last]


def _kv_slot(runner: Any, fault: Dict[str, Any]) -> List[str]:
    found = modules(runner, _ATTENTION % fault["layer"])
    if not hasattr(runner, "input_batch") or not hasattr(runner.input_batch, "num_prompt_tokens"):
        raise FaultNotApplicable(
            "kv-slot needs the first generation of vLLM's model runner (VLLM_USE_V2_MODEL_RUNNER=0)"
        )
    step = StepTokens(runner)
    shift, first_position = int(fault["strength"]), fault["position"]

    def shifting(name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def write_shifted(layer: Any, key: Any, value: Any, kv_cache: Any, slot_mapping: Any, *args: Any) -> Any:
            count = len(step.positions)
            wrong = torch.zeros(len(slot_mapping), dtype=torch.bool)
            wrong[:count] = step.decoded & (step.positions >= first_position)
            size = block_size(runner, name)
            moved = slot_mapping - slot_mapping % size + (slot_mapping % size + shift) % size
            slots = torch.where(wrong.to(slot_mapping.device), moved, slot_mapping)
            return write(layer, key, value, kv_cache, slots, *args)

        return write_shifted

    for name, module in found:
        if not hasattr(module.impl, "do_kv_cache_update"):
            raise FaultNotApplicable("%s writes its KV cache inside the attention kernel" % name)
        module.impl.do_kv_cache_update = shifting(name, module.impl.do_kv_cache_update)
    return [name for name, _ in found]


def block_size(runner: Any, layer: str) -> int:
    """Tokens per block of `layer`'s cache. From the configuration: the tensor's shape differs between backends."""
    for group in runner.kv_cache_config.kv_cache_groups:
        if layer in group.layer_names:
            return int(group.kv_cache_spec.block_size)
    raise FaultNotApplicable("%s has no KV cache" % layer)


INJECTIONS = {"mlp-scale": _mlp_scale, "kv-slot": _kv_slot}
