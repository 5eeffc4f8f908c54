"""Paths in a run directory, local or on S3, through one path type."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas.base import Schema

if TYPE_CHECKING:
    from cloudpathlib import CloudPath

    AnyPath = Path | CloudPath

Model = TypeVar("Model", bound=Schema)


@dataclass(frozen=True)
class RunDir:
    """The output tree. `root` is a `Path`, or a cloudpathlib path for `s3://…`."""

    root: AnyPath

    @classmethod
    def at(cls, location: str | os.PathLike[str] | RunDir) -> RunDir:
        """From a local path or an `s3://bucket/prefix` URI. Nothing is created, no server is asked.

        Raises ConfigurationError for another scheme or a URI that names nothing.
        """
        if isinstance(location, RunDir):
            return location
        text = os.fspath(location)
        if "://" in text:
            if not text.startswith("s3://"):
                raise ConfigurationError(f"run directory {text!r}: only local paths and s3:// are known")
            from accuracy_core.storage.s3_path import s3_path

            return cls(s3_path(text))
        return cls(Path(text).expanduser().absolute())

    def create(self) -> RunDir:
        """Make the directory and prove that it can be written.

        Raises ConfigurationError if not; InfrastructureError when the S3 server that holds it is away.
        """
        if not isinstance(self.root, Path):
            from accuracy_core.storage.s3_path import prove_writable

            prove_writable(self.root)
            return self
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            probe = self.root / f".probe-{uuid.uuid4().hex}"
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            raise ConfigurationError(
                f"output directory {self.root} is not writable: {error}", fix="choose another --output directory"
            ) from error
        return self

    @property
    def is_local(self) -> bool:
        return isinstance(self.root, Path)

    @property
    def report_html(self) -> AnyPath:
        return self.root / "combined_report.html"

    @property
    def report_json(self) -> AnyPath:
        return self.root / "report.json"

    @property
    def run_config(self) -> AnyPath:
        return self.root / "run_config.json"

    @property
    def preflight_json(self) -> AnyPath:
        return self.root / "preflight.json"

    def preflight_part(self, stage: str) -> AnyPath:
        """What one part of the preflight found; `preflight_json` has all of them."""
        return self.root / "preflight" / f"{stage}.json"

    @property
    def eval_results(self) -> AnyPath:
        return self.root / "eval_results"

    @property
    def server_log(self) -> AnyPath:
        return self.eval_results / "server.log"

    @property
    def task_analysis(self) -> AnyPath:
        return self.root / "task_analysis"

    @property
    def deviated_prompts(self) -> AnyPath:
        return self.task_analysis / "deviated_prompts.json"

    @property
    def prompt_analysis(self) -> AnyPath:
        return self.root / "prompt_analysis"

    @property
    def prompt_analysis_json(self) -> AnyPath:
        return self.prompt_analysis / "analysis.json"

    @property
    def consistency_json(self) -> AnyPath:
        return self.prompt_analysis / "engine_consistency.json"

    @property
    def engine_log(self) -> AnyPath:
        return self.prompt_analysis / "engine.log"

    @property
    def stages(self) -> AnyPath:
        return self.root / "stages"

    @property
    def tensor_compare(self) -> AnyPath:
        return self.root / "tensor_compare"

    @property
    def modules(self) -> AnyPath:
        return self.root / "modules"

    @property
    def module_validation_json(self) -> AnyPath:
        return self.modules / "module_validation.json"

    @property
    def modules_log(self) -> AnyPath:
        return self.modules / "engine.log"

    def prompt(self, index: int) -> AnyPath:
        return self.prompt_analysis / f"prompt_{index}"

    def prompt_result(self, index: int, plugin: str) -> AnyPath:
        """`prompt_<i>/prompt_result.json` is logit validation's; other plugins write their own file beside it."""
        name = "prompt_result.json" if plugin == "logit_validation" else f"{plugin}_result.json"
        return self.prompt(index) / name

    def write(self, path: AnyPath, model: Schema) -> None:
        """Write `model` as JSON; on a local disk the file appears complete or not at all."""
        write_text(path, model.to_json())

    def read(self, path: AnyPath, kind: type[Model]) -> Model:
        """Read a document. Raises ConfigurationError when it is missing or is no `kind`."""
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise ConfigurationError(
                f"{path} does not exist", fix="run the stage that writes it, or point to another run directory"
            ) from error
        except Exception as error:
            if isinstance(path, Path):
                raise
            from accuracy_core.storage.s3_errors import storage_error

            raise storage_error(error, f"{path} cannot be read") from error
        return kind.from_json(text, source=str(path))


def write_text(path: AnyPath, text: str) -> None:
    """Write UTF-8 text atomically (temporary file, then rename) on a local disk; a plain put elsewhere."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(path, Path):
        path.write_text(text, encoding="utf-8")
        return
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
