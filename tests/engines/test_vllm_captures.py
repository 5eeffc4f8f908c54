"""Module tensors, KV caches, replacements and snapshots of the real vLLM on the CPU, against Hugging Face."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from accuracy_core.capture.hf_taps import HfTaps
from accuracy_core.capture.kv.reference import cached_kv, recording_cache
from accuracy_core.capture.names.plan import TapPlan, plan_taps
from accuracy_core.capture.taps import kv_tensor_name, tap_tensor_name
from accuracy_core.engines.checkpoint import read_config
from accuracy_core.engines.cores import CoreLease, lease_cores
from accuracy_core.engines.offline import OfflineVllmEngine
from accuracy_core.engines.snapshot import replay_snapshot
from accuracy_core.models import embedded_model
from accuracy_core.models.architectures import architecture_checkpoint
from accuracy_core.schemas import (
    CaptureSpec,
    EngineSpec,
    Replacement,
    ReplayConditions,
    ReplayRequest,
    ReplayResult,
    SnapshotSpec,
)

pytestmark = pytest.mark.slow

#: clean runs gave relative errors of 0.8 to 1.35 times those of Hugging Face in the same dtype
NOISE = 1.5
#: the CPU backend's attention kernel rounds its probabilities to bfloat16: up to 1.7 times there and in o_proj
KERNEL_NOISE = 2.0
LENGTHS = (1, 3, 7, 16, 31, 33, 64, 100, 119)
BLOCK = 32


def prompts(*, seed: int = 0) -> list[ReplayRequest]:
    """Nine requests of 1 to 119 random tokens, each with 8 to 24 forced ones."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for index, length in enumerate(LENGTHS):
        ids = torch.randint(4, 100, (length + 8 + 2 * index,), generator=generator).tolist()
        made.append(
            ReplayRequest(
                request_id=f"busy-{index}",
                prompt_token_ids=ids[:length],
                forced_token_ids=ids[length:],
                capture=CaptureSpec(kv=True),
            )
        )
    return made


def hf_models(checkpoint: Path) -> dict[torch.dtype, Any]:
    from transformers import AutoModelForCausalLM

    return {
        dtype: AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype).eval()
        for dtype in (torch.float32, torch.bfloat16)
    }


def tokens_of(request: ReplayRequest) -> torch.Tensor:
    """What the engine ran: all but the last token, which was only sampled."""
    return torch.tensor([[*request.prompt_token_ids, *request.forced_token_ids[:-1]]])


def relative(value: torch.Tensor, reference: torch.Tensor) -> float:
    return float((value.double() - reference.double()).norm() / reference.double().norm())


@pytest.fixture(scope="module")
def lease() -> Iterator[CoreLease]:
    """One for all engines of this file: one of them stays open while another is used."""
    with lease_cores(EngineSpec(model="embedded"), timeout_s=600) as lease:
        yield lease


def started(python: Path, lease: CoreLease, model: str, folder: Path, **fields: Any) -> OfflineVllmEngine:
    spec = EngineSpec(model=model, python=str(python), **fields)
    return OfflineVllmEngine(spec, lease=lease, scratch=folder)


# many sequences at once, prompts in parts, too few blocks


@pytest.fixture(scope="module", params=["embedded", "mistral-window"])
def busy(
    request: pytest.FixtureRequest, engine_python: Path, lease: CoreLease, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[ReplayRequest], list[ReplayResult]]:
    """Nine requests together: at most 4 at a time, 48 tokens a call, blocks for little more than one of the longest."""
    folder = tmp_path_factory.mktemp("busy")
    checkpoint = architecture_checkpoint(request.param)
    snapshot = SnapshotSpec(folder=str(folder / "calls"), budget=1000)
    requests = [item.model_copy(update={"snapshot": snapshot}) for item in prompts()]
    settings = {"max_num_batched_tokens": 48, "block_size": BLOCK, "num_gpu_blocks_override": 9}
    settings["kv_cache_memory_bytes"] = 4 << 20  # num_gpu_blocks_override is what counts
    with started(
        engine_python, lease, str(checkpoint), folder, max_model_len=160, max_num_seqs=4, engine_args=settings
    ) as engine:
        results = engine.replay_under(requests, ReplayConditions(together=True))
        plain = [
            item.model_copy(
                update={"capture": CaptureSpec(), "snapshot": None, "request_id": f"plain{item.request_id}"}
            )
            for item in requests
        ]
        again = engine.replay_under(plain, ReplayConditions(together=True))
    for captured, bare in zip(results, again, strict=True):
        assert captured.error is None
        logits = load_file(str(captured.tensors))["logits"]
        assert torch.equal(logits, load_file(str(bare.tensors))["logits"]), "captures changed the logits"
    return checkpoint, requests, results


