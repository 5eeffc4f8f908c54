"""Two runs on two "machines" that share only a bucket: `python benchmarks/golden_demo_s3.py` (or `make demo-s3`).

A real S3 server (SeaweedFS, loopback) is started for it. Both runs analyse the same prompts of the bundled model, each
in a process and a cache directory of its own; the first computes every golden, the second must get every one from the
bucket. Prints the counts; the exit status is 1 if that is not what happened.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.goldens.s3_server import ADMIN, BUCKET, running_server

ROOT = Path(__file__).resolve().parent.parent

RUN = """
import json, sys
from collections import Counter
from transformers import AutoTokenizer
from accuracy_core.goldens import get_cached_reference_goldens
from accuracy_core.models import embedded_model

folder = embedded_model()
questions = [json.loads(line)["question"] for line in (folder / "test.jsonl").read_text().splitlines()]
goldens = get_cached_reference_goldens(
    model_id="embedded", model_checkpoint=folder, tokenizer=AutoTokenizer.from_pretrained(folder),
    prompts=[f"Q: {question}\\nA:" for question in questions[: int(sys.argv[1])]], output_length=16,
)
sums = [float(rows.double().sum()) for rows in goldens["fp32_logits"]]
print(json.dumps({"sources": Counter(golden.source for golden in goldens.goldens), "keys": goldens.prompt_keys,
                  "sums": sums, "warnings": goldens.warnings}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=16)
    prompts: int = parser.parse_args().prompts
    with tempfile.TemporaryDirectory(prefix="demo-s3-") as folder:
        scratch = Path(folder)
        (scratch / "server").mkdir()
        with running_server(scratch / "server") as port:
            print(f"S3 server on 127.0.0.1:{port}, bucket {BUCKET}")
            runs = []
            for machine in ("first", "second"):
                env = {
                    **os.environ, "ASSAY_GOLDENS_S3_URI": f"s3://{BUCKET}/demo", "OMP_NUM_THREADS": "1",
                    "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": ADMIN[0],
                    "AWS_SECRET_ACCESS_KEY": ADMIN[1], "VLLM_NEURON_GOLDEN_CACHE_DIR": str(scratch / machine),
                }  # fmt: skip
                began = time.monotonic()
                done = subprocess.run(
                    [sys.executable, "-c", RUN, str(prompts)], env=env, cwd=ROOT, check=True, stdout=subprocess.PIPE
                )
                runs.append(json.loads(done.stdout.splitlines()[-1]))
                sources = ", ".join(f"{count} {source}" for source, count in sorted(runs[-1]["sources"].items()))
                print(f"{machine} machine: {sources}   ({time.monotonic() - began:.1f} s with start-up)")
    first, second = runs
    for warning in (*first["warnings"], *second["warnings"]):
        print(f"warning: {warning}")
    same = all(first[name] == second[name] for name in ("keys", "sums"))
    print("both have the same goldens" if same else "the goldens differ")
    shared = Counter(second["sources"]) == Counter(s3=prompts) and Counter(first["sources"]) == Counter(
        computed=prompts
    )
    return 0 if same and shared else 1


if __name__ == "__main__":
    sys.exit(main())
