"""Set-ups that a test may spoil: a copy of the bundled checkpoint, parameters, and results of an evaluation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from accuracy_core.models import embedded_model
from accuracy_core.pipeline.run import Run, record, resolve_run
from accuracy_core.prompts.tokens import load_tokenizer
from accuracy_core.schemas import RunParameters
from tests.evals.results_maker import STAMP, sample, write_run

TASK = "sums"
PATTERN = "#### (\\-?[0-9]+)"
DOCUMENTS = 12
WEIGHTS = "model.safetensors"


@dataclass
class Setup:
    """What a run is given. `folder` holds the model and what else a fault writes.

    `ids` turns the token ids of a right server into what this one saw, `finish` is every answer's finish reason.
    """

    folder: Path
    engine: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    chat: bool = False
    ids: Callable[[list[int]], list[int]] = list
    template: str | None = None
    finish: str = "stop"
    max_gen_toks: int = 40
    pattern: str = PATTERN

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def edit(self, name: str, **changes: Any) -> None:
        """Set keys of a JSON file of the checkpoint; None removes one."""
        path = self.model / name
        data = {**json.loads(path.read_text("utf-8")), **changes}
        path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}), "utf-8")

    def weights(self, change: Callable[[dict[str, Any]], None]) -> None:
        tensors = load_file(self.model / WEIGHTS)
        change(tensors)
        save_file(tensors, self.model / WEIGHTS, metadata={"format": "pt"})

    def results(self) -> Path:
        """Results as an evaluation of this set-up leaves them: samples, scores, and the log of requests."""
        tokenizer = load_tokenizer(str(self.model), self.engine.get("tokenizer"))
        samples, requests = [], []
        for number in range(DOCUMENTS):
            text, answer = f"Q: {number}+{number}\nA:", f"#### {2 * number}"
            messages = [{"role": "user", "content": text}]
            context = json.dumps(messages) if self.chat else text
            matched = self.pattern == PATTERN
            samples.append(
                sample(
                    number,
                    1.0 if matched else 0.0,
                    name="strict",
                    target=answer,
                    arguments={
                        "gen_args_0": {"arg_0": context, "arg_1": {"until": ["\n"], "max_gen_toks": self.max_gen_toks}}
                    },
                    resps=[[f" {answer}"]],
                    filtered_resps=[str(2 * number) if matched else "[invalid]"],
                )
            )
            requests.append(
                {
                    "task": TASK,
                    "doc_id": number,
                    "kind": "generate_until",
                    "prompt_token_ids": self.ids(self._ids(tokenizer, text, messages)),
                    "token_ids": [7, 8],
                    "finish_reason": self.finish,
                }
            )
        steps = [{"function": "regex", "regex_pattern": self.pattern}, {"function": "take_first"}]
        configs = {TASK: {"task": TASK, "filter_list": [{"name": "strict", "filter": steps}]}}
        folder = write_run(self.folder / "results", {TASK: samples}, extra={"configs": configs})
        lines = "".join(json.dumps(item) + "\n" for item in requests)
        (folder / f"requests_{STAMP}.jsonl").write_text(lines, encoding="utf-8")
        return folder

    def run(self, output: Path, **parameters: Any) -> Run:
        """A checked run over these results, as far as its own device is not needed."""
        given = RunParameters.model_validate(self.parameters(output, **parameters))
        run = resolve_run(given, engine_here=False)
        record(run)
        return run

    def parameters(self, output: Path, **more: Any) -> dict[str, Any]:
        return {
            "engine": {"model": str(self.model), **self.engine},
            "evaluation": {"results": str(self.results()), "chat": self.chat, **self.evaluation},
            "thresholds": {"exact_match,strict": 0.5},
            "output_dir": str(output),
            **more,
        }

    def _ids(self, tokenizer: Any, text: str, messages: list[dict[str, str]]) -> list[int]:
        if not self.chat:
            return list(tokenizer(text).input_ids)
        encoded = tokenizer.apply_chat_template(
            messages, chat_template=self.template, add_generation_prompt=True, tokenize=True
        )
        return list(encoded["input_ids"])


def right_setup(folder: Path) -> Setup:
    """A set-up in which nothing is wrong."""
    shutil.copytree(embedded_model(), folder / "model")
    return Setup(folder)
