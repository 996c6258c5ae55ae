"""What `tl-geometry demo` measures and what it prints."""

from __future__ import annotations

from typing import Any

import xarray as xr
from rich.console import Console

from tl_geometry.cli.terminal import plain_console, print_tables

__all__ = ["measure", "print_findings"]

# So many texts from the beginning of each corpus: a few minutes on two cores.
SAMPLE = {"demo-prose": 4, "demo-technical": 3}


def measure(*, progress: bool = True) -> xr.Dataset:
    """SmolLM2-135M on a sample of two corpora; `attrs["corpus"]` states the sample."""
    from tl_geometry.analysis import analyze
    from tl_geometry.data import demo_corpora
    from tl_geometry.models import load_model

    model = load_model("smollm2")
    corpora = {name: corpus[: SAMPLE[name]] for name, corpus in demo_corpora().items()}
    texts = [text for corpus in corpora.values() for text in corpus]
    ds = analyze(model, texts, keep_examples=1, progress=progress)
    ds.attrs["corpus"] = [
        {"name": name, "texts": len(corpus), "tokens": _count_tokens(model, corpus)}
        for name, corpus in corpora.items()
    ]
    return ds


def _count_tokens(model: Any, texts: list[str]) -> int:
    tokenized = model.tokenizer(texts, add_special_tokens=False)["input_ids"]
    return sum(len(tokens) for tokens in tokenized)


def print_findings(ds: xr.Dataset, console: Console | None = None) -> None:
    """Print the regime counts, the strongest sinks, the heads that attention misleads about most.

    Args:
        ds: a result of `analyze`.
        console: where to; standard output by default.
    """
    from tl_geometry.views.summary import headline_tables

    console = console or plain_console()
    print_tables(headline_tables(ds), console)
    corpora = ds.attrs.get("corpus", [])
    parts = [f"{c['name']}: {c['texts']} texts, {c['tokens']} tokens" for c in corpora]
    console.print(
        f"Sample: {ds.attrs['documents']} windows of up to {ds.attrs['n_ctx']} tokens, "
        f"{ds.attrs['tokens']} tokens in all ({'; '.join(parts)})."
    )
