"""What this engine can do, found by trying: a short run of each capability, never a version number."""

from typing import Any, Dict, List

import torch

from assay_inside import replay


def item(scratch: str, prompt: List[int], forced: List[int], count: int) -> replay.Item:
    return replay.Item("probe", prompt, forced, count, "%s/probe.safetensors" % scratch)


def probe(replayer: Any, scratch: str, traced: bool) -> Dict[str, Any]:
    """Capabilities of the loaded engine: which routes work, and whether rows are raw.

    Forcing is proven with tokens that the model would not have chosen, so that a processor that is ignored is noticed.
    """
    prompt = [min(1, replayer.vocab_size - 1)]
    found = {"recorded": False, "forced_decode": False, "traced": False, "logprobs": False, "raw_logits": False}
    found["prompt_logprobs"] = False
    reasons = {}

    def attempt(name: str, run: Any) -> Any:
        try:
            return run()
        except (ValueError, TypeError, AttributeError, NotImplementedError, AssertionError) as error:
            reasons[name] = "%s: %s" % (type(error).__name__, str(error)[:300])
            return None

    free = attempt("recorded", lambda: replayer.recorded([item(scratch, prompt, [], 1)])[0])
    if free is not None:
        found["recorded"] = found["raw_logits"] = True
    unlikely = [((free["argmax_ids"][0] if free else 0) + shift) % replayer.vocab_size for shift in (1, 2)]
    forced = attempt("forced_decode", lambda: replayer.recorded([item(scratch, prompt, unlikely, 2)])[0])
    found["forced_decode"] = forced is not None and forced["token_ids"] == unlikely
    if traced and not found["forced_decode"]:
        result = attempt("traced", lambda: replayer.traced(item(scratch, prompt, unlikely, 2)))
        found["traced"] = result is not None and result["token_ids"] == unlikely

    def full_rows() -> torch.Tensor:
        completion = replayer.generate(prompt, replayer.params(max_tokens=1, **replayer.full_logprobs()))
        return replay.dense_rows(completion.logprobs, 1, replayer.vocab_size)

    rows = attempt("logprobs", full_rows)
    if rows is None:
        replayer.all_logprobs = replayer.vocab_size
        rows = attempt("logprobs", full_rows)
    found["logprobs"] = rows is not None
    found["raw_logprobs"] = rows is not None and not replay.are_log_probabilities(rows[0])
    found["raw_logits"] = found["raw_logits"] or found["raw_logprobs"]

    def prompt_rows() -> Any:
        params = replayer.params(max_tokens=1, prompt_logprobs=1)
        (request,) = replayer.llm.generate([{"prompt_token_ids": prompt * 2}], params, use_tqdm=False)
        return request.prompt_logprobs

    found["prompt_logprobs"] = bool(attempt("prompt_logprobs", prompt_rows))
    return {"capabilities": found, "reasons": reasons}
