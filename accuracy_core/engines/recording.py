"""Rows of a running vLLM server: forced through `vllm_xargs`, fetched through its worker extension."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from accuracy_core.errors import ConfigurationError, EngineDiedError, InfrastructureError

#: what a server must be started with to record; `PYTHONPATH` is `accuracy_core.engines.environment.INSIDE`
PROCESSOR = "assay_inside.forcing:RecordAndForce"
DEV_MODE = {"VLLM_SERVER_DEV_MODE": "1"}
_HOW = (
    f"start it with --logits-processors {PROCESSOR} --worker-extension-cls assay_inside.extension.WorkerExtension, "
    "VLLM_SERVER_DEV_MODE=1 and PYTHONPATH set to the folder `inside` of accuracy_core.engines"
)
_PROBE = "assay-probe"


@dataclass(frozen=True)
class Recorded:
    """Tokens of one request, and the argmax of each of its rows. The rows are in the file that was asked for."""

    token_ids: list[int]
    argmax_ids: list[int]
    seen_prompt_ids: list[int]


class RecordingClient:
    """Client of one server on this host, whose worker writes rows to files that this process can read."""

    def __init__(self, base_url: str, model: str, *, timeout_s: float = 1800) -> None:
        self.base_url = base_url.rstrip("/")
        self._model = model
        self._http = httpx.Client(base_url=self.base_url, timeout=timeout_s, trust_env=False)

    def check(self, scratch: Path) -> None:
        """Record one token. Raises ConfigurationError, with how to start it, for a server that cannot."""
        path = scratch / f"{_PROBE}.safetensors"
        self.record(_PROBE, [0], [], 1, path)
        path.unlink()

    def record(self, request_id: str, prompt: Sequence[int], forced: Sequence[int], count: int, path: Path) -> Recorded:
        """Force `forced` after `prompt`, or generate `count` tokens greedily, past EOS.

        `path` gets `logits`, float32 (tokens, vocab), what the sampler saw before temperature. Raises
        InfrastructureError for a request that the server refuses, EngineDiedError when it is gone, ConfigurationError
        when it does not record.
        """
        xargs: dict[str, Any] = {"assay_id": request_id}
        if forced:
            xargs["assay_force"] = list(forced)
        answer = self._post(
            "/v1/completions", model=self._model, prompt=list(prompt), max_tokens=count, temperature=0,
            ignore_eos=True, return_token_ids=True, vllm_xargs=xargs,
        )  # fmt: skip
        if answer.is_error:
            raise InfrastructureError(f"the server refused {request_id}: {_said(answer)}")
        emitted = answer.json()["choices"][0].get("token_ids") or []
        taken = self._take(request_id, [*prompt, *emitted], path)
        if taken["rows"] != len(emitted):
            raise InfrastructureError(f"{request_id}: {taken['rows']} rows were recorded for {len(emitted)} tokens")
        return Recorded(list(emitted), list(taken["argmax"]), list(taken.get("prompt") or []))

    def version(self) -> str:
        """vLLM's version, as the server says it; "" when it does not."""
        try:
            return str(self._http.get("/version").json().get("version", ""))
        except (httpx.HTTPError, ValueError):
            return ""

    def close(self) -> None:
        self._http.close()

    def _take(self, request_id: str, tokens: list[int], path: Path) -> dict[str, Any]:
        answer = self._post("/collective_rpc", method="assay_take", args=[request_id, tokens, str(path)])
        if answer.is_error:
            raise ConfigurationError(f"{self.base_url} has no way to hand out recorded rows: {_said(answer)}", fix=_HOW)
        ranks = [rank for rank in answer.json().get("results", []) if isinstance(rank, dict)]
        failed = [rank["error"] for rank in ranks if rank.get("error")]
        if failed:
            raise InfrastructureError(f"{request_id} was not recorded: {failed[0]}")
        with_rows = [rank for rank in ranks if rank.get("rows")]
        if not with_rows:
            raise ConfigurationError(f"{self.base_url} records no logits: its logits processor is missing", fix=_HOW)
        written = Path(with_rows[0]["path"])
        if not written.exists():
            raise ConfigurationError(
                f"{self.base_url} wrote {written}, which is not on this host", fix="run this on the server's host"
            )
        os.replace(written, path)
        return with_rows[0]

    def _post(self, route: str, **body: Any) -> httpx.Response:
        try:
            return self._http.post(route, json=body)
        except httpx.TimeoutException as error:
            raise EngineDiedError(f"{self.base_url} did not answer in time", fix="see the server's log") from error
        except httpx.HTTPError as error:
            raise EngineDiedError(f"{self.base_url} is gone: {error}", fix="see the server's log") from error


def _said(answer: httpx.Response) -> str:
    return f"HTTP {answer.status_code} {' '.join(answer.text.split())[:200]}"
