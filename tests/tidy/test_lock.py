"""The lists of pinned packages, and what writes their hashes."""

import re

import pytest
from tests.tidy.lock import LISTS, ROOT, files_of, locked, pins, release_hashes

PAGE = """
<a href="https://elsewhere/a/some_package-1.0-py3-none-any.whl#sha256={}">1</a>
<a href="../some-package-1.0.tar.gz#sha256={}" data-requires-python="&gt;=3.8">2</a>
<a href="../some_package-1.0.1-py3-none-any.whl#sha256={}">3</a>
<a href="../some_package-1.0-py3.8.egg#sha256={}">4</a>
""".format(*(digit * 64 for digit in "0123"))


@pytest.mark.parametrize("name", LISTS)
def test_every_package_has_a_version_and_hashes_and_no_list_names_an_index(name: str) -> None:
    text = (ROOT / name).read_text()
    assert not re.search(r"https?:|--(extra-)?index-url|--find-links", text)
    for entry in text.replace(" \\\n", " ").splitlines():
        if not entry.startswith(("#", "-r ")):
            assert re.fullmatch(r"[A-Za-z0-9._-]+==[^ ]+(\s+--hash=sha256:[0-9a-f]{64})+", entry), entry


def test_all_files_of_a_release_have_their_hashes() -> None:
    assert release_hashes(files_of(PAGE), "1.0") == ["0" * 64, "1" * 64]
    asked: list[str] = []

    def fetch_page(name: str) -> str:
        asked.append(name)
        return PAGE

    lines = ["# a list", "-r other.txt", "Some.Package==1.0"]
    text = "\n".join(locked(lines, fetch_page))
    assert text.endswith(f"Some.Package==1.0 \\\n    --hash=sha256:{'0' * 64} \\\n    --hash=sha256:{'1' * 64}")
    assert asked == ["some-package"]
    assert list(pins(text)) == lines, "a second run begins with the same"
    with pytest.raises(SystemExit, match="no files"):
        list(locked(["some-package==2.0"], fetch_page))
