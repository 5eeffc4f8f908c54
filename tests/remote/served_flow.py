"""A deployment that ends as it is told, with the states and files of a real run."""

import sys
import time
from typing import Any, Literal

from prefect import flow
from prefect.artifacts import create_link_artifact
from prefect.client.schemas.objects import State

from accuracy_core.errors import ConfigurationError, EngineDiedError
from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.prompts.conclusion import Conclusion, conclude
from accuracy_core.schemas import PromptAnalysisStatus, RunDir, RunParameters, TaskStatus, write_text
from flows.states import state_of

Ending = Literal["pass", "fail", "configuration", "infrastructure", "never"]


def conclusion(ending: Ending) -> Conclusion:
    if ending == "configuration":
        return conclude(None, None, error=ConfigurationError("no such model"))
    if ending == "infrastructure":
        return conclude(None, None, error=EngineDiedError("the engine is gone"))
    verdict = Verdict.PASS if ending == "pass" else Verdict.FAIL
    return conclude(
        TaskStatus(passed=True), PromptAnalysisStatus(outcome=Outcome.NUMERICS, verdict=verdict, n_prompts=1)
    )


@flow(name="accuracy-debugger", persist_result=False)
def served(parameters: RunParameters = RunParameters(), ending: Ending = "pass") -> State[Any]:  # noqa: B008
    if ending == "never":
        time.sleep(600)
    if parameters.output_dir:
        root = RunDir.at(parameters.output_dir).root
        for name in ("report.json", "junit.xml", "combined_report.html"):
            write_text(root / name, f"{name} of {ending}")
        page = f"{root}/combined_report.html"
        create_link_artifact(page if page.startswith("s3://") else f"file://{page}", key="report")
    return state_of(conclusion(ending))


if __name__ == "__main__":
    served.serve(name=sys.argv[1])  # type: ignore[func-returns-value]
