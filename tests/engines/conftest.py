"""Fixtures of the engine tests. Real engines are started once per session and shared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from accuracy_core.engines import cores, processes
from accuracy_core.engines.interpreter import find_interpreter
from accuracy_core.engines.offline import OfflineRoute, OfflineVllmEngine
from accuracy_core.engines.protocol import Capabilities
from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import EngineSpec, FaultSpec, ReplayRequest, ReplayResult

HERE = Path(__file__).parent
MAX_MODEL_LEN = 128


@pytest.fixture(autouse=True, scope="session")
def _own_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Locks of this session's own: the tests neither wait for another run's engine nor disturb it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cores.LOCK_DIR, str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.fixture
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock directory for one test."""
    monkeypatch.setenv(cores.LOCK_DIR, str(tmp_path / "locks"))
    return tmp_path / "locks"


@pytest.fixture
def fake_python(tmp_path: Path) -> str:
    """An engine's interpreter that plays a server or a worker."""
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\n" + (HERE / "fake_python.py").read_text())
    script.chmod(0o755)
    return str(script)


@pytest.fixture
def fake_spec(fake_python: str) -> Callable[..., EngineSpec]:
    """`fake_spec("die")`: a spec whose engine is the fake in that mode."""

    def make(mode: str = "", **fields: Any) -> EngineSpec:
        return EngineSpec(model="embedded", python=fake_python, env={"FAKE": mode}, **fields)

    return make


class Creator:
    """A process of its own that starts an engine (`creator.py`), to be killed."""

    def __init__(self, arguments: list[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "creator.py"), *arguments],
                stdout=subprocess.PIPE, stderr=file, env={**os.environ, **environment},
            )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, log.read_text()
        self.said: dict[str, Any] = json.loads(line)

    def tree(self) -> list[int]:
        return processes.marked(self.said["mark"])

    def kill(self, *, supervisor: bool = False) -> None:
        self.process.kill()
        if supervisor:
            os.kill(self.said["supervisor"], signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        wait_until(lambda: not self.tree(), 15)  # on its own: a killed resource tracker leaves its semaphores behind
        processes.end(self.tree())


@pytest.fixture
def creator(tmp_path: Path) -> Iterator[Callable[..., Creator]]:
    """Start a creator: `creator("server", spec)`, `creator("offline", spec)` or `creator("command", code, grace)`."""
    started: list[Creator] = []

    def start(kind: str, what: EngineSpec | str, grace: float = 10.0) -> Creator:
        text = what if isinstance(what, str) else what.to_json()
        started.append(Creator([kind, text, str(grace)], {}, tmp_path / f"creator{len(started)}.log"))
        return started[-1]

    yield start
    for item in started:
        item.close()


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll until `condition` holds. Returns whether it did within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The engine's interpreter; tests that need vLLM are skipped, visibly, where there is none."""
    try:
        return find_interpreter()
    except ConfigurationError as error:
        pytest.skip(f"no engine environment: {error}")


@dataclass(frozen=True)
class Replayed:
    """What one engine gave: results and rows float32 (tokens, vocab) by request id."""

    results: dict[str, ReplayResult]
    rows: dict[str, torch.Tensor]
    capabilities: Capabilities


@pytest.fixture(scope="session")
def replayed(
    engine_python: Path,
    traces: list[ReplayRequest],
    questions: list[ReplayRequest],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Replayed]:
    """`replayed(route=, dtype=, fault=)`: rows of a real vLLM engine on the embedded model. Each engine runs once."""
    done: dict[str, Replayed] = {}

    def get(*, route: OfflineRoute = "auto", dtype: str = "bfloat16", fault: str | None = None) -> Replayed:
        key = f"{route}-{dtype}-{fault}"
        if key not in done:
            spec = EngineSpec(
                model="embedded",
                python=str(engine_python),
                dtype=dtype,
                max_model_len=MAX_MODEL_LEN,
                fault=FaultSpec(name=fault) if fault else None,
            )
            if fault == "kv-slot":  # the longest prompt's prefill then comes in four parts, which must stay clean too
                spec = spec.model_copy(update={"engine_args": {"max_num_batched_tokens": 32}})
            requests = questions if dtype == "float32" else traces
            with OfflineVllmEngine(spec, scratch=tmp_path_factory.mktemp(key), route=route) as engine:
                results = {result.request_id: result for result in engine.replay(requests)}
                assert not [result.error for result in results.values() if result.error]
                rows = {name: load_file(str(result.tensors))["logits"] for name, result in results.items()}
                done[key] = Replayed(results, rows, engine.capabilities)
        return done[key]

    return get


@pytest.fixture(scope="session")
def held_out() -> list[dict[str, str]]:
    """Problems that the embedded model was not trained on."""
    from accuracy_core.models import embedded_model

    return [json.loads(line) for line in (embedded_model() / "test.jsonl").read_text().splitlines()]


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    from accuracy_core.models import embedded_model

    return AutoTokenizer.from_pretrained(embedded_model())


@pytest.fixture(scope="session")
def traces(held_out: list[dict[str, str]], tokenizer: Any) -> list[ReplayRequest]:
    """Mixed prompt lengths (1 to 100 tokens) and traces that leave the model's own choice, some with EOS inside."""
    eos = tokenizer.eos_token_id
    prompts = [tokenizer(f"Q: {item['question']}\nA:").input_ids for item in held_out[:4]]
    few_shot = "\n".join(f"Q: {item['question']}\nA: {item['answer']}" for item in held_out[10:12])
    prompts += [[tokenizer.bos_token_id], tokenizer(few_shot).input_ids[:100]]
    answer = tokenizer(" 7+8=15, 4+3+1=8\n#### 85", add_special_tokens=False).input_ids
    forced = [answer[:12], [eos, *answer[:5]], [*answer[:4], eos, eos, *answer[4:8]], [250, 3, 17], answer[:6], answer]
    return [
        ReplayRequest(request_id=f"trace-{index}", prompt_token_ids=prompt, forced_token_ids=tokens)
        for index, (prompt, tokens) in enumerate(zip(prompts, forced, strict=True))
    ]


@pytest.fixture(scope="session")
def questions(held_out: list[dict[str, str]], tokenizer: Any) -> list[ReplayRequest]:
    """50 held-out problems, answered freely with 32 tokens."""
    return [
        ReplayRequest(
            request_id=f"question-{index}",
            prompt_token_ids=tokenizer(f"Q: {item['question']}\nA:").input_ids,
            max_new_tokens=32,
        )
        for index, item in enumerate(held_out[:50])
    ]
