"""What the user documents say: length of sentences, links, quoted errors, figures, spelling."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import prose
from prose import DOCUMENTS, ROOT

#: All documents whose links are checked.
LINKING = [*DOCUMENTS, *(path for path in ROOT.glob("*.md") if path not in DOCUMENTS), ROOT / "benches" / "README.md"]

#: The sources with messages for users.
SOURCES = ["crates/*/src", "backends/*/src", "crates/python/python"]

#: The shortest part of a quoted text that is looked for.
SHORTEST = 8


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_sentences_are_short(document: Path) -> None:
    found = prose.sentences(document.read_text())
    long = [" ".join(words) for words in found if len(words) > prose.LONGEST]
    assert not long
    assert sum(map(len, found)) / len(found) <= prose.MEAN


def test_long_sentence_is_found() -> None:
    words = " ".join(["word"] * 26)
    for text in [f"Short. {words}.", f"* {words}", f"a b c | {words}", f"[{words}](x)", f"{words}\n\nShort."]:
        assert max(map(len, prose.sentences(text))) >= 26, text
    for text in [f"```text\n{words}\n```", f"`{words}`", f"<!-- {words} -->", "A short one. " * 26]:
        assert max(map(len, prose.sentences(text)), default=0) < 26, text


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= prose.README_WORDS


def test_glossary_has_one_short_sentence_per_word() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)[2:]
    assert len(rows) > 10
    for word, meaning in rows:
        assert len(meaning.split()) <= 20 and re.fullmatch(r"[^.]+\.", meaning), word
    words = [word for word, _ in rows]
    assert len(set(words)) == len(words)


# ---- links ----


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(document: Path) -> Iterator[str]:
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "code", text)
    yield from re.findall(r"\]\(([^)\s]+)\)", text)


@pytest.mark.parametrize("document", LINKING, ids=name)
def test_links_lead_somewhere(document: Path) -> None:
    for link in links(document):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = document if not file else (document.parent / file).resolve()
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_guide_is_linked_from_the_readme() -> None:
    linked = {link.partition("#")[0] for link in links(ROOT / "README.md")}
    assert {name(document) for document in DOCUMENTS if document.name != "README.md"} <= linked


# ---- errors ----


def messages() -> str:
    """The sources, with texts that are written in several parts joined."""
    files = [path for pattern in SOURCES for root in ROOT.glob(pattern) for path in root.rglob("*.*")]
    text = "\n".join(path.read_text() for path in files if path.suffix in {".rs", ".py"})
    text = re.sub(r"\\\n\s*", "", text)
    return re.sub(r"[\"']\n\s*f?[\"']", "", text).replace('\\"', '"')


def test_quoted_errors_exist() -> None:
    known = messages()
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    quotes = re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)
    assert len(quotes) > 80
    missing = []
    for quote in quotes:
        parts = [part.strip(" ;:,") for part in quote.split("...")]
        parts = [part for part in parts if len(part) >= SHORTEST]
        if not parts or not all(part in known for part in parts):
            missing.append(quote)
    assert not missing


# ---- features of the crate ----

CRATE = ROOT / "crates" / "foreread"

#: Where features are described.
FEATURES = [ROOT / "docs" / "rust.md", CRATE / "src" / "lib.rs"]


def features() -> dict[str, list[str]]:
    """The features of the crate, and those that each brings in."""
    known: dict[str, list[str]] = tomllib.loads((CRATE / "Cargo.toml").read_text())["features"]
    return {name: parts for name, parts in known.items() if name != "default"}


@pytest.mark.parametrize("document", FEATURES, ids=name)
def test_table_of_features_is_that_of_the_crate(document: Path) -> None:
    rows = re.findall(r"^(?://! )?\| (`[^|]+`) \| ([^|]+) \|$", document.read_text(), re.MULTILINE)
    described = {feature: meaning for names, meaning in rows for feature in re.findall(r"`([^`]+)`", names)}
    known = features()
    assert sorted(described) == sorted(known)
    profiles = {feature: parts for feature, parts in known.items() if all(part in known for part in parts)}
    assert {"cloud", "hpc"} <= set(profiles)
    for feature, parts in profiles.items():
        assert described[feature] == " and ".join(f"`{part}`" for part in parts)


def test_dependency_of_the_guide_exists() -> None:
    (code,) = re.findall(r"^```toml\n(.*?)^```$", (ROOT / "docs" / "rust.md").read_text(), re.MULTILINE | re.DOTALL)
    dependency = tomllib.loads(code)["dependencies"]["foreread"]
    version: str = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert version.startswith(f"{dependency['version']}.") and set(dependency["features"]) <= set(features())


def test_named_features_exist() -> None:
    texts = [path.read_text() for path in [*DOCUMENTS, *(CRATE / "src").rglob("*.rs")]]
    # A comment may be wrapped between the words.
    found = {one for text in texts for one in re.findall(r"[Ff]eatures?\s+(?:///?/? |//! )?`([\w-]+)`", text)}
    assert len(found) > 3 and found <= set(features())


# ---- figures ----


def test_figures_of_the_readme_are_measured() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([\d,]+) \| ([\d,]+) \| ([^|]+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(rows) >= 4
    measured = (ROOT / "benches" / "README.md").read_text().splitlines()
    for case, ours, theirs, peer in rows:
        both = [line for line in measured if {ours, theirs} <= set(re.findall(r"[\d,]*\d", line)) and peer in line]
        assert both, f"{case}: no line of benches/README.md has {ours}, {theirs} and {peer}"
    assert any(float(ours.replace(",", "")) < float(theirs.replace(",", "")) for _, ours, theirs, _ in rows), "a case that foreread loses"


def test_costs_are_what_the_guide_computes(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "s3.md").read_text()
    (code,) = (block for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) if "per_get" in block)
    exec(code, {})
    computed = re.findall(r"^(.*?)\s{2,}([\d,]+)\s+([\d.]+)$", capsys.readouterr().out, re.MULTILINE)
    shown = re.findall(r"^\| ([^|]+) \| ([\d,]+) \| ([\d.]+) \|$", text, re.MULTILINE)
    assert len(shown) == 5 and shown == computed


# ---- the site, and spelling ----


def test_data_blocks_parse() -> None:
    yaml = pytest.importorskip("yaml")
    parsers = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}
    for document in DOCUMENTS:
        for language, code in re.findall(r"^```(json|toml|yaml)\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL):
            assert parsers[language](code), document


def tool(program: str) -> str:
    """A program of this Python's environment."""
    found = shutil.which(program, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"needs {program}, which `.ci/tools` installs")
    return found


def test_spelling() -> None:
    done = subprocess.run([tool("typos"), "--format", "brief"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_site_is_built(tmp_path: Path) -> None:
    command = [tool("mkdocs"), "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.parent.name for path in (tmp_path / "site").rglob("index.html")}
    assert {document.stem for document in DOCUMENTS if document.name != "README.md"} <= pages
    assert (tmp_path / "site" / "search" / "search_index.json").exists()
    # Nothing is loaded from elsewhere.
    for page in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?:[^\"\s>]+)", page.read_text())
        assert not [url for url in loaded if "localhost" not in url], page
