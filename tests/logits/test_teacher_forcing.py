from __future__ import annotations

from typing import Any

import pytest
import torch

from accuracy_core.logits import force, multi_prompt_logit_validation

from .shared_cases import Replay


def one_hot(ids: list[list[int]], vocab: int = 20) -> torch.Tensor:
    """Logits (tokens, batch, vocab) whose argmax are `ids` (tokens, batch)."""
    return torch.nn.functional.one_hot(torch.tensor(ids), vocab).float() * 5


PATH = torch.tensor([[4], [5], [6], [7]])


def test_one_call_when_the_target_stays_on_the_path() -> None:
    target = Replay([one_hot([[4], [5], [6], [7]])])
    forced = force(target.inputs()[0], target, PATH)
    assert len(target.calls) == forced.calls == 1
    assert target.calls[0].tolist() == [[0, 7, 7]]
    assert forced.logits.argmax(-1).tolist() == PATH.tolist()
    assert forced.ids is None


def test_after_a_divergence_only_the_missing_tokens_are_asked_for_along_the_reference() -> None:
    logits = one_hot([[4], [9], [6], [8]])
    asked = []

    def generate(ids: torch.Tensor, max_new_tokens: int) -> torch.Tensor:
        asked.append((ids[0].tolist(), max_new_tokens))
        return logits[ids.shape[1] - 2 :]

    forced = force([[1, 2]], generate, PATH)
    assert asked == [([1, 2], 4), ([1, 2, 4, 5], 2)]
    assert torch.equal(forced.logits, logits)
    assert forced.calls == 2


def test_rows_after_a_divergence_are_thrown_away() -> None:
    first, second = one_hot([[4], [9], [1], [1]]), one_hot([[6], [7]])
    forced = force([[1]], lambda ids: first if ids.shape[1] == 1 else second, PATH)
    assert forced.logits.argmax(-1).flatten().tolist() == [4, 9, 6, 7]


def test_any_batch_row_that_leaves_the_path_counts() -> None:
    path = torch.tensor([[4, 4], [5, 5], [6, 6]])
    target = Replay([one_hot([[4, 4], [5, 9], [6, 6]])])
    forced = force(target.inputs()[0], target, path)
    assert [c.shape[1] for c in target.calls] == [3, 5]
    assert target.calls[1].tolist() == [[0, 7, 7, 4, 5]] * 2
    assert forced.logits.argmax(-1).tolist() == [[4, 4], [5, 9], [6, 6]]


def test_sampled_ids_decide_where_the_target_left_the_path() -> None:
    sampled = torch.tensor([[4], [3], [6], [7]])
    target = Replay([one_hot([[4], [5], [6], [7]])], [sampled])
    forced = force(target.inputs()[0], target, PATH)
    assert len(target.calls) == 2
    assert forced.ids.tolist() == sampled.tolist()


@pytest.mark.parametrize("shape", [(4, 1), (1, 4), (4,), (1, 7)], ids=str)
def test_shapes_of_sampled_ids(shape: tuple[int, ...]) -> None:
    ids = torch.tensor([0, 7, 7, 4, 5, 6, 7])
    ids = ids.view(1, 7) if shape == (1, 7) else ids[3:].view(shape)
    forced = force([[0, 7, 7]], lambda _: (one_hot([[4], [5], [6], [7]]), ids), PATH)
    assert forced.ids.tolist() == PATH.tolist()


def test_longer_answers_are_cut_and_shorter_ones_end_it() -> None:
    longer = force([[1]], lambda ids: one_hot([[4], [5], [6], [7], [8], [9]]), PATH)
    assert longer.logits.shape[0] == 4
    calls = []

    def shorter(ids: torch.Tensor) -> torch.Tensor:
        calls.append(ids)
        return one_hot([[4], [5]])

    assert force([[1]], shorter, PATH).logits.shape[0] == 2
    assert len(calls) == 1


def test_it_ends_even_when_every_token_differs_or_the_second_answer_is_empty() -> None:
    never = Replay([one_hot([[1], [1], [1], [1]])])
    assert force(never.inputs()[0], never, PATH).calls == 4
    empty = iter([one_hot([[4], [9]]), one_hot([[4]])[:0]])
    forced = force([[1]], lambda ids: next(empty), PATH)
    assert forced.logits.shape[0] == 2


def test_prompts_of_different_lengths_run_one_by_one() -> None:
    path = torch.tensor([[4, 5], [5, 6]])
    seen = []

    def generate(ids: torch.Tensor) -> torch.Tensor:
        seen.append(ids.tolist())
        return one_hot([[4], [5]]) if ids.shape[1] == 1 else one_hot([[5], [6]])

    forced = force([[1], [1, 2]], generate, path)
    assert seen == [[[1]], [[1, 2]]]
    assert forced.logits.argmax(-1).tolist() == path.tolist()


def test_generate_fn_may_spoil_its_input() -> None:
    def generate(ids: torch.Tensor) -> torch.Tensor:
        ids.zero_()
        return one_hot([[9]])

    assert force([[3, 3]], generate, PATH).calls == 4


def test_three_way_follows_the_baseline_and_reports_every_token() -> None:
    f = one_hot([[4], [5], [6]])
    e = f.clone()
    e[1, 0, 8] = 5.001  # BF16 prefers another token; teacher forcing follows FP32
    target = Replay([f.clone()])
    result = multi_prompt_logit_validation(target.inputs(), target, [e], [f])
    assert len(target.calls) == 1
    assert [r.token for r in result.rows] == [0, 1, 2]
    assert [r.reference_id for r in result.rows] == [4, 5, 6]
    assert result.rows[1].diverged


def test_signature_is_the_documented_one() -> None:
    import inspect

    from accuracy_core.logits import logit_validation

    def names(function: Any) -> list[str]:
        kinds = inspect.signature(function).parameters.values()
        return [p.name for p in kinds if p.kind is p.POSITIONAL_OR_KEYWORD]

    assert names(logit_validation) == [
        "input_ids", "generate_fn", "expected_logits", "tol_map", "baseline_logits", "visualize", "save_logits",
        "output_dir",
    ]  # fmt: skip
    assert names(multi_prompt_logit_validation) == [
        "prompts_input_ids", "generate_fn", "prompts_expected_logits", "prompts_baseline_logits", "aggregate_config",
        "tol_map",
    ]  # fmt: skip
