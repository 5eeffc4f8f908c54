"""Three-way comparison of module tensors: every module, prefill and decode, the first one that is wrong by itself."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from accuracy_core.errors import AssayError, ConfigurationError, InfrastructureError
from accuracy_core.outcome import Outcome
from accuracy_core.prompts.context import PluginContext
from accuracy_core.prompts.plugin import PromptPlugin
from accuracy_core.prompts.plugins.tensor_summary import culprit_of, findings_of, status_of, summarise
from accuracy_core.schemas import Phase, TensorCompareResult, fingerprint

if TYPE_CHECKING:
    from accuracy_core.capture.files import CaptureFiles
    from accuracy_core.capture.reference import ReferenceTaps
    from accuracy_core.prompts.plugins.tensor_references import TensorReferences


class TensorComparePlugin(PromptPlugin):
    """Tensors at every chosen module of the target against the FP32 reference and the reference in its dtype.

    Globally against the references' own run (documented: L2 ratio below `max_l2_ratio`), and locally against what the
    references' modules make of the target's own inputs, which names the first module that is wrong by itself.

    Args:
        modules: patterns (`model.layers.0-31`, exact names, regular expressions); none: every module.
        tp_size: tensor-parallel size of the target; 1 takes the target's own setting.
        max_l2_ratio: limit of the global L2 ratio per module and phase.
        reconstruction_fn: joins what the ranks captured; see `capture.reconstruction`.
        save_captures: keep the tensors of all sides in `tensor_compare/`.
        goldens_dir: golden cache for the references' tensors; default that of the goldens.
    """

    name: ClassVar[str] = "tensor_compare"
    needs_shared_llm = False
    can_share_llm = True

    def __init__(
        self,
        modules: Sequence[str] = (),
        tp_size: int = 1,
        max_l2_ratio: float = 3.0,
        reconstruction_fn: Callable[..., Any] | None = None,
        *,
        save_captures: bool = True,
        goldens_dir: str | Path | None = None,
    ) -> None:
        if isinstance(modules, str):
            raise ConfigurationError("modules is one string", fix=f"give a list: [{modules!r}]")
        if tp_size < 1 or not max_l2_ratio > 0:
            raise ConfigurationError(f"tp_size {tp_size} and max_l2_ratio {max_l2_ratio} must be positive")
        self.modules = tuple(modules)
        self.tp_size = tp_size
        self.max_l2_ratio = max_l2_ratio
        self.reconstruction_fn = reconstruction_fn
        self.save_captures = save_captures
        self.goldens_dir = goldens_dir
        self._references: TensorReferences | None = None
        self._taps: list[str] = []
        self._found: ReferenceTaps | None = None

    def pre_llm(self, ctx: PluginContext) -> None:
        """Tensors of the references.

        Raises ConfigurationError for a pattern that matches nothing, with near names, and, with the figures, when the
        captures would fill the disk.
        """
        from accuracy_core.capture.patterns import select_taps
        from accuracy_core.goldens.location import cache_directory
        from accuracy_core.prompts.plugins.tensor_references import model_taps, obtain_references

        self._found = model_taps(ctx)
        self._taps = select_taps(self.modules, self._found.available)
        folder = cache_directory(self.goldens_dir or getattr(ctx, "goldens_dir", None))
        self._check_room(ctx, folder)
        self._references = obtain_references(ctx, folder, self._taps, self._found)

    def run(self, ctx: PluginContext) -> dict[str, Any]:
        """`passed`, `status` (PluginStatus), `tensor_results` (a TensorCompareResult each), `summary`, `findings`,
        `first_divergent`, and `culprit` where a module is wrong by itself.

        Prompts that cannot be compared are recorded as errors. Raises NotMeasuredError when the engine gives no
        tensors, EngineDiedError when it goes.
        """
        if self._references is None:
            self.pre_llm(ctx)
        with self._folder(ctx) as root, tempfile.TemporaryDirectory(prefix="assay-local-") as scratch:
            results = self._compare(ctx, root, Path(scratch))
        platform = str(ctx.server_config.platform)
        summary = summarise(results, self.max_l2_ratio, platform)
        status = status_of(self.name, results)
        return {
            "passed": None if status.verdict is None else status.verdict.value == "pass" and not status.errors,
            "status": status,
            "tensor_results": results,
            "summary": summary,
            "findings": findings_of(results),
            "first_divergent": summary.first_divergent,
            "culprit": culprit_of(results),
        }

    def save(self, ctx: PluginContext, results: dict[str, Any]) -> None:
        """`prompt_<i>/tensor_compare_result.json` per prompt and `tensor_compare/comparison_summary.json`."""
        for result in results["tensor_results"]:
            ctx.output_dir.write(ctx.output_dir.prompt_result(result.index, self.name), result)
        ctx.output_dir.write(ctx.output_dir.tensor_compare / "comparison_summary.json", results["summary"])

    def _compare(self, ctx: PluginContext, root: Path, scratch: Path) -> list[TensorCompareResult]:
        references = self._references
        assert references is not None
        errors = dict(references.errors)
        target, wrong = self._capture_target(ctx, root, errors)
        local = self._local_passes(ctx, target, scratch, errors)
        results = []
        for position, prompt in enumerate(ctx.prepared):
            if position not in errors:
                try:
                    results.append(self._judge(ctx, position, target, local, wrong.get(position, {}), root))
                except (ConfigurationError, InfrastructureError):
                    raise
                except AssayError as error:
                    errors[position] = error.message
            if position in errors:
                results.append(
                    TensorCompareResult(
                        index=prompt.index,
                        outcome=Outcome.NOT_MEASURED,
                        prompt_length=len(prompt.token_ids),
                        error=errors[position],
                    )
                )
            ctx.progress("compare tensors", position + 1, len(ctx.prompts))
        return results

    def _capture_target(
        self, ctx: PluginContext, root: Path, errors: dict[int, str]
    ) -> tuple[CaptureFiles, dict[int, dict[str, str]]]:
        from accuracy_core.capture.files import CaptureFiles
        from accuracy_core.capture.reconstruction import ShardLayout, reconstruct
        from accuracy_core.prompts.plugins.tensor_target import capturing_engine, layer_problem, target_plan
        from accuracy_core.prompts.plugins.tensor_target import replay_tensors as replay

        assert self._references is not None
        config = model_config(ctx)
        ranks = self.tp_size if self.tp_size > 1 else ctx.server_config.tensor_parallel_size
        files = CaptureFiles(root, run_of(ctx), str(ctx.server_config.platform), ctx.dtype, ranks)
        wrong: dict[int, dict[str, str]] = {}
        with capturing_engine(ctx) as engine:
            plan = target_plan(ctx, engine, config, self._taps, ranks)
            depth = layer_problem(engine.module_names(), config)
            for position, prompt in enumerate(ctx.prepared):
                if position not in errors:
                    tokens = self._references.tokens[position]
                    try:
                        found = replay(
                            ctx,
                            engine,
                            position,
                            tokens,
                            plan,
                            ShardLayout(config),
                            self.reconstruction_fn or reconstruct,
                        )
                        ids = [*ctx.prompts[position], *tokens[:-1]]
                        files.write(prompt.index, ids, len(ctx.prompts[position]), found.tensors, found.missing)
                        wrong[position] = {**found.wrong, **({"model.layers": depth} if depth else {})}
                    except (ConfigurationError, InfrastructureError):
                        raise
                    except AssayError as error:
                        errors[position] = error.message
                ctx.progress("replay with tensors", position + 1, len(ctx.prompts))
        return files, wrong

    def _local_passes(
        self, ctx: PluginContext, target: CaptureFiles, scratch: Path, errors: dict[int, str]
    ) -> dict[bool, CaptureFiles]:
        """What the references' modules make of the target's tensors, by `wide`."""
        from accuracy_core.capture.files import CaptureFiles
        from accuracy_core.capture.local import record_local
        from accuracy_core.capture.verdict import comparable
        from accuracy_core.prompts.plugins.tensor_references import local_model

        assert self._references is not None
        passes: dict[bool, CaptureFiles] = {}
        for wide in (True, False):
            files = CaptureFiles(scratch, run_of(ctx), "wide" if wide else "narrow", ctx.dtype)
            with local_model(ctx, wide=wide) as model:
                for position, prompt in enumerate(ctx.prepared):
                    if position in errors:
                        continue
                    ids = target.prompts[prompt.index].token_ids
                    captured = target.read(prompt.index)
                    fits = comparable(captured, self._references.read(position)[0])
                    recorded = record_local(model, ids, fits, also=captured)
                    files.write(prompt.index, ids, len(ctx.prompts[position]), recorded)
                    ctx.progress("local pass", position + 1 + len(passes) * len(ctx.prompts), 2 * len(ctx.prompts))
            passes[wide] = files
        return passes

    def _judge(
        self,
        ctx: PluginContext,
        position: int,
        target: CaptureFiles,
        local: dict[bool, CaptureFiles],
        wrong: dict[str, str],
        root: Path,
    ) -> TensorCompareResult:
        from accuracy_core.capture.files import CaptureFiles
        from accuracy_core.capture.limits import TensorLimits
        from accuracy_core.capture.verdict import PromptTensors, judge_prompt
        from accuracy_core.goldens.reference_config import torch_dtype

        assert self._references is not None
        assert self._found is not None
        index = ctx.prepared[position].index
        fp32, dtype = self._references.read(position)
        captured = target.prompts[index]
        if self.save_captures:
            for side, tensors in (("hf_fp32", fp32), (f"hf_{_short(ctx.dtype)}", dtype)):
                files = CaptureFiles.again(root, run_of(ctx), side, ctx.dtype)
                files.write(index, captured.token_ids, captured.prompt_length, tensors)
        result = judge_prompt(
            index,
            PromptTensors(
                prompt_length=captured.prompt_length,
                target=target.read(index),
                fp32=fp32,
                dtype=dtype,
                local_fp32=local[True].read(index),
                local_dtype=local[False].read(index),
                available=self._found.available,
                missing=captured.missing,
                wrong=wrong,
            ),
            model_config(ctx),
            torch_dtype(ctx.dtype),
            TensorLimits.of(ctx.tolerances),
            self.max_l2_ratio,
        )
        if result.verdict is None:
            return result.model_copy(
                update={"outcome": Outcome.NOT_MEASURED, "phase": Phase.NONE, "error": "no module was compared"}
            )
        return result

    @contextmanager
    def _folder(self, ctx: PluginContext) -> Iterator[Path]:
        """`tensor_compare/` of a local run directory; a temporary folder where captures are not kept."""
        root = ctx.output_dir.tensor_compare
        if self.save_captures and isinstance(root, Path):
            root.mkdir(parents=True, exist_ok=True)
            yield root
            return
        with tempfile.TemporaryDirectory(prefix="assay-tensors-") as folder:
            yield Path(folder)

    def _check_room(self, ctx: PluginContext, folder: Path) -> None:
        from accuracy_core.capture.kv.disk import check_room

        assert self._found is not None
        values = sum(
            self._found.values(self._taps, len(prompt) + ctx.output_length - 1, ctx.output_length)
            for prompt in ctx.prompts
        )
        narrow = 4 if ctx.dtype == "float32" else 2
        needs = [
            ("module tensors of the references", folder, values * (4 + narrow)),
            ("what the references make of the target's tensors", Path(tempfile.gettempdir()), values * (4 + narrow)),
        ]
        if self.save_captures and isinstance(ctx.output_dir.root, Path):
            needs.append(("module tensors of all sides", ctx.output_dir.root, values * (4 + 2 * narrow)))
        count = f"{len(self._taps)} taps of {len(ctx.prompts)} prompts"
        check_room(needs, fix=f"{count}: choose fewer modules or prompts, or a shorter output, or free space")


def model_config(ctx: PluginContext) -> dict[str, Any]:
    """The target's configuration, with its overrides and what transformers fills in."""
    from accuracy_core.prompts.plugins.tensor_references import reference_config

    config: dict[str, Any] = reference_config(ctx).get_text_config().to_dict()
    return config


def run_of(ctx: PluginContext) -> str:
    """Identifies target and prompts: captures of two of them are not mixed."""
    return fingerprint(
        {"target": ctx.server_config.model_dump(mode="json"), "prompts": [list(ids) for ids in ctx.prompts]}
    )


def _short(dtype: str) -> str:
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32_expected"}.get(dtype, dtype)
