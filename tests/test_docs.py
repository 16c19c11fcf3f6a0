"""What the documents point at is there: links, headings, and the paths that they name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("edgekv", "plugins", "tests", "scripts", "docs", "configs", "models")
PAGES = [
    ROOT / "README.md",
    *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")),
]
IMAGINED = {"tens.py"}  # a retention rule that a reader might write
IDEAS = ROOT / "docs" / "architecture.md"


def text_of(page: Path) -> str:
    """What is said around the blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.DOTALL)


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", text_of(page), flags=re.M)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in found)
    return {heading.replace(" ", "-") for heading in kept}


def links(page: Path) -> list[str]:
    found = re.findall(r"\]\(([^)\s]+)\)", text_of(page))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def paths(page: Path) -> Iterator[str]:
    """What stands between backticks and begins with a folder of this repository, or is the bare
    name of a source file."""
    for said in re.findall(r"`([^`\n]+)`", text_of(page)):
        word = said.split()[-1] if said.startswith("python ") else said.split()[0]
        is_path = re.fullmatch(rf"({'|'.join(FOLDERS)})/[\w./*-]*", word)
        is_source = re.fullmatch(r"\w+\.(py|cpp|h)", word) and word not in IMAGINED
        if is_path or is_source:
            yield word


def is_there(path: str) -> bool:
    if "/" in path:
        return any(ROOT.glob(path.rstrip("/")))
    return any(any((ROOT / folder).rglob(path)) for folder in FOLDERS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    wrong = []
    for link in links(page):
        target, _, heading = link.partition("#")
        to = (page.parent / target).resolve() if target else page
        if not to.exists() or (heading and heading not in headings(to)):
            wrong.append(link)
    wrong += [path for path in paths(page) if not is_there(path)]
    assert wrong == []


def test_there_are_links_and_paths() -> None:
    assert sum(len(links(page)) for page in PAGES) > 50
    assert sum(len(list(paths(page))) for page in PAGES) > 100
    assert "a-rule-of-ones-own" in headings(ROOT / "docs" / "retention.md")


def test_the_table_of_ideas_names_every_module() -> None:
    text = IDEAS.read_text(encoding="utf-8")
    table = text[: text.index("Imports go down only")]
    names = {name.rsplit("/", 1)[-1] for name in re.findall(r"[\w/]+\.py", table)}
    package = ROOT / "edgekv"
    modules = {path.name for folder in (package, package / "cache") for path in folder.glob("*.py")}
    assert {name for name in modules - names if name[0] != "_"} == set()
    packages = [f"edgekv/{path.parent.name}/" for path in package.glob("*/__init__.py")]
    assert [name for name in packages if name not in table] == []
