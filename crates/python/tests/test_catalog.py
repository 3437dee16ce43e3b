"""Catalogs, plans and simulations."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import bucket
import pytest

import foreread
from conftest import content

SCENARIO = """
name = "small"
seed = 1
[cluster]
workers = 2
compute = 100
preprocess = 200
network = 10000
pfs_client = 2000
[[storage]]
capacity = 16
threads = 2
read = { 2 = 21164 }
[[storage]]
capacity = 4
threads = 2
read = { 2 = 21164 }
[pfs]
read = { 1 = 66, 2 = 86, 3 = 129, 4 = 146 }
[dataset]
samples = 400
mean = 0.027
sd = 0.01
[training]
batch = 20
epochs = 3
drop_last = true
staging = "honest"
"""


def test_index_lists_all_samples(directory: Path) -> None:
    calls: list[tuple[int, int]] = []
    catalog = foreread.index(directory, exclude="**/09?.bin", progress=lambda samples, size: calls.append((samples, size)))
    assert len(catalog) == 90 and catalog.total_bytes == sum(len(content(n)) for n in range(90))
    assert calls[-1] == (90, catalog.total_bytes)
    assert catalog.path(30) == catalog.path(-60) == "class1/030.bin"
    assert catalog.size(30) == len(content(30))
    assert catalog.label(30) == 1 and catalog.classes == ["class0", "class1", "class2", "class3"]
    assert catalog.base_url.endswith("data") and catalog.format == "files"
    for index in (90, -91):
        with pytest.raises(IndexError, match=str(index)):
            catalog.path(index)


# semantics: SAMPLE-4
def test_classes_of_files_in_a_bucket_without_listing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(handler: bucket._Handler, query: dict[str, str]) -> None:
        handler._answer(403, b"<Error><Code>AccessDenied</Code></Error>")

    files = ["s3://my-bucket/train/class1/030.bin", "s3://my-bucket/train/class0/001.bin"]
    with bucket.bucket("my-bucket", "train", directory) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(bucket._Handler, "_list", denied)
        remedy = r"by foreread\.index\(\) with classes=, .*, or with classes=\[\] for samples without labels"
        for use in (foreread.index, foreread.Loader):
            with pytest.raises(foreread.Error, match=remedy):
                use(files)
        for classes, labels in ((["class0", "class1"], [1, 0]), ([], [None, None])):
            catalog = foreread.index(files, classes=classes)
            with foreread.Loader(catalog, batch_size=2, epochs=1, sampler="sequential") as loader:
                assert next(loader).labels == labels


# semantics: SAMPLE-4
def test_class_keeps_its_number_in_every_part(directory: Path) -> None:
    part = foreread.index(directory, include=["class1/*", "class3/07?.bin"])
    assert part.classes == ["class0", "class1", "class2", "class3"]
    assert {part.label(number) for number in range(len(part))} == {1, 3}
    files = foreread.index([directory / "class3" / "075.bin", directory / "class1" / "030.bin"])
    assert [files.label(0), files.label(1)] == [3, 1]
    named = foreread.index(directory / "class1" / "030.bin", classes=["class1", "other"])
    assert named.label(0) == 0 and named.classes == ["class1", "other"]
    assert foreread.index(directory, classes=[]).label(0) is None
    with pytest.raises(foreread.Error, match="lacks 3 of the labels: class1, class2, class3"):
        foreread.index(directory, classes=["class0"])
    with pytest.raises(TypeError, match="classes"):
        foreread.index(directory, classes="class0")


# semantics: SAMPLE-24
def test_names_that_match_nothing_are_counted(directory: Path) -> None:
    with pytest.raises(foreread.Error, match="2 of 3 names in `include` match nothing: no/1, no/2"):
        foreread.index(directory, include=["class0/000.bin", "no/1", "no/2"])


# semantics: SAMPLE-3, SAMPLE-4
def test_orders_that_are_not_by_name_are_kept(directory: Path, tmp_path: Path) -> None:
    names = ["class2", "class0", "class3", "class1"]
    foreread.index(directory, classes=names).save(tmp_path / "c.foreread")
    catalog = foreread.Catalog.open(tmp_path / "c.foreread")
    assert catalog.classes == names
    assert [catalog.label(number) for number in (0, 25, 50, 75)] == [1, 3, 0, 2]
    files = [directory / "class2" / "050.bin", directory / "class0" / "001.bin"]
    with foreread.Source(files) as source:
        assert [source.find(path) for path in ("class2/050.bin", "class0/001.bin", "class0/000.bin")] == [0, 1, None]


# semantics: SAMPLE-4
def test_file_above_the_classes_does_not_number_them(directory: Path) -> None:
    (directory / "top.bin").write_bytes(b"x")
    files = [directory / "top.bin", directory / "class0" / "000.bin", directory / "class1" / "025.bin"]
    catalog = foreread.index(files)
    assert [catalog.label(number) for number in range(3)] == [None, 0, 1]


@pytest.mark.parametrize("name", ["c.arrow", "c.feather", "c.foreread", "c"])
# semantics: SAMPLE-19
def test_catalog_is_known_by_its_content(directory: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    foreread.index(directory).save(path)
    with foreread.Loader(path, batch_size=50, epochs=1) as loader:
        assert loader.samples == 100
    with pytest.raises(foreread.Error, match="catalog"):
        foreread.index(path)
    data = path.read_bytes()
    for damaged in (data[:-1], data[: len(data) // 2], data[:-500] + b"\0" * 500, b"\0" * 8 + data[8:]):
        path.write_bytes(damaged)
        with pytest.raises(foreread.errors.CorruptError):
            foreread.Loader(path, batch_size=50, epochs=1)


def test_catalog_is_saved_pickled_and_loaded(directory: Path, tmp_path: Path) -> None:
    catalog = foreread.index(directory, include=["class1/*", "class2/*"])
    catalog.save(tmp_path / "some.foreread")
    for again in (
        foreread.Catalog.open(tmp_path / "some.foreread"),
        foreread.Catalog.from_bytes(catalog.to_bytes()),
        pickle.loads(pickle.dumps(catalog)),
        copy.copy(catalog),
    ):
        assert again.fingerprint == catalog.fingerprint
        with foreread.Loader(again, epochs=1) as loader:
            assert loader.fingerprint == catalog.fingerprint
            assert sorted(sample.path for batch in loader for sample in batch) == [
                catalog.path(n) for n in range(50)
            ]


def test_catalog_is_a_table(directory: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    catalog = foreread.index(directory)
    table = catalog.to_arrow()
    assert isinstance(table, pyarrow.Table) and table.num_rows == 100
    frame = catalog.to_pandas()
    assert list(frame["path"])[:2] == ["class0/000.bin", "class0/001.bin"]
    assert list(frame["length"]) == [catalog.size(n) for n in range(100)]


def test_missing_package_is_named_with_its_remedy(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ImportError, match="pip install pyarrow"):
        foreread.index(directory).to_arrow()


def test_plan_equals_the_commands(directory: Path) -> None:
    plan = foreread.plan(directory, epochs=3, memory="1MiB", origin_limit="1MB/s", batch_size=10)
    total = sum(len(content(n)) for n in range(100))
    assert plan["floor_origin_bytes"] == total == plan["plan"]["origin_bytes"]
    assert [epoch["epoch"] for epoch in plan.forecast] == [0, 1, 2] and len(plan) == len(dict(plan))
    assert str(plan).startswith("rank 0 of 1, 3 epochs\ntrain        100 samples")
    assert "100 samples" in plan._repr_html_() and "<table>" in plan._repr_html_()


def test_forecast_is_a_table(directory: Path) -> None:
    pytest.importorskip("pandas")
    frame = foreread.plan(directory, epochs=3, memory="1MiB", origin_limit="1MB/s").to_pandas()
    assert list(frame["epoch"]) == [0, 1, 2] and (frame["seconds"] > 0).any()


def test_simulation_has_rows_tables_and_plots(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    simulation = foreread.simulate(path, policies=["naive", "foreread"], seeds=2, plot=tmp_path / "bars.svg")
    assert [row["policy"] for row in simulation] == ["naive", "foreread"] and len(simulation) == 2
    assert simulation.scenario["scenario"] == "small"
    assert "naive" in str(simulation) and "foreread" in simulation._repr_html_()
    assert (tmp_path / "bars.svg").read_text() == simulation.plot()._repr_svg_()
    assert simulation.plot("cache").svg.startswith("<svg")
    assert len(foreread.simulate(SCENARIO)) > 8
    assert foreread.simulate(SCENARIO, "naive").rows[0]["policy"] == "naive"


def test_simulation_of_several_jobs_has_rows_and_no_plots() -> None:
    jobs = "[several-jobs]\nsamples = 2000\ncache = 0.2\npaces = [1, 1, 1, 1]\nepochs = 2"
    simulation = foreread.simulate(jobs, ["next-use", "never-evict"])
    assert [row["policy"] for row in simulation] == ["next-use", "never-evict"]
    assert simulation[0]["origin_reads"] < 0.52 and simulation[1]["origin_reads"] == pytest.approx(0.8)
    assert simulation.scenario["jobs"] == 4 and "next-use" in str(simulation)
    with pytest.raises(foreread.errors.ConfigError, match="several jobs"):
        simulation.plot()


def test_simulation_of_whole_files_has_rows_and_no_plots() -> None:
    files = "[files]\nfiles = 5000\nmean = 0.1\ncache = 0.5\nepochs = 3\nseconds = 60"
    simulation = foreread.simulate(files, ["copies-ahead", "never-evict"])
    assert [row["policy"] for row in simulation] == ["copies-ahead", "never-evict"]
    assert simulation[0]["served"] > 0.83 and simulation[1]["served"] == 0.5
    with pytest.raises(foreread.errors.ConfigError, match="whole files"):
        simulation.plot()


def test_mistakes_are_named(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(foreread.errors.ConfigError, match="(?i)nosuch"):
        foreread.simulate(SCENARIO, "nosuch")
    with pytest.raises(foreread.errors.ConfigError, match="small.toml"):
        (tmp_path / "small.toml").write_text("name = 3")
        foreread.simulate(tmp_path / "small.toml")
    with pytest.raises(foreread.errors.NotFoundError, match="nowhere"):
        foreread.simulate(tmp_path / "nowhere.toml")
    with pytest.raises(foreread.errors.NotFoundError, match="nowhere"):
        foreread.index(tmp_path / "nowhere")
    with pytest.raises(foreread.errors.NotFoundError, match="no samples"):
        foreread.index(directory, include="*.jpg")
    with pytest.raises(foreread.errors.ConfigError):
        foreread.index(directory, include="[")
    with pytest.raises(TypeError, match="include"):
        foreread.index(directory, include=3)  # type: ignore[arg-type]
    with pytest.raises(foreread.errors.CorruptError, match="some.foreread"):
        (tmp_path / "some.foreread").write_bytes(b"no catalog")
        foreread.Catalog.open(tmp_path / "some.foreread")
    with pytest.raises(foreread.errors.NotFoundError, match="none.foreread"):
        foreread.Catalog.open(tmp_path / "none.foreread")
    with pytest.raises(foreread.errors.ConfigError, match="batch_size 0"):
        foreread.plan(directory, batch_size=0)


def test_progress_functions_exception_ends_the_index(directory: Path) -> None:
    def refuse(samples: int, size: int) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        foreread.index(directory, progress=refuse)


def test_plan_is_also_json(directory: Path) -> None:
    assert json.loads(json.dumps(dict(foreread.plan(directory))))["rank"] == 0


def test_plan_uses_a_measured_calibration(directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "speeds.toml"
    measured = foreread.calibrate(directory, disks=[tmp_path], seconds=1, output=file)
    assert measured["origin"]["read"] and measured["disk"]
    assert foreread.plan(directory, epochs=2, calibration=file).forecast
    with pytest.raises(foreread.errors.ConfigError, match="nothing to measure"):
        foreread.calibrate()
    with pytest.raises(foreread.errors.ConfigError, match="seconds"):
        foreread.calibrate(directory, seconds=0)


def test_loader_has_its_plan_and_catalog(directory: Path) -> None:
    with foreread.Loader(directory, epochs=2, memory="1MiB") as loader:
        assert loader.catalog.fingerprint == loader.fingerprint == foreread.index(directory).fingerprint
        plan = loader.plan
        assert plan["levels"][0]["name"] == "memory" and plan["levels"][0]["samples"] == 100
        assert plan["origin_bytes"] == plan["floor_origin_bytes"] == loader.catalog.total_bytes
        assert plan["together"] is False
