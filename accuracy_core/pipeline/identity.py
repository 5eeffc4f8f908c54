"""What besides the parameters can change a result: our code, the engine's installation, the device, the environment.

Used in the keys of cached stages. A needless difference costs a computation; a missed one would serve a stale verdict.
So packages of the engine are told apart by their files and not by their version alone: an engine under development
changes every hour and keeps its version.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from accuracy_core.engines.devices import VISIBLE_VARIABLE
from accuracy_core.pipeline.versions import versions
from accuracy_core.schemas import EngineSpec, Platform, fingerprint

#: environment variables by which runtimes are steered
_STEERING = re.compile(
    r"(VLLM|NEURON|XLA|CUDA|CUBLAS|NCCL|NVIDIA|TORCH|PYTORCH|OMP|MKL|KMP|DNNL|ONEDNN)[A-Z0-9]*_.*|LD_.*"
)
#: of those: which cores are free at the moment, where goldens are kept, and what libraries set by themselves when they
#: are imported. No number depends on them, and a key must not depend on what this process happened to import before
_NOT_STEERING = {
    *VISIBLE_VARIABLE.values(),
    "VLLM_NEURON_GOLDEN_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
}
#: runtimes outside the interpreter
_SYSTEM_RUNTIMES = ("/opt/aws/neuron/lib", "/proc/driver/nvidia/version")
_PROBE_TIMEOUT_S = 120
#: of our own package: drawing the report changes no result
_WITHOUT_INFLUENCE = {"report"}


@functools.cache
def code_identity() -> str:
    """sha256 over our own files (code and data) and the versions of the libraries that judge."""
    import accuracy_core

    root = Path(accuracy_core.__file__).parent
    digest = hashlib.sha256()
    for path in _files(root):
        relative = path.relative_to(root)
        if relative.parts[0] not in _WITHOUT_INFLUENCE:
            digest.update(f"{relative.as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return fingerprint({"files": digest.hexdigest(), "versions": {**versions(), "prefect": ""}})


def engine_identity(spec: EngineSpec) -> str:
    """sha256 over the installation that `spec` runs in, the device of this host, and the steering environment.

    Files count by size and time of change. Raises ConfigurationError when there is no interpreter for the engine.
    """
    from accuracy_core.engines.interpreter import find_interpreter, probe_interpreter

    python = Path(sys.executable) if spec.engine == "transformers" else find_interpreter(spec)
    # values only go into the hash; what the specification sets itself is part of the target's identity
    steering = {k: v for k, v in os.environ.items() if _STEERING.fullmatch(k) and k not in _NOT_STEERING}
    return fingerprint(
        {
            "versions": probe_interpreter(python),
            "installed": _installation(str(python), spec.env.get("PYTHONPATH", "")),
            "device": device_identity(spec.platform),
            "environment": dict(sorted(steering.items())),
        }
    )


@functools.cache
def device_identity(target: Platform) -> str:
    """What kind of device this host has: two kinds may compute different numbers, two hosts of a kind may not."""
    product = _first_line(Path("/sys/devices/virtual/dmi/id/product_name"))
    if target is Platform.CUDA:
        models = [_line_of(path, "Model") for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))]
        return f"cuda {sorted(set(models))}"
    if target is Platform.NEURON:
        return f"neuron {product}"
    info = Path("/proc/cpuinfo")
    return f"cpu {platform.machine()} {_line_of(info, 'model name')} {_line_of(info, 'flags')}"


@functools.cache
def _installation(python: str, python_path: str) -> str:
    """sha256 over names, sizes and times of all files that `python` can import; of chance where it does not tell."""
    roots = [*_import_paths(python), *map(Path, filter(None, python_path.split(os.pathsep)))]
    if not roots:
        return os.urandom(16).hex()  # whatever is computed with it is never taken for the same again
    own = Path(__file__).parents[2]  # our own files are told apart by content, in `code_identity`
    linked = [found for root in roots for found in _linked(root) if not found.is_relative_to(own)]
    digest = hashlib.sha256()
    for root in dict.fromkeys([*roots, *linked, *map(Path, _SYSTEM_RUNTIMES)]):
        digest.update(f"{root}\0".encode())
        for path in _files(root):
            with contextlib.suppress(FileNotFoundError):  # a dangling link
                status = os.stat(path)
                text = f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n"
                digest.update(text.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _import_paths(python: str) -> list[Path]:
    from accuracy_core.engines.interpreter import FOREIGN_VARIABLES

    environment = {key: value for key, value in os.environ.items() if key not in FOREIGN_VARIABLES}
    try:
        done = subprocess.run(
            [python, "-P", "-c", "import json, sys; print(json.dumps(sys.path))"],
            env=environment, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=True,
        )  # fmt: skip
        found = [Path(item) for item in json.loads(done.stdout.splitlines()[-1]) if item]
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, TypeError):
        return []
    own = Path(__file__).parents[2]
    known = {path.resolve() for path in found if path.is_dir() and path.resolve() != own}
    # the standard library goes by its version
    return sorted(path for path in known if not (path / "os.py").exists() and path.name != "lib-dynload")


def _linked(root: Path) -> Iterator[Path]:
    """Folders that editable installations in `root` point to."""
    for file in sorted([*root.glob("*.pth"), *root.glob("*.egg-link")]):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("/", "~")) and Path(line).is_dir():
                yield Path(line)
    for finder in sorted(root.glob("__editable__*.py")):
        for found in re.findall(r"'(/[^']+)'", finder.read_text(encoding="utf-8", errors="replace")):
            if Path(found).is_dir():
                yield Path(found)


def _files(root: Path) -> Iterator[Path]:
    """Files at or below `root` in a fixed order, compiled ones and hidden folders left out."""
    if root.is_file():
        yield root
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name != "__pycache__" and not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(files) if not name.endswith(".pyc"))


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").split("\n", 1)[0].strip()
    except OSError:
        return ""


def _line_of(path: Path, name: str) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")
