"""Every row of the table of outcomes."""

from __future__ import annotations

import itertools
import math

import pytest

from accuracy_core.errors import ConfigurationError, EngineDiedError, NotMeasuredError
from accuracy_core.outcome import Banner, ExitCode, Outcome, Verdict
from accuracy_core.prompts.conclusion import NO_CULPRIT, Conclusion, conclude, conclude_error
from accuracy_core.schemas import (
    Culprit,
    Finding,
    GuardHit,
    PairedTest,
    Phase,
    PluginStatus,
    PromptAnalysisStatus,
    RouteResult,
    Severity,
    TaskStatus,
    ThresholdResult,
)

PASS, SUSPECT, FAIL = Verdict.PASS, Verdict.SUSPECT, Verdict.FAIL


def task(passed: bool | None = True, **more) -> TaskStatus:
    threshold = ThresholdResult(
        given_key="acc,none", key="t/acc,none", bound=0.85, value=0.9 if passed else 0.6, passed=bool(passed)
    )
    return TaskStatus(**{"passed": passed, "thresholds": [threshold], **more})


def analysis(verdict: Verdict | None = PASS, *, errors=None, routes=(), **more) -> PromptAnalysisStatus:
    plugin = PluginStatus(
        plugin="logit_validation",
        outcome=Outcome.NUMERICS if verdict else Outcome.NOT_MEASURED,
        verdict=verdict,
        errors=errors or {},
        routes=list(routes),
    )
    culprit = Culprit(phase=Phase.DECODE, suspects=["KV cache write"], next_step="look", next_command="assay run")
    fields = {
        "verdict": verdict,
        "outcome": plugin.outcome,
        "n_prompts": 3,
        "plugins": {"logit_validation": plugin},
        "culprit": culprit if verdict in (FAIL, SUSPECT) else None,
    }
    return PromptAnalysisStatus(**{**fields, **more})


def route(name: str, passed: bool | None) -> RouteResult:
    return RouteResult(route=name, passed=passed, value=1.0, threshold=1.0)


def check(done: Conclusion, outcome, verdict, banner, state, code):
    got = (done.outcome, done.verdict, done.banner, done.state, done.exit_code)
    assert got == (outcome, verdict, banner, state, code)


def test_score_met_numerics_pass():
    done = conclude(task(), analysis())
    check(done, Outcome.NUMERICS, PASS, Banner.GREEN, "Completed", 0)
    assert done.headline == "score met, numerics pass on all 3 analysed prompts"
    assert done.notes == []


def test_informative_deviations_stay_green_and_are_noted():
    routes = [route("two_way", False), route("sigma_ratio", True), route("agg_bc", None)]
    done = conclude(task(), analysis(routes=routes))
    check(done, Outcome.NUMERICS, PASS, Banner.GREEN, "Completed", 0)
    assert "informative deviations, two way not met, passed through sigma ratio" in done.notes[0]


def test_a_guard_fired_is_suspect():
    done = conclude(task(), analysis(SUSPECT))
    check(done, Outcome.NUMERICS, SUSPECT, Banner.YELLOW, "AccuracyFailed", 2)
    assert "guard fired" in done.headline


def test_numerics_fail_names_the_culprit():
    done = conclude(task(), analysis(FAIL))
    check(done, Outcome.NUMERICS, FAIL, Banner.RED, "AccuracyFailed", 2)
    assert done.headline == "numerics fail: phase decode (KV or attention suspected)"
    assert done.culprit.phase is Phase.DECODE
    assert (done.suspects, done.next_step, done.next_command) == (["KV cache write"], "look", "assay run")


def test_the_culprits_module_and_layer_are_named():
    culprit = Culprit(phase=Phase.BOTH, module="model.layers.2.mlp", layer=2)
    done = conclude(task(), analysis(FAIL, culprit=culprit))
    assert done.headline == "numerics fail: phase both, module model.layers.2.mlp, layer 2"


def test_score_failed_numerics_clean():
    test = PairedTest(
        key="t/acc,none", n=200, n_worse=30, n_better=2, difference=-0.14, ci_low=-0.2, ci_high=-0.1, mcnemar_p=1e-6
    )
    done = conclude(task(False, paired=[test]), analysis())
    check(done, Outcome.NUMERICS, FAIL, Banner.RED, "AccuracyFailed", 2)
    assert done.headline.startswith(NO_CULPRIT)
    assert "t/acc,none 0.6, bound 0.85" in done.headline
    assert done.culprit is None
    assert [word.split()[1] for word in done.suspects] == ["model", "prompt", "data"]
    assert any("30 worse, 2 better of 200" in note and "McNemar p = 1e-06" in note for note in done.notes)


def test_score_failed_numerics_clean_without_reference_says_so():
    assert any("no reference results" in note for note in conclude(task(False), analysis()).notes)


