"""Self-contained HTML pages: libraries embedded once, data as safe JSON, text that stays text."""

from __future__ import annotations

import functools
import html
import importlib.util
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jinja2
import numpy.typing as npt
from markupsafe import Markup

from tl_geometry.analysis.files import check_place, write_text
from tl_geometry.texts import visible
from tl_geometry.views.parts import Figure

Library = Literal["plotly", "circuitsvis"]
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, eq=False)
class View:
    """A page that shows itself in a notebook, without a network, and can be saved.

    Example:
        >>> View("<!doctype html><p>hello</p>", height=80).save_html("hello.html")  # doctest: +SKIP

    Args:
        html: A whole HTML document.
        height: Height of the frame in the notebook, in pixels.
    """

    html: str
    height: int = 600

    def _repr_html_(self) -> str:
        # A frame keeps ids, styles and headings of the view apart from the notebook's own.
        source = html.escape(self.html, quote=True)
        style = f"width:100%;height:{self.height}px;border:0"
        return f'<iframe srcdoc="{source}" style="{style}" title="tl_geometry view"></iframe>'

    def save_html(self, path: str | Path) -> Path:
        """Write the view as one HTML file and return its path."""
        return write_atomic(path, self.html)


def rounded(values: npt.NDArray[Any], digits: int = 4) -> list[Any]:
    """Nested lists of numbers with `digits` decimals, None where the value is not finite.

    Example:
        >>> rounded(np.array([0.123456, np.nan]), digits=2)
        [0.12, None]
    """
    if values.ndim > 1:
        return [rounded(row, digits) for row in values]
    return [round(float(x), digits) if math.isfinite(x) else None for x in values]


def safe_json(value: object) -> Markup:
    r"""JSON that can stand inside a `<script>` element whatever strings it holds.

    Example:
        >>> print(safe_json("</script>"))
        "\u003c/script\u003e"

    Raises:
        ValueError: for NaN and infinities, which are not JSON.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - nothing in it can leave the script element any more


@functools.cache
def library(name: Library) -> Markup:
    """Source of a JavaScript library for a plain inline `<script>`."""
    if name == "plotly":
        from plotly.offline import get_plotlyjs

        source = str(get_plotlyjs())
    else:
        source = _circuitsvis_bundle().read_text(encoding="utf-8")
    # `</script` would end the element, `<!--` could hide its end.
    source = source.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    return Markup(source)  # noqa: S704 - code of an installed package, not data


def _circuitsvis_bundle() -> Path:
    spec = importlib.util.find_spec("circuitsvis")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("attention views need circuitsvis: pip install circuitsvis")
    return Path(spec.origin).parent / "dist" / "cdn" / "iife.js"


@functools.cache
def environment() -> jinja2.Environment:
    """The templates of this room, escaping everything that is put into them."""
    loader = jinja2.FileSystemLoader(TEMPLATES)
    result = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    result.filters["safe_json"] = safe_json
    result.globals["library"] = library
    for name in ("page.css", "page.js"):
        source = (TEMPLATES / name).read_text(encoding="utf-8")
        result.globals[name.replace(".", "_")] = Markup(source)  # noqa: S704 - our own file
    return result


def _finalize(value: object) -> object:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def render(template: str, figures: Sequence[Figure] = (), **values: object) -> str:
    """Fill a template; only the libraries that its figures need are embedded."""
    kinds = {figure.kind for figure in figures}
    libraries = [name for kind, name in _DRAWN_BY.items() if kind in kinds]
    return environment().get_template(template).render(libraries=libraries, **values)


_DRAWN_BY: dict[str, Library] = {"plotly": "plotly", "heads": "circuitsvis"}


def write_atomic(path: str | Path, text: str) -> Path:
    """Write a UTF-8 file completely or not at all; missing directories are made.

    Raises:
        IsADirectoryError: when `path` is a directory.
    """
    target = Path(path)
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
    check_place(target)
    write_text(target, text)
    return target
