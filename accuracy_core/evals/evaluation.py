"""One evaluation inside the process that runs lm-eval. Imports lm_eval."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from accuracy_core.errors import ConfigurationError, InfrastructureError
from accuracy_core.evals.bundled import bundled_tasks_dir
from accuracy_core.evals.eval_job import EvalJob
from accuracy_core.evals.partial_scores import partial_scores
from accuracy_core.evals.request_log import RequestRecord
from accuracy_core.evals.task_loading import LoadedTasks, load_tasks, prompt_problem

_log = logging.getLogger(__name__)
_LEAST_BETWEEN_EVENTS_S = 0.1
_NAMED = 8  # documents named in a warning


class Evaluation:
    """Runs a job. `send(event, **fields)` reports progress; `run` returns the fields of the closing event."""

    def __init__(self, job: EvalJob, send: Callable[..., None]) -> None:
        self._job, self._send = job, send
        folders = [*(job.task_folders or []), str(bundled_tasks_dir())] + (
            [job.include_path] if job.include_path else []
        )
        manager = TaskManager(include_path=list(folders), include_defaults=job.task_folders is None)
        self._loaded: LoadedTasks = load_tasks(manager, job.tasks)
        self._records: list[RequestRecord] = []
        self._total = 0
        self._asked: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()
        self._last_event = 0.0
        self.warnings: list[str] = list(self._loaded.check(job))
        self._model: Any = None

    def run(self) -> dict[str, Any]:
        job = self._job
        tracker = EvaluationTracker(output_path=job.results_dir)
        if job.backend == "hf":
            model: Any = self._reference_model()
            arguments: dict[str, Any] = {"pretrained": job.model, "tokenizer": job.tokenizer, "dtype": job.dtype}
            extra: dict[str, Any] = {"device": "cpu", "batch_size": job.batch_size}
        else:
            model = self._model = self._server_model()
            arguments = {
                "model": job.model, "base_url": job.base_url, "num_concurrent": job.num_concurrent,
                "max_length": job.max_length, "bos": model.encoder.describe(), "eos_string": model.eos_string,
            }  # fmt: skip
            extra = {"batch_size": 1}
        results = simple_evaluate(
            model=model,
            model_args=arguments,
            tasks=self._loaded.objects,
            task_manager=self._loaded.manager,
            num_fewshot=job.num_fewshot,
            limit=job.limit,
            gen_kwargs=dict(job.gen_kwargs) or None,
            bootstrap_iters=job.bootstrap_iters,
            log_samples=True,
            evaluation_tracker=tracker,
            system_instruction=job.system_prompt,
            apply_chat_template=job.chat,
            random_seed=job.seed,
            numpy_random_seed=job.seed,
            torch_random_seed=job.seed,
            fewshot_random_seed=job.seed,
            **extra,
        )
        if results is None:
            raise InfrastructureError("lm-eval returned no results")
        names = {"hf": "hf", "server": "local-chat-completions" if job.chat else "local-completions"}
        results["config"]["model"] = names[job.backend]
        return self._save(tracker, results)

    def progress(self) -> dict[str, Any]:
        """How far it got: counts, and the scores of the documents that are fully answered."""
        scores = {}
        if self._model is not None and self._answered:
            scores = partial_scores(self._loaded.tasks, self._model.answers)
        return {
            "done": sum(self._answered.values()),
            "total": self._total,
            "per_task": {task: [self._answered[task], asked] for task, asked in self._asked.items()},
            "partial_scores": scores,
        }

    def _reference_model(self) -> Any:
        """Hugging Face on the CPU, greedy unless a task samples: the checkpoint's own sampling defaults are put
        aside.
        """
        import torch
        from lm_eval.models.huggingface import HFLM
        from transformers import GenerationConfig

        job = self._job
        torch.set_num_threads(job.num_threads)
        model = HFLM(
            pretrained=job.model, tokenizer=job.tokenizer, dtype=job.dtype, device="cpu", batch_size=job.batch_size
        )
        own = model.model.generation_config
        model.model.generation_config = GenerationConfig(
            bos_token_id=own.bos_token_id, eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id
        )
        return model

    def _server_model(self) -> Any:
        from accuracy_core.evals.prompt_encoding import PromptEncoder
        from accuracy_core.evals.recording_model import RecordingChat, RecordingCompletions
        from accuracy_core.evals.request_cache import RequestCache
        from accuracy_core.evals.task_loading import load_tokenizer

        job = self._job
        tokenizer = load_tokenizer(job.tokenizer)
        common: dict[str, Any] = {
            "model": job.model, "base_url": f"{job.base_url}/v1/{'chat/' if job.chat else ''}completions",
            "seed": job.seed, "max_length": job.max_length, "eos_string": tokenizer.eos_token, "max_retries": 1,
        }  # fmt: skip
        model: Any
        if job.chat:
            model = RecordingChat(**common)
        else:
            model = RecordingCompletions(
                tokenizer=job.tokenizer, tokenizer_backend="huggingface", add_bos_token=True, revision=None, **common
            )
        cache = RequestCache(Path(job.cache_dir), job.cache_identity) if job.cache_dir and job.cache_identity else None
        model.prepare(job, PromptEncoder.for_tokenizer(tokenizer), cache, self._started, self._recorded)
        return model

    def _started(self) -> None:
        """The requests of all tasks are known and none is sent: refuse what cannot work."""
        for name, task in self._loaded.tasks.items():
            self._asked[name] = sum(int(request.repeats or 1) for request in task.instances)
        self._total = sum(self._asked.values())
        if not self._job.chat:
            problem = prompt_problem(self._loaded.tasks, self._model, self._job.max_length)
            if problem and self._job.long_prompts == "error":
                raise ConfigurationError(
                    problem,
                    fix="raise max_model_len, lower num_fewshot or max_gen_toks, or pass long_prompts='truncate'",
                )
            if problem:
                self.warnings.append(f"{problem}; they were cut on the left")
        self._send("progress", done=0, total=self._total)

    def _recorded(self, record: RequestRecord) -> None:
        self._records.append(record)
        self._answered[record.task] += 1
        done, now = len(self._records), time.monotonic()
        if done == self._total or now - self._last_event > _LEAST_BETWEEN_EVENTS_S:
            self._last_event = now
            self._send("progress", done=done, total=self._total)

    def _save(self, tracker: EvaluationTracker, results: Any) -> dict[str, Any]:
        samples = results.pop("samples")
        tracker.save_results_aggregated(results=results, samples=samples)
        for task, lines in samples.items():
            tracker.save_results_samples(task_name=task, samples=lines)
        folder = Path(self._job.results_dir) / str(tracker.general_config_tracker.model_name_sanitized)
        stamp = getattr(tracker, "date_id", "")
        files = [folder / f"results_{stamp}.json"] + [folder / f"samples_{task}_{stamp}.jsonl" for task in samples]
        missing = [path.name for path in files if not path.is_file()]
        if missing:  # lm-eval only logs a failure to write
            raise InfrastructureError(f"lm-eval could not write {', '.join(missing)} to {folder}", fix="see the log")
        if self._job.backend == "server":
            files.append(folder / f"requests_{stamp}.jsonl")
            with files[-1].open("w", encoding="utf-8") as log:
                log.writelines(record.model_dump_json(exclude_none=True) + "\n" for record in self._records)
        return {"folder": str(folder), "files": [str(path) for path in files], **self._summary()}

    def _summary(self) -> dict[str, Any]:
        generated = [record for record in self._records if record.kind == "generate_until"]
        null = [record for record in generated if record.text is None]
        empty = [record for record in generated if record.text is not None and not record.text.strip()]
        cut = [record for record in generated if record.finish_reason == "length"]
        for records, what in (
            (null, "null response"),
            (empty, "empty response"),
            (cut, "response cut by its length limit"),
        ):
            if records:
                self.warnings.append(f"{len(records)} of {len(generated)}: {what}: {_names(records)}")
        nan = [record for record in self._records if record.logprob is not None and math.isnan(record.logprob)]
        if nan:
            self.warnings.append(
                f"{len(nan)} log-probabilities are not a number, they count as impossible: {_names(nan)}"
            )
        self.warnings += _bos_warnings(self._records, self._model.encoder.prefix_ids) if self._model else []
        return {
            "n_requests": len(self._records) or self._total,
            "n_from_cache": sum(record.from_cache for record in self._records),
            "n_empty": len(empty),
            "n_null": len(null),
            "n_unproduced": _unproduced(generated, empty, null),
            "n_truncated": len(cut),
            "n_generated": len(generated),
            "warnings": self.warnings,
            "eos_string": getattr(self._model, "eos_string", None),
            "bos": self._model.encoder.describe() if self._model is not None else None,
        }


def _names(records: list[RequestRecord]) -> str:
    names = [f"{record.task} doc {record.doc_id}" for record in records[:_NAMED]]
    return ", ".join(names) + (f" and {len(records) - _NAMED} more" if len(records) > _NAMED else "")


def _unproduced(generated: list[RequestRecord], empty: list[RequestRecord], null: list[RequestRecord]) -> int:
    """Responses that the engine did not make. An empty one is the model's own when it took tokens (EOS at once).

    A server that tells no token ids is believed, unless everything it says is empty.
    """
    untold = [record for record in empty if record.token_ids is None]
    count = len(null) + sum(record.token_ids == [] for record in empty)
    return count + (len(untold) if untold and len(empty) + len(null) == len(generated) else 0)


def _bos_warnings(records: list[RequestRecord], prefix: tuple[int, ...]) -> list[str]:
    """The prompts as the server saw them: with the tokenizer's special prefix exactly once?"""
    if not prefix:
        return []
    once = list(prefix)
    seen = [record for record in records if record.prompt_token_ids]
    missing = [record for record in seen if (record.prompt_token_ids or [])[: len(once)] != once]
    double = [record for record in seen if (record.prompt_token_ids or [])[: 2 * len(once)] == 2 * once]
    return [
        f"{len(found)} of {len(seen)} prompts reached the server {how} {once}: {_names(found)}"
        for found, how in ((missing, "without the tokenizer's prefix"), (double, "with a double prefix"))
        if found
    ]
