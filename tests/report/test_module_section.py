"""The section of the module validation: worst first, figures linked, everything escaped."""

from __future__ import annotations

import json

from accuracy_core.outcome import Outcome, Verdict
from accuracy_core.report import generate_report
from accuracy_core.report.sections.module_validation import ModuleValidationSection
from accuracy_core.schemas import ModuleCheck, ModuleValidationResult, RunDir

CHECKS = [
    ModuleCheck(kind="mlp", layer=0, phase="prefill", verdict=Verdict.PASS, sigma_ratio=1.0, bc=1.0),
    ModuleCheck(kind="experts", layer=0, phase="", outcome=Outcome.NOT_MEASURED, reason="<b>no tap</b>"),
    ModuleCheck(kind="rope", layer=2, phase="decode", verdict=Verdict.FAIL, reason="L2 ratio 7", figure="rope.html"),
    ModuleCheck(kind="attention", layer=2, phase="decode", verdict=Verdict.FAIL, figure="../../secret.html"),
]


def written(root) -> RunDir:
    run_dir = RunDir.at(root)
    result = ModuleValidationResult(target="<i>", dtype="bfloat16", seeds=1, prefill=2, decode=1, checks=CHECKS)
    run_dir.write(run_dir.module_validation_json, result)
    (root / "modules" / "rope.html").write_text("figure")
    (root.parent / "secret.html").write_text("not ours")
    return run_dir


def test_worst_first_linked_and_escaped(tmp_path):
    section, root = ModuleValidationSection(), tmp_path / "run"
    root.mkdir()
    assert not section.applies(RunDir.at(root))
    html = section.render(written(root))
    assert html.index("rope") < html.index("experts") < html.index("<code>mlp")
    assert 'href="modules/rope.html"' in html
    assert "secret" not in html
    assert "&lt;b&gt;no tap&lt;/b&gt;" in html
    assert "<i>" not in html


def test_the_decision_is_made_again_from_the_files(tmp_path):
    root = tmp_path / "run"
    root.mkdir()
    generate_report(written(root))
    report = json.loads((root / "report.json").read_text())
    assert (report["verdict"], report["section_errors"]) == ("fail", {})
    assert "rope, layer 2, decode" in report["headline"]
    assert [check["kind"] for check in report["modules"]] == [check.kind for check in CHECKS]
