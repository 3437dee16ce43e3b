"""Statistics, progress, logs and metrics."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import foreread
from conftest import content
from foreread import _stats

TOTAL = sum(len(content(number)) for number in range(100))


def report(seconds: float, stalled: float, reads: dict[str, int], **changes: Any) -> dict[str, Any]:
    """The report of a loader."""
    parallelism = {"now": 64, "lowest": 8, "highest": 64, "changes": 3, "why": "growing", "peak": 64}
    base = {
        "world_size": 1,
        "origin_requests": reads.get("origin", 0),
        "origin_bytes": 100 * reads.get("origin", 0),
        "floor_origin_bytes": 5000,
        "skipped": 0,
        "substituted": 0,
        "retried": 0,
        "adapted": {
            "origin_parallelism": parallelism,
            "look_ahead": {"allowed_bytes": 100, "now_bytes": 100, "lowest_bytes": 50},
        },
        "epochs": [
            {
                "seconds": seconds,
                "stall_seconds": stalled,
                "reads": {tier: {"samples": count} for tier, count in reads.items()},
            }
        ],
    }
    return base | changes


def test_stats_cover_the_time_since_the_last_call(directory: Path) -> None:
    with foreread.Loader(directory, batch_size=10, epochs=2, memory="1MiB") as loader:
        for _ in range(10):
            next(loader)
        first = loader.stats()
        assert isinstance(first, foreread.Stats)
        assert first.samples == 100 and first.hits["origin"] == 1.0 and first.samples_per_second > 0
        assert first.origin_bytes == first.floor_bytes == TOTAL and first.requests == 100
        for _ in range(10):
            next(loader)
        second = loader.stats()
        assert second.samples == 200 and second.hits["memory"] == 1.0 and second.origin_bytes == TOTAL
        third = loader.stats()
        assert third.samples_per_second == 0.0 and third.limiting == "nothing"
        assert "200 samples, none since the last stats(); the whole run: " in str(third) and "limited" not in str(third)
        line = str(second)
        assert "200 samples" in line and "memory 100%" in line and "\n" not in line
        with pytest.raises(AttributeError):
            second.samples = 3  # type: ignore[misc]


def texts(svg: str) -> list[str]:
    """The texts of a picture, which must be valid XML without undefined numbers."""
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg")
    values = [value for element in root.iter() for value in element.attrib.values()]
    assert not any("NaN" in value or "inf" in value for value in values)
    return [(element.text or "").strip() for element in root.iter() if element.tag.endswith("text")]


def test_plot_shows_the_run_and_outlives_it(directory: Path, tmp_path: Path) -> None:
    with foreread.Loader(directory, batch_size=10, epochs=2, memory="1MiB") as loader:
        assert "seconds" in texts(loader.plot().svg)
        for _ in loader:
            pass
        picture = loader.plot(tmp_path / "run.svg")
    assert isinstance(picture, foreread.Picture)
    shown = texts(picture._repr_svg_())
    assert "100 samples, 3.8 KiB" in shown and any(text.startswith("storage ") for text in shown)
    assert any(text.startswith("memory ") for text in shown)
    # A long name is cut at its beginning.
    assert str(directory)[-40:] in " ".join(shown)
    assert (tmp_path / "run.svg").read_text() == picture.svg
    assert texts(loader.plot().svg) == shown
    with pytest.raises(OSError, match="nowhere"):
        loader.plot("/nowhere/at/all.svg")


def test_plot_of_a_torch_loader(directory: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("foreread.torch")
    with torch.DataLoader(directory, batch_size=10, decode="bytes", collate_fn=len, epochs=1, memory="1MiB") as loader:
        assert list(loader) == [10] * 10
        picture = loader.plot(str(tmp_path / "run.svg"))
    assert "epoch 0" in texts(picture.svg) and (tmp_path / "run.svg").read_text() == picture.svg


@pytest.mark.parametrize(
    ("changes", "reads", "expected"),
    [
        ({"seconds": 10.0, "stalled": 0.1}, {"origin": 50}, "trainer"),
        ({"seconds": 10.0, "stalled": 5.0}, {"origin": 50, "memory": 500}, "origin"),
        ({"seconds": 10.0, "stalled": 5.0}, {"origin": 5, "disk": 50}, "disk"),
        ({"seconds": 10.0, "stalled": 5.0}, {"memory": 50}, "memory"),
        ({"seconds": 10.0, "stalled": 5.0}, {}, "origin"),
    ],
)
def test_bottleneck_is_named(changes: dict[str, float], reads: dict[str, int], expected: str) -> None:
    assert _stats.build(report(changes["seconds"], changes["stalled"], reads), None).limiting == expected


def test_cache_of_a_node_is_no_agent() -> None:
    def read(samples: int, origin_bytes: int) -> dict[str, Any]:
        made = report(10.0, 5.0, {"agent": samples}, origin_bytes=origin_bytes)
        made["epochs"][0]["reads"]["agent"]["bytes"] = 10 * samples
        return made | {"agent": {"shared_by": 2, "direct_samples": 3}}

    cold, warm = read(100, 1000), read(400, 1000)
    first, second, both = _stats.build(cold, None), _stats.build(warm, cold | {"epochs": []}), _stats.build(warm, None)
    assert first.hits["origin"] == 1.0 and first.limiting == "origin" and "agent" not in str(first)
    assert second.hits["node cache"] == 1.0 and second.limiting == "node cache" and "agent" not in str(second)
    assert both.hits["origin"] == 0.25 and both.direct["node cache"] == 3
    assert "samples read directly: 3 node cache" in str(both)
    agent = warm | {"agent": {"direct_samples": 2}, "peers": {"late": 4, "lost": 0}}
    assert _stats.build(agent, None).limiting == "agent"
    assert _stats.build(agent, None).direct == {"late peers": 4, "lost peers": 0, "agent": 2}


def test_every_bottleneck_has_a_remedy_and_a_row() -> None:
    rows = (Path(__file__).parents[3] / "docs" / "pytorch.md").read_text()
    for name in _stats._REMEDY:
        assert f"| `{name}` |" in rows, name


def test_throttling_store_and_a_short_look_ahead_are_named() -> None:
    throttled = report(10, 5, {"origin": 50})
    throttled["adapted"]["origin_parallelism"]["why"] = "throttled"
    assert _stats.build(throttled, None).limiting == "origin: throttled"
    short = report(10, 5, {"origin": 50})
    short["adapted"]["origin_parallelism"]["peak"] = 20
    assert _stats.build(short, None).limiting == "look-ahead"


def test_starvation_warning_names_bottleneck_and_remedy(caplog: pytest.LogCaptureFixture) -> None:
    before = report(100, 0, {"memory": 900})
    starving = report(110, 5, {"memory": 900, "origin": 100})
    assert _stats.starved(starving, before, 0.2)
    (record,) = caplog.records
    assert record.name == "foreread" and record.levelno == logging.WARNING
    line = record.getMessage()
    assert "waited 50 %" in line and "limited by origin" in line and "memory=" in line and "origin 100%" in line
    assert not _stats.starved(report(110, 1, {"origin": 100}), before, 0.2)
    # Workers wait while the trainer does not, and the reverse, with the measured wait.
    assert not _stats.starved(starving, before, 0.2, 0.06)
    caplog.clear()
    assert _stats.starved(starving, before, 0.2, 0.34) and "has waited 34 %" in caplog.text
    assert len(caplog.records) == 1


def test_starvation_warning_knows_if_all_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    def line(**changes: Any) -> str:
        caplog.clear()
        assert _stats.starved(report(10, 5, {"origin": 100}, dataset_bytes=5000, **changes), None, 0.2)
        return caplog.records[0].getMessage()

    assert "later epochs come from the caches" in line(planned_origin_bytes=5000)
    assert "would cache more" in line(planned_origin_bytes=9000)
    # A rank alone among several may have read a part of the samples only.
    assert "would cache more" in line(planned_origin_bytes=5000, world_size=2)
    assert "later epochs" in line(planned_origin_bytes=5000, world_size=2, peers={})


def test_lower_bound_of_several_ranks_is_called_so() -> None:
    assert "(lower bound 0.0 MB)" in str(_stats.build(report(10, 5, {"origin": 50}), None))
    several = report(10, 5, {"origin": 50}, world_size=4)
    assert "(lower bound of all ranks 0.0 MB)" in str(_stats.build(several, None))


def test_starving_run_warns_once_per_minute(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    # Two dozen bytes at 40 bytes/s: the trainer always waits.
    with foreread.Loader(directory, batch_size=1, origin_limit=TOTAL // 24, look_ahead=1, epochs=1) as loader:
        for _ in loader:
            if caplog.records:
                break
        else:
            pytest.fail("the run ended before anything was printed")
    (record,) = caplog.records
    assert "the trainer has waited" in record.getMessage() and "limited by origin" in record.getMessage()


def test_log_lines_of_the_library_reach_logging(directory: Path) -> None:
    script = """
        import logging, sys, foreread
        logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(name)s %(message)s", level=sys.argv[2])
        if sys.argv[3]:
            foreread.set_log_level(int(sys.argv[3]))
        with foreread.Loader(sys.argv[1], epochs=1) as loader:
            list(loader)
    """

    def lines(level: str, library_level: str = "") -> list[str]:
        command = [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(script)]
        ran = subprocess.run(
            [*command, str(directory), level, library_level], capture_output=True, text=True, check=True, timeout=120
        )
        assert ran.stderr == ""
        return ran.stdout.splitlines()

    assert any(line.startswith("INFO foreread.loader starting") for line in lines("INFO"))
    assert all(line.startswith("INFO foreread") for line in lines("INFO"))
    assert lines("WARNING") == []
    assert lines("INFO", "30") == []


def test_progress_is_a_bar_or_lines(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tqdm")
    with foreread.Loader(directory, epochs=2, progress=True) as loader:
        assert sum(len(batch) for batch in loader) == 200
    shown = capsys.readouterr().err
    assert "epoch 0: 100%" in shown and "epoch 1: 100%" in shown and "100/100" in shown
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with foreread.Loader(directory, epochs=2, progress=True) as loader:
        list(loader)
    shown = capsys.readouterr().err
    assert "epoch 0: 100 of about 100 samples" in shown and "epoch 1: 100" in shown


def test_metrics_are_rendered_and_served(directory: Path) -> None:
    port = foreread.metrics.serve(0)
    with foreread.Loader(directory, epochs=1) as loader:
        list(loader)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    assert text.startswith("# TYPE") and 'foreread_delivered_samples_total{source="origin"} 100' in text
    assert 'foreread_delivered_samples_total{source="origin"} 100' in foreread.metrics.render()
    with pytest.raises(urllib.error.HTTPError, match="404") as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/other", timeout=60)
    refused.value.close()
