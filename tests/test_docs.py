"""What the pages say is so: their Python runs, their links lead somewhere, their scripts and tests exist."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [
    (page, code) for page in PAGES for code in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
]


ADDRESS = "127.0.0.1:7878"
"""Where the examples look for a cluster; the one of the tests is elsewhere."""


@pytest.mark.parametrize(("page", "code"), EXAMPLES, ids=lambda value: getattr(value, "name", ""))
def test_examples_run_as_written(page: Path, code: str, request: pytest.FixtureRequest) -> None:
    printed = io.StringIO()
    if ADDRESS in code:
        code = code.replace(ADDRESS, request.getfixturevalue("clymq_bootstrap"))
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(page), "exec"), {"__name__": "example"})
    for expected in re.findall(r"print\(.*\)\s+# (\(.*\))$", code, flags=re.MULTILINE):
        assert expected in printed.getvalue()


def test_the_readme_has_an_example() -> None:
    assert any(page.name == "README.md" for page, _ in EXAMPLES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_scripts_exist(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (page.parent / target).exists(), target
    for script in re.findall(r"\bscripts/[a-z]+", text):
        assert (ROOT / script).exists(), script


def test_tests_that_are_named_exist() -> None:
    text = (ROOT / "docs/testing.md").read_text()
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in sources, name
    for path in re.findall(r"`((?:unit|property|conformance|simulation)/[\w/]+\.py)`", text):
        assert (ROOT / "tests" / path).exists(), path
