"""Loading tasks and tokenizer inside lm-eval's process, with errors that say what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lm_eval.tasks import TaskManager

from accuracy_core.errors import ConfigurationError
from accuracy_core.evals.eval_job import EvalJob


@dataclass(frozen=True)
class LoadedTasks:
    """`objects` are tasks and groups as asked for; `tasks` maps every leaf task's name to it."""

    manager: TaskManager
    objects: list[Any]
    tasks: dict[str, Any]

    def check(self, job: EvalJob) -> Iterator[str]:
        """Warnings about settings that a task overrules. Raises ConfigurationError for what cannot work."""
        kinds = {name: task.get_config("output_type") for name, task in self.tasks.items()}
        scored = sorted(name for name, kind in kinds.items() if kind != "generate_until")
        if job.chat and job.backend == "server" and scored:
            raise ConfigurationError(
                f"the chat endpoint gives no log-likelihoods, which {', '.join(scored)} need",
                fix="leave these tasks out, or run without chat",
            )
        fixed = sorted(name for name, task in self.tasks.items() if task.get_config("num_fewshot") == 0)
        if job.num_fewshot and fixed:
            yield f"num_fewshot={job.num_fewshot} has no effect on {', '.join(fixed)}: their task files fix it at 0"


def load_tasks(manager: TaskManager, names: list[str]) -> LoadedTasks:
    """Raises ConfigurationError that names the data set which cannot be had, or what is wrong in a task's file."""
    objects: list[Any] = []
    tasks: dict[str, Any] = {}
    for name in names:
        try:
            loaded = manager.load([name])
        except Exception as error:  # datasets, the hub client and the task's own code raise anything
            raise _unloadable(manager, name, error) from error
        grouped = {id(task) for group in loaded.get("groups", {}).values() for task in group.get_all_tasks()}
        inner = {child for children in loaded.get("group_map", {}).values() for child in children}
        objects += [group for key, group in loaded.get("groups", {}).items() if key not in inner]
        objects += [task for task in loaded["tasks"].values() if id(task) not in grouped]
        tasks.update(loaded["tasks"])
    return LoadedTasks(manager, objects, tasks)


def load_tokenizer(folder: str) -> Any:
    """Raises ConfigurationError when there is none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # transformers raises OSError, ValueError, KeyError and more
        raise ConfigurationError(
            f"no tokenizer can be loaded from {folder!r}: {error}", fix="give the folder of the model's tokenizer"
        ) from error


def prompt_problem(tasks: dict[str, Any], model: Any, max_length: int) -> str:
    """Which prompts do not fit the server's context together with their answer; '' when all do.

    lm-eval reserves one token, so a prompt and its answer may take `max_length - 1`.
    """
    found = []
    for name, task in tasks.items():
        requests = [request for request in task.instances if request.request_type != "loglikelihood_rolling"]
        if not requests:
            continue
        if requests[0].request_type == "generate_until":
            lengths = [len(ids) for ids in model.encoder.encode_all([str(request.args[0]) for request in requests])]
            rooms = [int(request.args[1].get("max_gen_toks", model._max_gen_toks)) for request in requests]
        else:
            texts = ["".join(request.args[:2]) for request in requests]
            lengths = [len(ids) for ids in model.encoder.encode_all(texts)]
            rooms = [0] * len(requests)
        over = [(length, room) for length, room in zip(lengths, rooms, strict=True) if length + room > max_length - 1]
        if over:
            length, room = max(over, key=sum)
            answer = f" plus {room} for the answer" if room else ""
            found.append(f"{len(over)} of {len(requests)} prompts of {name} (longest: {length} tokens{answer})")
    return f"prompts do not fit the server's context of {max_length} tokens: {'; '.join(found)}" if found else ""


def _unloadable(manager: TaskManager, name: str, error: Exception) -> ConfigurationError:
    entry = manager.task_index.get(name)
    data = (entry.cfg or {}).get("dataset_path") if entry else None
    text = f"{type(error).__name__}: {error}"
    if data and any(
        word in text for word in ("Hub", "offline", "Offline", "Connection", "resolve", "HTTP", "doesn't exist")
    ):
        return ConfigurationError(
            f"task {name} needs the data set {data}, which cannot be had: {text[:300]}",
            fix=f"connect to the hub once, or put {data} into the data-set cache; assay_suite needs neither",
        )
    return ConfigurationError(f"task {name} cannot be loaded: {text[:500]}", fix="correct the task's file or its data")
