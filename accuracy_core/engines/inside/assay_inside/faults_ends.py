"""Faults at the ends of a vLLM model: embedding, head, router weights, what it is given and what is sampled."""

from typing import Any, Callable, Dict, List

import torch

from assay_inside.faults_common import FaultNotApplicable, fill, model_of, modules
from assay_inside.patching import Undo, set_attribute, wrap

#: first of the two tokens whose rows are swapped
FIRST_SWAPPED = 10
_EXPERTS = r"\.layers\.%d\.(?:mlp|feed_forward|block_sparse_moe)\.experts$"


def _head(runner: Any) -> Any:
    found = getattr(model_of(runner), "logits_processor", None)
    if found is None:
        raise FaultNotApplicable("the model has no logits_processor")
    return found


def change_logits(runner: Any, undo: Undo, change: Callable[..., torch.Tensor]) -> List[str]:
    """`change(head's module, hidden (rows, width), logits (rows, vocab))`."""
    head = _head(runner)

    def make(right: Callable[..., Any]) -> Callable[..., Any]:
        def forward(lm_head: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            logits = right(lm_head, hidden_states, *args, **kwargs)
            return logits if logits is None else change(head, hidden_states, logits)

        return forward

    wrap(head, "forward", make, undo)
    return ["logits_processor"]


def head_rows_swapped(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    first, pairs = int(fault["params"].get("first", FIRST_SWAPPED)), int(fault["strength"])

    def change(head: Any, hidden: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        order = torch.arange(logits.shape[-1])
        for token in range(first, first + 2 * pairs, 2):
            order[token], order[token + 1] = token + 1, token
        return logits[..., order.to(logits.device)]

    return change_logits(runner, undo, change)


def random_head(vocabulary: int, width: int) -> torch.Tensor:
    """A head as it is before any checkpoint is loaded: random rows of unit length. float32 (vocabulary, width)."""
    return torch.randn(vocabulary, width, generator=torch.Generator().manual_seed(0)) * width**-0.5


def tied_embedding_ignored(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    def change(head: Any, hidden: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        rows = random_head(logits.shape[-1], hidden.shape[-1]).to(hidden.device, hidden.dtype)
        wrong = torch.nn.functional.linear(hidden, rows)
        if head.soft_cap is not None:
            wrong = torch.tanh(wrong / head.soft_cap) * head.soft_cap
        return wrong.to(logits.dtype)

    return change_logits(runner, undo, change)


def padded_vocabulary_wins(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    def change(head: Any, hidden: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        changed = logits.clone()
        changed[..., -1] = logits.max(-1).values + fault["strength"]
        return changed

    return change_logits(runner, undo, change)


def logit_softcap_missing(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    head = _head(runner)
    if head.soft_cap is None:
        raise FaultNotApplicable("logits are not capped")
    set_attribute(head, "soft_cap", None, undo)
    return ["logits_processor"]


def embedding_scale_missing(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    found = [(name, module) for name, module in modules(runner, "") if hasattr(module, "normalizer")]
    if not found:
        raise FaultNotApplicable("embeddings are not scaled")
    for _, module in found:
        fill(module.normalizer, 1.0, undo)
    return ["%s.normalizer" % name for name, _ in found]


def _change_weights(runner: Any, fault: Dict[str, Any], undo: Undo, change: Callable[..., torch.Tensor]) -> List[str]:
    """`change(router logits (tokens, experts), weights (tokens, k), chosen (tokens, k))` -> new weights."""
    found = modules(runner, _EXPERTS % fault["layer"])

    def make(right: Callable[..., Any]) -> Callable[..., Any]:
        def select_experts(hidden_states: Any, router_logits: Any, *args: Any, **kwargs: Any) -> Any:
            weights, chosen = right(hidden_states, router_logits, *args, **kwargs)[:2]
            return change(router_logits, weights, chosen).to(weights.dtype), chosen

        return select_experts

    for name, module in found:
        if not hasattr(getattr(module, "router", None), "select_experts"):
            raise FaultNotApplicable("%s has no router of its own" % name)
        wrap(module.router, "select_experts", make, undo)
    return ["%s.router" % name for name, _ in found]


def moe_topk_not_renormalised(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    def change(logits: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return logits.float().softmax(-1).gather(-1, chosen.long())

    return _change_weights(runner, fault, undo, change)


def router_order(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    return _change_weights(runner, fault, undo, lambda logits, weights, chosen: weights.flip(-1).contiguous())


def sampler_default(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    """A later choice where there is one: of a row with a single finite logit (a forced token) the best is kept."""
    rank = int(fault["strength"])
    sampler = getattr(runner, "sampler", None)
    if not hasattr(sampler, "greedy_sample"):
        raise FaultNotApplicable("this runner's sampler has no greedy_sample")

    def choose(logits: torch.Tensor) -> torch.Tensor:
        best = logits.topk(rank + 1, dim=-1)
        later = torch.isfinite(best.values[..., -1])
        return torch.where(later, best.indices[..., -1], best.indices[..., 0]).view(-1)

    set_attribute(sampler, "greedy_sample", choose, undo)
    return ["sampler"]


def double_bos(runner: Any, fault: Dict[str, Any], undo: Undo) -> List[str]:
    """Requests get further BOS tokens when the engine takes them in, which must be in this process."""
    from vllm.v1.engine.core import EngineCore

    bos = runner.model_config.hf_config.bos_token_id
    if bos is None:
        raise FaultNotApplicable("the model has no BOS token")
    if runner.vllm_config.parallel_config.distributed_executor_backend != "uni":
        raise FaultNotApplicable("the engine takes requests in another process (VLLM_ENABLE_V1_MULTIPROCESSING=0)")
    extra = [int(bos)] * int(fault["strength"])

    def make(right: Callable[..., Any]) -> Callable[..., Any]:
        def preprocess_add_request(self: Any, request: Any) -> Any:
            request.prompt_token_ids = extra + list(request.prompt_token_ids)
            return right(self, request)

        return preprocess_add_request

    wrap(EngineCore, "preprocess_add_request", make, undo)
    return ["EngineCore"]


INJECTIONS = {
    "head-rows-swapped": head_rows_swapped,
    "tied-embedding-ignored": tied_embedding_ignored,
    "padded-vocabulary-wins": padded_vocabulary_wins,
    "logit-softcap-missing": logit_softcap_missing,
    "embedding-scale-missing": embedding_scale_missing,
    "moe-topk-not-renormalised": moe_topk_not_renormalised,
    "router-order": router_order,
    "sampler-default": sampler_default,
    "double-bos": double_bos,
}
