"""The offline vLLM engine: `vllm.LLM` in a supervised process of its own, in the engine's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from accuracy_core.engines.arguments import offline_arguments
from accuracy_core.engines.channel import Channel, ChannelClosed
from accuracy_core.engines.checkpoint import check_lengths, effective_config, resolve_checkpoint
from accuracy_core.engines.cores import CoreLease, lease_cores
from accuracy_core.engines.environment import engine_environment
from accuracy_core.engines.failures import start_error
from accuracy_core.engines.injected import injected_fault
from accuracy_core.engines.interpreter import check_interpreter, find_interpreter
from accuracy_core.engines.load_report import load_report_environment
from accuracy_core.engines.logs import FailureKind, log_tail
from accuracy_core.engines.messages import message, result
from accuracy_core.engines.protocol import Capabilities, Progress
from accuracy_core.engines.replaying import conditions_refusal, failed, possible, refusal, replay_each
from accuracy_core.engines.scratch import Scratch
from accuracy_core.engines.supervised import DEFAULT_GRACE_S, SupervisedProcess, start_supervised
from accuracy_core.errors import ConfigurationError, EngineDiedError, EngineStartError, NotMeasuredError
from accuracy_core.schemas import EngineSpec, FaultSpec, ReplayConditions, ReplayRequest, ReplayResult

#: how tokens are forced: `auto` takes the best route that was probed to work
OfflineRoute = Literal["auto", "forced_decode", "reprompt"]
_DEVICE_TIMEOUT_S = 3600.0


class OfflineVllmEngine:
    """ConditionalEngine on `vllm.LLM`. Made loaded; `close` (or leaving the block) ends every process of it.

    Greedy, past EOS, one request at a time, prefix caching off, fixed thread count: composition of the batch and
    number of threads change bf16 logits. Rows are float32 copies of what the sampler sees before temperature.

    `lease` None leases the cores for as long as the engine lives. `scratch` takes the tensor files
    (`<request id>.safetensors`); None makes a folder in memory that `close` removes. `route` "reprompt" uses the
    documented loop of asking again at each divergence even where one pass works; "forced_decode" raises
    NotMeasuredError where it does not.

    Run here on CPU only. On CUDA and Neuron the same code sets the leased cores visible and probes what works; the
    second runner's trace replay and Neuron's re-prompting were tested against stand-ins.

    Raises ConfigurationError (model, fault, interpreter), EngineArgumentError (an argument that this vLLM refuses),
    EngineStartError (anything else, with the log's end), DeviceBusyError.
    """

    name = "vllm"

    def __init__(
        self,
        spec: EngineSpec,
        *,
        lease: CoreLease | None = None,
        scratch: Path | None = None,
        log_path: Path | None = None,
        startup_timeout_s: float = 600,
        request_timeout_s: float = 1800,
        route: OfflineRoute = "auto",
        grace_s: float = DEFAULT_GRACE_S,
    ) -> None:
        self.spec = spec
        model = resolve_checkpoint(spec)
        self._config = effective_config(spec, model)
        injected_fault(spec, self._config)
        python = find_interpreter(spec)
        check_interpreter(python)
        given, own = offline_arguments(spec, model, self._config)
        self._request_timeout_s = request_timeout_s
        self._process: SupervisedProcess | None = None
        self._own_lease: CoreLease | None = None
        self._own_scratch = Scratch() if scratch is None else None
        self.scratch = self._own_scratch.path if self._own_scratch else Path(scratch or ".").absolute()
        self.log_path = log_path or self.scratch / "engine.log"
        try:
            self.scratch.mkdir(parents=True, exist_ok=True)
            if lease is None:
                lease = self._own_lease = lease_cores(spec, timeout_s=_DEVICE_TIMEOUT_S, note="prompt analysis")
            environment = engine_environment(spec, lease, python=python, scratch=self.scratch, model=model)
            environment.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            environment |= load_report_environment(self.log_path)
            with self.log_path.open("wb") as log:
                self._process = start_supervised(
                    [str(python), "-m", "assay_inside.worker"],
                    env=environment, log=log, lock_fds=lease.fds, grace_s=grace_s, pipes=True,
                    remove=self._own_scratch.path if self._own_scratch else None,
                )  # fmt: skip
            self._channel = Channel(self._process)
            ready = self._load(given, own, route, startup_timeout_s)
        except BaseException:
            self.close()
            raise
        self.vocab_size = int(ready["vocab_size"])
        self.probe = {"capabilities": ready["capabilities"], "reasons": ready["reasons"]}
        found = ready["capabilities"]
        self._capabilities = Capabilities(
            forced_decode=route != "reprompt" and (found["forced_decode"] or found["traced"]),
            raw_logits=found["raw_logits"],
            kv_cache=found.get("kv_cache", False),
            hooks=found.get("hooks", False),
            replacement=found.get("replacement", False),
            prompt_logprobs=found["prompt_logprobs"],
            batching=found.get("batching", False),
            chunked_prefill=found.get("chunked_prefill", False),
            prefix_caching=found.get("prefix_caching", False),
            versions=ready["versions"],
        )
        if route == "forced_decode" and not self._capabilities.forced_decode:
            self.close()
            raise NotMeasuredError(
                f"this engine cannot force tokens through decode: {ready['reasons']}", fix='use route="auto"'
            )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def pid(self) -> int:
        """Pid of the process that holds `vllm.LLM`."""
        return self._process.pid if self._process else -1

    @property
    def supervisor_pid(self) -> int:
        return self._process.supervisor.pid if self._process else -1

    def log_tail(self, lines: int = 30) -> str:
        """Last lines of the engine's log."""
        return log_tail(self.log_path, lines)

    def set_fault(self, fault: FaultSpec | None) -> None:
        """Take the injected fault out of the loaded model and put `fault` in; None leaves a clean engine.

        Raises ConfigurationError for a fault that this model cannot have, and when this vLLM has no place for it.
        """
        chosen = injected_fault(self.spec, self._config, fault) if fault is not None else None
        answer = self._ask(self._request_timeout_s, op="fault", fault=None if chosen is None else chosen.to_dict())
        self.spec = self.spec.model_copy(update={"fault": None if answer["error"] else fault})
        if answer["error"]:
            raise ConfigurationError(str(answer["error"]), fix="choose another fault; the engine is clean now")

    def module_names(self) -> dict[str, str]:
        """Dotted module name -> class name; a module that several places share is listed at each."""
        if not self._capabilities.hooks:
            return {}
        return dict(self._ask(self._request_timeout_s, op="modules")["modules"])

    def replay(self, requests: Sequence[ReplayRequest], on_progress: Progress | None = None) -> list[ReplayResult]:
        """One result per request, in order; tensors in `<scratch>/<request id>.safetensors`.

        Prefixes are not read from the engine's cache, should it keep one. Raises ConfigurationError for requests that
        do not fit (see `check_lengths`), EngineDiedError when the engine is gone or does not answer within
        `request_timeout_s`.
        """
        return self._run(requests, ReplayConditions(), on_progress)

    def replay_under(self, requests: Sequence[ReplayRequest], conditions: ReplayConditions) -> list[ReplayResult]:
        """As `replay`, under `conditions`; what they lack here, and what one of several that run together lacks, is the
        error of all."""
        reason = conditions_refusal(conditions, self._capabilities, self.probe["reasons"])
        return failed(requests, reason) if reason else self._run(requests, conditions)

    def _run(
        self, requests: Sequence[ReplayRequest], conditions: ReplayConditions, on_progress: Progress | None = None
    ) -> list[ReplayResult]:
        check_lengths(self.spec, requests, {"vocab_size": self.vocab_size, **self._config})
        if conditions.forget_prefixes:
            error = self._ask(self._request_timeout_s, op="forget")["error"]
            if error:
                return failed(requests, str(error))
        if not conditions.together:
            return replay_each(
                requests, lambda request: self._replay([request], conditions)[0], on_progress, self._refusal
            )
        reason = next(filter(None, map(self._refusal, requests)), "")
        return failed(requests, reason) if reason else self._replay(requests, conditions)

    def _refusal(self, request: ReplayRequest) -> str:
        return refusal(request, self._capabilities, self.probe["reasons"])

    def _replay(self, requests: Sequence[ReplayRequest], conditions: ReplayConditions) -> list[ReplayResult]:
        narrowed = [possible(request, self._capabilities, self.probe["reasons"]) for request in requests]
        answer = self._ask(
            self._request_timeout_s,
            op="replay",
            requests=[message(request, self.scratch) for request, _ in narrowed],
            conditions=conditions.model_dump(mode="json", include={"prefill_chunk", "read_prefixes"}),
        )
        if answer.get("error"):
            return failed(requests, str(answer["error"]))
        return [
            result(request, item, self.scratch, missing)
            for (request, missing), item in zip(narrowed, answer["results"], strict=True)
        ]

    def _ask(self, timeout_s: float, **message: Any) -> dict[str, Any]:
        try:
            self._channel.send(**message)
            answer = self._channel.receive(timeout_s)
        except ChannelClosed as closed:
            raise self._died(f"the engine's process is gone ({closed})") from closed
        except TimeoutError as error:
            raise self._died(f"the engine does not answer: {error}") from error
        if answer["event"] == "failed":
            raise self._died(f"the engine failed: {answer['message']}")
        return answer

    def _died(self, message: str) -> EngineDiedError:
        return EngineDiedError(message, fix="see the log; a retry may help", log_tail=self.log_tail())

    def _load(
        self, given: dict[str, Any], own: dict[str, Any], route: OfflineRoute, timeout_s: float
    ) -> dict[str, Any]:
        try:
            self._channel.send(op="load", given=given, own=own, scratch=str(self.scratch), route=route)
            answer = self._channel.receive(timeout_s)
            if answer["event"] == "loading":
                answer = self._channel.receive(timeout_s)
        except ChannelClosed as closed:
            raise start_error(f"the engine ended while it was loaded ({closed})", self.log_tail(60)) from closed
        except TimeoutError as error:
            raise EngineStartError(
                f"the engine was not loaded after {timeout_s:.0f} s",
                fix="raise the start-up time-out; compiling for an accelerator takes minutes",
                log_tail=self.log_tail(60),
            ) from error
        if answer["event"] == "failed":
            kind = FailureKind.ARGUMENT if answer["kind"] == "argument" else None
            raise start_error(f"the engine could not be loaded: {answer['message']}", self.log_tail(60), kind=kind)
        return answer

    def close(self) -> None:
        """End the engine's processes, remove its own scratch folder, give its own cores back. May be called again."""
        process, self._process = self._process, None
        try:
            if process is not None:
                process.cut()
                process.stop()
        finally:
            if self._own_scratch is not None:
                self._own_scratch.remove()
            if self._own_lease is not None:
                self._own_lease.release()

    def __enter__(self) -> OfflineVllmEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
