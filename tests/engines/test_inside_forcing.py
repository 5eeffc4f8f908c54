"""The logits processor against stand-ins for both generations of vLLM's runner."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from . import inside_stubs
from .inside_stubs import MoveDirectionality, SamplingParams

VOCAB = 5


@pytest.fixture(params=[True, False], ids=["both runners", "first runner only"])
def forcing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    inside_stubs.install(monkeypatch, second_runner=request.param)
    from assay_inside import forcing

    return forcing


def params(name: str | None = None, force: list[int] | None = None) -> SamplingParams:
    extra = {key: value for key, value in (("assay_id", name), ("assay_force", force)) if value is not None}
    return SamplingParams(extra_args=extra or None)


def update(added: list[Any] = (), removed: list[int] = (), moved: list[Any] = ()) -> Any:  # type: ignore[assignment]
    return types.SimpleNamespace(added=added, removed=removed, moved=moved)


def logits(rows: int, start: float = 0.0) -> torch.Tensor:
    return torch.arange(rows * VOCAB, dtype=torch.float32).view(rows, VOCAB) + start


def test_first_runner_records_then_forces(forcing: Any) -> None:
    processor = forcing.RecordAndForce(None, "cpu", False)
    assert not processor.is_argmax_invariant(), "otherwise it is skipped for greedy requests"
    output: list[int] = []
    processor.update_state(update(added=[(0, params("a", [3, 1]), [9], output), (1, params(), [9], [])]))
    before = logits(2)
    after = processor.apply(before.clone())
    assert after[0].tolist() == [float("-inf")] * 3 + [0.0, float("-inf")]
    assert torch.equal(after[1], before[1]), "another request is left alone"
    output.append(3)
    processor.apply(logits(2, 100))
    output.append(1)
    rows = forcing.take_rows("a")
    assert torch.equal(torch.stack(rows), torch.stack([before[0], logits(2, 100)[0]]))
    assert forcing.take_rows("a") == []


def test_partial_prefill_is_overwritten(forcing: Any) -> None:
    processor = forcing.RecordAndForce(None, "cpu", False)
    processor.update_state(update(added=[(0, params("a"), [9], [])]))
    processor.apply(logits(1))
    processor.apply(logits(1, 50))
    (row,) = forcing.take_rows("a")
    assert torch.equal(row, logits(1, 50)[0])


def test_requests_that_move_in_the_batch_are_followed(forcing: Any) -> None:
    processor = forcing.RecordAndForce(None, "cpu", False)
    processor.update_state(update(added=[(0, params("a"), [9], []), (1, params("b"), [9], []), (2, params(), [], [])]))
    processor.update_state(update(moved=[(0, 1, MoveDirectionality.SWAP), (1, 2, MoveDirectionality.UNIDIRECTIONAL)]))
    processor.apply(logits(3))
    assert torch.equal(forcing.take_rows("b")[0], logits(3)[0])
    assert torch.equal(forcing.take_rows("a")[0], logits(3)[2])
    processor.update_state(update(removed=[0, 2]))
    processor.update_state(None)
    processor.apply(logits(3))
    assert forcing.take_rows("a") == []


def test_a_gap_is_an_error(forcing: Any) -> None:
    forcing.ROWS["a"] = {0: logits(1)[0], 2: logits(1)[0]}
    with pytest.raises(ValueError, match=r"missing at steps \[1\]"):
        forcing.take_rows("a")


def test_second_runner_counts_steps_from_positions(forcing: Any) -> None:
    """Slots 4 and 7 hold prompts of 3 and 2 tokens; the row at position p is for output p + 1 - prompt length."""
    lengths = torch.zeros(8, dtype=torch.long)
    lengths[4], lengths[7] = 3, 2
    states = types.SimpleNamespace(prompt_len=types.SimpleNamespace(np=lengths.numpy()))
    processor = forcing.RecordAndForce(None, states)
    assert processor.add_request(4, params("a", [2, 0]))
    assert processor.add_request(7, params("b"))
    assert not processor.add_request(1, params())

    def step(slots: list[int], positions: list[int], start: float) -> torch.Tensor:
        context = types.SimpleNamespace(expanded_idx_mapping=torch.tensor(slots), pos=torch.tensor(positions))
        result: torch.Tensor = processor.apply(logits(len(slots), start), context)
        return result

    untouched = step([4, 1], [1, 0], 0)
    assert torch.equal(untouched, logits(2)), "position 1 of a prompt of 3 is partial prefill"
    forced = step([1, 4, 7], [5, 2, 2], 10)
    assert forced[1].argmax() == 2
    assert torch.equal(forced[2], logits(3, 10)[2]), "recorded only"
    step([4], [3], 20)
    assert torch.equal(torch.stack(forcing.take_rows("a")), torch.stack([logits(3, 10)[1], logits(1, 20)[0]]))
    assert forcing.ROWS["b"].keys() == {1}


@pytest.mark.parametrize("force", [["3"], "34", [1.5]])
def test_what_cannot_be_forced_is_refused(forcing: Any, force: Any) -> None:
    with pytest.raises(ValueError, match="list of integers"):
        forcing.RecordAndForce.validate_params(params("a", force))
    forcing.RecordAndForce.validate_params(params("a", [1, 2]))
    forcing.RecordAndForce.validate_params(params())
