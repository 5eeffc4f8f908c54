"""Making `vllm.LLM` from engine arguments, with what this vLLM can take of our own."""

import dataclasses
import importlib
import sys
from typing import Any, Dict, List, Set, Tuple

PROCESSOR = "assay_inside.forcing:RecordAndForce"
_FRONTENDS = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
#: vLLM's words for a logits processor that its runner does not take
_REFUSALS = ("logits processor", "logits_processor", "logitsproc", "LogitsProcessor")


class UnknownArgument(ValueError):
    """An engine argument that this vLLM does not have."""


def engine_fields() -> Set[str]:
    from vllm import EngineArgs

    return {field.name for field in dataclasses.fields(EngineArgs)}


def server_fields() -> Set[str]:
    """Arguments of the server's front end: right in a spec that drives both, without meaning here."""
    for name in _FRONTENDS:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        kind = getattr(module, "FrontendArgs", None)
        if dataclasses.is_dataclass(kind):
            return {field.name for field in dataclasses.fields(kind)}
    return set()


def check_arguments(given: Dict[str, Any], own: Dict[str, Any]) -> Dict[str, Any]:
    """Arguments for this engine:

    `given` by the user, which must be known, and `own`, which are left out when they are not.
    """
    known = engine_fields()
    unknown = sorted(set(given) - known)
    if unknown:
        unknown = sorted(set(unknown) - server_fields())
    if unknown:
        raise UnknownArgument("unknown engine argument: %s" % ", ".join(unknown))
    arguments = {key: value for key, value in own.items() if key in known}
    arguments.update({key: value for key, value in given.items() if key in known})
    return arguments


def load(arguments: Dict[str, Any], record: bool) -> Tuple[Any, bool]:
    """(LLM, whether the second runner's trace replay is on).

    First with our logits processor; where the runner refuses it, with trace replay; else plain.
    """
    from vllm import LLM

    attempts: List[Dict[str, Any]] = []
    if record:
        processors = list(arguments.get("logits_processors") or []) + [PROCESSOR]
        attempts.append(dict(arguments, logits_processors=processors))
        if "enable_trace_replay" in engine_fields():
            attempts.append(dict(arguments, enable_trace_replay=True))
    attempts.append(arguments)
    for index, attempt in enumerate(attempts):
        try:
            return LLM(**attempt), bool(attempt.get("enable_trace_replay"))
        except (ValueError, TypeError, NotImplementedError) as error:
            refused = any(word in str(error) for word in _REFUSALS) or "trace replay" in str(error)
            if index == len(attempts) - 1 or not refused:
                raise
            print("assay: %s; trying without" % error, file=sys.stderr, flush=True)
    raise AssertionError("unreachable")


def vocabulary_size(llm: Any) -> int:
    engine = llm.llm_engine
    config = getattr(engine, "model_config", None) or engine.vllm_config.model_config
    return int(config.get_vocab_size())