def test_the_busy_engine_was_busy(busy: tuple[Path, list[ReplayRequest], list[ReplayResult]]) -> None:
    _, requests, results = busy
    calls = {result.request_id: [json.loads(Path(path).read_text()) for path in result.snapshots] for result in results}
    every = [call for item in calls.values() for call in item]
    assert any(call["batch_tokens"] > call["tokens"] for call in every), "several sequences in one call"
    parts = [call for call in calls[requests[-1].request_id] if call["first_position"] < LENGTHS[-1]]
    assert len(parts) >= 3, "the longest prompt came in parts"
    if not read_config(busy[0]).get("sliding_window"):  # with a window blocks come back soon enough
        starts = {name: [call["first_position"] for call in item] for name, item in calls.items()}
        assert any(positions.count(0) > 1 for positions in starts.values()), "no request was preempted"


def test_keys_and_values_of_every_layer_and_position(
    busy: tuple[Path, list[ReplayRequest], list[ReplayResult]],
) -> None:
    checkpoint, requests, results = busy
    models = hf_models(checkpoint)
    layers = models[torch.float32].config.num_hidden_layers
    for request, result in zip(requests, results, strict=True):
        assert result.missing == {}
        assert result.block_size == BLOCK
        target = load_file(str(result.tensors))
        caches = {}
        for dtype, model in models.items():
            cache = recording_cache(model.config)
            with torch.inference_mode():
                model(input_ids=tokens_of(request), past_key_values=cache, use_cache=True)
            caches[dtype] = {name: tensors[0] for name, tensors in cached_kv(cache).items()}
        for layer in range(layers):
            for which in ("key", "value"):
                name = kv_tensor_name(layer, which)
                found = target[name]
                exact, rounded = (caches[dtype][name] for dtype in (torch.float32, torch.bfloat16))
                assert found.shape == exact.shape
                assert found.dtype == torch.bfloat16
                ratio = relative(found, exact) / relative(rounded, exact)
                assert ratio < NOISE, f"{request.request_id} {name}: {ratio}"
        # nothing but an embedding, a norm and a projection lie before it
        first = kv_tensor_name(0, "value")
        assert torch.equal(target[first], caches[torch.bfloat16][first])


# one request at a time


@pytest.fixture(scope="module")
def engine(
    engine_python: Path, lease: CoreLease, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OfflineVllmEngine]:
    with started(engine_python, lease, "embedded", tmp_path_factory.mktemp("captures"), max_model_len=128) as engine:
        yield engine


Run = Callable[..., tuple[ReplayResult, dict[str, torch.Tensor]]]
PROMPT, FORCED = list(range(20, 60)), [70, 71, 72, 73, 74, 75]
REQUEST = ReplayRequest(request_id="one", prompt_token_ids=PROMPT, forced_token_ids=FORCED)


@pytest.fixture(scope="module")
def run(engine: OfflineVllmEngine) -> Run:
    """`run(modules=, kv=, replacements=, snapshot=)`: result and tensors of one request of 40 + 6 tokens."""

    def go(**asked: Any) -> tuple[ReplayResult, dict[str, torch.Tensor]]:
        capture = CaptureSpec(kv=asked.pop("kv", False), modules=asked.pop("modules", []))
        (result,) = engine.replay([REQUEST.model_copy(update={"capture": capture, **asked})])
        return result, load_file(str(result.tensors)) if result.tensors else {}

    return go


@pytest.fixture(scope="module")
def plan(engine: OfflineVllmEngine) -> TapPlan:
    return plan_taps(engine.module_names(), read_config(embedded_model()))


@pytest.fixture(scope="module")
def clean(run: Run, plan: TapPlan) -> dict[str, torch.Tensor]:
    result, tensors = run(modules=plan.raw, kv=True)
    assert (result.error, result.missing) == (None, {})
    return tensors


def raw(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix("tap."): tensor for name, tensor in tensors.items() if name.startswith("tap.")}


def test_capabilities_are_probed(engine: OfflineVllmEngine) -> None:
    found = engine.capabilities
    assert (found.hooks, found.kv_cache, found.replacement) == (True, True, True)
    assert engine.module_names()["model.layers.3.mlp.down_proj"] == "RowParallelLinear"


def test_captures_leave_the_logits_alone(run: Run, clean: dict[str, torch.Tensor]) -> None:
    assert torch.equal(run()[1]["logits"], clean["logits"])


