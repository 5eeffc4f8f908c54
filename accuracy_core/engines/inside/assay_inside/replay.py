"""Replaying a request through `vllm.LLM`: forced in one pass, or by asking again at every divergence."""

import inspect
from typing import Any, Dict, List, Tuple

import torch

from assay_inside import forcing

FORCED = "forced_decode"
TRACE = "trace_replay"
REPROMPT = "reprompt"


class EmptyGeneration(ValueError):
    """The engine gave no token although some were missing: asking again would never end."""


class Replayer:
    """Runs requests one at a time. `route` is how tokens are forced; rows come from the processor where it records."""

    def __init__(self, llm: Any, vocab_size: int) -> None:
        from vllm import SamplingParams

        self.llm = llm
        self.vocab_size = vocab_size
        self.params_type = SamplingParams
        self.accepted = set(inspect.signature(SamplingParams).parameters)
        self.all_logprobs = -1  # vLLM's word for the whole vocabulary; one that does not know it gets the number

    def params(self, **settings: Any) -> Any:
        """Greedy, past EOS, no text; settings that this vLLM does not know are left out."""
        wanted = dict(temperature=0.0, ignore_eos=True, detokenize=False, **settings)
        return self.params_type(**{key: value for key, value in wanted.items() if key in self.accepted})

    def generate(self, prompt: List[int], params: Any) -> Any:
        """The completion of one prompt of token ids."""
        (request,) = self.llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        return request.outputs[0]

    def recorded(self, request_id: str, prompt: List[int], forced: List[int], count: int, path: str) -> Dict[str, Any]:
        """Through the logits processor:

        forced tokens in one pass, or `count` free ones; rows as the worker recorded them.
        """
        extra: Dict[str, Any] = {forcing.ID: request_id}
        if forced:
            extra[forcing.FORCE] = list(forced)
        completion = self.generate(prompt, self.params(max_tokens=count, extra_args=extra))
        answers = self.llm.collective_rpc("assay_take_rows", args=(request_id, path))
        answers = [answer for answer in answers if answer]
        emitted = list(completion.token_ids)
        rows = answers[0]["rows"] if answers else 0
        if rows != len(emitted):
            raise ValueError("%d rows were recorded for %d tokens" % (rows, len(emitted)))
        return {"token_ids": emitted, "argmax_ids": answers[0]["argmax"], "vocab": answers[0]["vocab"]}

    def traced(self, prompt: List[int], forced: List[int], path: str) -> Dict[str, Any]:
        """Through the second runner's own teacher forcing. Not run on hardware; follows vLLM 0.32's source."""
        params = self.params(max_tokens=len(forced), trace_decode_token_ids=list(forced), **self.full_logprobs())
        completion = self.generate(prompt, params)
        logits = dense_rows(completion.logprobs, len(completion.token_ids), self.vocab_size)
        return write(logits, list(completion.token_ids), path)

    def reprompted(self, prompt: List[int], forced: List[int], count: int, path: str) -> Dict[str, Any]:
        """Generate freely; where a token differs from the trace, ask again with the trace up to there as prompt.

        Every row keeps the right prefix: the one of the differing token is still right, only what follows is not. A row
        after a divergence comes from prefill instead of decode. Asks only for the tokens that are missing.
        """
        rows: List[torch.Tensor] = []
        emitted: List[int] = []
        while len(emitted) < count:
            missing = count - len(emitted)
            completion = self.generate(
                prompt + list(forced[: len(emitted)]), self.params(max_tokens=missing, **self.full_logprobs())
            )
            tokens = list(completion.token_ids)[:missing]
            if not tokens:
                raise EmptyGeneration(
                    "the engine generated nothing after token %d of %d: it is asked past what it can hold, or it stops "
                    "although it was told to ignore EOS" % (len(emitted), count)
                )
            keep = 1 + common(tokens[:-1], forced[len(emitted) :]) if forced else len(tokens)
            rows.append(dense_rows(completion.logprobs, keep, self.vocab_size))
            emitted += tokens[:keep]
        return write(torch.cat(rows), emitted, path)

    def full_logprobs(self) -> Dict[str, Any]:
        """Settings that return the whole vocabulary; flat where this vLLM can, which is ten times faster."""
        return {"logprobs": self.all_logprobs, "flat_logprobs": True}


def common(left: List[int], right: List[int]) -> int:
    """Length of the common prefix."""
    length = 0
    while length < min(len(left), len(right)) and left[length] == right[length]:
        length += 1
    return length


def dense_rows(logprobs: Any, count: int, vocab_size: int) -> torch.Tensor:
    """vLLM's log-probabilities of the first `count` tokens -> float32 (count, vocab).

    Raises ValueError when some are missing.
    """
    if logprobs is None or len(logprobs) < count:
        raise ValueError("the engine returned no log-probabilities")
    rows = torch.full((count, vocab_size), float("nan"), dtype=torch.float32)
    for index in range(count):
        tokens, values = entries(logprobs, index)
        if len(set(tokens)) < vocab_size:
            raise ValueError("the engine returned %d of %d log-probabilities" % (len(set(tokens)), vocab_size))
        rows[index, torch.tensor(tokens, dtype=torch.long)] = torch.tensor(values, dtype=torch.float32)
    return rows


def entries(logprobs: Any, index: int) -> Tuple[List[int], List[float]]:
    """Token ids and values of one position, of either container that vLLM has."""
    if hasattr(logprobs, "start_indices"):
        start, end = logprobs.start_indices[index], logprobs.end_indices[index]
        return list(logprobs.token_ids[start:end]), list(logprobs.logprobs[start:end])
    row = logprobs[index]
    return list(row), [entry.logprob for entry in row.values()]


def write(logits: torch.Tensor, tokens: List[int], path: str) -> Dict[str, Any]:
    from safetensors.torch import save_file

    save_file({"logits": logits.contiguous()}, path)
    return {"token_ids": tokens, "argmax_ids": logits.argmax(-1).tolist(), "vocab": logits.shape[1]}


def are_log_probabilities(row: torch.Tensor) -> bool:
    """True when exp of the finite entries of `row` (vocab,) sums to 1: log-probabilities, whose shift is lost."""
    total = torch.logsumexp(row[torch.isfinite(row)].double(), 0).item()
    return abs(total) < 1e-3
