"""Puts documents from outside of `docs` into the site, and corrects links that lead out of `docs` or into it.

The README is the first page. Documents of the project get the names by which others link them. Other linked files
(examples) are added as they are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]

#: Documents of the project, with their names in the site.
PAGES = {
    "README.md": "index.md",
    "benches/README.md": "benches.md",
} | {f"{name}.md": f"{name}.md" for name in ["ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY", "SEMANTICS", "SEMANTICS-tests"]}

LINK = re.compile(r"(\]\()([^)\s#:]+)([)#])")


def corrected(link: str, document: Path) -> str:
    """A link of a document, as a link of its page, which is at the site's root."""
    path = (document.parent / link).resolve()
    if not path.is_relative_to(ROOT):
        return link
    name = path.relative_to(ROOT).as_posix()
    return PAGES.get(name, name.removeprefix("docs/"))


def on_files(files: Files, config: Any) -> Files:
    sources = [*PAGES, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    for name in sources:
        for _, link, _ in LINK.findall((ROOT / name).read_text()):
            path = (ROOT / name).parent / link
            if path.is_file() and path.suffix != ".md" and files.get_file_from_path(corrected(link, ROOT / name)) is None:
                files.append(File.generated(config, corrected(link, ROOT / name), abs_src_path=str(path.resolve())))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    names = {site: name for name, site in PAGES.items()}
    document = ROOT / names.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return LINK.sub(lambda found: found[1] + corrected(found[2], document) + found[3], markdown)
