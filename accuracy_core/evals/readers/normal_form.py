"""What every reader gives, whatever generation of lm-eval wrote the files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accuracy_core.evals.readers.sample_table import SampleTable
from accuracy_core.evals.readers.scores import ScoreSheet
from accuracy_core.evals.request_index import RequestIndex

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class EvalResults:
    """One run: `sheet` holds the scores, `samples` one table per leaf task, `raw` the results dict without samples.

    `requests` finds token ids and finish reasons, when the run kept them.
    """

    sheet: ScoreSheet
    samples: dict[str, SampleTable] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)
    generation: str = ""
    files: list[Path] = field(default_factory=list)
    requests: RequestIndex | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, Any]:
        """How the evaluation was run, as far as the file says: JSON values only."""
        config = self.raw.get("config")
        kept = dict(config) if isinstance(config, dict) else {}
        for name in (
            "lm_eval_version",
            "n-shot",
            "system_instruction",
            "chat_template_sha",
            "fewshot_as_multiturn",
            "date",
        ):
            if self.raw.get(name) is not None:
                kept[name] = self.raw[name]
        plain: dict[str, Any] = json.loads(json.dumps(kept, default=str))
        return plain

    @property
    def model(self) -> str:
        config = self.raw.get("config")
        arguments = config.get("model_args") if isinstance(config, dict) else None
        named = self.raw.get("model_name") or (arguments.get("model") if isinstance(arguments, dict) else arguments)
        return str(named or "")

    def scores_frame(self) -> pd.DataFrame:
        """One row per score: key, task, metric, filter, value, stderr, n, higher_is_better, is_group."""
        import pandas as pd

        return pd.DataFrame([row.model_dump() for row in self.sheet.rows])

    def samples_frame(self) -> pd.DataFrame:
        """The tables of all tasks under each other, with a column `task`."""
        import pandas as pd

        frames = [
            table.frame.assign(task=task, filter=table.frame["filter"].astype(str))
            for task, table in self.samples.items()
        ]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["task", "doc_id", "filter"])
