"""Logit validation of a running vLLM server: `python examples/run_logit_validation_online.py --url URL --model FOLDER`.

The server must run on this host and be started so that it can record:

    VLLM_SERVER_DEV_MODE=1 PYTHONPATH=accuracy_core/engines/inside python -m vllm.entrypoints.openai.api_server \\
        --host 127.0.0.1 --model FOLDER --generation-config vllm --no-enable-prefix-caching \\
        --logits-processors assay_inside.forcing:RecordAndForce \\
        --worker-extension-cls assay_inside.extension.WorkerExtension

Each request carries the reference's tokens in `vllm_xargs`; the worker records the raw row before it forces the next,
and leaves the rows in safetensors files under `--output`. Without `--url` a server is started and stopped here.
Exit code: 0 passed, 2 failed, 3 the server cannot record.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from accuracy_core import EngineSpec, LogitValPlugin, run_prompt_analysis
from accuracy_core.engines.served import ServedVllmEngine
from accuracy_core.errors import ConfigurationError
from accuracy_core.outcome import ExitCode, Verdict

PROMPTS = ["Q: 47+38\nA:", "Q: 91-17\nA:", "The capital of France is"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="http://127.0.0.1:PORT of a running server; default: one is started")
    parser.add_argument("--model", default="embedded", help="the checkpoint that the server loaded")
    parser.add_argument("--served-model-name", help="the model's name in requests; default: --model")
    parser.add_argument("--output-length", type=int, default=16, help="tokens per prompt")
    parser.add_argument("--output", help="directory of rows and results; default: a temporary one")
    arguments = parser.parse_args()
    spec = EngineSpec(model=arguments.model, engine="vllm-server")
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(arguments.output or scratch)
        try:
            with ServedVllmEngine(
                spec, base_url=arguments.url, served_model_name=arguments.served_model_name, scratch=output / "rows"
            ) as engine:
                result = run_prompt_analysis(
                    spec, PROMPTS, [LogitValPlugin()], output, arguments.output_length, engine=engine, triage=False
                )
        except ConfigurationError as error:
            print(error, file=sys.stderr)
            return int(ExitCode.CONFIGURATION)
        result.raise_if_broken()
    status = result.status.plugins["logit_validation"]
    for route in status.routes:
        print(f"{route.route:13} {'met' if route.passed else 'not met':8} {route.value:.4g} ({route.threshold:.4g})")
    print(f"verdict: {status.verdict.value if status.verdict else 'not measured'}")
    return 0 if status.verdict is Verdict.PASS else 2


if __name__ == "__main__":
    sys.exit(main())
