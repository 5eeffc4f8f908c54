"""Reading, scoring and classifying 100,000 samples with two filters: `python benchmarks/analyzer.py`.

Beside the analyzer it times a line-by-line pass with `json.loads` that builds the same tables, and checks that both
give the same numbers. Prints times, their ratio and the analyzer's peak memory.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

STAMP = "2026-04-01T10-00-00.000001"
FILTERS = ("strict-match", "flexible-extract")
THRESHOLDS = {f"exact_match,{name}": 0.5 for name in FILTERS}


def write_run(folder: Path, n_docs: int) -> Path:
    """A run in the proportions of gsm8k_cot: eight worked examples in the prompt (4 kB), answers of some 400 bytes."""
    rng = random.Random(0)
    question = 'Ann\'s shop sells pears and plums at three coins each, and "nobody" counts them in the morning. ' * 2
    answer = "There are 3 + 4 = 7 of them. " * 9
    shots = "\n\n".join(f"Q: {question}{i}?\n\nA: {answer}The answer is {i}." for i in range(8))
    gen_kwargs = {"until": ["Q:", "</s>"], "do_sample": False, "temperature": 0.0, "max_gen_toks": 256}
    right: dict[str, int] = dict.fromkeys(FILTERS, 0)
    with (folder / f"samples_gsm8k_{STAMP}.jsonl").open("w", encoding="utf-8") as stream:
        for name in FILTERS:
            for doc in range(n_docs):
                value = float(rng.random() < 0.7)
                right[name] += int(value)
                text = " " + "So it is 12 + 4 = 16. " * rng.randint(10, 30) + f"The answer is {doc % 97}."
                record = {
                    "doc_id": doc, "doc": {"question": question, "answer": f"{answer}\n#### {doc % 97}"},
                    "target": f"{answer}\n#### {doc % 97}",
                    "arguments": {"gen_args_0": {"arg_0": f"{shots}\n\nQ: {question}{doc}?\n\nA:",
                                                 "arg_1": gen_kwargs}},
                    "resps": [[text]], "filtered_resps": [str(doc % 97)], "filter": name, "metrics": ["exact_match"],
                    "doc_hash": f"{doc:064x}"[::-1], "prompt_hash": f"{doc:064x}", "target_hash": f"{doc:064x}",
                    "exact_match": value,
                }  # fmt: skip
                stream.write(json.dumps(record, ensure_ascii=False) + "\n")
    raw = {
        "results": {"gsm8k": {f"exact_match,{name}": right[name] / n_docs for name in FILTERS}},
        "higher_is_better": {"gsm8k": {"exact_match": True}},
        "configs": {"gsm8k": {"task": "gsm8k"}},
        "n-samples": {"gsm8k": {"original": n_docs, "effective": n_docs}},
        "model_name": "made-up",
    }
    (folder / f"results_{STAMP}.json").write_text(json.dumps(raw))
    return folder


def plain_pass(folder: Path) -> dict[str, Any]:
    """What one would write: every line through json.loads, columns in lists, then a data frame and a classification."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("doc_id", "filter", "empty", "truncated", "doc_hash", "offset", "length")
    }
    offset = 0
    with (folder / f"samples_gsm8k_{STAMP}.jsonl").open("rb") as stream:
        for line in stream:
            record = json.loads(line)
            for metric in record["metrics"]:
                value = record[metric]
                if isinstance(value, list):
                    value = sum(value) / len(value) if all(isinstance(item, bool) for item in value) else None
                judged = isinstance(value, bool | int | float)
                columns.setdefault(f"value:{metric}", []).append(float(value) if judged else float("nan"))
                columns.setdefault(f"judged:{metric}", []).append(judged)
            calls = [list(call.values()) for call in record["arguments"].values()]
            kwargs = calls[0][1] if isinstance(calls[0][1], dict) else {}
            texts = [text for group in record["resps"] for text in group if isinstance(text, str)]
            limit, until = kwargs.get("max_gen_toks"), kwargs.get("until") or []
            cut = [t for t in texts if limit and len(t.split()) >= limit and not any(stop in t for stop in until)]
            columns["doc_id"].append(record["doc_id"])
            columns["filter"].append(record["filter"])
            columns["empty"].append(any(not text.strip() for text in texts))
            columns["truncated"].append(bool(cut))
            columns["doc_hash"].append(record["doc_hash"])
            columns["offset"].append(offset)
            columns["length"].append(len(line))
            offset += len(line)
    frame = pd.DataFrame(columns)
    frame["filter"] = frame["filter"].astype("category")
    right = frame["judged:exact_match"] & (frame["value:exact_match"] == 1.0)
    deviating: dict[int, list[int]] = {}
    for row, (doc, fine) in enumerate(zip(frame["doc_id"], right, strict=True)):
        if not fine:
            deviating.setdefault(doc, []).append(row)
    return _facts(frame["value:exact_match"], right, frame["doc_id"], frame["filter"])


