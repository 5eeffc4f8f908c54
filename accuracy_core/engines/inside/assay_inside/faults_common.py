"""What injections into a loaded vLLM model share: finding modules, replacing forwards, knowing the step's tokens."""

import re
from typing import Any, Dict, List, Set, Tuple

import torch

from assay_inside.patching import Undo


class FaultNotApplicable(ValueError):
    """The model or this vLLM has no place for the fault.

    The text starts with a fixed phrase that ends up in the log.
    """

    def __init__(self, reason: str) -> None:
        super().__init__("assay fault not applicable: " + reason)


def model_of(runner: Any) -> Any:
    return runner.get_model() if hasattr(runner, "get_model") else runner.model


def modules(runner: Any, pattern: str) -> List[Tuple[str, Any]]:
    """Modules whose dotted name, with a dot in front, matches. Raises FaultNotApplicable when there is none."""
    found = [(name, module) for name, module in model_of(runner).named_modules() if re.search(pattern, "." + name)]
    if not found:
        raise FaultNotApplicable("no module matches %s" % pattern)
    return found


def attention_layers(runner: Any, layer: Any) -> List[Tuple[str, Any]]:
    """Attention modules (those with a kernel in `impl`) of decoder layer `layer`, of every layer for None."""
    number = r"\d+" if layer is None else "%d" % layer
    found = modules(runner, r"\.layers\.%s\..*attn$" % number)
    found = [(name, module) for name, module in found if hasattr(module, "impl")]
    if not found:
        raise FaultNotApplicable("no attention kernel in layer %s" % number)
    if any(hasattr(module, "kv_b_proj") for _, module in found):
        raise FaultNotApplicable("latent attention keeps no keys and values per head")
    return found


def fill(tensor: torch.Tensor, value: Any, undo: Undo) -> None:
    """Overwrite a buffer in place, and note how to put the old values back."""
    before = tensor.clone()
    tensor.copy_(torch.as_tensor(value).to(tensor.dtype).expand(tensor.shape))

    def put_back() -> None:
        tensor.copy_(before)

    undo.append(put_back)


def first_of(output: Any) -> torch.Tensor:
    """vLLM's linears return (output, bias), its norms (output, residual)."""
    return output[0] if isinstance(output, tuple) else output


class StepTokens:
    """Which tokens run in the current step. CPU tensors, one entry per token: `positions` and `prompt_lengths` int64,
    and `requests`, their requests' ids. `hits`: request's id -> how many of its tokens came out of the prefix cache."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.positions = torch.empty(0, dtype=torch.long)
        self.prompt_lengths = torch.empty(0, dtype=torch.long)
        self.requests: List[str] = []
        self.hits: Dict[str, int] = {}
        self._new: Set[str] = set()
        self._scheduled: Dict[str, int] = {}
        execute = runner.execute_model

        def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            self._scheduled = dict(scheduler_output.num_scheduled_tokens)
            self._new = {request.req_id for request in scheduler_output.scheduled_new_reqs}
            for name in scheduler_output.finished_req_ids:
                self.hits.pop(name, None)
            for request in scheduler_output.scheduled_new_reqs:
                if request.num_computed_tokens:
                    self.hits[request.req_id] = request.num_computed_tokens
            try:
                return execute(scheduler_output, *args, **kwargs)
            finally:
                self._scheduled = {}

        runner.execute_model = execute_model
        model_of(runner).register_forward_pre_hook(self._before_forward, with_kwargs=True)

    def _before_forward(self, model: Any, args: Any, kwargs: Dict[str, Any]) -> None:
        """Runs after the batch was put in order, which is why it is here and not in `execute_model`."""
        positions = kwargs.get("positions", args[1] if len(args) > 1 else None)
        lengths: List[int] = []
        self.requests = []
        if self._scheduled:
            batch = self.runner.input_batch
            for index, request in enumerate(batch.req_ids):
                count = self._scheduled.get(request, 0)
                lengths += [int(batch.num_prompt_tokens[index])] * count
                self.requests += [request] * count
        self.prompt_lengths = torch.tensor(lengths, dtype=torch.long)
        if positions is None or not lengths:  # a warm-up run
            self.positions = torch.empty(0, dtype=torch.long)
            self.requests = []
        else:
            self.positions = positions.reshape(-1)[: len(lengths)].to("cpu", torch.long)

    @property
    def decoded(self) -> torch.Tensor:
        """bool (tokens,): True for tokens past their prompt."""
        return self.positions >= self.prompt_lengths[: len(self.positions)]

    @property
    def later_chunks(self) -> torch.Tensor:
        """bool (tokens,): True for prompt tokens of a request of which an earlier call computed a part."""
        first: Dict[str, int] = {}
        for index, request in enumerate(self.requests):
            first.setdefault(request, int(self.positions[index]))
        later = [request not in self._new and first[request] > 0 for request in self.requests]
        return torch.tensor(later, dtype=torch.bool) & ~self.decoded

    def padded(self, flags: torch.Tensor, count: int, device: Any) -> torch.Tensor:
        """`flags` bool (tokens,) of this step, for a tensor of `count` rows: False for rows that are no token."""
        full = torch.zeros(count, dtype=torch.bool)
        full[: len(flags)] = flags
        return full.to(device)


def step_tokens(runner: Any) -> StepTokens:
    """The one StepTokens of a runner, made on first use and left in place."""
    if not hasattr(runner, "input_batch") or not hasattr(runner.input_batch, "num_prompt_tokens"):
        raise FaultNotApplicable(
            "this fault needs the first generation of vLLM's model runner (VLLM_USE_V2_MODEL_RUNNER=0)"
        )
    if not hasattr(runner, "_assay_step_tokens"):
        runner._assay_step_tokens = StepTokens(runner)
    return runner._assay_step_tokens


def block_size(runner: Any, layer: str) -> int:
    """Tokens per block of `layer`'s cache. From the configuration: the tensor's shape differs between backends."""
    for group in runner.kv_cache_config.kv_cache_groups:
        if layer in group.layer_names:
            return int(group.kv_cache_spec.block_size)
    raise FaultNotApplicable("%s has no KV cache" % layer)