def test_every_tap_is_as_near_to_fp32_as_hugging_face(plan: TapPlan, clean: dict[str, torch.Tensor]) -> None:
    target = plan.assemble(raw(clean))
    references = {}
    for dtype, model in hf_models(embedded_model()).items():
        with torch.inference_mode(), HfTaps(model, plan.taps) as taps:
            model(input_ids=tokens_of(REQUEST))
            references[dtype] = taps.collect()
    assert len(target) >= 4 * 14
    ratios = {}
    for tap, rows in target.items():
        exact, rounded = references[torch.float32][tap], references[torch.bfloat16][tap]
        assert rows.shape == exact.shape, tap
        noise = relative(rounded, exact)
        ratios[tap] = relative(rows, exact) / noise if noise else float(not torch.equal(rows, rounded))
    assert max(ratios.values()) < KERNEL_NOISE, sorted(ratios.items(), key=lambda item: -item[1])[:5]
    assert statistics.median(ratios.values()) < 1.2


def test_the_cache_holds_what_attention_was_given(clean: dict[str, torch.Tensor]) -> None:
    for layer in range(4):
        for name in ("key", "value"):
            rows = clean[tap_tensor_name(f"model.layers.{layer}.self_attn.attn:{name}")]
            heads = clean[kv_tensor_name(layer, name)]
            assert torch.equal(heads.transpose(0, 1).flatten(1), rows)


def test_what_cannot_be_tapped_is_reported(run: Run) -> None:
    asked = {
        "model.layers.1.self_attn.rotary_emb:out0": "more than once in one engine call",
        "lm_head:out0": "never called",
        "model.layers.9.mlp:out0": "no module model.layers.9.mlp",
        "model.layers.1.mlp:query": "0 attention layers",
        "logits_processor:out0": "never called",
        "no tap": "is no tap",
    }
    result, tensors = run(modules=[*asked, "model.norm:out0"])
    assert result.error is None
    assert set(result.missing) == {tap_tensor_name(tap) for tap in asked}
    for tap, words in asked.items():
        assert words in result.missing[tap_tensor_name(tap)]
    assert tap_tensor_name("model.norm:out0") in tensors


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., list[Replacement]]:
    """`put(tap, rows, first_row=, columns=)`: a replacement."""

    def make(tap: str, rows: torch.Tensor, **where: Any) -> list[Replacement]:
        file = tmp_path / "rows.safetensors"
        save_file({"rows": rows.contiguous()}, file)
        return [Replacement(tap=tap, file=str(file), tensor="rows", **where)]

    return make


@pytest.mark.parametrize(
    "tap",
    ["model.embed_tokens:out0", "model.layers.1.self_attn.qkv_proj:out0", "model.layers.2.input_layernorm:out1",
     "model.layers.2.mlp.down_proj:out0", "model.layers.0.self_attn.attn:query", "model.layers.3.self_attn.attn:attn",
     "model.norm:out0"],
)  # fmt: skip
def test_a_tap_replaced_by_itself_changes_nothing(
    run: Run, clean: dict[str, torch.Tensor], put: Callable[..., list[Replacement]], tap: str
) -> None:
    rows = clean.get(tap_tensor_name(tap))
    if rows is None:
        rows = run(modules=[tap])[1][tap_tensor_name(tap)]
    result, tensors = run(replacements=put(tap, rows))
    assert result.error is None
    assert torch.equal(tensors["logits"], clean["logits"])


def test_zeros_at_a_tap_change_what_comes_after_from_that_row_on(
    run: Run, clean: dict[str, torch.Tensor], put: Callable[..., list[Replacement]], plan: TapPlan
) -> None:
    """From position 42 on: a decoded one. The tap itself still records what the engine computed."""
    tap, first = "model.layers.2.mlp.down_proj:out0", 42
    replacement = put(tap, torch.zeros(10, 128), first_row=first)
    result, tensors = run(modules=plan.raw, replacements=replacement)
    assert result.error is None
    logits = len(PROMPT)  # the first row of logits is computed at the last position of the prompt
    assert torch.equal(tensors["logits"][: first - logits + 1], clean["logits"][: first - logits + 1])
    assert (tensors["logits"][first - logits + 1 :] != clean["logits"][first - logits + 1 :]).any(-1).all()
    for name, rows in raw(tensors).items():
        same = (rows == clean[tap_tensor_name(name)]).all(-1)
        assert same[:first].all(), name
        if name.startswith(("model.layers.3", "model.norm")):
            assert not same[first:].any(), name
        elif name.startswith(("model.layers.0", "model.layers.1")) or name == tap:
            assert same[: first + 1].all(), name


