"""Sentences, links and quoted texts of the user documents.

    prose.py [DOCUMENT...]        prints words, sentences, their mean length, and the longest ones
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]

#: The documents for users. The others have readers who know the project.
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

#: The limits of a sentence and of the mean, in words, and of the README.
LONGEST, MEAN, README_WORDS = 25, 18, 1500


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs, headings, list items and table cells, without code blocks and comments."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    # Inline code is one word, and may contain a table's border; of a link or picture its text is read.
    text = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "code", text)
    text = re.sub(r"!?\[([^\]]*)\](\([^)]*\))?", r"\1", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.|\#|\|) ?)", text):
        yield from block.split("|") if block.lstrip().startswith("|") else [re.sub(r"^\s*(?:[*#-]+|\d+\.)\s", "", block)]


def sentences(text: str) -> list[list[str]]:
    """The words of each sentence."""
    parts = [part for block in paragraphs(text) for part in re.split(r"(?<=[.!?])[*\"')]*\s+", block.strip())]
    words = [re.findall(r"[^\W_][^\s/]*", part) for part in parts]
    # A cell or heading of one or two words is no sentence, and would flatter the mean.
    return [found for found in words if len(found) > 2]


def main() -> None:
    for document in map(Path, sys.argv[1:] or map(str, DOCUMENTS)):
        text = document.read_text()
        found = sorted(sentences(text), key=len, reverse=True)
        mean = sum(map(len, found)) / max(1, len(found))
        print(f"{document.name}: {len(text.split())} words, {len(found)} sentences, {mean:.1f} words on average")
        for words in found:
            if len(words) > LONGEST:
                print(f"    {len(words)}: {' '.join(words)}")


if __name__ == "__main__":
    main()
