"""A tokenizer and an engine small enough to be followed by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from accuracy_core.engines.protocol import Capabilities, Progress
from accuracy_core.errors import EngineDiedError
from accuracy_core.prompts.context import Goldens
from accuracy_core.schemas import EngineSpec, ReplayRequest, ReplayResult

VOCAB = 600
BOS, EOS = 1, 2
SPEC = EngineSpec(model="embedded", engine="fake", max_model_len=256)


class FakeTokenizer:
    """One id per character (code point modulo the vocabulary), `<s>` in front, no merges."""

    bos_token, eos_token = "<s>", "</s>"
    bos_token_id, eos_token_id = BOS, EOS
    chat_template: str | None = "present"

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = [BOS] if add_special_tokens else []
        while text:
            for special, number in (("<s>", BOS), ("</s>", EOS)):
                if text.startswith(special):
                    ids.append(number)
                    text = text[len(special) :]
                    break
            else:
                ids.append(3 + ord(text[0]) % (VOCAB - 3))
                text = text[1:]
        return {"input_ids": ids}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "".join({BOS: "<s>", EOS: "</s>"}.get(token) or chr(max(token - 3, 0)) for token in ids)

    def get_vocab(self) -> dict[str, int]:
        return {f"t{number}": number for number in range(VOCAB)}

    def apply_chat_template(self, messages: Sequence[dict[str, Any]], **options: Any) -> str:
        assert options == {"add_generation_prompt": True, "tokenize": False}
        return "<s>" + "".join(f"[{m['role']}]{m['content']}" for m in messages) + "[assistant]"


def make_goldens(prompts: int, tokens: int, *, seed: int = 0) -> dict[str, Any]:
    """FP32 rows with a clear winner, and the same with relative noise of bf16's size."""
    generator = torch.Generator().manual_seed(seed)
    fp32, noisy = [], []
    for _ in range(prompts):
        rows = torch.randn(tokens, 1, VOCAB, generator=generator)
        rows[torch.arange(tokens), 0, torch.randint(VOCAB, (tokens,), generator=generator)] += 12.0
        fp32.append(rows)
        noisy.append(rows + 0.01 * torch.randn(rows.shape, generator=generator))
    return {"fp32_logits": fp32, "dtype_logits": noisy}


def clean_rows(goldens: Goldens, position: int, *, seed: int = 1) -> torch.Tensor:
    """(tokens, vocab): FP32 plus noise of the same size as the expected side's."""
    fp32 = goldens["fp32_logits"][position][:, 0]
    return fp32 + 0.01 * torch.randn(fp32.shape, generator=torch.Generator().manual_seed(seed + position))


class FakeEngine:
    """Answers request number i with `rows[i]` (tokens, vocab), an error text, or dies."""

    name = "fake"

    def __init__(self, scratch: Path, rows: Sequence[torch.Tensor | str], *, die_at: int | None = None) -> None:
        self.spec, self.scratch, self.rows, self.die_at = SPEC, scratch, list(rows), die_at
        self.requests: list[ReplayRequest] = []
        self.opened = self.closed = 0
        self.change: Callable[[ReplayResult], ReplayResult] = lambda result: result

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(forced_decode=True, raw_logits=True, versions={"fake": "1"})

    def replay(self, requests: Sequence[ReplayRequest], on_progress: Progress | None = None) -> list[ReplayResult]:
        results = []
        for i, request in enumerate(requests):
            if self.die_at == i:
                raise EngineDiedError("the engine is gone", log_tail="last words")
            if not request.request_id.endswith("-greedy"):  # the look at the sampler, beside the comparison
                self.requests.append(request)
            answer = self.rows[i]
            if isinstance(answer, str):
                results.append(ReplayResult(request_id=request.request_id, token_ids=[], error=answer))
                continue
            path = self.scratch / f"{request.request_id}.safetensors"
            save_file({"logits": answer.contiguous()}, path)
            ids = request.forced_token_ids or answer.argmax(-1).tolist()
            results.append(
                self.change(
                    ReplayResult(
                        request_id=request.request_id,
                        token_ids=ids[: len(answer)],
                        argmax_ids=answer.argmax(-1).tolist(),
                        tensors=str(path),
                        names=["logits"],
                    )
                )
            )
            if on_progress is not None:
                on_progress(i + 1, len(requests))
        return results

    def close(self) -> None:
        self.closed += 1

    def __enter__(self) -> FakeEngine:
        self.opened += 1
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class CuringEngine(FakeEngine):
    """Captures everything. Rows of a request depend on what is replaced in it: `cured(request) -> rows`."""

    def __init__(self, scratch: Path, answer: Callable[[ReplayRequest], torch.Tensor | str], **able: bool) -> None:
        super().__init__(scratch, [])
        self.answer = answer
        self.able = {"kv_cache": True, "hooks": True, "replacement": True, **able}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(forced_decode=True, raw_logits=True, versions={"fake": "1"}, **self.able)

    def module_names(self) -> dict[str, str]:
        return {"model": "Model"}

    def replay(self, requests: Sequence[ReplayRequest], on_progress: Progress | None = None) -> list[ReplayResult]:
        results = []
        for request in requests:
            self.rows = [self.answer(request)]
            results += super().replay([request], on_progress)
        return results
