"""Which ways of serving this engine can be run under, found by trying each and looking at how the requests were run."""

import contextlib
import os
from typing import Any, Callable, Dict, List, Optional

from assay_inside import conditions


def probe(engine: Any, scratch: str) -> Dict[str, Any]:
    """Capabilities `batching`, `chunked_prefill`, `prefix_caching` of `engine` (see `worker.Engine`), and reasons where
    not."""
    trial = _Trial(engine, scratch)
    tries: Dict[str, Callable[[], str]] = {
        "batching": trial.batching,
        "chunked_prefill": trial.chunked_prefill,
        "prefix_caching": trial.prefix_caching,
    }
    reasons: Dict[str, str] = {}
    for name, problem in tries.items():
        try:
            reason = problem()
        except (ValueError, TypeError, AttributeError, NotImplementedError, KeyError, RuntimeError) as error:
            reason = "%s: %s" % (type(error).__name__, str(error)[:300])
        if reason:
            reasons[name] = reason
    return {"capabilities": {name: name not in reasons for name in tries}, "reasons": reasons}


class _Trial:
    """Each method returns what is wrong, or ""."""

    def __init__(self, engine: Any, scratch: str) -> None:
        self.engine, self.scratch = engine, scratch

    def run(self, prompts: List[List[int]], forced: Optional[List[List[int]]] = None, **under: Any) -> List[Any]:
        """The conduct of `prompts`, run at once; raises ValueError where forced tokens are not followed."""
        wanted = forced or [[] for _ in prompts]
        requests = [
            {"id": "probe-%d" % index, "prompt": prompt, "forced": wanted[index], "count": len(wanted[index]) or 1,
             "path": "%s/probe-%d.safetensors" % (self.scratch, index)}
            for index, prompt in enumerate(prompts)
        ]  # fmt: skip
        try:
            results = self.engine.replay(requests, under)
        finally:
            for request in requests:
                with contextlib.suppress(OSError):
                    os.remove(request["path"])
        if forced and [result["token_ids"] for result in results] != forced:
            raise ValueError("the tokens of several requests at once are not forced")
        if any(result.get("conduct") is None for result in results):
            raise ValueError("it cannot be followed how this engine runs its requests")
        return [result["conduct"] for result in results]

    def batching(self) -> str:
        # after the same prompt: the first tokens cannot both be the model's own choice
        conducts = self.run([[0], [0]], forced=[[0, 1], [1, 0]])
        if min(conduct["largest_batch"] for conduct in conducts) < 2:
            return "two requests at once are run one after the other (max_num_seqs)"
        return ""

    def chunked_prefill(self) -> str:
        (conduct,) = self.run([[0] * 4], prefill_chunk=2)
        if len(conduct["prefill_chunks"]) < 2 or max(conduct["prefill_chunks"]) > 2:
            return "a prompt of 4 tokens in pieces of 2 was computed in pieces of %s" % conduct["prefill_chunks"]
        return ""

    def prefix_caching(self) -> str:
        if not conditions.caches_prefixes(self.engine.llm):
            return "the prefix cache is off (engine_args: enable_prefix_caching)"
        block_size = self.engine.llm.llm_engine.vllm_config.cache_config.block_size
        prompt = [0] * (block_size + 1)
        self._cached(prompt, read_prefixes=False)
        if not self._cached(prompt, read_prefixes=True):
            return "a prompt of one block of %d tokens and one was not found again" % block_size
        if self._cached(prompt, read_prefixes=False):
            return "a request cannot be kept from reading the cache"
        conditions.forget_prefixes(self.engine.llm)
        return "the cache cannot be emptied" if self._cached(prompt, read_prefixes=True) else ""

    def _cached(self, prompt: List[int], read_prefixes: bool) -> int:
        (conduct,) = self.run([prompt], read_prefixes=read_prefixes)
        return int(conduct["cached_tokens"])
