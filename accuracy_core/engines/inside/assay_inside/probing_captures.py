"""Whether captures work in this engine, found by trying them on two tokens: hooks, replacement, KV cache."""

import contextlib
import os
from typing import Any, Callable, Dict

import torch

#: modules that are tried, from the front of the model
_TRIED = 40


def probe(engine: Any, scratch: str) -> Dict[str, Any]:
    """Capabilities `hooks`, `replacement`, `kv_cache` of `engine` (see `worker.Engine`), and reasons where not."""
    trial = _Trial(engine, "%s/probe.safetensors" % scratch)
    found: Dict[str, bool] = {}
    reasons: Dict[str, str] = {}
    tries: Dict[str, Callable[[], bool]] = {
        "hooks": trial.hooks,
        "replacement": trial.replacement,
        "kv_cache": trial.kv_cache,
    }
    for name, works in tries.items():
        trial.why = ""
        try:
            found[name] = works()
        except (ValueError, TypeError, AttributeError, NotImplementedError, KeyError, RuntimeError) as error:
            found[name], trial.why = False, "%s: %s" % (type(error).__name__, str(error)[:300])
        if not found[name]:
            reasons[name] = trial.why or "nothing was recorded"
    trial.clean()
    return {"capabilities": found, "reasons": reasons}


class _Trial:
    def __init__(self, engine: Any, path: str) -> None:
        self.engine, self.path, self.why = engine, path, ""
        self.rows: Dict[str, torch.Tensor] = {}

    def run(self, **capture: Any) -> Dict[str, torch.Tensor]:
        from safetensors.torch import load_file

        request = {"id": "probe", "prompt": [0], "forced": [], "count": 2, "path": self.path, "capture": capture}
        (result,) = self.engine.replay([request], {})
        self.why = "; ".join(sorted(set((result.get("missing") or {}).values())))[:300]
        return load_file(self.path)

    def hooks(self) -> bool:
        # deep ones: a compiled model still calls its outermost modules
        deep = [name for name, _ in self.engine.modules() if name.count(".") >= 3]
        tensors = self.run(modules=["%s:out0" % name for name in deep[:_TRIED]])
        self.rows = {
            name[len("tap.") :]: value
            for name, value in tensors.items()
            if name.startswith("tap.") and value.dim() == 2 and value.is_floating_point()
        }
        if not self.rows:
            self.why = "forward hooks are not called: a compiled model never does, enforce_eager runs it without"
        return bool(self.rows)

    def replacement(self) -> bool:
        from safetensors.torch import save_file

        if not self.rows:
            self.why = "it is done by forward hooks, which are not called"
            return False
        tap = sorted(self.rows)[0]
        save_file({"rows": torch.full_like(self.rows[tap], 3.0)}, self.path + ".rows")
        spec = {"tap": tap, "file": self.path + ".rows", "tensor": "rows", "first_row": 0}
        plain = self.run()["logits"]
        return not torch.equal(plain, self.run(replacements=[spec])["logits"])

    def kv_cache(self) -> bool:
        tensors = self.run(kv=True)
        pairs = [value for name, value in tensors.items() if name.startswith("kv.")]
        return bool(pairs) and not any(bool(torch.isnan(pair).all()) for pair in pairs)

    def clean(self) -> None:
        for path in (self.path, self.path + ".rows"):
            with contextlib.suppress(OSError):
                os.remove(path)
