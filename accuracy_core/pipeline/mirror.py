"""A run directory on S3: stages work in a local copy, which is brought up to date before and published after each.

A list of files with their digests is written last; only what it names is part of the run. So a reader never takes a
half-uploaded stage for a whole one, whoever was killed when. No clock is compared: neither of two hosts, nor with the
server's.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from accuracy_core.engines.scratch import Scratch
from accuracy_core.errors import AssayError, ConfigurationError, InfrastructureError
from accuracy_core.pipeline.mirror_list import FileList, Listed, inside
from accuracy_core.pipeline.mirror_objects import MissingObject, Objects
from accuracy_core.schemas import RunDir
from accuracy_core.storage.s3_path import SCHEME

log = logging.getLogger(__name__)
LIST_NAME = ".assay-files.json"
CLAIM_NAME = ".assay-claim.json"
#: documents that may quote the path of the local copy, which means nothing to anybody else
_TEXT = (".json", ".html", ".txt", ".xml", ".md")
#: two stages that publish at the same moment: the second one merges and tries again
_TRIES = 20
_mirrors: dict[tuple[int, str], Mirror] = {}


def mirror_of(uri: str) -> Mirror:
    """The one local copy that this process has of `uri`; made at the first call, removed at the process's end."""
    key = (os.getpid(), uri.rstrip("/"))
    if key not in _mirrors:
        _mirrors[key] = Mirror(key[1])
        atexit.register(_mirrors[key].close)
    return _mirrors[key]


def mirror_in(folder: object) -> Mirror | None:
    """The mirror whose local copy is `folder`; None for a directory that is itself the run's."""
    return next((mirror for mirror in _mirrors.values() if mirror.folder == folder), None)


def working_dir(location: str) -> RunDir:
    """Where stages read and write: `location` itself, or the local copy of one on S3."""
    return RunDir(mirror_of(location).folder) if is_remote(location) else RunDir.at(location)


def is_remote(location: str | None) -> bool:
    return location is not None and location.startswith(SCHEME)


@contextlib.contextmanager
def synchronised(location: str | None) -> Iterator[None]:
    """Around a stage: the local copy is up to date before, and published after, also when the stage fails.

    Does nothing for a local directory. Inside another such block it does nothing either. Raises InfrastructureError or
    ConfigurationError when S3 cannot be used; an error of the stage itself comes first.
    """
    if location is None or not is_remote(location):
        yield
        return
    mirror = mirror_of(location)
    if mirror.busy:
        yield
        return
    mirror.busy = True
    try:
        mirror.pull()
        try:
            yield
        except BaseException:
            with contextlib.suppress(AssayError):  # what failed first is what is said
                mirror.publish()
            raise
        mirror.publish()
    finally:
        mirror.busy = False