def test_score_failed_and_numerics_fail_blames_the_numerics():
    done = conclude(task(False), analysis(FAIL))
    check(done, Outcome.NUMERICS, FAIL, Banner.RED, "AccuracyFailed", 2)
    assert done.culprit is not None
    assert "score below threshold too" in done.notes[0]


def test_score_failed_and_suspect_is_a_failure_with_its_culprit():
    done = conclude(task(False), analysis(SUSPECT))
    check(done, Outcome.NUMERICS, FAIL, Banner.RED, "AccuracyFailed", 2)
    assert done.culprit is not None


def test_score_failed_without_prompt_analysis_is_still_a_failure():
    done = conclude(task(False), None)
    check(done, Outcome.NUMERICS, FAIL, Banner.RED, "AccuracyFailed", 2)
    assert "numerics not measured" in done.headline
    assert done.culprit is None


def test_no_deviated_prompt_takes_curated_ones_and_says_so():
    done = conclude(task(), analysis(curated=True))
    check(done, Outcome.NUMERICS, PASS, Banner.GREEN, "Completed", 0)
    assert done.curated
    assert "curated prompts were analysed instead" in done.notes[0]
    assert "curated prompts" in done.headline


def test_curated_prompts_can_fail():
    check(conclude(task(), analysis(FAIL, curated=True)), Outcome.NUMERICS, FAIL, Banner.RED, "AccuracyFailed", 2)


def test_wrong_set_up():
    done = conclude_error(ConfigurationError("unknown task 'x'", fix="did you mean 'y'?"))
    check(done, Outcome.CONFIGURATION, None, Banner.GREY, "ConfigurationFailed", 3)
    assert "unknown task" in done.headline
    assert done.fix == "did you mean 'y'?"


def test_engine_died():
    done = conclude_error(EngineDiedError("engine gone", log_tail="Killed"), task_status=task())
    check(done, Outcome.INFRASTRUCTURE, None, Banner.GREY, "Crashed", 1)
    assert done.log_tail == "Killed"
    assert done.score_passed is True


def test_engine_died_inside_the_analysis():
    status = analysis(None, outcome=Outcome.INFRASTRUCTURE, errors={"plugin": "engine gone"}, log_tail="Killed")
    done = conclude(task(), status)
    check(done, Outcome.INFRASTRUCTURE, None, Banner.GREY, "Crashed", 1)
    assert "engine gone" in done.headline
    assert done.log_tail == "Killed"


def test_engine_died_after_a_failed_score_keeps_the_score_in_the_notes():
    done = conclude_error(EngineDiedError("engine gone"), task_status=task(False))
    check(done, Outcome.INFRASTRUCTURE, None, Banner.GREY, "Crashed", 1)
    assert "before that: score below threshold" in done.notes[0]


def test_a_breakdown_after_a_proven_failure_does_not_hide_it():
    done = conclude_error(EngineDiedError("engine gone"), task_status=task(), analysis=analysis(FAIL))
    check(done, Outcome.NUMERICS, FAIL, Banner.RED, "AccuracyFailed", 2)
    assert any("ended early: engine gone" in note for note in done.notes)


@pytest.mark.parametrize("error", [RuntimeError("bug"), KeyboardInterrupt(), OSError("disk full")])
def test_whatever_was_not_raised_on_purpose_is_infrastructure(error):
    check(conclude_error(error), Outcome.INFRASTRUCTURE, None, Banner.GREY, "Crashed", 1)


def test_missing_capability():
    done = conclude_error(NotMeasuredError("engine has no raw logits"))
    check(done, Outcome.NOT_MEASURED, None, Banner.GREY, "NotMeasured", 1)


def test_a_skipped_stage_is_grey_and_completes_when_the_rest_passed():
    done = conclude(task(), None, skipped=["prompt_analysis"])
    check(done, Outcome.NOT_MEASURED, None, Banner.GREY, "Completed", 0)
    assert done.headline == "score met; not measured: the numerics of the logits (stage prompt_analysis left out)"
    done = conclude(None, analysis(curated=True), skipped=["evaluate", "task_analysis"])
    check(done, Outcome.NOT_MEASURED, None, Banner.GREY, "Completed", 0)
    assert done.headline == (
        "numerics pass on all 3 curated prompts; not measured: the score (stages evaluate and task_analysis left out)"
    )


def test_what_was_left_out_is_said_beside_a_failure_too():
    done = conclude(None, analysis(FAIL), skipped=["evaluate"])
    assert "not measured: the score (stage evaluate left out)" in done.notes


def test_without_a_record_of_what_was_left_out_the_good_news_still_comes_first():
    assert conclude(None, analysis()).headline == (
        "numerics pass on all 3 analysed prompts; not measured: the score (no task analysis)"
    )


def test_a_stage_that_broke_is_no_stage_left_out():
    done = conclude(None, analysis(errors={"1": "request failed"}), skipped=["evaluate"])
    check(done, Outcome.NOT_MEASURED, None, Banner.GREY, "NotMeasured", 1)
    assert done.headline.startswith("not measured: the score (stage evaluate left out); logit_validation, prompt 1")


