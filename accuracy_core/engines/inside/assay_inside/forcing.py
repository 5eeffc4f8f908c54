"""Logits processor that records the raw row of a request and forces its next token.

SamplingParams(temperature=0, ignore_eos=True, max_tokens=n, extra_args={"assay_id": ID, "assay_force": [n token ids]})

One class serves both generations of vLLM's model runner, which ask for different interfaces. The V1 side was measured
bit-equal to `logprobs_mode="raw_logits"` on CPU, with chunked prefill, preemption and mixed lengths; the V2 side
(default on GPU) follows vLLM 0.32's source and was run against stand-ins only.
"""

from typing import Any, Dict, List, Optional, Tuple

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor as V1Processor
from vllm.v1.sample.logits_processor import MoveDirectionality

try:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as V2Processor
except ImportError:  # a vLLM that has only the first runner
    V2Processor = object

ID = "assay_id"
FORCE = "assay_force"

#: request's assay id -> step -> raw row, float32 (vocab,), on the CPU. Filled in the process that samples.
ROWS: Dict[str, Dict[int, torch.Tensor]] = {}
#: request's assay id -> its prompt as the runner was given it (first runner only)
PROMPTS: Dict[str, List[int]] = {}


def settings(params: Any) -> Optional[Tuple[Optional[str], Optional[List[int]]]]:
    """(id, tokens to force) of a request, None when it is not one of ours."""
    extra = getattr(params, "extra_args", None) or {}
    if extra.get(ID) is None and not extra.get(FORCE):
        return None
    return extra.get(ID), extra.get(FORCE)


def take_rows(request_id: str) -> List[torch.Tensor]:
    """Rows of `request_id` in order of their steps, and forget them. Raises ValueError on a gap."""
    rows = ROWS.pop(request_id, {})
    missing = sorted(set(range(len(rows))) - set(rows))
    if missing:
        raise ValueError("rows of request %s are missing at steps %s" % (request_id, missing))
    return [rows[step] for step in range(len(rows))]


def take_prompt(request_id: str) -> List[int]:
    """Prompt ids that the runner was given for `request_id`, and forget them. Empty where they are not known."""
    return PROMPTS.pop(request_id, [])


class RecordAndForce(V1Processor, V2Processor):
    """Rows are keyed by (id, step) and the last write wins: partial prefill comes by with rows of step 0 first."""

    def __init__(self, vllm_config: Any, *arguments: Any) -> None:
        # V1 passes (config, device, is_pin_memory), V2 (config, request states)
        self.requests: Dict[int, Tuple[Optional[str], Optional[List[int]], Optional[List[int]]]] = {}
        self.states = arguments[0] if len(arguments) == 1 else None

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        found = settings(sampling_params)
        force = found[1] if found else None
        if force is not None and not (isinstance(force, list) and all(isinstance(token, int) for token in force)):
            raise ValueError("%s must be a list of integers" % FORCE)

    def is_argmax_invariant(self) -> bool:
        return False  # otherwise vLLM skips it for greedy requests

    def _row(self, request_id: Optional[str], step: int, logits: torch.Tensor, force: Optional[List[int]]) -> None:
        """Record the row `logits` (vocab,) of output token `step`, then overwrite it in place."""
        if request_id is not None:
            ROWS.setdefault(request_id, {})[step] = logits.detach().to("cpu", torch.float32, copy=True)
        if force is not None and step < len(force):
            logits.fill_(float("-inf"))
            logits[force[step]] = 0.0

    # first runner
    def update_state(self, batch_update: Any) -> None:
        if batch_update is None:
            return
        for index in batch_update.removed:
            self.requests.pop(index, None)
        for index, params, prompt, output in batch_update.added:
            self.requests.pop(index, None)
            found = settings(params)
            if found is not None:
                self.requests[index] = (found[0], found[1], output)
                if found[0] is not None:
                    PROMPTS[found[0]] = list(prompt or ())
        for source, target, direction in batch_update.moved:
            first, second = self.requests.pop(source, None), self.requests.pop(target, None)
            if first is not None:
                self.requests[target] = first
            if direction == MoveDirectionality.SWAP and second is not None:
                self.requests[source] = second

    # second runner
    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        self.requests.pop(req_idx, None)
        found = settings(sampling_params)
        if found is not None:
            self.requests[req_idx] = (found[0], found[1], None)
        return found is not None

    def apply(self, logits: torch.Tensor, context: Any = None) -> torch.Tensor:
        """`logits` float32 (requests, vocab), before temperature; changed in place."""
        if context is None:
            for index, (request_id, force, output) in self.requests.items():
                self._row(request_id, len(output or ()), logits[index], force)
            return logits
        slots = context.expanded_idx_mapping.tolist()
        positions = context.pos.tolist()
        for index, slot in enumerate(slots):
            if slot not in self.requests:
                continue
            step = positions[index] + 1 - int(self.states.prompt_len.np[slot])
            if step < 0:  # partial prefill
                continue
            request_id, force, _ = self.requests[slot]
            self._row(request_id, step, logits[index], force)
        return logits
