"""From what the user typed to a model: the bundled one, a local folder, or an id on the Hugging Face hub."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from accuracy_core.errors import ConfigurationError
from accuracy_core.models.checkpoint import check_checkpoint, folder_fingerprint

EMBEDDED = "embedded"
_EMBEDDED_FOLDER = Path(__file__).parent / "embedded" / "tiny-llama"
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_HUB_TIMEOUT_S = 10.0


def embedded_model() -> Path:
    """Folder of the bundled tiny Llama. Its `test.jsonl` holds 1,000 problems that it was not trained on."""
    return _EMBEDDED_FOLDER


def resolve_model(name_or_path: str | Path, *, need_tokenizer: bool = True) -> str | Path:
    """A checked local folder, or a hub id that the hub knows.

    `embedded` is the bundled model; an existing folder wins over a hub id of the same name; a hub id that was
    downloaded before gives the local copy without asking the hub. Raises ConfigurationError saying what is missing and
    what to do.
    """
    text = str(name_or_path).strip()
    if text == EMBEDDED:
        return embedded_model()
    if not text:
        raise ConfigurationError("no model given", fix=f"name a folder, a hub id, or {EMBEDDED!r}")
    path = Path(text).expanduser()
    if path.is_dir():
        check_checkpoint(path, need_tokenizer=need_tokenizer)
        return path.absolute()
    if path.exists():
        raise ConfigurationError(
            f"model {text!r} is a file", fix="give the checkpoint's folder (config.json, weights, tokenizer files)"
        )
    if not _HUB_ID.fullmatch(text) or path.suffix in (".gguf", ".safetensors", ".bin"):
        raise ConfigurationError(
            f"model folder {text!r} does not exist", fix=_suggestion(path) or "check the path of the model folder"
        )
    return _hub_model(text, need_tokenizer=need_tokenizer)


def model_fingerprint(path: str | Path, *, memo_dir: Path | None = None) -> str:
    """sha256 (hex) identifying a checkpoint by content: whole weight files, tokenizer, chat template, configuration.

    `path` is anything that resolve_model takes; a hub id that is not here yet is downloaded. Digests are remembered in
    the process, and across processes in `memo_dir`, as long as the file's path, inode, size and times stay the same.
    """
    resolved = resolve_model(path, need_tokenizer=False)
    if isinstance(resolved, str):
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(resolved))
        except Exception as error:  # the hub client raises a dozen unrelated types
            raise _unreachable(resolved, error) from error
        check_checkpoint(folder, need_tokenizer=False)
    else:
        folder = resolved
    return folder_fingerprint(folder, memo_dir)


def _hub_model(hub_id: str, *, need_tokenizer: bool) -> str | Path:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        local = Path(snapshot_download(hub_id, local_files_only=True))
    except Exception:  # not downloaded yet
        local = None
    if local is not None:
        check_checkpoint(local, need_tokenizer=need_tokenizer)
        return local
    try:
        HfApi().model_info(hub_id, timeout=_HUB_TIMEOUT_S)
    except RepositoryNotFoundError as error:
        raise ConfigurationError(
            f"no folder and no hub model {hub_id!r}",
            fix=_suggestion(Path(hub_id)) or "check the name; for a gated model log in to the hub first",
        ) from error
    except Exception as error:  # the hub client raises a dozen unrelated types
        raise _unreachable(hub_id, error) from error
    return hub_id


def _unreachable(hub_id: str, error: Exception) -> ConfigurationError:
    hint = _suggestion(Path(hub_id))
    return ConfigurationError(
        f"{hub_id!r} is no local folder, and the model hub cannot be reached ({type(error).__name__})",
        fix=f"{hint + '; or ' if hint else ''}give the path of a downloaded checkpoint, "
        f"or `{EMBEDDED}` for the bundled one",
    )


def _suggestion(path: Path) -> str:
    """'did you mean …?' from the bundled name and the folders beside `path`, or ''."""
    parent = path.parent if path.parent.is_dir() else None
    folders = sorted(item.name for item in parent.iterdir() if item.is_dir()) if parent else []
    near = difflib.get_close_matches(path.name, folders, n=3)
    names = [str(path.with_name(name)) for name in near]
    if len(path.parts) == 1:
        names += difflib.get_close_matches(path.name.lower(), [EMBEDDED], n=1)
    return f"did you mean {' or '.join(repr(name) for name in names)}?" if names else ""