def test_nothing_measured_is_an_error():
    check(conclude(None, None), Outcome.NOT_MEASURED, None, Banner.GREY, "NotMeasured", 1)


def test_a_prompt_that_could_not_be_measured_is_never_green():
    done = conclude(task(), analysis(errors={"1": "request failed"}))
    check(done, Outcome.NOT_MEASURED, None, Banner.GREY, "NotMeasured", 1)
    assert "prompt 1: request failed" in done.headline


def test_a_plugin_that_measured_nothing_is_never_green():
    status = analysis()
    plugins = {**status.plugins, "kv_cache": PluginStatus(plugin="kv_cache", outcome=Outcome.NOT_MEASURED)}
    done = conclude(task(), status.model_copy(update={"plugins": plugins}))
    check(done, Outcome.NOT_MEASURED, None, Banner.GREY, "Completed", 0)
    assert done.headline == "score met, numerics pass on all 3 analysed prompts; not measured: kv cache"


def test_an_engine_that_agrees_with_itself_alone_is_never_green():
    plugin = PluginStatus(plugin="engine_consistency", outcome=Outcome.NUMERICS, verdict=PASS)
    done = conclude(task(), analysis(plugins={"engine_consistency": plugin}))
    check(done, Outcome.NOT_MEASURED, None, Banner.GREY, "Completed", 0)
    assert done.headline == (
        "score met, the engine agrees with itself on all 3 analysed prompts; not measured: the numerics of the logits "
        "against a reference (plugin logit_validation left out)"
    )


def test_logits_that_fail_one_request_at_a_time_are_not_laid_on_the_batch():
    hit = GuardHit(guard="batching", prompt=2, token=5, value=30, limit=12, detail="batching changes the logits")
    plugin = PluginStatus(plugin="engine_consistency", outcome=Outcome.NUMERICS, verdict=FAIL, worst=hit)
    fix = Finding(check="engine_consistency", severity=Severity.ERROR, evidence=hit.detail, fix="serve singly")

    def concluded(logits: Verdict) -> Conclusion:
        logit = PluginStatus(plugin="logit_validation", outcome=Outcome.NUMERICS, verdict=logits)
        plugins = {"logit_validation": logit, "engine_consistency": plugin}
        return conclude(task(), analysis(FAIL, plugins=plugins, culprit=None, findings=[fix]))

    alone, both = concluded(PASS), concluded(FAIL)
    assert (alone.headline, alone.fix) == ("numerics fail: batching changes the logits", "serve singly")
    assert both.headline == "numerics fail: logit validation, one request at a time; batching changes the logits"
    assert both.fix == ""


def test_scores_that_could_not_be_judged_are_never_green():
    done = conclude(task(None, warnings=["too few samples"]), analysis())
    check(done, Outcome.NOT_MEASURED, None, Banner.GREY, "Completed", 0)
    assert "too few samples" in done.headline


def test_without_any_threshold_scores_are_reported_only():
    done = conclude(TaskStatus(passed=None), analysis())
    check(done, Outcome.NUMERICS, PASS, Banner.GREEN, "Completed", 0)
    assert "no threshold was given: scores are reported, not judged" in done.notes


def test_findings_of_the_analysis_are_noted():
    finding = Finding(check="prompt_length", severity=Severity.WARNING, evidence="not analysed, too long: t #0")
    assert "not analysed, too long: t #0" in conclude(task(), analysis(findings=[finding])).notes


def test_green_only_when_everything_asked_was_measured_and_passed():
    tasks = [None, task(True), task(False), task(None, warnings=["few"])]
    analyses = [None, *(analysis(v) for v in (PASS, SUSPECT, FAIL, None)), analysis(errors={"0": "x"})]
    for one, two, error in itertools.product(tasks, analyses, [None, EngineDiedError("gone")]):
        done = conclude(one, two, error=error)
        green = one is tasks[1] and two is analyses[1] and error is None
        assert (done.banner is Banner.GREEN) is green
        assert (done.verdict is PASS) is green
        if done.exit_code == ExitCode.PASSED:
            assert done.state == "Completed"


def test_a_conclusion_survives_json():
    done = conclude(task(False), analysis(FAIL))
    assert Conclusion.from_json(done.to_json()) == done


def test_a_threshold_without_a_score_is_not_called_a_low_score_only():
    nameless = ThresholdResult(given_key="acc,none", passed=False, reason="there is no score")
    done = conclude(TaskStatus(passed=False, thresholds=[nameless]), analysis())
    assert "acc,none: no such score in the results" in done.headline


def test_nan_scores_are_not_printed_as_numbers():
    bad = ThresholdResult(given_key="acc,none", key="t/acc,none", bound=0.5, value=math.nan, passed=False, reason="NaN")
    done = conclude(TaskStatus(passed=False, thresholds=[bad]), analysis())
    assert "nan" not in done.headline
