"""Plans and simulations of runs, as tables, text and pictures for notebooks."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from . import _native
from ._settings import Settings, Target

if TYPE_CHECKING:
    import pandas

__all__ = ["Picture", "Plan", "Simulation", "plan", "simulate"]


def _frame(rows: list[dict[str, Any]], what: str) -> pandas.DataFrame:
    try:
        import pandas
    except ImportError as error:
        raise ImportError(f"{what} needs pandas, which is not installed: pip install pandas") from error
    return pandas.DataFrame(rows)


def _table(rows: list[dict[str, Any]]) -> str:
    """Rows as HTML, without pandas."""
    if not rows:
        return ""
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = []
    for row in rows:
        cells = (row.get(name) for name in names)
        text = ("" if cell is None else f"{cell:,.2f}" if isinstance(cell, float) else str(cell) for cell in cells)
        lines.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in text) + "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


class Picture:
    """An SVG picture, shown by notebooks."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.svg)

    def __repr__(self) -> str:
        return f"<foreread.Picture: {len(self.svg)} characters of SVG>"


class Plan(Mapping[str, Any]):
    """The caches and reads of one rank's run: a dict as printed by ``foreread plan --report json``.

    ``print(plan)`` prints the command's text.
    """

    def __init__(self, figures: dict[str, Any], text: str) -> None:
        self._figures = figures
        self._text = text

    def __getitem__(self, name: str) -> Any:
        return self._figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __str__(self) -> str:
        return self._text.rstrip("\n")

    def __repr__(self) -> str:
        plan = self._figures["plan"]
        return f"<foreread.Plan: {plan['origin_bytes']} bytes from storage, lower bound {plan['floor_origin_bytes']}>"

    @property
    def forecast(self) -> list[dict[str, Any]]:
        """Each epoch's time, bottleneck and reads. Empty if the speed of storage is unknown."""
        return list(self._figures.get("forecast", []))

    def to_pandas(self) -> pandas.DataFrame:
        """The forecast, one row per epoch."""
        return _frame(self.forecast, "to_pandas")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>{_table(self.forecast)}"


class Simulation(Sequence[dict[str, Any]]):
    """A comparison of policies on a scenario: a row (a dict) per policy. ``print(simulation)`` prints the command's table.

    Scenarios of several jobs, and of whole files, have reads in their rows and no plots.
    """

    def __init__(self, compared: _native.Compared) -> None:
        self._compared = compared
        #: The scenario: its name, workers, samples, sizes.
        self.scenario: dict[str, Any] = json.loads(compared.json())
        self.rows: list[dict[str, Any]] = self.scenario.pop("policies")

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return str(self._compared).rstrip("\n")

    def __repr__(self) -> str:
        return f"<foreread.Simulation of {self.scenario['scenario']}: {len(self)} policies>"

    def to_pandas(self) -> pandas.DataFrame:
        """The rows."""
        return _frame(self.rows, "to_pandas")

    def plot(self, kind: str = "seconds") -> Picture:
        """``"seconds"``: one bar per policy. ``"cache"``: seconds against cache size, with ten times more simulations."""
        if kind == "seconds":
            return Picture(self._compared.bars())
        if kind != "cache":
            raise ValueError(f"kind must be 'seconds' or 'cache', not {kind!r}")
        svg = self._compared.against_cache()
        if svg is None:
            raise ValueError("the scenario has no cache class to vary")
        return Picture(svg)

    def _repr_html_(self) -> str:
        return _table(self.rows)


def plan(target: Target, **settings: Unpack[Settings]) -> Plan:
    """Plans a run without reading any sample: target and settings are those of ``Loader``."""
    figures, text = _native.plan_of(target, **settings)
    return Plan(json.loads(figures), text)


def simulate(
    scenario: str | os.PathLike[str],
    policies: str | Sequence[str] | None = None,
    *,
    seeds: int = 1,
    plot: str | os.PathLike[str] | None = None,
) -> Simulation:
    """Simulates policies on the machines of a scenario, for several jobs with one cache, or for whole files.

    Args:
        scenario: the path of a scenario file, or its text (TOML).
        policies: one name or several (default: all).
        seeds: the number of runs to average.
        plot: the path of a bar chart to write, as SVG.
    """
    names = [policies] if isinstance(policies, str) else None if policies is None else list(policies)
    simulation = Simulation(_native.compare(scenario, policies=names, seeds=seeds))
    if plot is not None:
        simulation.plot().save(plot)
    return simulation
