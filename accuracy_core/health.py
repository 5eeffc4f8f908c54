"""What this host can do: the findings of `assay doctor` that need no orchestrator."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from accuracy_core.engines.cores import holders
from accuracy_core.engines.devices import platform_cores
from accuracy_core.engines.interpreter import check_interpreter, find_interpreter
from accuracy_core.errors import AssayError
from accuracy_core.outcome import Outcome
from accuracy_core.paths import cache_root
from accuracy_core.pipeline.versions import versions
from accuracy_core.schemas import EngineSpec, Finding, Platform, Severity

#: both sides should agree on these: the references are computed with ours
COMPARED = ("torch", "transformers")
LOW_DISK_GIB = 5


def check_host(engine_python: str | None = None) -> list[Finding]:
    """Both environments, cores, cache and disk. Never raises: what is wrong becomes a finding."""
    return [*_environments(engine_python), *_cores(), *_cache(), _browser()]


def _finding(check: str, severity: Severity, evidence: str, fix: str = "") -> Finding:
    return Finding(check=check, severity=severity, evidence=evidence, fix=fix, outcome=Outcome.CONFIGURATION)


def _environments(engine_python: str | None) -> list[Finding]:
    ours = versions()
    text = ", ".join(f"{name} {number}" for name, number in ours.items())
    found = [_finding("this environment", Severity.INFO, text)]
    try:
        python = find_interpreter(EngineSpec(model="embedded", python=engine_python))
        theirs = check_interpreter(python)
    except AssayError as error:
        return [*found, _finding("engine environment", Severity.ERROR, error.message, error.fix)]
    text = ", ".join(f"{name} {number}" for name, number in theirs.items() if name != "executable")
    found.append(_finding("engine environment", Severity.INFO, f"{python}: {text}"))
    for name in COMPARED:
        if theirs.get(name) != ours.get(name):
            found.append(
                _finding(
                    f"{name} on both sides",
                    Severity.WARNING,
                    f"{ours.get(name)} here, {theirs.get(name, 'none')} in the engine's environment",
                    "differences between them are part of what is measured; align them to leave them out",
                )
            )
    return found


def _cores() -> list[Finding]:
    found = []
    for platform in Platform:
        try:
            cores = platform_cores(platform)
            if not cores:
                continue
            held = holders(platform)
        except AssayError as error:
            found.append(_finding(f"{platform.value} cores", Severity.ERROR, error.message, error.fix))
            continue
        if held:
            text = "; ".join(str(holder) for holder in held)
            found.append(
                _finding(f"{platform.value} cores", Severity.WARNING, text, "a run will wait until they are free")
            )
        else:
            found.append(_finding(f"{platform.value} cores", Severity.INFO, f"{len(cores)} free"))
    return found


def _cache() -> list[Finding]:
    from accuracy_core.goldens.location import cache_directory

    found = []
    for name, folder in (("golden cache", cache_directory(None)), ("evaluation cache", cache_root())):
        nearest = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(nearest).free / 2**30
        text = f"{folder}, {free:.0f} GiB free"
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            found.append(_finding(name, Severity.ERROR, f"{folder} cannot be written", "choose another directory"))
        elif free < LOW_DISK_GIB:
            found.append(_finding(name, Severity.WARNING, text, "make room: references of large models take gigabytes"))
        else:
            found.append(_finding(name, Severity.INFO, text))
    return found


def _browser() -> Finding:
    path = next((found for name in ("chromium", "google-chrome", "chrome") if (found := shutil.which(name))), None)
    if path is None:
        return _finding("browser", Severity.INFO, "no Chromium: browser tests are skipped", "")
    return _finding("browser", Severity.INFO, str(Path(path)))
