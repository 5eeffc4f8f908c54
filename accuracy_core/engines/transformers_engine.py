"""The same protocol on Hugging Face alone: for tests, and for machines without vLLM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy_core.engines.checkpoint import check_lengths, effective_config, resolve_checkpoint, tokens_to_generate
from accuracy_core.engines.cores import CoreLease
from accuracy_core.engines.injected import injected_fault
from accuracy_core.engines.protocol import Capabilities, Progress
from accuracy_core.engines.replaying import refusal, replay_each
from accuracy_core.engines.scratch import Scratch
from accuracy_core.errors import ConfigurationError, EngineDiedError, EngineStartError
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
            self._model = _load(spec, model).to(self._device)
            self.set_fault(spec.fault)
        except BaseException:
            self.close()
            raise

    def set_fault(self, fault: FaultSpec | None) -> None:
        """Take the injected fault out of the loaded model and put `fault` in; None leaves a clean engine.

        Raises ConfigurationError for a fault that this model cannot have.
        """
        if self._model is None:
            raise EngineDiedError("the engine was closed", fix="open a new one")
        chosen = injected_fault(self.spec, self._config, fault, engine="transformers") if fault is not None else None
        if self._take_out is not None:
            self._take_out()
            self._take_out = None
        if chosen is not None:
            self._take_out = FAULTS[chosen.name].inject_hf(self._model, chosen)
        self.spec = self.spec.model_copy(update={"fault": fault})

    @property
    def capabilities(self) -> Capabilities:
        import torch
        import transformers

        return Capabilities(
            forced_decode=True,
            raw_logits=True,
            versions={"torch": torch.__version__, "transformers": transformers.__version__},
        )

    def module_names(self) -> dict[str, str]:
        return {}

    def replay(self, requests: Sequence[ReplayRequest], on_progress: Progress | None = None) -> list[ReplayResult]:
        """One result per request, in order; rows in `<scratch>/<request id>.safetensors` as `logits` float32 (tokens,
        vocab).

        Raises ConfigurationError for requests that do not fit (see `check_lengths`).
        """
        check_lengths(self.spec, requests, self._config)
        return replay_each(requests, self._replay_one, on_progress, lambda request: refusal(request, self.capabilities))

    def _replay_one(self, request: ReplayRequest) -> ReplayResult:
        from safetensors.torch import save_file

        with self._prompts() as seen:
            logits, tokens = self._decode(
                request.prompt_token_ids, request.forced_token_ids, tokens_to_generate(request)
            )
        path = self.scratch / f"{request.request_id}.safetensors"
        save_file({"logits": logits}, path)
        return ReplayResult(
            request_id=request.request_id,
            token_ids=tokens,
            argmax_ids=logits.argmax(-1).tolist(),
            seen_prompt_ids=seen[0] if seen else [],
            tensors=str(path),
            names=["logits"],
        )

    @contextmanager
    def _prompts(self) -> Iterator[list[list[int]]]:
        """Token ids that the embedding is given, a list per call of it: what the model really sees."""
        seen: list[list[int]] = []
        model: Any = self._model
        if model is None:
            yield seen
            return
        handle = model.get_input_embeddings().register_forward_pre_hook(
            lambda module, args: seen.append(args[0].flatten().tolist())
        )
        try:
            yield seen
        finally:
            handle.remove()

    def _decode(self, prompt: list[int], forced: list[int], count: int) -> tuple[torch.Tensor, list[int]]:
        """Rows float32 (count, vocab) and the tokens that followed them: forced, else the rows' argmax."""
        import torch

        if self._model is None:
            raise EngineDiedError("the engine was closed", fix="open a new one")
        device = self._device
        rows, tokens = [], []
        step = torch.tensor([prompt], device=device)
        cache = None
        threads = torch.get_num_threads()
        torch.set_num_threads(self.spec.num_threads)
        try:
            with torch.inference_mode():
                for index in range(count):
                    output = self._model(input_ids=step, past_key_values=cache, use_cache=True, logits_to_keep=1)
                    cache = output.past_key_values
                    row = output.logits[0, -1].float().cpu()
                    token = forced[index] if forced else self._choose(row)
                    rows.append(row)
                    tokens.append(token)
                    step = torch.tensor([[token]], device=device)
        finally:
            torch.set_num_threads(threads)
        return torch.stack(rows), tokens

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


def _load(spec: EngineSpec, model: str) -> torch.nn.Module:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(model, trust_remote_code=spec.trust_remote_code, **spec.hf_overrides)
        dtype = spec.dtype if spec.dtype == "auto" else getattr(torch, spec.dtype)
        # transformers' SDPA takes an attention soft cap and drops it without a word (transformers 5.19)
        capped = getattr(config.get_text_config(), "attn_logit_softcapping", None)
        loaded = AutoModelForCausalLM.from_pretrained(
            model,
            config=config,
            dtype=dtype,
            trust_remote_code=spec.trust_remote_code,
            **({"attn_implementation": "eager"} if capped else {}),
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise EngineStartError(f"{model} cannot be loaded: {error}", fix="check the checkpoint") from error
    return loaded.eval()
