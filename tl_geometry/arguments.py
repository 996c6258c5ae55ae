"""Options that several commands share, how their text is read, and which texts they choose."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import torch


class Backend(str, Enum):
    """The model class of TransformerLens to load."""

    auto = "auto"
    hooked = "hooked"
    bridge = "bridge"


class Corpus(str, Enum):
    """The texts that come with the package or with Python."""

    prose = "demo-prose"
    technical = "demo-technical"


class Dtype(str, Enum):
    """Precision of the weights."""

    float32 = "float32"
    float64 = "float64"
    float16 = "float16"
    bfloat16 = "bfloat16"


Model = Annotated[
    str, typer.Argument(help="smollm2, or a name or directory that TransformerLens can load.")
]
BackendOption = Annotated[Backend, typer.Option(help="Model class of TransformerLens.")]
Processing = Annotated[
    bool, typer.Option(help="TransformerLens' weight processing (folding, centring).")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps; default: the best.")]
DtypeOption = Annotated[Dtype | None, typer.Option(help="Precision of the weights.")]
Force = Annotated[bool, typer.Option("--force", help="Replace existing output.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="No progress bar.")]


@dataclass(eq=False)
class Texts:
    """Texts for one pass, counted as they are read, and what is known of their origin."""

    texts: Iterable[str]
    origin: Mapping[str, str]
    streamed: bool = False
    read: int = 0

    def __iter__(self) -> Iterator[str]:
        for text in self.texts:
            self.read += 1
            yield text

    def record(self, tokens: int) -> dict[str, Any]:
        """The entry of this corpus in a result; `tokens` are those that were measured."""
        return {**self.origin, "texts": self.read, "tokens": tokens}


def choose_texts(
    text: Path | None, dataset: str | None, corpus: Corpus | None, split: str, field: str
) -> Texts:
    """The texts that the options name.

    Raises:
        typer.BadParameter: none of the three, or more than one.
    """
    if sum(source is not None for source in (text, dataset, corpus)) != 1:
        raise typer.BadParameter("give one of --text, --dataset and --corpus")

    from tl_geometry.data import demo_corpora, load_texts
    from tl_geometry.data.sources import RECORD_FORMATS

    if corpus is not None:
        return Texts(demo_corpora()[corpus.value], {"name": corpus.value, "source": "demo corpus"})
    source = str(dataset if text is None else text)
    path = Path(source).expanduser()
    streamed = text is None and not path.exists()
    origin = {"name": source if streamed else path.name, "source": source}
    if streamed:
        origin |= {"source": "Hugging Face hub", "split": split}
    if streamed or path.suffix in RECORD_FORMATS:
        origin["field"] = field
    texts = load_texts(source if text is None else text, split=split, text_field=field)
    return Texts(texts, origin, streamed)


def check_output(path: Path, force: bool) -> None:
    """Refuse before the computation what would be refused after it."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory, --out must name a file")
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists; pass --force to replace it")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no directory {path.parent} for {path.name}")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise OSError(f"cannot write into {path.parent}: {error.strerror}") from error


def parse_device(name: str) -> torch.device:
    """A device of this machine.

    Raises:
        typer.BadParameter: no device, or one that this machine lacks.
    """
    import torch

    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise typer.BadParameter(f"{name!r} is no device", param_hint="--device") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise typer.BadParameter(f"{name!r}: use cpu, cuda or mps", param_hint="--device")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("this machine has no CUDA device", param_hint="--device")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise typer.BadParameter("this machine has no MPS device", param_hint="--device")
    return device


def parse_sink(text: str) -> str | list[int]:
    """A rule by name, or positions: "0,2"."""
    return text if text in ("first", "auto") else _numbers(text, "--sink")


def parse_top_n(text: str) -> tuple[int, ...]:
    """Sizes: "1,2,4"."""
    return tuple(_numbers(text, "--top-n"))


def parse_layers(text: str) -> list[int | str]:
    """Labels of layers: "0,4-6,encoder_blocks.0.attn"."""
    labels: list[int | str] = []
    for part in map(str.strip, text.split(",")):
        labels += [part] if part[:1].isalpha() else _numbers(part, "--layers")
    return labels


def parse_heads(text: str) -> list[tuple[int | str, int]]:
    """Pairs of layer and head: "0.3,encoder_blocks.0.attn.1"."""
    heads: list[tuple[int | str, int]] = []
    for part in map(str.strip, text.split(",")):
        layer, _, head = part.rpartition(".")
        if not (layer and head.isdecimal()):
            raise typer.BadParameter(
                f"{text!r}, expected layer.head such as 0.3,4.1", param_hint="--heads"
            )
        heads.append((int(layer) if layer.isdecimal() else layer, int(head)))
    return heads


_LARGEST = 99_999


def _numbers(text: str, option: str) -> list[int]:
    """Numbers and ranges: "0,4-6" is [0, 4, 5, 6]."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            raise typer.BadParameter(f"{text!r}, expected numbers such as 0,4-7", param_hint=option)
        low, high = int(first), int(last or first)
        if not low <= high <= _LARGEST:
            raise typer.BadParameter(
                f"{part!r} must rise and stay below {_LARGEST + 1}", param_hint=option
            )
        numbers += range(low, high + 1)
    return numbers
