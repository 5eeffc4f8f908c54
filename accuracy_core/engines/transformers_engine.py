"""The same protocol on Hugging Face alone: for tests, and for machines without vLLM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy_core.engines.checkpoint import check_lengths, effective_config, resolve_checkpoint, tokens_to_generate
from accuracy_core.engines.cores import CoreLease
from accuracy_core.engines.hf_captures import HfCaptures
from accuracy_core.engines.hf_model import load_model, torch_threads
from accuracy_core.engines.injected import injected_fault
from accuracy_core.engines.protocol import Capabilities, Progress
from accuracy_core.engines.replaying import refusal, replay_each
from accuracy_core.engines.scratch import Scratch
from accuracy_core.errors import ConfigurationError, EngineDiedError
from accuracy_core.faults import FAULTS
from accuracy_core.faults.fault import SAMPLER
from accuracy_core.schemas import EngineSpec, FaultSpec, Platform, ReplayRequest, ReplayResult

if TYPE_CHECKING:
    import torch


class TransformersEngine:
    """TargetEngine on `AutoModelForCausalLM` in this process, teacher-forced through the decode path with a KV cache.

    One request at a time on the CPU with `spec.num_threads` threads (or on the first visible CUDA device).
    `engine_args` has no meaning here and is refused. Arguments as OfflineVllmEngine.

    Raises ConfigurationError (model, fault, engine arguments, platform), EngineStartError when loading fails.
    """

    name = "transformers"

    def __init__(
        self,
        spec: EngineSpec,
        *,
        lease: CoreLease | None = None,
        scratch: Path | None = None,
        log_path: Path | None = None,
        startup_timeout_s: float = 600,
    ) -> None:
        check_supported(spec)
        self.spec = spec
        model = resolve_checkpoint(spec)
        self._config = effective_config(spec, model)
        injected_fault(spec, self._config, engine="transformers")
        self._take_out: Callable[[], None] | None = None
        self._model: torch.nn.Module | None = None
        self._own_scratch = Scratch() if scratch is None else None
        self.scratch = self._own_scratch.path if self._own_scratch else Path(scratch or ".").absolute()
        try:
            self.scratch.mkdir(parents=True, exist_ok=True)
            self._device = "cuda" if spec.platform is Platform.CUDA else "cpu"
            self._model = load_model(spec, model).to(self._device)
            self.set_fault(spec.fault)
        except BaseException:
            self.close()
            raise

    def set_fault(self, fault: FaultSpec | None) -> None:
        """Take the injected fault out of the loaded model and put `fault` in; None leaves a clean engine.

        Raises ConfigurationError for a fault that this model cannot have.
        """
        model = self._loaded()
        chosen = injected_fault(self.spec, self._config, fault, engine="transformers") if fault is not None else None
        if self._take_out is not None:
            self._take_out()
            self._take_out = None
        if chosen is not None:
            self._take_out = FAULTS[chosen.name].inject_hf(model, chosen)
        self.spec = self.spec.model_copy(update={"fault": fault})

    @property
    def capabilities(self) -> Capabilities:
        import torch
        import transformers

        return Capabilities(
            forced_decode=True,
            raw_logits=True,
            kv_cache=True,
            hooks=True,
            replacement=True,
            versions={"torch": torch.__version__, "transformers": transformers.__version__},
        )

    def module_names(self) -> dict[str, str]:
        """Canonical tap -> class of its module, or of the module around it; raw taps here are `TAP:out0`."""
        from accuracy_core.capture.hf_points import find_points

        return {tap: type(point.module).__name__ for tap, point in find_points(self._loaded()).items()}

    def replay(self, requests: Sequence[ReplayRequest], on_progress: Progress | None = None) -> list[ReplayResult]:
        """One result per request, in order; rows in `<scratch>/<request id>.safetensors` as `logits` float32 (tokens,
        vocab).

        Raises ConfigurationError for requests that do not fit (see `check_lengths`).
        """
        check_lengths(self.spec, requests, self._config)
        return replay_each(requests, self._replay_one, on_progress, lambda request: refusal(request, self.capabilities))

    def _replay_one(self, request: ReplayRequest) -> ReplayResult:
        from safetensors.torch import save_file

        try:
            captures = HfCaptures(self._loaded(), request)
            with self._prompts() as seen, captures.recording():
                logits, tokens, cache = self._decode(request, captures)
            snapshots = captures.finish(cache, tokens, logits)
        except ConfigurationError as error:  # of the captures: the request's length and tokens were checked before
            return ReplayResult(request_id=request.request_id, token_ids=[], error=str(error))
        path = self.scratch / f"{request.request_id}.safetensors"
        tensors = {**captures.tensors, "logits": logits}
        save_file(tensors, path)
        return ReplayResult(
            request_id=request.request_id,
            token_ids=tokens,
            argmax_ids=logits.argmax(-1).tolist(),
            seen_prompt_ids=seen[0] if seen else [],
            tensors=str(path),
            names=sorted(tensors),
            missing=captures.missing,
            snapshots=snapshots,
        )

    def _loaded(self) -> torch.nn.Module:
        if self._model is None:
            raise EngineDiedError("the engine was closed", fix="open a new one")
        return self._model

    @contextmanager
    def _prompts(self) -> Iterator[list[list[int]]]:
        """Token ids that the embedding is given, a list per call of it: what the model really sees."""
        seen: list[list[int]] = []
        model: Any = self._loaded()
        handle = model.get_input_embeddings().register_forward_pre_hook(
            lambda module, args: seen.append(args[0].flatten().tolist())
        )
        try:
            yield seen
        finally:
            handle.remove()

    def _decode(self, request: ReplayRequest, captures: HfCaptures) -> tuple[torch.Tensor, list[int], Any]:
        """Rows float32 (count, vocab), the tokens that followed them (forced, else the rows' argmax), and the cache."""
        import torch

        model, forced = self._loaded(), request.forced_token_ids
        rows: list[torch.Tensor] = []
        tokens: list[int] = []
        step, cache = request.prompt_token_ids, captures.cache()
        with torch_threads(self.spec.num_threads), torch.inference_mode():
            for index in range(tokens_to_generate(request)):
                ids = torch.tensor([step], device=self._device)
                captures.before_call(ids[0], len(request.prompt_token_ids) + index - 1 if index else 0, cache)
                output = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache = output.past_key_values
                row = output.logits[0, -1].float().cpu()
                tokens.append(forced[index] if forced else self._choose(row))
                rows.append(row)
                step = tokens[-1:]
        return torch.stack(rows), tokens, cache

    def _choose(self, row: torch.Tensor) -> int:
        """The best token of `row` (vocab,), or what a fault in the sampler makes of it."""
        wrong = getattr(self._model, SAMPLER, None)
        return int(row.argmax()) if wrong is None else int(wrong(row))

    def close(self) -> None:
        """Forget the model and remove its own scratch folder. May be called again."""
        self._model = None
        if self._own_scratch is not None:
            self._own_scratch.remove()

    def __enter__(self) -> TransformersEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def check_supported(spec: EngineSpec) -> None:
    """Raise ConfigurationError for what this engine cannot honour:

    silently ignoring it would analyse something else.
    """
    refused = [f"engine_args.{name}" for name in spec.engine_args]
    refused += [name for name in ("quantization", "additional_config", "env") if getattr(spec, name)]
    if spec.kv_cache_dtype != "auto":
        refused.append("kv_cache_dtype")
    if spec.tensor_parallel_size != 1:
        refused.append("tensor_parallel_size")
    if spec.platform is Platform.NEURON:
        refused.append("platform neuron")
    if refused:
        raise ConfigurationError(
            f"the transformers engine does not know {', '.join(refused)}", fix="leave them out, or use engine vllm"
        )