def analyzer_pass(folder: Path) -> dict[str, Any]:
    """The analyzer's own reading, judging and classification."""
    from accuracy_core.evals.deviations import find_deviations
    from accuracy_core.evals.judging import judge
    from accuracy_core.evals.readers.read import read_results
    from accuracy_core.evals.verdict_table import judged_metrics, verdicts

    results = read_results(folder)
    _, rows = judge(THRESHOLDS, results.sheet, None)
    found = verdicts(results, judged_metrics(results, rows))
    find_deviations(found, None)
    frame = results.samples["gsm8k"].frame
    return _facts(frame["value:exact_match"], found["gsm8k"].right == 1, frame["doc_id"], frame["filter"])


def _facts(values: Any, right: Any, docs: Any, filters: Any) -> dict[str, Any]:
    values, right = np.asarray(values), np.asarray(right, bool)
    return {
        "n": len(values),
        "scores": {name: float(values[(filters == name).to_numpy()].mean()) for name in FILTERS},
        "n_wrong": int((~right).sum()),
        "n_documents_wrong": int(np.unique(np.asarray(docs)[~right]).size),
    }


def _timed(which: str, folder: Path) -> dict[str, Any]:
    """Run one pass in a process of its own; imports are not timed."""
    out = subprocess.run(
        [sys.executable, __file__, "--pass", which, str(folder)], check=True, capture_output=True, text=True
    )
    measured: dict[str, Any] = json.loads(out.stdout)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pass", dest="which", nargs=2, metavar=("NAME", "FOLDER"))
    arguments = parser.parse_args()
    if arguments.which:
        name, folder = arguments.which
        import accuracy_core.evals.analysis  # noqa: F401 - imports are not timed

        run = {"analyzer": analyzer_pass, "plain": plain_pass}[name]
        start = time.process_time()
        facts = run(Path(folder))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": time.process_time() - start, "peak_mib": peak, "facts": facts}))
        return
    with tempfile.TemporaryDirectory() as folder:
        run_dir = write_run(Path(folder), arguments.samples)
        size = sum(path.stat().st_size for path in run_dir.iterdir()) / 2**20
        runs = {name: [_timed(name, run_dir) for _ in range(arguments.repeats)] for name in ("plain", "analyzer")}
    assert runs["plain"][0]["facts"] == runs["analyzer"][0]["facts"], "the two passes disagree"
    best = {name: min(item["seconds"] for item in found) for name, found in runs.items()}
    print(f"{arguments.samples:,} samples, {len(FILTERS)} filters, {size:.0f} MiB")
    print(f"line by line: {best['plain']:.2f} s CPU")
    print(f"analyzer:     {best['analyzer']:.2f} s CPU, peak {runs['analyzer'][0]['peak_mib']:.0f} MiB")
    print(f"ratio:        {best['plain'] / best['analyzer']:.1f}x")


if __name__ == "__main__":
    main()