def test_columns_of_a_fused_projection_are_replaced_alone(
    run: Run, clean: dict[str, torch.Tensor], put: Callable[..., list[Replacement]]
) -> None:
    """V are the last 64 of qkv's 256 columns: K in the cache stays, V is what was put."""
    rows = torch.full((46, 64), 0.5, dtype=torch.bfloat16)
    result, tensors = run(kv=True, replacements=put("model.layers.1.self_attn.qkv_proj:out0", rows, columns=(192, 256)))
    assert result.error is None
    assert torch.equal(tensors[kv_tensor_name(1, "key")], clean[kv_tensor_name(1, "key")])
    assert tensors[kv_tensor_name(1, "value")].unique().tolist() == [0.5]


def test_a_replaced_attention_input_is_what_attention_reads(run: Run, put: Callable[..., list[Replacement]]) -> None:
    """With every value the same, attention returns it whatever the scores are; the cache holds it for later steps."""
    tap = "model.layers.1.self_attn.attn"
    replacement = put(f"{tap}:value", torch.full((45, 64), 0.25, dtype=torch.bfloat16))
    result, tensors = run(modules=[f"{tap}:attn", f"{tap}:value"], kv=True, replacements=replacement)
    assert result.error is None
    returned = tensors[tap_tensor_name(f"{tap}:attn")]
    torch.testing.assert_close(returned, torch.full_like(returned, 0.25), rtol=2**-7, atol=0)
    assert tensors[kv_tensor_name(1, "value")].unique().tolist() == [0.25]
    assert len(tensors[tap_tensor_name(f"{tap}:value")].unique()) > 100


@pytest.mark.parametrize(
    ("tap", "rows", "words"),
    [
        ("model.layers.9.mlp:out0", torch.zeros(4, 128), "no module"),
        ("model.layers.1.mlp:out0", torch.zeros(4, 7), "7 features for columns 0 to 128"),
        ("lm_head:out0", torch.zeros(4, 128), "never took place"),
    ],
)
def test_replacements_that_cannot_be_are_errors(
    run: Run, put: Callable[..., list[Replacement]], tap: str, rows: torch.Tensor, words: str
) -> None:
    result, _ = run(replacements=put(tap, rows))
    assert words in str(result.error)


@pytest.mark.parametrize("position", [10, len(PROMPT), len(PROMPT) + 3])
def test_a_saved_call_is_replayed_off_the_engine(
    run: Run, plan: TapPlan, clean: dict[str, torch.Tensor], tmp_path: Path, position: int
) -> None:
    result, _ = run(snapshot=SnapshotSpec(folder=str(tmp_path), positions=[position]))
    (path,) = result.snapshots
    target = plan.assemble(raw(clean))
    taps = ["model.embed_tokens", "model.layers.0.self_attn.query", "model.layers.3", "model.norm"]
    errors = {}
    for dtype in ("float32", "bfloat16"):
        replay = replay_snapshot(path, "embedded", dtype, taps=taps)
        assert position in replay.positions.tolist()
        assert replay.prefix == ("none" if position < len(PROMPT) else "saved")
        assert replay.engine_logits is not None
        errors[dtype] = relative(replay.logits[-1:], replay.engine_logits)
        for tap in taps:
            assert relative(replay.outputs[tap], target[tap][replay.positions]) < 0.03, tap
    assert errors["float32"] < 0.03
    assert errors["bfloat16"] < 0.03


def test_cached_positions_are_missing_and_named(engine_python: Path, lease: CoreLease, tmp_path: Path) -> None:
    """A block of 32 comes out of the prefix cache the second time: their K and V are there, their rows are not."""
    settings = {"enable_prefix_caching": True, "block_size": 32}
    asking = REQUEST.model_copy(update={"capture": CaptureSpec(kv=True, modules=["model.norm:out0"])})
    with started(engine_python, lease, "embedded", tmp_path, max_model_len=128, engine_args=settings) as engine:
        both = [asking, asking.model_copy(update={"request_id": "two"})]
        first, second = engine.replay_under(both, ReplayConditions(read_prefixes=True))
    assert first.missing == {}
    name = tap_tensor_name("model.norm:out0")
    assert second.missing == {name: "not computed at positions 0-31"}
    rows = load_file(str(second.tensors))[name]
    assert torch.isnan(rows[:32]).all()
    assert not torch.isnan(rows[32:]).any()
    for layer in range(4):
        keys = load_file(str(second.tensors))[kv_tensor_name(layer, "key")]
        assert torch.equal(keys, load_file(str(first.tensors))[kv_tensor_name(layer, "key")])
