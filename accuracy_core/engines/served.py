"""A vLLM server as a target engine: rows come through the front end that users talk to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from accuracy_core.engines.checkpoint import check_lengths, effective_config, resolve_checkpoint, tokens_to_generate
from accuracy_core.engines.cores import CoreLease, lease_cores
from accuracy_core.engines.interpreter import find_interpreter, probe_interpreter
from accuracy_core.engines.protocol import Capabilities, Progress
from accuracy_core.engines.recording import DEV_MODE, PROCESSOR, RecordingClient
from accuracy_core.engines.replaying import possible, refusal, replay_each
from accuracy_core.engines.scratch import Scratch
from accuracy_core.engines.server import RunningServer, start_server
from accuracy_core.errors import AssayError, ConfigurationError, EngineDiedError
from accuracy_core.schemas import EngineSpec, ReplayRequest, ReplayResult

_DEVICE_TIMEOUT_S = 3600.0


class ServedVllmEngine:
    """TargetEngine on vLLM's OpenAI server. Made ready; `close` ends a server that it started, and no other.

    Without `base_url` it starts a server of `spec` on loopback; with it, it uses the one that runs there, which must be
    on this host and started with our logits processor and worker extension. Logits only: KV caches and module tensors
    need the offline engine. One request at a time, without prefix caching, as there.

    Raises what `start_server` raises, and ConfigurationError for a running server that cannot record.
    """

    name = "vllm-server"

    def __init__(
        self,
        spec: EngineSpec,
        *,
        lease: CoreLease | None = None,
        scratch: Path | None = None,
        log_path: Path | None = None,
        startup_timeout_s: float = 600,
        request_timeout_s: float = 1800,
        base_url: str | None = None,
        served_model_name: str | None = None,
    ) -> None:
        self.spec = spec
        self._config = effective_config(spec, resolve_checkpoint(spec))
        self._own_scratch = Scratch() if scratch is None else None
        self.scratch = self._own_scratch.path if self._own_scratch else Path(scratch or ".").absolute()
        self._own_lease: CoreLease | None = None
        self._server: RunningServer | None = None
        self._client: RecordingClient | None = None
        versions: dict[str, str] = {}
        model = served_model_name or spec.model
        try:
            self.scratch.mkdir(parents=True, exist_ok=True)
            if base_url is None:
                if lease is None:
                    lease = self._own_lease = lease_cores(spec, timeout_s=_DEVICE_TIMEOUT_S, note="prompt analysis")
                self._server = start_server(
                    recording_spec(spec), lease, log_path=log_path or self.scratch / "server.log",
                    startup_timeout_s=startup_timeout_s, served_model_name=model,
                )  # fmt: skip
                base_url = self._server.base_url
                versions = probe_interpreter(find_interpreter(spec))
            self._client = RecordingClient(base_url, model, timeout_s=request_timeout_s)
            self._client.check(self.scratch)
            versions = versions or {"vllm": self._client.version()}
        except BaseException:
            self.close()
            raise
        self._capabilities = Capabilities(forced_decode=True, raw_logits=True, versions=versions)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def module_names(self) -> dict[str, str]:
        """Empty: there are no hooks in a server."""
        return {}

    def replay(self, requests: Sequence[ReplayRequest], on_progress: Progress | None = None) -> list[ReplayResult]:
        """One result per request, in order; rows in `<scratch>/<request id>.safetensors`.

        Raises ConfigurationError for requests that do not fit, EngineDiedError when the server is gone.
        """
        check_lengths(self.spec, requests, self._config)
        return replay_each(requests, self._one, on_progress, lambda request: refusal(request, self._capabilities))

    def _one(self, request: ReplayRequest) -> ReplayResult:
        if self._client is None:
            raise EngineDiedError("the engine is closed", fix="open a new one")
        _, missing = possible(request, self._capabilities)
        path = self.scratch / f"{request.request_id}.safetensors"
        try:
            recorded = self._client.record(
                request.request_id, request.prompt_token_ids, request.forced_token_ids,
                tokens_to_generate(request), path,
            )  # fmt: skip
        except (EngineDiedError, ConfigurationError):
            raise
        except AssayError as error:
            return ReplayResult(request_id=request.request_id, token_ids=[], error=error.message)
        return ReplayResult(
            request_id=request.request_id,
            token_ids=recorded.token_ids,
            argmax_ids=recorded.argmax_ids,
            seen_prompt_ids=recorded.seen_prompt_ids,
            tensors=str(path),
            names=["logits"],
            missing=missing,
            route="forced_decode",
        )

    def close(self) -> None:
        """End the own server, remove the own scratch folder, give the own cores back. May be called again."""
        client, self._client = self._client, None
        server, self._server = self._server, None
        try:
            if client is not None:
                client.close()
            if server is not None:
                server.stop()
        finally:
            if self._own_scratch is not None:
                self._own_scratch.remove()
            if self._own_lease is not None:
                self._own_lease.release()

    def __enter__(self) -> ServedVllmEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def recording_spec(spec: EngineSpec) -> EngineSpec:
    """`spec` of a server that records: with our logits processor, the route to fetch rows, and no prefix caching."""
    given = spec.engine_args.get("logits_processors") or []
    processors = [*(given if isinstance(given, list) else [given]), PROCESSOR]
    arguments = {"enable_prefix_caching": False, **spec.engine_args, "logits_processors": processors}
    return spec.model_copy(update={"engine_args": arguments, "env": {**DEV_MODE, **spec.env}})
