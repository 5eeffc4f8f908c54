"""However a run ends, its engines end with it, the cores are free, and the next run starts."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.e2e.conftest import cpu_is_free

pytestmark = pytest.mark.slow
GONE_S = 15
PROMPT = ("--prompt", "Q: 47+38\nA:", "--stage", "prompt_analysis", "--stage", "report")


@pytest.fixture
def no_answers_yet(tmp_path):
    """Caches of the test's own: with another's answers the evaluation would be over before it is killed."""
    return {
        "ASSAY_CACHE_DIR": str(tmp_path / "cache"),
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(tmp_path / "results"),
    }


def in_evaluation(command):
    log = command.output / "eval_results" / "server.log"
    return lambda: log.exists() and b"POST /v1/completions" in log.read_bytes()


def in_prompt_stage(command):
    return lambda: (command.output / "prompt_analysis" / "engine.log").exists() and len(command.engines()) >= 1


CASES = [
    pytest.param(("--task", "assay_arith"), in_evaluation, id="evaluation"),
    pytest.param(PROMPT, in_prompt_stage, id="prompt-stage"),
]


@pytest.mark.parametrize(("arguments", "reached"), CASES)
def test_kill_9_takes_the_engine_with_it_and_the_next_run_starts(assay, no_answers_yet, arguments, reached):
    command = assay(*arguments, env=no_answers_yet)
    command.wait_for(reached(command), "engine at work")
    assert command.engines()
    assert not cpu_is_free()
    command.process.kill()
    command.process.wait()
    assert command.wait_gone(GONE_S) == []
    assert cpu_is_free()
    after = assay(*PROMPT, env=no_answers_yet)
    text = after.finish()
    assert after.code == 0, text


@pytest.mark.parametrize(("arguments", "reached"), CASES)
def test_ctrl_c_ends_within_15_seconds(assay, no_answers_yet, arguments, reached):
    command = assay(*arguments, env=no_answers_yet)
    command.wait_for(reached(command), "engine at work")
    command.process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    text = command.finish(timeout_s=60)
    assert time.monotonic() - asked < GONE_S, text
    assert command.code not in (0, 2), text
    assert command.wait_gone(1) == []
    assert cpu_is_free()


def test_a_server_that_dies_once_is_started_again_and_only_the_rest_is_asked(assay, no_answers_yet):
    command = assay("--task", "assay_arith", env=no_answers_yet)
    command.wait_for(in_evaluation(command), "first answers")
    for pid in command.engines():
        os.kill(pid, signal.SIGKILL)
    text = command.finish()
    assert command.code == 0, text
    assert command.report()["verdict"] == "pass"
    assert command.wait_gone(1) == []
