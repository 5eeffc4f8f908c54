"""lm-eval's API models with the open questions settled. Loaded only in the process that runs lm-eval.

Against lm-eval's own classes: BOS and EOS are explicit and the same at any concurrency, sampling defaults are sent
explicitly, token ids and finish reasons are asked for and recorded, answers are cached under the whole payload,
prompts that do not fit are an error, and a server that is gone ends the run at once.
"""

from __future__ import annotations

import asyncio
import copy
import json
import math
import os
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

from accuracy_core.errors import ConfigurationError
from accuracy_core.evals.eval_job import EvalJob
from accuracy_core.evals.prompt_encoding import PromptEncoder
from accuracy_core.evals.request_cache import RequestCache
from accuracy_core.evals.request_log import RequestRecord
from accuracy_core.evals.requesting import post_until_answered
from accuracy_core.evals.sampling_defaults import NEUTRAL_SAMPLING

Answer = dict[str, Any]


class Recorder:
    """Mixin over a TemplateAPI: answers requests task by task, records and caches them."""

    job: EvalJob
    encoder: PromptEncoder
    cache: RequestCache | None
    on_start: Callable[[], None]  # called once, when the requests of all tasks are known and none is sent
    on_record: Callable[[RequestRecord], None]

    # filled by TemplateAPI
    _seed: int
    max_length: int
    base_url: str
    eos_string: str | None
    create_message: Callable[..., Any]
    _create_payload: Callable[..., dict[str, Any]]
    parse_logprobs: Callable[..., list[tuple[float, bool]]]

    def prepare(
        self,
        job: EvalJob,
        encoder: PromptEncoder,
        cache: RequestCache | None,
        on_start: Callable[[], None],
        on_record: Callable[[RequestRecord], None],
    ) -> None:
        self.job, self.encoder, self.cache = job, encoder, cache
        self.on_start, self.on_record = on_start, on_record
        self._concurrent = max(2, job.num_concurrent)  # lm-eval's sequential branch builds other payloads: never taken
        self.answers: dict[tuple[int, int], Any] = {}  # (id of the instance, repeat) -> answer, for partial scores
        self._task = ""
        self._waiting: dict[str, deque[tuple[Instance, int]]] = {}
        self._started = self._failed = False

    # ---- lm-eval's entry points -----------------------------------------------------------------------------------

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        return self._by_task(requests, super().generate_until)  # type: ignore[misc]

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        return self._by_task(requests, super().loglikelihood)  # type: ignore[misc]

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        self._start()
        answers = []
        for request in requests:
            self._task, self._waiting = str(request.task_name), {}
            answers += super().loglikelihood_rolling([request])  # type: ignore[misc]
            self._note(request, 0, answers[-1], RequestRecord(**_place(request), repeat=0, logprob=float(answers[-1])))
        return answers

    def tok_encode(self, string: Any, add_special_tokens: bool | None = None, **_: Any) -> Any:
        if not isinstance(string, str):
            return self.encoder.encode_all(string)
        if add_special_tokens is False:  # a continuation after an empty context
            tokenizer = self.encoder.tokenizer
            return tokenizer(string, add_special_tokens=False, return_attention_mask=False).input_ids
        return self.encoder.encode(string)

    # ---- one task at a time ---------------------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self.on_start()

    def _by_task(self, requests: Sequence[Instance], ask: Callable[[list[Instance]], list[Any]]) -> list[Any]:
        """Answer `requests` grouped by task (each has its own cache file), in their order."""
        self._start()
        positions: dict[str, list[int]] = defaultdict(list)
        for position, request in enumerate(requests):
            positions[str(request.task_name)].append(position)
        answers: list[Any] = [None] * len(requests)
        for self._task, places in positions.items():
            group = [requests[place] for place in places]
            self._waiting = defaultdict(deque)
            seen: dict[int, int] = defaultdict(int)
            for request in group:
                self._waiting[_key(*request.args)].append((request, seen[id(request)]))
                seen[id(request)] += 1
            for place, answer in zip(places, ask(group), strict=True):
                answers[place] = answer
        return answers

    async def get_batched_requests(
        self,
        requests: Sequence[Any],
        cache_keys: Sequence[Any],
        *,
        generate: bool = True,
        ctxlens: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> list[list[Any]]:
        """Send each request, `num_concurrent` in flight. The first one that fails for good cancels the others."""
        from aiohttp import ClientSession, ClientTimeout, TCPConnector

        timeout = ClientTimeout(total=self.job.request_timeout_s)
        gate = asyncio.Semaphore(self.job.num_concurrent)
        self._failed = False
        lengths: Sequence[int | None] = ctxlens or [None] * len(requests)
        async with ClientSession(connector=TCPConnector(limit=self.job.num_concurrent), timeout=timeout) as session:
            try:
                async with asyncio.TaskGroup() as group:
                    jobs = [
                        group.create_task(self._one(session, gate, message, key, generate, length, kwargs))
                        for message, key, length in zip(requests, cache_keys, lengths, strict=True)
                    ]
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0] from None  # the first that failed; the others were cancelled
        return [[job.result()] for job in jobs]

    async def _one(
        self, session: Any, gate: asyncio.Semaphore, message: Any, key: Any, generate: bool, ctxlen: Any, kwargs: Any
    ) -> Any:
        owner, repeat = self._owner(key)
        if owner is not None and isinstance(message, list):
            message = self.encoder.keep_prefix(message)
        payload = self._payload(message, generate, kwargs, repeat)
        digest = RequestCache.key(urlsplit(self.base_url).path, payload)  # the port changes from run to run
        answer = self.cache.get(self._task, digest) if self.cache else None
        from_cache = answer is not None
        if answer is None:
            async with gate:
                answer = await self._ask(session, payload, message, generate, ctxlen)
            if self.cache and answer.get("text", "") is not None:
                self.cache.put(self._task, digest, answer)
        value = _value(answer, generate)
        if owner is not None:
            ids = answer.get("prompt_token_ids") or (list(message) if isinstance(message, list) else None)
            fields = {name: answer.get(name) for name in ("token_ids", "finish_reason", "text", "logprob", "is_greedy")}
            record = RequestRecord(
                **_place(owner), repeat=repeat, prompt_token_ids=ids, n_context_tokens=ctxlen, from_cache=from_cache,
                **fields,
            )  # fmt: skip
            self._note(owner, repeat, value, record)
        return value

    async def _ask(self, session: Any, payload: dict[str, Any], message: Any, generate: bool, ctxlen: Any) -> Answer:
        if self._failed:  # the gate opens before the group has cancelled those who wait
            raise asyncio.CancelledError
        try:
            body = await post_until_answered(
                session, self.base_url, payload, self.header, self.job.max_retries, lambda b: _usable(b, generate)
            )
            return self._parse_generation(body) if generate else self._parse_loglikelihood(body, message, ctxlen)
        except Exception:
            self._failed = True
            raise

    def _note(self, owner: Instance, repeat: int, value: Any, record: RequestRecord) -> None:
        self.answers[(id(owner), repeat)] = value
        self.on_record(record)

    def _owner(self, key: Any) -> tuple[Instance | None, int]:
        """The document a request belongs to. Equal requests are interchangeable; a window of a rolling one has none."""
        waiting = self._waiting.get(_key(*key)) if key is not None else None
        return waiting.popleft() if waiting else (None, 0)

    def _payload(self, message: Any, generate: bool, kwargs: dict[str, Any], repeat: int) -> dict[str, Any]:
        payload = self._create_payload(
            self.create_message([message]),
            generate=generate,
            gen_kwargs=copy.deepcopy(kwargs.get("gen_kwargs")),
            seed=self._seed,
            eos=self.eos_string,
        )
        payload["return_token_ids"] = True
        if generate:
            for name, value in NEUTRAL_SAMPLING.items():
                payload.setdefault(name, value)
            if payload.get("temperature"):
                payload["seed"] = self._seed + repeat  # with one seed, every repetition would give the same answer
        return payload

    def _parse_generation(self, body: Answer) -> Answer:
        choice = body["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        prompt_ids = choice.get("prompt_token_ids") or body.get("prompt_token_ids")
        return {
            "text": text,
            "token_ids": choice.get("token_ids"),
            "prompt_token_ids": prompt_ids,
            "finish_reason": choice.get("finish_reason"),
        }

    def _parse_loglikelihood(self, body: Answer, tokens: list[int], ctxlen: int) -> Answer:
        logprobs = body["choices"][0].get("logprobs") or {}
        got = logprobs.get("token_logprobs") or []
        if len(got) != len(tokens) + 1 or any(value is None for value in got[max(ctxlen, 1) :]):
            raise ConfigurationError(
                f"the server returned {len(got)} log-probabilities for a prompt of {len(tokens)} tokens: it does not "
                "support echo with prompt log-probabilities, which multiple-choice tasks need",
                fix="choose generate_until tasks, or a server that supports `echo` and `logprobs`",
            )
        logprob, is_greedy = self.parse_logprobs(outputs=body, tokens=[tokens], ctxlens=[ctxlen])[0]
        return {"logprob": logprob, "is_greedy": bool(is_greedy)}

    @property
    def header(self) -> dict[str, str]:
        name = self.job.api_key_env
        return {"Authorization": f"Bearer {os.environ.get(name, '')}"} if name else {}


class RecordingCompletions(Recorder, LocalCompletionsAPI):
    """`/v1/completions` with token-id prompts."""


class RecordingChat(Recorder, LocalChatCompletion):
    """`/v1/chat/completions`: the server applies the template; no log-likelihoods."""

    def tok_encode(self, string: Any, *args: Any, **kwargs: Any) -> Any:
        return string

    def _create_payload(self, messages: list[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        until, eos = (kwargs.get("gen_kwargs") or {}).get("until") or [], kwargs.get("eos")
        stops = [until] if isinstance(until, str) else list(until)
        payload = LocalChatCompletion._create_payload(self, messages, **kwargs)
        # lm-eval keeps the first four only (a limit of another vendor); vLLM takes all
        payload["stop"] = stops + ([eos] if eos and eos not in stops else [])
        return payload


def _key(*args: Any) -> str:
    return json.dumps(args, sort_keys=True, default=str)


def _place(request: Instance) -> dict[str, Any]:
    return {
        "task": str(request.task_name),
        "doc_id": int(request.doc_id or 0),
        "index": request.idx,
        "kind": request.request_type,
    }


def _usable(body: Any, generate: bool) -> str:
    """What is wrong with an answer that came with status 200, or ''."""
    try:
        choice = body["choices"][0]
        if not generate:
            return ""
        text = choice["message"]["content"] if "message" in choice else choice["text"]
    except (KeyError, IndexError, TypeError):
        return "no choices in the answer"
    if text is None:
        return "null text"
    made_nothing = choice.get("token_ids") == [] or (body.get("usage") or {}).get("completion_tokens") == 0
    return "empty text without a single generated token" if text == "" and made_nothing else ""


def _value(answer: Answer, generate: bool) -> Any:
    """What lm-eval gets. A log-probability that is not a number must not win an argmax: it counts as impossible."""
    if generate:
        return answer["text"] or ""
    logprob = answer["logprob"]
    return (-math.inf, False) if math.isnan(logprob) else (logprob, answer["is_greedy"])
