"""Texts from files, directories and data sets, one at a time."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tl_geometry.arguments import whole_number

__all__ = ["load_texts"]

TEXT_SUFFIXES = (".md", ".txt")
RECORD_FORMATS = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}


def load_texts(
    source: str | Path,
    *,
    split: str = "train",
    text_field: str = "text",
    max_documents: int | None = None,
) -> Iterator[str]:
    """Read texts from a file, a directory or a data set of the Hugging Face hub.

    Example: ``for text in load_texts("wikitext:wikitext-103-raw-v1", max_documents=100): ...``

    - A `.json`, `.jsonl` or `.parquet` file gives one text per record, the field `text_field`.
    - Any other file is one text in UTF-8.
    - A directory gives its `.txt` and `.md` files, subdirectories included, sorted by path.
    - Anything else is the name of a data set, ``name`` or ``name:configuration``; its `split` is
      streamed, so nothing larger than what is read comes over the network.

    `max_documents` counts texts here. A record whose field is null is the empty text. Records
    and data sets need the package `datasets`, the extra ``tl-geometry[data]``.

    Raises at once FileNotFoundError for a path that does not exist and ValueError for a
    directory without texts; while reading ValueError for a file that is not UTF-8 or is damaged,
    a field that is missing or holds no text, an unknown split or configuration,
    FileNotFoundError for an unknown data set, ConnectionError if the hub cannot be reached,
    ImportError if `datasets` is needed and missing.
    """
    if max_documents is not None:
        whole_number("max_documents", max_documents, 1)
    path = Path(source).expanduser()
    if path.is_dir():
        texts = _files(path)
    elif path.is_file():
        texts = _records(path, text_field) if path.suffix in RECORD_FORMATS else _files(path)
    elif isinstance(source, Path) or _looks_like_a_path(source):
        raise FileNotFoundError(f"source: there is no file or directory {str(source)!r}")
    else:
        texts = _hub(source, split, text_field)
    return islice(texts, max_documents)


def _looks_like_a_path(name: str) -> bool:
    suffixes = (*TEXT_SUFFIXES, *RECORD_FORMATS)
    return name.endswith(suffixes) or name.startswith((".", "/", "~")) or name.count("/") > 1


def _files(path: Path) -> Iterator[str]:
    if path.is_file():
        return map(_read, [path])
    found = sorted(file for file in path.rglob("*") if file.suffix in TEXT_SUFFIXES)
    if not found:
        wanted = " or ".join(TEXT_SUFFIXES)
        raise ValueError(f"source: the directory {str(path)!r} holds no {wanted} file")
    return map(_read, found)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from error


def _not_utf8(path: Path, error: UnicodeDecodeError) -> ValueError:
    return ValueError(
        f"{str(path)!r} is not UTF-8 text: byte 0x{error.object[error.start]:02x} at position "
        f"{error.start}; convert it to UTF-8 first"
    )


def _records(path: Path, text_field: str) -> Iterator[str]:
    if path.stat().st_size == 0:
        raise ValueError(f"{str(path)!r} is empty")
    datasets = _datasets(str(path))
    try:
        rows = datasets.load_dataset(
            RECORD_FORMATS[path.suffix], data_files=str(path), split="train", streaming=True
        )
        for row in rows:
            yield _field(row, text_field, str(path))
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from error
    except _FieldError:
        raise
    except (ValueError, datasets.exceptions.DatasetsError) as error:
        raise ValueError(f"{str(path)!r} could not be read as {path.suffix}: {error}") from error


def _hub(source: str, split: str, text_field: str) -> Iterator[str]:
    datasets = _datasets(source)
    name, _, configuration = source.partition(":")
    try:
        rows = datasets.load_dataset(name, configuration or None, split=split, streaming=True)
        for row in rows:
            yield _field(row, text_field, source)
    except _FieldError:
        raise
    except datasets.exceptions.DatasetNotFoundError as error:
        raise FileNotFoundError(
            f"source: {source!r} is neither a file nor a data set of the hub: {error}"
        ) from error
    except OSError as error:
        raise ConnectionError(
            f"source: {source!r} is no file here, and as a data set it cannot be fetched from the "
            f"hub ({error}); check the name and the network, or pass a local file "
            "(.txt, .jsonl, .parquet)"
        ) from error
    except (ValueError, datasets.exceptions.DatasetsError) as error:
        raise ValueError(f"source: the data set {source!r} could not be read: {error}") from error


class _FieldError(ValueError):
    """A record whose field is missing or no text."""


def _field(row: dict[str, Any], text_field: str, source: str) -> str:
    if text_field not in row:
        raise _FieldError(
            f"text_field={text_field!r} is not in {source!r}; its fields are {list(row)}"
        )
    value = row[text_field]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _FieldError(
            f"text_field={text_field!r} of {source!r} is of type {type(value).__name__}, not text"
        )
    return value


def _datasets(source: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            f"reading {source!r} needs the package datasets: pip install tl-geometry[data]"
        ) from error
    return datasets
