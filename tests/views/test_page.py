import json
import stat
from pathlib import Path

import numpy as np
import pytest

from tl_geometry.views import page

HOSTILE = "</script><!--<script>\u2028\u202e&'\"\x00"


def test_json_cannot_leave_its_element_and_says_the_same() -> None:
    text = str(page.safe_json({"a": [HOSTILE]}))
    assert not set("<>&") & set(text)
    assert text.isascii()
    assert json.loads(text) == {"a": [HOSTILE]}


def test_nan_is_not_json() -> None:
    with pytest.raises(ValueError, match="JSON"):
        page.safe_json(float("nan"))
    assert page.rounded(np.array([[1.23456, np.inf]]), 3) == [[1.235, None]]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain שלום 😀 é", "plain שלום 😀 é"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u200f\u2066", "\\u200f\\u2066"),
        ("\ud800", "\\ud800"),
        ("a\tb\r\n", "a⇥b\\x0d⏎"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    assert page.visible(text) == shown


@pytest.mark.parametrize("name", ["plotly", "circuitsvis"])
def test_libraries_can_stand_in_an_inline_script(name: page.Library) -> None:
    source = str(page.library(name))
    assert len(source) > 1_000_000
    assert "</script" not in source
    assert "<!--" not in source


def test_a_view_is_framed_escaped_and_saved(tmp_path: Path) -> None:
    view = page.View('<p class="x">hi & bye</p>', height=120)
    frame = view._repr_html_()
    assert "height:120px" in frame
    assert 'srcdoc="&lt;p class=&quot;x&quot;&gt;hi &amp; bye&lt;/p&gt;"' in frame
    path = view.save_html(tmp_path / "view.html")
    assert path.read_text(encoding="utf-8") == view.html


def test_files_are_whole_public_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    page.write_atomic(path, "first")
    page.write_atomic(path, "second ⏎")
    assert path.read_text(encoding="utf-8") == "second ⏎"
    assert [p.name for p in path.parent.iterdir()] == ["page.html"]
    assert path.stat().st_mode & stat.S_IRUSR


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        page.write_atomic(path, "\ud800")
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="give the name of a file"):
        page.write_atomic(tmp_path, "x")
