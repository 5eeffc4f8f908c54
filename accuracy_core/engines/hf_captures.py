"""What a replay asks of a transformers model besides logits: taps, replacements, KV cache, saved calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy_core.capture.taps import RawTap, kv_tensor_name, tap_tensor_name
from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import Replacement, ReplayRequest
from accuracy_core.schemas.call_snapshot import CallSnapshot

if TYPE_CHECKING:
    import torch

    from accuracy_core.capture.hf_taps import HfTaps
    from accuracy_core.capture.rows import TapValue


class HfCaptures:
    """Raw taps of this engine are canonical taps, written `TAP:out0`.

    Raises ConfigurationError for a replacement at a place, or out of a file, that is not there.
    """

    def __init__(self, model: Any, request: ReplayRequest) -> None:
        from accuracy_core.capture.hf_taps import HfTaps, available_taps

        self._model, self._request = model, request
        self.missing: dict[str, str] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self._calls: list[tuple[dict[str, Any], dict[str, torch.Tensor]]] = []
        self._call = 0
        hooked = bool(request.capture.modules or request.replacements)
        known = set(available_taps(model)) if hooked else set()
        self._wanted: dict[str, str] = {}
        for text in request.capture.modules:
            try:
                self._wanted[_canonical(text, known)] = text
            except ConfigurationError as error:
                self.missing[tap_tensor_name(text)] = error.message
        replace: dict[str, list[TapValue]] = {}
        for item in request.replacements:
            replace.setdefault(_canonical(item.tap, known), []).append(_value(item))
        self._taps: HfTaps | None = HfTaps(model, list(self._wanted), replace=replace) if hooked else None
        self._rows: dict[str, torch.Tensor] = {}

    def cache(self) -> Any:
        """A cache that forgets nothing where K and V are asked for; None: the model makes its own.

        What attention is given is the same.
        """
        from accuracy_core.capture.kv.reference import recording_cache

        wanted = self._request.capture.kv or self._request.snapshot is not None
        return recording_cache(self._model.config) if wanted else None

    @contextmanager
    def recording(self) -> Iterator[None]:
        if self._taps is None:
            yield
            return
        with self._taps:
            yield
            self._rows = self._taps.collect()

    def before_call(self, ids: torch.Tensor, first: int, cache: Any) -> None:
        """Look at a call before it runs: `ids` (tokens,) at positions `first` …"""
        import torch

        spec, call = self._request.snapshot, self._call
        self._call += 1
        if spec is None or len(self._calls) >= spec.budget:
            return
        asked = call in spec.calls or any(first <= position < first + len(ids) for position in spec.positions)
        if not asked and (spec.calls or spec.positions):
            return
        tensors = {"input_ids": ids.cpu().clone(), "positions": torch.arange(first, first + len(ids))}
        tensors |= _cached(cache) if first else {}
        self._calls.append(({"call": call, "first_position": first, "tokens": len(ids)}, tensors))

    def finish(self, cache: Any, tokens: list[int], logits: torch.Tensor) -> list[str]:
        """Fill `tensors` and `missing`, write the saved calls and return their JSON files. `tokens`: the output."""
        everything = [*self._request.prompt_token_ids, *tokens]
        positions = len(everything) - 1
        for tap, text in self._wanted.items():
            name = tap_tensor_name(text)
            if tap in self._rows:
                self.tensors[name] = _ending_at(positions, self._rows[tap])
                absent = positions - len(self._rows[tap])
                if absent > 0:
                    self.missing[name] = f"not computed at positions 0-{absent - 1}"
            else:
                self.missing[name] = "never reached while this request ran"
        if self._request.capture.kv:
            found = _cached(cache)
            self.tensors |= found
            layers = self._model.config.get_text_config().num_hidden_layers
            for layer in range(layers):
                if kv_tensor_name(layer, "key") not in found:
                    reason = "this layer keeps no keys and values of its own"
                    self.missing |= {kv_tensor_name(layer, which): reason for which in ("key", "value")}
        return [self._write(about, tensors, everything, logits) for about, tensors in self._calls]

    def _write(
        self,
        about: Mapping[str, Any],
        tensors: dict[str, torch.Tensor],
        tokens: list[int],
        logits: torch.Tensor,
    ) -> str:
        from safetensors.torch import save_file

        spec, first = self._request.snapshot, about["first_position"]
        assert spec is not None
        folder = Path(spec.folder)
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{self._request.request_id}-call{about['call']}"
        end, prompt = first + about["tokens"], len(self._request.prompt_token_ids)
        row = end - prompt if end >= prompt else None
        if row is not None:
            tensors = {**tensors, "logits": logits[row : row + 1].clone()}
        save_file(tensors, folder / f"{stem}.safetensors")
        snapshot = CallSnapshot(
            request_id=self._request.request_id,
            engine="transformers",
            prompt_length=prompt,
            batch_tokens=about["tokens"],
            token_ids=tokens[first:end],
            prefix_token_ids=tokens[:first],
            row=row,
            tensors=f"{stem}.safetensors",
            **about,
        )
        path = folder / f"{stem}.json"
        path.write_text(snapshot.to_json(), encoding="utf-8")
        return str(path)


def _canonical(text: str, known: set[str]) -> str:
    """The canonical tap that a raw tap of this engine stands for. Raises ConfigurationError."""
    try:
        raw = RawTap.parse(text)
    except ValueError as error:
        raise ConfigurationError(str(error), fix="write TAP:out0") from error
    if raw.point != "out0" or raw.module not in known:
        raise ConfigurationError(
            f"the transformers engine has no tap {text}", fix="its taps are module_names(), written TAP:out0"
        )
    return raw.module


def _value(item: Replacement) -> TapValue:
    from safetensors import SafetensorError, safe_open

    from accuracy_core.capture.rows import TapValue

    try:
        with safe_open(item.file, framework="pt") as file:
            rows = file.get_tensor(item.tensor)
    except (OSError, SafetensorError) as error:
        raise ConfigurationError(
            f"replacement tensor {item.tensor} cannot be read: {error}", fix="write it as (rows, features)"
        ) from error
    return TapValue(rows, item.first_row, item.columns)


def _cached(cache: Any) -> dict[str, torch.Tensor]:
    from accuracy_core.capture.kv.reference import cached_kv

    return {name: tensors[0].cpu().contiguous() for name, tensors in cached_kv(cache).items()}


def _ending_at(positions: int, rows: torch.Tensor) -> torch.Tensor:
    """(positions, features) with `rows` at the end; NaN, or -1 in integers, before them."""
    import torch

    rows = rows[-positions:].contiguous()
    blank = float("nan") if rows.is_floating_point() else -1
    before = torch.full((positions - len(rows), *rows.shape[1:]), blank, dtype=rows.dtype)
    return torch.cat([before, rows]) if len(before) else rows
