"""Puts documents from outside of `docs` into the site, and corrects the links between both.

The README is the first page, and documents of the project keep their paths. What these documents link (more documents,
pictures, examples) is added too.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]

#: The documents of the project that the navigation names.
PAGES = ["README", "ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY", "SEMANTICS"]

#: Documents whose page has another name.
NAMES = {"README.md": "index.md", "benches/README.md": "benches.md"}

LINK = re.compile(r"(\]\()([^)\s#:]+)([)#])")


def site_name(name: str) -> str:
    """The path in the site of a file of the repository."""
    return NAMES.get(name, name.removeprefix("docs/"))


def source(page: str) -> str:
    """The file of a page."""
    known = {site: name for name, site in NAMES.items()}.get(page)
    return known or (f"docs/{page}" if (ROOT / "docs" / page).exists() else page)


def linked(name: str) -> list[str]:
    """The files of the repository that a document links."""
    found = [(ROOT / name).parent / link for _, link, _ in LINK.findall((ROOT / name).read_text())]
    return [path.resolve().relative_to(ROOT).as_posix() for path in found if path.is_file()]


def on_files(files: Files, config: Any) -> Files:
    pending = [f"{page}.md" for page in PAGES] + [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    seen = set(pending)
    while pending:
        name = pending.pop()
        if files.get_file_from_path(site_name(name)) is None:
            files.append(File.generated(config, site_name(name), abs_src_path=str(ROOT / name)))
        if name.endswith(".md"):
            more = set(linked(name)) - seen
            seen |= more
            pending += more
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    here = page.file.src_uri
    document = (ROOT / source(here)).parent

    def corrected(found: re.Match[str]) -> str:
        path = (document / found[2]).resolve()
        if not path.is_relative_to(ROOT):
            return found[0]
        link = posixpath.relpath(site_name(path.relative_to(ROOT).as_posix()), posixpath.dirname(here) or ".")
        return found[1] + link + found[3]

    return LINK.sub(corrected, markdown)
