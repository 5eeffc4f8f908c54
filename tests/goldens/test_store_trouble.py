"""The cache fails, the run does not: every kind of trouble is one warning, and the golden is right."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from accuracy_core.errors import ConfigurationError
from accuracy_core.goldens import get_or_compute_goldens
from accuracy_core.goldens.disk import DiskTier

from .helpers import CONFIG, Compute, entry_folder, equal


def test_cache_directory_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    compute = Compute()
    for place in (file, file / "below"):
        with pytest.raises(ConfigurationError, match="is a file") as caught:
            get_or_compute_goldens(CONFIG, compute, cache_dir=place)
        assert caught.value.fix
    monkeypatch.setenv("VLLM_NEURON_GOLDEN_CACHE_DIR", str(file))
    with pytest.raises(ConfigurationError, match="is a file"):
        get_or_compute_goldens(CONFIG, compute)
    assert compute.calls == 0


def test_default_directory_comes_from_the_environment(tmp_path: Path) -> None:
    get_or_compute_goldens(CONFIG, Compute())
    assert entry_folder(tmp_path / "default-cache").is_dir()


def served_uncached(cache: Path, warnings: pytest.LogCaptureFixture, cause: str) -> None:
    compute = Compute()
    for calls in (1, 2):
        warnings.clear()
        golden = get_or_compute_goldens(CONFIG, compute, cache_dir=cache)
        assert equal(golden, compute.tensors())
        assert (golden.source, compute.calls) == ("computed", calls)
        assert any(cause in text for text in golden.warnings), golden.warnings
        assert warnings.records


@pytest.fixture
def common_user() -> Iterator[Path]:
    """A folder that is open to everybody, and no root's rights meanwhile: root writes everywhere."""
    get_or_compute_goldens(CONFIG, Compute())  # what is imported on first use may be out of the user's reach
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory(prefix="read-only-") as name:
        os.chmod(name, 0o777)
        if root:
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            if root:
                os.seteuid(0)


def test_read_only_directory(common_user: Path, warnings: pytest.LogCaptureFixture) -> None:
    cache = common_user / "cache"
    cache.mkdir()
    cache.chmod(0o555)
    served_uncached(cache, warnings, "Permission denied")


def test_read_only_directory_that_was_filled_before(common_user: Path, warnings: pytest.LogCaptureFixture) -> None:
    cache = common_user / "cache"
    get_or_compute_goldens(CONFIG, Compute(), cache_dir=cache)
    folders = [cache, *(path for path in cache.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    golden = get_or_compute_goldens(CONFIG, pytest.fail, cache_dir=cache)
    assert (golden.source, golden.warnings) == ("disk", ())
    other = get_or_compute_goldens({**CONFIG, "n": 1}, Compute(seed=1), cache_dir=cache)
    assert equal(other, Compute(seed=1).tensors())
    assert "Permission denied" in warnings.text
    for folder in folders:
        folder.chmod(0o755)


def test_place_that_nobody_can_write(warnings: pytest.LogCaptureFixture) -> None:
    if not Path("/proc/self").is_dir():
        pytest.skip("needs /proc")
    served_uncached(Path("/proc/no-cache-here"), warnings, "/proc/no-cache-here")


def test_full_disk(cache: Path, warnings: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import SafetensorError

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    served_uncached(cache, warnings, "No space left on device")
    assert not list((cache / "tmp").iterdir())


def test_full_device_for_real(warnings: pytest.LogCaptureFixture, cache: Path) -> None:
    """A limit on file sizes stands for the full disk: the write really fails half-way."""
    import resource
    import signal

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
    try:
        served_uncached(cache, warnings, "cannot be kept")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert not entry_folder(cache).exists()


def test_full_file_system(tmp_path: Path, warnings: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a tmpfs; a limit on file sizes stands for it in the test above")
    try:
        compute = Compute()
        small = get_or_compute_goldens(CONFIG, compute, cache_dir=place)
        assert get_or_compute_goldens(CONFIG, compute, cache_dir=place).source == "disk"
        rows = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
        large = get_or_compute_goldens({**CONFIG, "n": 1}, lambda: {"rows": [rows]}, cache_dir=place)
        assert torch.equal(large["rows"][0], rows)
        assert len(large.warnings) == 1
        assert "No space left on device" in large.warnings[0]
        assert not list((place / "tmp").iterdir())  # the half file is gone
        again = get_or_compute_goldens(CONFIG, compute, cache_dir=place)
        assert (again.source, again.warnings, compute.calls) == ("disk", (), 1)
        assert equal(again, small)
        del small, again  # they hold files open
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_locks_that_do_not_work(
    cache: Path, warnings: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object, **__: object) -> None:
        raise NotImplementedError("FileSystem does not appear to support flock")

    with monkeypatch.context() as patch:
        patch.setattr(DiskTier, "_lock", no_locks)
        compute = Compute()
        golden = get_or_compute_goldens(CONFIG, compute, cache_dir=cache)
    assert equal(golden, compute.tensors())
    assert "takes no locks" in warnings.text


def test_text_without_utf8_form_in_the_key(cache: Path) -> None:
    compute = Compute()
    for source in ("computed", "disk"):
        assert get_or_compute_goldens({"prompt": "\ud800"}, compute, cache_dir=cache).source == source
