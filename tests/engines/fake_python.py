"""Stands in for the engine's interpreter: answers the probe, and plays a server or the offline worker as $FAKE says."""

import http.server
import json
import os
import signal
import subprocess
import sys
import time


def child(code: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=True)


def server(mode: str) -> None:
    arguments = sys.argv[3:]
    if mode == "refuse":
        sys.exit("api_server.py: error: unrecognized arguments: --no-such-thing")
    if mode == "bad-model":
        sys.exit("OSError: /x is not a local folder and is not a valid model identifier")
    if mode == "memory":
        sys.exit("torch.OutOfMemoryError: out of memory")
    if mode == "die":
        print("the last words", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if mode == "port-taken-once" and not os.path.exists(os.environ["FLAG"]):
        open(os.environ["FLAG"], "w").close()
        sys.exit("OSError: [Errno 98] Address already in use")
    if mode == "never":
        time.sleep(600)
    child("import time; time.sleep(600)")
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            print("request", *args, flush=True)

    port = int(arguments[arguments.index("--port") + 1])
    http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()


def worker(mode: str) -> None:
    def say(**message: object) -> None:
        print(json.dumps(message), flush=True)

    found = {"recorded": True, "forced_decode": mode != "no-force", "traced": False, "raw_logits": True}
    found |= {"prompt_logprobs": False, "logprobs": True, "raw_logprobs": True}
    found |= dict.fromkeys(("hooks", "kv_cache", "replacement"), mode == "captures")
    found["hooks"] = found["hooks"] or mode == "only-hooks"
    found |= {"batching": True, "chunked_prefill": True, "prefix_caching": mode == "cached"}
    reasons = {} if mode == "captures" else {"hooks": "forward hooks are not called", "kv_cache": "no cache"}
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "load":
            print("loading the model", file=sys.stderr, flush=True)
            if mode == "unknown-argument":
                say(event="failed", kind="argument", message="unknown engine argument: no_such_thing")
                sys.exit(2)
            if mode == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if mode == "never":
                time.sleep(600)
            if mode == "chatter":
                print("hello", flush=True)
            child("import time; time.sleep(600)")
            say(event="loading")
            say(event="ready", capabilities=found, reasons=reasons, versions={"vllm": "0"}, vocab_size=260)
        elif request["op"] == "modules":
            say(event="modules", modules=[["model", "Model"], ["model.norm", "RMSNorm"]])
        elif request["op"] == "replay":
            if mode == "die-mid-run":
                print("segmentation fault in the attention kernel", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            if mode == "hang":
                time.sleep(600)
            if mode == "fail":
                say(event="failed", kind="engine", message="EngineDeadError: core is gone")
                sys.exit(3)
            if "refused" in [item["id"] for item in request["requests"]]:
                say(event="results", error="ValueError: refused")
                continue
            say(event="results", results=[answer(item, request) for item in request["requests"]])
        elif request["op"] == "forget":
            say(event="forgotten", error="" if mode == "cached" else "blocks are in use")


def answer(item: dict, request: dict) -> dict:
    """Echoes what was asked for besides logits in `missing`, and the conditions as if all had taken place."""
    under = request["conditions"]
    conduct = {"cached_tokens": len(item["prompt"]) - 1 if under["read_prefixes"] else 0,
               "prefill_chunks": [under["prefill_chunk"] or len(item["prompt"])],
               "largest_batch": len(request["requests"])}  # fmt: skip
    tokens = item["forced"] or [7] * item["count"]
    missing = {"asked": json.dumps(item["capture"], sort_keys=True)} if item["capture"] else {}
    return {"token_ids": tokens, "argmax_ids": tokens, "route": "forced_decode", "shift_free": False,
            "names": ["logits"], "missing": missing, "shards": [], "snapshots": [], "block_size": None,
            "conduct": conduct}  # fmt: skip


def main() -> None:
    if sys.argv[1] == "-c":
        print(json.dumps({"python": "3.11", "vllm": "0", "torch": "2", "safetensors": "0"}))
        return
    module = sys.argv[2]
    mode = os.environ.get("FAKE", "")
    server(mode) if module.startswith("vllm") else worker(mode)


main()