class Mirror:
    """Local copy of a run directory on S3, of this process alone."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._objects = Objects(uri)
        self.busy = False
        self._scratch = Scratch(expected_bytes=sys.maxsize)  # on disk: a run may be larger than memory
        self.folder = self._scratch.path
        self._known: dict[str, Listed] = {}
        self._seen: dict[str, tuple[int, int, Listed]] = {}
        self._claim: str | None = None
        self._claim_read = False

    def close(self) -> None:
        """Remove the local copy."""
        _mirrors.pop((os.getpid(), self.uri), None)
        self._scratch.remove()

    def claim(self) -> None:
        """Take the run directory over: whoever claimed it before can publish no more."""
        self._claim = uuid.uuid4().hex
        self._claim_read = True
        self._objects.put(CLAIM_NAME, json.dumps({"claim": self._claim}).encode())

    def release(self) -> None:
        """Give the claim back, if it is still ours."""
        if self._claim is not None and self._read_claim() == self._claim:
            self._objects.delete(CLAIM_NAME)
        self._claim, self._claim_read = None, False

    def pull(self) -> None:
        """Bring the local copy up to date. What was changed here and is not published yet stays.

        A file whose bytes are not those that the list promises (its writer was killed in between) is left out: its
        stage counts as not run.
        """
        if not self._claim_read:
            self._claim, self._claim_read = self._read_claim(), True
        listed, _ = self._read_list()
        if listed is None:  # a new directory, or one that was copied there by other means
            for path in self._objects.names():
                self._download(path, None)
            return
        for path in set(self._known) - set(listed.files):
            (self.folder / path).unlink(missing_ok=True)
        for path, file in listed.files.items():
            if self._known.get(path) != file:
                self._download(path, file)
        self._known = {path: file for path, file in listed.files.items() if (self.folder / path).exists()}

    def publish(self) -> None:
        """Upload what changed, then the list. Raises ConfigurationError when another run has taken the directory."""
        self._speak_of_the_uri()
        mine = self._local()
        changed = {path: file for path, file in mine.items() if self._known.get(path) != file}
        removed = set(self._known) - set(mine)
        if not changed and not removed:
            return
        self._still_ours()  # before an object of the other run is overwritten, and again before the list is
        for path in changed:
            self._objects.upload(path, self.folder / path)
        self._commit(changed, removed)
        for path in removed:
            with contextlib.suppress(AssayError):  # not in the list any more: only its space is lost
                self._objects.delete(path)
        self._known = mine

    def _commit(self, changed: dict[str, Listed], removed: set[str]) -> None:
        for _ in range(_TRIES):
            self._still_ours()
            listed, tag = self._read_list()
            files = {path: file for path, file in (listed.files if listed else {}).items() if path not in removed}
            document = FileList(files=files | changed).to_json().encode()
            if self._objects.put(LIST_NAME, document, condition={"IfMatch": tag} if tag else {"IfNoneMatch": "*"}):
                return
        raise InfrastructureError(f"{self.uri}: others keep changing the list of files", fix="run the stage again")

    def _still_ours(self) -> None:
        if self._read_claim() != self._claim:
            raise ConfigurationError(
                f"another run writes to {self.uri} and has taken it over", fix="give each run its own directory"
            )

    def _local(self) -> dict[str, Listed]:
        """Files of the local copy; hidden ones (locks, copies under way) are not part of a run."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            relative = path.relative_to(self.folder)
            if path.is_file() and not any(part.startswith(".") for part in relative.parts):
                found[relative.as_posix()] = self._digest(relative.as_posix(), path)
        return found

    def _digest(self, name: str, path: Path) -> Listed:
        status = path.stat()
        before = self._seen.get(name)
        if before is not None and before[:2] == (status.st_size, status.st_mtime_ns):
            return before[2]
        with path.open("rb") as stream:
            listed = Listed(size=status.st_size, sha256=hashlib.file_digest(stream, "sha256").hexdigest())
        self._seen[name] = (status.st_size, status.st_mtime_ns, listed)
        return listed

    def _speak_of_the_uri(self) -> None:
        here = str(self.folder).encode()
        for path in self.folder.rglob("*"):
            if path.suffix in _TEXT and path.is_file() and here in (content := path.read_bytes()):
                path.write_bytes(content.replace(here, self.uri.encode()))

    def _download(self, path: str, file: Listed | None) -> None:
        if not inside(path):
            raise ConfigurationError(f"{self.uri}: the list of files names {path!r}", fix="use another run directory")
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.partial")
        try:
            self._objects.download(path, partial)
            if file is not None and (here := self._digest(f"{path}.partial", partial)) != file:
                log.warning("%s: %s is not what was published (%s bytes): left out", self.uri, path, here.size)
                target.unlink(missing_ok=True)
                return
            os.replace(partial, target)
            if file is not None:
                self._seen[path] = (file.size, target.stat().st_mtime_ns, file)
        except MissingObject:
            log.warning("%s: %s is listed and not there: left out", self.uri, path)
            target.unlink(missing_ok=True)
        finally:
            partial.unlink(missing_ok=True)

    def _read_list(self) -> tuple[FileList | None, str | None]:
        found = self._objects.get(LIST_NAME)
        if found is None:
            return None, None
        return FileList.from_json(found[0], source=f"{self.uri}/{LIST_NAME}"), found[1]

    def _read_claim(self) -> str | None:
        found = self._objects.get(CLAIM_NAME)
        try:
            return None if found is None else str(json.loads(found[0])["claim"])
        except (ValueError, KeyError, TypeError):
            return None
