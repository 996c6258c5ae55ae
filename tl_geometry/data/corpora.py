"""Two English corpora of different kind that need no download."""

from importlib import resources

from tl_geometry.arguments import whole_number

__all__ = ["demo_corpora"]

# At least 20,000 tokens in every Python from 3.10 on.
TECHNICAL_TOPICS = (
    "execmodel",
    "objects",
    "attribute-access",
    "debugger",
    "assignment",
    "calls",
    "comparisons",
    "function",
    "import",
    "numeric-types",
    "strings",
    "try",
)


def demo_corpora(*, max_texts: int | None = None) -> dict[str, list[str]]:
    """Return the texts of "demo-prose" and "demo-technical".

    Example: ``analyze(model, demo_corpora(max_texts=3)["demo-prose"])``

    "demo-prose" is original prose written for this package: one text per genre (story, letter,
    dialogue, essay, recipe, news, explanation, fable, minutes, review, folk tale, technical
    note), sorted by file name. "demo-technical" is twelve chapters of the Python language
    reference and the manual of its debugger, read from the running Python (`pydoc_data.topics`),
    each whole and in a fixed order; their wording differs a little between Python versions. Only
    white space around a text is removed.

    `max_texts` takes that many texts from the beginning of each corpus.

    Raises TypeError or ValueError for a bad `max_texts`, ImportError where Python was installed
    without `pydoc_data`.
    """
    if max_texts is not None:
        whole_number("max_texts", max_texts, 1)
    return {"demo-prose": _prose()[:max_texts], "demo-technical": _technical()[:max_texts]}


def _prose() -> list[str]:
    folder = resources.files("tl_geometry.data") / "prose"
    files = [file for file in folder.iterdir() if file.name.endswith(".txt")]
    ordered = sorted(files, key=lambda file: file.name)
    return [file.read_text(encoding="utf-8").strip() for file in ordered]


def _technical() -> list[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ImportError(
            "demo-technical reads Python's own pydoc_data.topics, which this Python lacks; "
            "install the complete standard library"
        ) from error
    return [topics[name].strip() for name in TECHNICAL_TOPICS]
