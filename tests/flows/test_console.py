"""What is printed at the end of a run."""

from __future__ import annotations

import io

from rich.console import Console

from accuracy_core.errors import EngineArgumentError
from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.prompts.conclusion import conclude, conclude_error
from accuracy_core.schemas import PromptAnalysisStatus
from flows.cli.console import LOG_LINES, show_conclusion


def test_a_run_that_broke_says_what_to_do_and_shows_the_end_of_the_log():
    log = "\n".join(f"line-{i}." for i in range(40))
    error = EngineArgumentError("the server ended", fix="correct the argument", log_tail=log)
    console = Console(file=io.StringIO(), width=100)
    show_conclusion(console, conclude_error(error), "somewhere/report.html")
    text = console.file.getvalue()
    assert "what to do: correct the argument" in text
    assert "line-39." in text
    assert f"line-{40 - LOG_LINES}." in text
    assert f"line-{39 - LOG_LINES}." not in text
    assert text.index("line-39.") < text.index("somewhere/report.html")


def test_numerics_that_passed_are_not_hidden_by_stages_left_out():
    analysis = PromptAnalysisStatus(outcome=Outcome.NUMERICS, verdict=Verdict.PASS, n_prompts=1)
    console = Console(file=io.StringIO(), width=150)
    show_conclusion(console, conclude(None, analysis, skipped=["evaluate", "task_analysis"]), None)
    said = console.file.getvalue()
    assert said.index("numerics pass on all 1 analysed prompts") < said.index("not measured: the score")
