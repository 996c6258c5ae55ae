"""Options that several commands share, how their text is read, and which texts they choose."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

if TYPE_CHECKING:
    import torch

EVERY_IMPORTANCE = "attention,value_weighted,value_weighted_normalized,contribution,random"


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


class Scope(str, Enum):
    """What is ranked together."""

    row = "row"
    query = "query"
    head = "head"
    layer = "layer"
    token = "token"  # noqa: S105 - no password


class Mode(str, Enum):
    """Whose output an importance refers to."""

    intra = "intra"
    inter = "inter"


class Reference(str, Enum):
    """Which run ranks the entries."""

    online = "online"
    clean = "clean"


class Removal(str, Enum):
    """What takes the place of what a head mixes."""

    zero = "zero"
    mean = "mean"


Model = Annotated[
    str, typer.Argument(help="smollm2, toy, or a name or directory that TransformerLens can load.")
]
BackendOption = Annotated[Backend, typer.Option(help="Model class of TransformerLens.")]
Processing = Annotated[
    bool, typer.Option(help="TransformerLens' weight processing (folding, centring).")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps; default: the best.")]
DtypeOption = Annotated[Dtype | None, typer.Option(help="Precision of the weights.")]
Text = Annotated[Path | None, typer.Option(help="A text file, or a directory of them.")]
Dataset = Annotated[str | None, typer.Option(help="A data set, e.g. wikitext:wikitext-103-raw-v1.")]
CorpusOption = Annotated[Corpus | None, typer.Option(help="A corpus of the demo.")]
Split = Annotated[str, typer.Option(help="Split of the data set.")]
TextField = Annotated[str, typer.Option(help="Field of a record with the text.")]
Window = Annotated[int, typer.Option(min=2, help="Tokens of a window.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Windows of a batch.")]
MaxDocuments = Annotated[int, typer.Option(min=1, help="Stop after windows.")]
PrependBos = Annotated[
    bool | None,
    typer.Option(help="Begin each window with bos; default: as the tokenizer is set."),
]
Sink = Annotated[str, typer.Option(help="first, auto, or positions such as 0 or 0,1.")]
Layers = Annotated[str | None, typer.Option(help="Only these layers, e.g. 0,4-7.")]
Heads = Annotated[str | None, typer.Option(help="Only these heads, layer.head, e.g. 0.3,4.1.")]
ScopeOption = Annotated[Scope, typer.Option(help="What is ranked together.")]
RemovalOption = Annotated[Removal, typer.Option(help="What takes the place of a head's output.")]
Seed = Annotated[int, typer.Option(help="Seed of all that is random, intervals included.")]
Checkpoint = Annotated[
    Path | None, typer.Option(help="A file that keeps what is done of a long run.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint.")]
Out = Annotated[Path | None, typer.Option(help="A netCDF file for the result.")]
Report = Annotated[Path | None, typer.Option(help="An HTML file for the report.")]
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


def load_model(
    name: str, backend: Backend, processing: bool, device: str | None, dtype: Dtype | None
) -> Any:
    """The model that the options name."""
    import torch

    from tl_geometry.models import load_model as load

    return load(
        name,
        backend=backend.value,
        processing=processing,
        device=None if device is None else parse_device(device),
        dtype=None if dtype is None else getattr(torch, dtype.value),
    )


def check_checkpoint(path: Path | None, resume: bool) -> None:
    """Refuse before the model is loaded what would be refused after it."""
    if path is None:
        if resume:
            raise typer.BadParameter("--resume needs --checkpoint")
        return
    if path.exists() and not resume:
        raise FileExistsError(f"{path} exists; pass --resume to go on from it")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no directory {path.parent} for {path.name}")


def check_output(path: Path, force: bool, option: str = "--out") -> None:
    """Refuse before the computation what would be refused after it."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory, {option} must name a file")
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is a pipe, a socket or a device, {option} must name a file")
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


_LARGEST = 99_999


def parse_sink(text: str) -> str | list[int]:
    """A rule by name, or positions: "0,2"."""
    return text if text in ("first", "auto") else parse_numbers(text, "--sink")


def parse_numbers(text: str, option: str) -> list[int]:
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


def parse_names(text: str) -> list[str]:
    """Names: "intra,inter"."""
    return [part.strip() for part in text.split(",")]


def parse_measures(text: str) -> list[str]:
    """Names of measures: "sinks,switches"."""
    from tl_geometry.analysis.defaults import MeasureName

    names = parse_names(text)
    known = get_args(MeasureName)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise typer.BadParameter(
            f"there is no measure {unknown[0]!r}, only {', '.join(known)}", param_hint="--measures"
        )
    return names


def parse_shares(text: str, option: str) -> list[float]:
    """Shares: "0.01,0.5"."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r}, expected shares such as 0.1,0.5", param_hint=option
        ) from error


def parse_layers(text: str) -> list[int | str]:
    """Labels of layers: "0,4-6,encoder_blocks.0.attn"."""
    labels: list[int | str] = []
    for part in map(str.strip, text.split(",")):
        labels += [part] if part[:1].isalpha() else parse_numbers(part, "--layers")
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
