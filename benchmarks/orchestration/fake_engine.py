"""Stands in for an engine's interpreter: no model, but processes, files and times like one. Standard library only.

$FAKE_MODE `hang`: never answers. Else each request takes $FAKE_SECONDS. $FAKE_LOG: a file that gets a JSON line when
the engine starts and one when it ends by itself, or is asked to end: `{"pid", "core", "event", "time"}`.
"""

import http.server
import json
import os
import signal
import subprocess
import sys
import time

MODE = os.environ.get("FAKE_MODE", "")
SECONDS = float(os.environ.get("FAKE_SECONDS", "0"))


def note(event: str) -> None:
    path = os.environ.get("FAKE_LOG")
    if path:
        line = {"pid": os.getpid(), "core": os.environ.get("ASSAY_ENGINE_CORES"), "event": event, "time": time.time()}
        with open(path, "a", encoding="utf-8") as file:  # one write: lines of several engines do not mix
            file.write(json.dumps(line) + "\n")


def grandchild() -> None:
    """In a session of its own, as the engine core of a server: the kind of process that is left behind."""
    subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(3600)"], start_new_session=True)


def ended(signum: int, frame: object) -> None:
    note("end")
    os._exit(0)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        words = " ".join(sys.argv).replace("=", " ").split()
        name = words[words.index("--served-model-name") + 1]
        self.answer({"object": "list", "data": [{"id": name, "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print("POST", self.path, flush=True)
        if MODE == "hang":
            time.sleep(3600)
        time.sleep(SECONDS)
        prompts = body.get("prompt") or [[1]]
        count = len(prompts) if isinstance(prompts, list) and prompts and isinstance(prompts[0], list | str) else 1
        choice = {"text": " #### 1", "finish_reason": "stop", "token_ids": [5, 6], "prompt_token_ids": [1, 2]}
        choices = [{**choice, "index": index} for index in range(count)]
        self.answer({"choices": choices, "usage": {"completion_tokens": 2}})

    def answer(self, body: dict) -> None:
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: object) -> None:
        pass


def server() -> None:
    grandchild()
    port = int(sys.argv[sys.argv.index("--port") + 1])
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def worker() -> None:
    found = {"recorded": True, "forced_decode": True, "traced": False, "raw_logits": True}
    found |= {"prompt_logprobs": False, "logprobs": True, "raw_logprobs": True}
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "load":
            grandchild()
            say(event="loading")
            say(event="ready", capabilities=found, reasons={}, versions={"vllm": "0"}, vocab_size=100_000)
        else:
            print("replay", file=sys.stderr, flush=True)
            time.sleep(3600 if MODE == "hang" else SECONDS)
            say(event="result", id=request.get("id"), error="a fake engine has no logits")


def say(**message: object) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    if sys.argv[1:3] == ["-P", "-c"]:  # where does it import from?
        print(json.dumps([]))
        return
    if sys.argv[1] == "-c":  # which versions are there?
        print(json.dumps({"python": "3.11", "vllm": "0", "torch": "2", "transformers": "5", "safetensors": "0"}))
        return
    note("start")
    signal.signal(signal.SIGTERM, ended)
    server() if sys.argv[2].startswith("vllm") else worker()
    note("end")


main()
