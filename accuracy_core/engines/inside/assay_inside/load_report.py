"""What vLLM's own loader said about the checkpoint, as a JSON file: {"model", "missing", "error"}.

vLLM 0.32 refuses a checkpoint that lacks an embedding or a norm. Of a model that is not quantised it exempts every
layer whose weights are processed after loading, and so all linear ones: they stay random without a word.
"""

import functools
import json
import os
from typing import Any, Optional, Set

VARIABLE = "ASSAY_LOAD_REPORT"
_LONGEST_ERROR = 2000


def note_loads(path: str) -> None:
    """Make every load of weights in this process write its report to `path`."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    load = DefaultModelLoader.load_weights

    @functools.wraps(load)
    def load_and_note(self: Any, model: Any, model_config: Any) -> None:
        names: Set[str] = set()
        tracked = False
        own = model.load_weights

        def noting(*args: Any, **kwargs: Any) -> Optional[Set[str]]:
            nonlocal tracked
            loaded = own(*args, **kwargs)
            tracked = loaded is not None
            names.update(loaded or ())
            return loaded

        model.load_weights = noting
        try:
            load(self, model, model_config)
        except Exception as error:
            _write(path, model_config, [], "%s: %s" % (type(error).__name__, error))
            raise
        finally:
            del model.load_weights
        if tracked:
            _write(path, model_config, _missing(self, model, names), "")

    DefaultModelLoader.load_weights = load_and_note


def _missing(loader: Any, model: Any, loaded: Set[str]) -> list:
    """Parameters that no file of the checkpoint filled.

    By the check that vLLM keeps for quantised models: it adds to `loaded` only what no checkpoint can hold. Versions
    before 0.32 do not have it, and nothing is said about them.
    """
    try:
        loader.track_weights_loading(model, loaded, quantized=True)
    except ValueError:
        pass
    except TypeError:
        return []
    return sorted({name for name, _ in model.named_parameters()} - loaded)


def _write(path: str, model_config: Any, missing: list, error: str) -> None:
    """Several ranks may write: whole files only, the last one stays."""
    content = {"model": str(model_config.model), "missing": missing, "error": error[:_LONGEST_ERROR]}
    temporary = "%s.%d" % (path, os.getpid())
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(temporary, path)
