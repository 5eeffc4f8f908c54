"""Replaying a request through `vllm.LLM`: forced in one pass, or by asking again at every divergence."""

import inspect
import json
import os
from typing import Any, Dict, List, Tuple

import torch

from assay_inside import forcing

FORCED = "forced_decode"
TRACE = "trace_replay"
REPROMPT = "reprompt"


class EmptyGeneration(ValueError):
    """The engine gave no token although some were missing: asking again would never end."""


class Item:
    """One request: force `forced` after `prompt`, or generate `count` tokens; its tensors go to the file `path`."""

    def __init__(self, request_id: str, prompt: List[int], forced: List[int], count: int, path: str) -> None:
        self.request_id, self.prompt, self.forced, self.count, self.path = request_id, prompt, forced, count, path


class Replayer:
    """Runs requests. `route` is how tokens are forced; rows come from the processor where it records."""

    def __init__(self, llm: Any, vocab_size: int) -> None:
        from vllm import SamplingParams

        self.llm = llm
        self.vocab_size = vocab_size
        self.params_type = SamplingParams
        self.accepted = set(inspect.signature(SamplingParams).parameters)
        #: whether requests take blocks out of the prefix cache; all of them fill it
        self.read_prefixes = False
        self.all_logprobs = -1  # vLLM's word for the whole vocabulary; one that does not know it gets the number

    def params(self, **settings: Any) -> Any:
        """Greedy, past EOS, no text; settings that this vLLM does not know are left out."""
        wanted = dict(temperature=0.0, ignore_eos=True, detokenize=False, **settings)
        wanted["skip_reading_prefix_cache"] = not self.read_prefixes
        return self.params_type(**{key: value for key, value in wanted.items() if key in self.accepted})

    def generate(self, prompt: List[int], params: Any) -> Any:
        """The completion of one prompt of token ids."""
        (request,) = self.llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        return request.outputs[0]

    def recorded(self, items: List[Item]) -> List[Dict[str, Any]]:
        """Through the logits processor, all `items` at once:

        forced tokens in one pass, or `count` free ones; rows as the worker recorded them.
        """
        settings = []
        for item in items:
            extra: Dict[str, Any] = {forcing.ID: item.request_id}
            if item.forced:
                extra[forcing.FORCE] = list(item.forced)
            settings.append(self.params(max_tokens=item.count, extra_args=extra))
        prompts = [{"prompt_token_ids": item.prompt} for item in items]
        results = []
        answers = self.llm.generate(prompts, settings, use_tqdm=False)
        for index, item in enumerate(items):
            emitted = list(answers[index].outputs[0].token_ids)
            taken = self.take(item, emitted)
            if taken["rows"] != len(emitted):
                raise ValueError("%d rows were recorded for %d tokens" % (taken["rows"], len(emitted)))
            results.append(dict(taken, token_ids=emitted, argmax_ids=taken.pop("argmax")))
        return results

    def take(self, item: Item, emitted: List[int]) -> Dict[str, Any]:
        """What the workers recorded of `item`. The file of the rank with rows, else of the first, becomes its path."""
        answers = self.llm.collective_rpc("assay_take", args=(item.request_id, item.prompt + emitted, item.path))
        answers = sorted((answer for answer in answers if answer), key=lambda answer: answer["rank"])
        if not answers:
            return {"rows": 0, "names": [], "argmax": []}
        for answer in answers:
            if answer["error"]:
                raise ValueError(answer["error"])
        first = max(answers, key=lambda answer: answer["rows"])
        if first["path"]:
            os.replace(first["path"], item.path)
        others = [answer for answer in answers if answer is not first and answer["path"]]
        there = {name for answer in answers for name in answer.get("names") or []}
        missing: Dict[str, str] = {}
        for answer in answers:
            own = set(answer.get("names") or [])
            # another pipeline stage may have the layer that this one lacks
            lacking = (answer.get("missing") or {}).items()
            missing.update({name: reason for name, reason in lacking if name in own or name not in there})
        return {
            "rows": first["rows"],
            "argmax": first.get("argmax", []),
            "prompt": first.get("prompt", []),
            "conduct": first.get("conduct"),
            "names": first.get("names", []),
            "shards": [answer["path"] for answer in others],
            "missing": missing,
            "snapshots": [path for answer in answers for path in answer.get("snapshots") or []],
            "block_size": first.get("block_size"),
        }

    def begin(self, captures: Dict[str, Dict[str, Any]]) -> None:
        """Hooks for `captures` (see `capturing.Capturing`) in every worker. Raises ValueError and leaves nothing."""
        problems = [text for text in self.llm.collective_rpc("assay_begin", args=(json.dumps(captures),)) if text]
        if problems:
            self.end()
            raise ValueError(problems[0])

    def end(self) -> None:
        self.llm.collective_rpc("assay_end")

    def traced(self, item: Item) -> Dict[str, Any]:
        """Through the second runner's own teacher forcing. Not run on hardware; follows vLLM 0.32's source."""
        params = self.params(
            max_tokens=len(item.forced),
            trace_decode_token_ids=list(item.forced),
            extra_args={forcing.ID: item.request_id},
            **self.full_logprobs(),
        )
        completion = self.generate(item.prompt, params)
        emitted = list(completion.token_ids)
        return self.write(item, dense_rows(completion.logprobs, len(emitted), self.vocab_size), emitted)

    def reprompted(self, item: Item) -> Dict[str, Any]:
        """Generate freely; where a token differs from the trace, ask again with the trace up to there as prompt.

        Every row keeps the right prefix: the one of the differing token is still right, only what follows is not. A row
        after a divergence comes from prefill instead of decode. Asks only for the tokens that are missing.
        """
        prompt, forced, count = item.prompt, item.forced, item.count
        rows: List[torch.Tensor] = []
        emitted: List[int] = []
        while len(emitted) < count:
            missing = count - len(emitted)
            params = self.params(max_tokens=missing, extra_args={forcing.ID: item.request_id}, **self.full_logprobs())
            completion = self.generate(prompt + list(forced[: len(emitted)]), params)
            tokens = list(completion.token_ids)[:missing]
            if not tokens:
                raise EmptyGeneration(
                    "the engine generated nothing after token %d of %d: it is asked past what it can hold, or it stops "
                    "although it was told to ignore EOS" % (len(emitted), count)
                )
            keep = 1 + common(tokens[:-1], forced[len(emitted) :]) if forced else len(tokens)
            rows.append(dense_rows(completion.logprobs, keep, self.vocab_size))
            emitted += tokens[:keep]
        return self.write(item, torch.cat(rows), emitted)

    def write(self, item: Item, logits: torch.Tensor, emitted: List[int]) -> Dict[str, Any]:
        """Write rows that did not come through the processor beside the captures of the same passes."""
        from safetensors.torch import load_file, save_file

        ran = list(item.forced or emitted)  # what was fed back: after a divergence not what the engine emitted
        taken = self.take(item, ran)
        tensors = load_file(item.path) if taken["names"] else {}
        save_file(dict(tensors, logits=logits.contiguous()), item.path)
        names = sorted({*taken.pop("names"), "logits"})
        return dict(taken, names=names, token_ids=emitted, argmax_ids=logits.argmax(-1).tolist())

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


def are_log_probabilities(row: torch.Tensor) -> bool:
    """True when exp of the finite entries of `row` (vocab,) sums to 1: log-probabilities, whose shift is lost."""
    total = torch.logsumexp(row[torch.isfinite(row)].double(), 0).item()
    return abs(total) < 1e-3
