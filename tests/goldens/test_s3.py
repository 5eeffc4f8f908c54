"""The shared tier against a real S3 server: hosts share goldens; nothing the server does fails a run or is believed.

"Hosts" are separate cache directories.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from accuracy_core.errors import ConfigurationError
from accuracy_core.goldens import get_or_compute_goldens, s3
from accuracy_core.goldens.metadata import METADATA_NAME

from .helpers import CONFIG, KEY, Compute, equal
from .s3_server import ADMIN, BUCKET, NEEDS_SERVER, READER, FaultProxy, client, sign_in

Host = Callable[..., Any]


@pytest.fixture
def host(tmp_path: Path, uri: str) -> Host:
    """`host(name, compute)`: ask from the cache directory of that name."""

    def ask(name: str, compute: Callable[[], Any], config: dict[str, Any] = CONFIG) -> Any:
        return get_or_compute_goldens(config, compute, cache_dir=tmp_path / name, s3_uri=uri)

    return ask


def objects(server: int, uri: str) -> dict[str, bytes]:
    listed = client(server).list_objects_v2(Bucket=BUCKET, Prefix=uri.split("/", 3)[3]).get("Contents", [])
    return {item["Key"]: client(server).get_object(Bucket=BUCKET, Key=item["Key"])["Body"].read() for item in listed}


def put(server: int, name: str, content: bytes) -> None:
    client(server).put_object(Bucket=BUCKET, Key=name, Body=content)


class TestServer:
    pytestmark = NEEDS_SERVER

    def test_second_host_gets_it_from_s3(self, host: Host, server: int, uri: str) -> None:
        compute = Compute()
        sources = [host(name, compute).source for name in ("a", "b", "b")]
        assert sources == ["computed", "s3", "disk"]
        assert compute.calls == 1
        golden = host("c", compute)
        assert equal(golden, compute.tensors())
        assert golden.warnings == ()
        names = sorted(name.rsplit("/", 1)[1] for name in objects(server, uri))
        assert names == [golden.metadata.data_object, METADATA_NAME]

    def test_large_golden_in_parts(self, host: Host) -> None:
        rows = torch.randn(20_000_000, generator=torch.Generator().manual_seed(0))
        host("a", lambda: {"rows": [rows]})
        golden = host("b", pytest.fail)
        assert golden.source == "s3"
        assert torch.equal(golden["rows"][0], rows)

    @pytest.mark.parametrize(
        "damage",
        ["flip data", "cut data", "delete data", "empty data", "junk metadata", "foreign metadata", "edited metadata"],
    )
    def test_damaged_object_is_recomputed_and_repaired(self, damage: str, host: Host, server: int, uri: str) -> None:
        compute = Compute()
        host("a", compute)
        data_name, metadata_name = sorted(objects(server, uri), key=lambda name: name.endswith(METADATA_NAME))
        data, metadata = objects(server, uri)[data_name], objects(server, uri)[metadata_name]
        if damage == "delete data":
            client(server).delete_object(Bucket=BUCKET, Key=data_name)
        else:
            name, content = {
                "flip data": (data_name, data[:-1] + bytes([data[-1] ^ 1])),
                "cut data": (data_name, data[:-5]),
                "empty data": (data_name, b""),
                "junk metadata": (metadata_name, b"{"),
                "foreign metadata": (metadata_name, metadata.replace(KEY.encode(), b"0" * 64)),
                "edited metadata": (metadata_name, metadata.replace(b'"compute_s": ', b'"compute_s": 1')),
            }[damage]
            put(server, name, content)
        golden = host("b", compute)
        assert equal(golden, compute.tensors())
        assert (golden.source, compute.calls) == ("computed", 2)
        assert len(golden.warnings) == 1
        third = host("c", compute)
        assert (third.source, third.warnings, compute.calls) == ("s3", (), 2)
        assert equal(third, compute.tensors())

    def test_two_hosts_at_once_serve_one_golden(self, host: Host) -> None:
        barrier, results = threading.Barrier(2), {}

        def run(name: str, seed: int) -> None:
            def compute() -> Any:
                barrier.wait(30)  # both compute, differently: whoever commits first wins for both
                return Compute(seed=seed).tensors()

            results[name] = host(name, compute)

        threads = [threading.Thread(target=run, args=(f"host-{seed}", seed)) for seed in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert equal(results["host-0"], results["host-1"])
        assert sorted(golden.source for golden in results.values()) == ["computed", "s3"]
        assert equal(host("later", pytest.fail), results["host-0"])

    def test_lost_reply_to_the_commit_is_no_conflict(self, host: Host, proxy: FaultProxy) -> None:
        seen: list[str] = []

        def rule(method: str, path: str, _: int) -> str | None:
            if method == "PUT" and path.endswith(METADATA_NAME):
                seen.append(path)
                return "lost" if len(seen) == 1 else None
            return None

        proxy.rule = rule
        compute = Compute()
        golden = host("a", compute)
        assert len(seen) == 2  # the retry met its own first put
        assert (golden.source, golden.warnings) == ("computed", ())
        assert host("b", compute).source == "s3"

    def test_consumer_that_may_only_read(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        compute = Compute()
        host("a", compute)
        sign_in(monkeypatch, READER)
        assert host("b", compute).source == "s3"
        golden = host("b", compute, {**CONFIG, "n": 1})
        assert golden.source == "computed"
        assert len(golden.warnings) == 1
        assert "AccessDenied" in golden.warnings[0]
        assert host("b", compute, {**CONFIG, "n": 2}).warnings == ()  # said once, not tried again

    @pytest.mark.parametrize(
        ("credentials", "code"),
        [((ADMIN[0], "wrong-secret"), "SignatureDoesNotMatch"), (("nobody", "x"), "InvalidAccessKeyId")],
    )
    def test_wrong_credentials(
        self, credentials: tuple[str, str], code: str, host: Host, monkeypatch: pytest.MonkeyPatch,
        warnings: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        sign_in(monkeypatch, credentials)
        compute = Compute()
        golden = host("a", compute)
        assert equal(golden, compute.tensors())
        assert len(golden.warnings) == 1
        assert code in golden.warnings[0]
        assert credentials[1] not in warnings.text

    @pytest.mark.parametrize("fault", ["503", "500", "403", "hang", "reset", "cut", "drip"])
    def test_broken_server_costs_one_pause_and_one_warning(
        self, fault: str, host: Host, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch,
        warnings: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        compute = Compute()
        host("a", compute)
        quick = s3.S3Settings(connect_timeout_s=1, read_timeout_s=1, attempts=2, grace_s=1)
        monkeypatch.setattr(s3, "S3Settings", lambda: quick)
        proxy.rule = lambda *_: fault
        golden = host("b", compute)
        assert equal(golden, compute.tensors())
        assert (golden.source, compute.calls) == ("computed", 2)
        assert len(golden.warnings) == len(warnings.records) == 1
        asked = proxy.requests
        again = host("b", compute, {**CONFIG, "n": 1})
        assert proxy.requests == asked  # the breaker is open
        assert (again.source, again.warnings) == ("computed", ())
        assert host("b", compute).source == "disk"

    def test_bit_flipped_on_the_way_is_not_served(self, host: Host, proxy: FaultProxy) -> None:
        compute = Compute()
        host("a", compute)
        proxy.rule = lambda method, path, _: "flip" if method == "GET" and path.endswith(".safetensors") else None
        golden = host("b", compute)
        assert equal(golden, compute.tensors())
        assert golden.source == "computed"
        assert "digest" in golden.warnings[0]

    @pytest.mark.parametrize("part", [".safetensors", METADATA_NAME])
    def test_bit_flipped_in_one_download_costs_another_download(self, part: str, host: Host, proxy: FaultProxy) -> None:
        compute, seen = Compute(), []
        host("a", compute)

        def rule(method: str, path: str, _: int) -> str | None:
            if method == "GET" and path.endswith(part):
                seen.append(path)
                return "flip" if len(seen) == 1 else None
            return None

        proxy.rule = rule
        golden = host("b", compute)
        assert equal(golden, compute.tensors())
        assert (golden.source, golden.warnings, compute.calls) == ("s3", (), 1)

    def test_server_that_is_not_there(self, host: Host, proxy: FaultProxy) -> None:
        proxy.close()
        compute = Compute()
        golden = host("a", compute)
        assert equal(golden, compute.tensors())
        assert len(golden.warnings) == 1
        assert "EndpointConnectionError" in golden.warnings[0]

    def test_cache_directory_that_cannot_be_written(self, uri: str, host: Host) -> None:
        compute = Compute()
        host("a", compute)
        golden = get_or_compute_goldens(CONFIG, compute, cache_dir="/proc/no-cache-here", s3_uri=uri)
        assert equal(golden, compute.tensors())
        assert (golden.source, compute.calls) == ("s3", 1)

    def test_a_quarter_of_all_requests_broken(
        self, host: Host, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dice = random.Random(3)
        faults = ["503", "500", "reset", "lost", "flip", "cut"]
        proxy.rule = lambda *_: dice.choice(faults) if dice.random() < 0.25 else None
        from_s3 = 0
        for number in range(12):
            monkeypatch.setattr(s3, "_breakers", {})
            config, compute = {**CONFIG, "n": number}, Compute(seed=number)
            results = [host(name, compute, config) for name in ("a", "b", "c")]
            assert all(equal(golden, compute.tensors()) for golden in results)
            from_s3 += sum(golden.source == "s3" for golden in results)
        assert from_s3 >= 6  # faults are survived, not merely avoided


@pytest.mark.parametrize(
    "uri",
    [
        "http://bucket",
        "s3:/bucket",
        "s3://",
        "s3://UPPER/x",
        "s3://b",
        "bucket/prefix",
        "s3://bucket/../x",
        "s3://a b/",
    ],
)
def test_bad_uri(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="S3 URI"):
        s3.s3_tier(uri, pytest.fail)


def test_empty_means_off_and_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert s3.s3_tier(None, pytest.fail) is None
    monkeypatch.setenv("ASSAY_GOLDENS_S3_URI", "s3://team-bucket/goldens/")
    assert s3.s3_tier("", pytest.fail) is None
    tier = s3.s3_tier(None, pytest.fail)
    assert isinstance(tier, s3.S3Tier)
    assert (tier.bucket, tier.prefix) == ("team-bucket", "goldens")


def test_breaker_closes_again() -> None:
    breaker = s3.Breaker(0.05)
    breaker.trip()
    assert not breaker.closed
    time.sleep(0.06)
    assert breaker.closed
