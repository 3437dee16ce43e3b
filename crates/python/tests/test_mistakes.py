"""Mistakes of users as Python exceptions."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import foreread


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"batch_size": "8"}, "batch_size must be an integer, not str"),
        ({"batch_size": True}, "batch_size"),
        ({"batch_size": 8.0}, "batch_size"),
        ({"seed": None, "epochs": [1]}, "epochs"),
        ({"memory": 1.5}, "memory"),
        ({"disk": 3}, "disk"),
        ({"disk": {"/x": 1.5}}, "disk"),
        ({"drop_last": 1}, "drop_last"),
        ({"recall": "yes"}, "recall must be True or False"),
        ({"sampler": 3}, "sampler"),
        ({"validate": 3}, "validate"),
        ({"resume": 3}, "resume"),
        ({"peers": 3}, "peers"),
        ({"format": 3}, "format"),
        ({"progress": "yes"}, "progress"),
        ({"batchsize": 3}, "unexpected keyword argument 'batchsize'. Did you mean 'batch_size'"),
        ({"lookahead": 3}, "Did you mean 'look_ahead'"),
        ({"xyz": 3}, "unexpected keyword argument 'xyz'$"),
    ],
)
def test_wrong_types_are_type_errors_that_name_the_argument(
    directory: Path, settings: dict[str, Any], named: str
) -> None:
    for function in (foreread.Loader, foreread.plan):
        with pytest.raises(TypeError, match=named):
            function(directory, **settings)


@pytest.mark.parametrize("target", [3, None, b"\xff".join, [3], [None], {"a": 1}])
def test_target_of_the_wrong_type_is_a_type_error(target: Any) -> None:
    with pytest.raises(TypeError, match="target"):
        foreread.Loader(target)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"batch_size": 0}, r"batch_size 0 \(argument\): must be at least 1"),
        ({"batch_size": -1}, "batch_size -1"),
        ({"seed": 1 << 64}, "seed"),
        ({"epochs": 10**7}, "epochs"),
        ({"memory": "much"}, "memory much"),
        ({"patience": "1h"}, r"patience 1h \(argument\): expected auto or SECONDS, e.g. 3600"),
        ({"disk": "$TMPDIR=1GB"}, "variables are not replaced here"),
        ({"look_ahead": "1 parsec"}, "look_ahead"),
        ({"disk": "/tmp/x"}, "disk"),
        ({"disk": {"/tmp/x": 0}}, "disk"),
        ({"sampler": "dice"}, "sampler dice"),
        ({"deal": "fair"}, "deal fair"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"rank": 0, "world_size": 0}, "world_size"),
        ({"on_error": "cry"}, "on_error"),
        ({"format": "rar"}, "format"),
        ({"peers": "on"}, "peers"),
        ({"origin_limit": 0}, "origin_limit"),
    ],
)
def test_invalid_settings_are_value_errors(directory: Path, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(foreread.errors.ConfigError, match=named) as raised:
        foreread.Loader(directory, **settings)
    assert isinstance(raised.value, ValueError) and isinstance(raised.value, foreread.Error)


def test_missing_target_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere") as raised:
        foreread.Loader(tmp_path / "nowhere")
    assert isinstance(raised.value, foreread.errors.NotFoundError)
    with pytest.raises(foreread.errors.NotFoundError, match="no samples"):
        foreread.Loader(tmp_path)
    with pytest.raises(foreread.errors.ConfigError, match="target"):
        foreread.Loader("")
    with pytest.raises(foreread.errors.ConfigError, match="nosuch"):
        foreread.Loader("nosuch://bucket/x")


def test_file_without_a_dataset_is_corrupt(tmp_path: Path) -> None:
    file = tmp_path / "notes.md"
    file.write_text("no catalog")
    with pytest.raises(foreread.errors.CorruptError, match=r"notes\.md is neither .*, or set format= if it is a shard"):
        foreread.Loader(file)


@pytest.mark.parametrize("name", ["train.csv", "train.txt", "train.jsonl", "coco.json"])
def test_table_is_not_taken_for_a_dataset(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("a/1.jpg,0\n")
    for make in (foreread.Loader, foreread.index):
        with pytest.raises(foreread.errors.ConfigError, match=f"{name} is a table .* by an index with table="):
            make(tmp_path / name)
    assert len(foreread.index(tmp_path / name, format="files")) == 1


def test_missing_file_is_no_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(foreread.errors.NotFoundError, match=r"train\.foreread.*there is no such file or directory"):
        foreread.Loader(tmp_path / "train.foreread")


def test_remedy_names_the_format_of_the_stray_shard(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    (directory / "stray.parquet").write_bytes(b"PAR1")
    foreread.index(directory)
    assert "1 of 101 objects are shards (stray.parquet)" in caplog.text
    assert "include='**/*.parquet', or leave them out with exclude='**/*.parquet'" in caplog.text


@pytest.mark.parametrize("settings", [{"memory": 8}, {"memory": "8"}, {"disk": {"/nowhere": 64}}, {"memory_alone": 8}])
def test_size_without_its_unit_is_refused(directory: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(foreread.errors.ConfigError, match="so few bytes hold no sample; write the unit, e.g. 8GiB"):
        foreread.Loader(directory, **settings)


def test_remedies_are_arguments_of_python(directory: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"a": [b"1"], "b": [b"2"]}), tmp_path / "x.parquet")
    with pytest.raises(foreread.errors.ConfigError, match="choose one with field=: a, b"):
        foreread.index(tmp_path / "x.parquet")
    assert "set origin_limit=)" in str(foreread.plan(directory, epochs=2))


def test_invalid_environment_setting_names_the_variable(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREREAD_BATCH_SIZE", "many")
    with pytest.raises(foreread.errors.ConfigError, match=r"batch_size many \(environment FOREREAD_BATCH_SIZE\)"):
        foreread.Loader(directory)
    monkeypatch.setenv("FOREREAD_BATCH_SIZE", "7")
    monkeypatch.setenv("FOREREAD_FORMAT", "json")
    with pytest.raises(foreread.errors.ConfigError, match=r"format json \(environment FOREREAD_FORMAT\): expected auto, files"):
        foreread.Loader(directory)
    monkeypatch.setenv("FOREREAD_FORMAT", "auto")
    with foreread.Loader(directory) as loader:
        assert len(next(loader)) == 7
    with foreread.Loader(directory, batch_size=9) as loader:
        assert len(next(loader)) == 9


def test_settings_file_is_the_commands(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreread.toml").write_text("batch-size = 6\nreport = 'json'\n")
    with foreread.Loader(directory) as loader:
        assert len(next(loader)) == 6
    (tmp_path / "foreread.toml").write_text("batchsize = 6\n")
    with pytest.raises(foreread.errors.ConfigError, match="foreread.toml: unknown setting 'batchsize'"):
        foreread.Loader(directory)
    (tmp_path / "foreread.toml").write_text("epoch = 6\n")
    with pytest.raises(foreread.errors.ConfigError, match="foreread.toml: epoch can be set by an argument only"):
        foreread.Loader(directory)


def test_settings_file_and_calibration_are_logged(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreread.toml").write_text("batch-size = 6\n")
    (tmp_path / "foreread-calibration.toml").write_text("version = 1\nmade = 0\n")
    with caplog.at_level("INFO", logger="foreread"):
        with foreread.Loader(directory, look_ahead="auto", origin_parallelism="auto", peers="auto") as loader:
            next(loader)
    assert "settings from foreread.toml: batch-size" in caplog.text
    assert "foreread-calibration.toml was found" in caplog.text


def test_launchers_environment_sets_the_rank(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with foreread.Loader(directory, epochs=1, peers="off") as loader:
        assert (loader.rank, loader.world_size) == (1, 3)
        assert sum(len(batch) for batch in loader) == 34
    with foreread.Loader(directory, rank=0, world_size=2, epochs=1, peers="off") as loader:
        assert (loader.rank, loader.world_size) == (0, 2)


def test_state_of_another_run_is_refused(directory: Path) -> None:
    with foreread.Loader(directory, batch_size=10, seed=1, epochs=2) as loader:
        seen = [next(loader).ids for _ in range(3)]
        state = loader.state()
        rest = [batch.ids for batch in loader]
    with foreread.Loader(directory, batch_size=10, seed=1, epochs=2, resume=state) as loader:
        assert [batch.ids for batch in loader] == rest
    assert len(seen) + len(rest) == 20
    with pytest.raises(foreread.errors.StateError, match="seed"):
        foreread.Loader(directory, seed=2, resume=state)
    with pytest.raises(foreread.errors.StateError, match="not a valid state"):
        foreread.Loader(directory, resume="{}")


def test_deleted_sample_is_named(directory: Path) -> None:
    catalog = foreread.index(directory)
    (directory / "class1" / "030.bin").unlink()
    with foreread.Loader(catalog, epochs=1, sampler="sequential", batch_size=10) as loader:
        with pytest.raises(foreread.errors.NotFoundError, match="030.bin") as raised:
            list(loader)
        assert raised.value.sample_id == 30
    with foreread.Loader(catalog, epochs=1, on_error="skip") as loader:
        assert sum(len(batch) for batch in loader) == 99
        assert loader.stats().skipped == 1


def test_changed_sample_is_named(directory: Path) -> None:
    catalog = foreread.index(directory)
    (directory / "class1" / "030.bin").write_bytes(b"other")
    with foreread.Loader(catalog, epochs=1) as loader, pytest.raises(foreread.errors.ChangedError, match="030.bin"):
        list(loader)


class _Refusing(BaseHTTPRequestHandler):
    """A store that answers every request with the status in the bucket's name."""

    def do_GET(self) -> None:
        code = int(self.path.split("/")[1].split("?")[0].removeprefix("bucket"))
        name = {404: "NoSuchBucket", 403: "AccessDenied"}[code]
        body = f"<?xml version='1.0'?><Error><Code>{name}</Code><Message>no</Message></Error>".encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store over S3's protocol that refuses everything."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_address[1]}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        yield "s3"
        server.shutdown()
        thread.join()


def test_missing_bucket_is_named(store: str) -> None:
    with pytest.raises(foreread.errors.NotFoundError, match="bucket404"):
        foreread.Loader(f"{store}://bucket404/train")


def test_forbidden_bucket_is_named(store: str) -> None:
    with pytest.raises(foreread.errors.DeniedError, match="bucket403") as raised:
        foreread.Loader(f"{store}://bucket403/train")
    assert isinstance(raised.value, PermissionError)


def test_failed_rendezvous_reports_the_cause(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("FOREREAD_MEET", f"127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setenv("FOREREAD_TOKEN", "b7e1c95a03f64d2893ab5c17e0d68f42")
        with pytest.raises(foreread.errors.MeetingError, match=os.strerror(errno.EADDRINUSE)):
            foreread.Loader(directory, rank=0, world_size=2)


def test_closed_loader_raises_closed_error(directory: Path) -> None:
    loader = foreread.Loader(directory, epochs=1)
    list(loader)
    loader.close()
    loader.close()
    assert loader.closed and loader.report()["epochs"][0]["samples"] == 100 and loader.stats().samples == 100
    for use in (lambda: next(loader), loader.state, loader.step_done, loader.leave):
        with pytest.raises(foreread.errors.ClosedError, match="closed"):
            use()
