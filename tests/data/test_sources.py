"""Texts from files, directories and local records; the hub is replaced by a stub."""

import builtins
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tl_geometry.data import load_texts


def test_a_text_file(tmp_path: Path) -> None:
    file = tmp_path / "one.txt"
    file.write_bytes("\ufeffCafé\r\nline two".encode())
    assert list(load_texts(file)) == ["Café\nline two"]
    assert list(load_texts(str(file))) == ["Café\nline two"]


def test_other_suffixes_are_text_too(tmp_path: Path) -> None:
    (tmp_path / "notes.rst").write_text("a")
    assert list(load_texts(tmp_path / "notes.rst")) == ["a"]


def test_a_directory_in_order(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.md", "sub/c.txt", "z.txt", "skip.py"):
        (tmp_path / name).write_text(name)
    assert list(load_texts(tmp_path)) == ["a.md", "b.txt", "sub/c.txt", "z.txt"]
    assert list(load_texts(tmp_path, max_documents=2)) == ["a.md", "b.txt"]


def test_a_directory_without_texts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no \.md or \.txt file"):
        load_texts(tmp_path)


def test_files_are_read_one_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("good")
    (tmp_path / "b.txt").write_bytes(b"\xff")
    texts = load_texts(tmp_path)
    assert next(texts) == "good"
    with pytest.raises(ValueError, match=r"b\.txt' is not UTF-8 text: byte 0xff at position 0"):
        next(texts)


@pytest.mark.parametrize("name", ["no/such/path", "./gone", "gone.txt", "~/gone.jsonl", "/gone"])
def test_missing_files(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"there is no file or directory '{name}'"):
        load_texts(name)
    with pytest.raises(FileNotFoundError, match="there is no file or directory"):
        load_texts(Path("gone"))


@pytest.mark.parametrize("wrong", [0, -1])
def test_max_documents(wrong: int) -> None:
    with pytest.raises(ValueError, match="max_documents must be at least 1"):
        load_texts("x", max_documents=wrong)


@pytest.fixture
def records(tmp_path: Path) -> dict[str, Path]:
    datasets = pytest.importorskip("datasets")
    rows = [{"text": "one", "body": "eins"}, {"text": None, "body": "zwei"}]
    rows.append({"text": "three", "body": "drei"})
    files = {kind: tmp_path / f"rows.{kind}" for kind in ("jsonl", "json", "parquet")}
    files["jsonl"].write_text("".join(json.dumps(row) + "\n" for row in rows))
    files["json"].write_text(json.dumps(rows))
    datasets.Dataset.from_list(rows).to_parquet(str(files["parquet"]))
    return files


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_records(records: dict[str, Path], kind: str) -> None:
    assert list(load_texts(records[kind])) == ["one", "", "three"]
    assert list(load_texts(records[kind], text_field="body")) == ["eins", "zwei", "drei"]
    assert list(load_texts(records[kind], max_documents=1)) == ["one"]
    with pytest.raises(ValueError, match=r"text_field='x' is not in .*fields are \['text', 'body'"):
        list(load_texts(records[kind], text_field="x"))


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_damaged_records(records: dict[str, Path], kind: str) -> None:
    whole = records[kind].read_bytes()
    records[kind].write_bytes(whole[: len(whole) // 2 + 3])
    with pytest.raises(ValueError, match=rf"rows\.{kind}' could not be read as \.{kind}"):
        list(load_texts(records[kind]))
    records[kind].write_bytes(b"")
    with pytest.raises(ValueError, match=rf"rows\.{kind}' is empty"):
        list(load_texts(records[kind]))


def test_records_that_are_no_text(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": 3}\n')
    with pytest.raises(ValueError, match=r"^text_field='text' of .* is of type int, not text"):
        list(load_texts(file))
    file.write_bytes('{"text": "caf\xe9"}\n'.encode("latin-1"))
    with pytest.raises(ValueError, match="is not UTF-8 text: byte 0xe9"):
        list(load_texts(file))


def test_datasets_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "datasets":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    (tmp_path / "a.jsonl").write_text("{}\n")
    for source in (tmp_path / "a.jsonl", "wikitext:wikitext-103-raw-v1"):
        with pytest.raises(ImportError, match=r"pip install tl-geometry\[data\]"):
            next(load_texts(source))
    (tmp_path / "a.txt").write_text("plain text needs no extra")
    assert list(load_texts(tmp_path / "a.txt"))


def stub_hub(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[Any]:
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(*args: Any, **kwargs: Any) -> Any:
        asked.append((args, kwargs))
        if isinstance(answer, Exception):
            raise answer
        return iter(answer)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


def test_a_name_on_the_hub_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    rows = (taken.append(i) or {"text": str(i)} for i in range(10**9))
    asked = stub_hub(monkeypatch, rows)
    texts = load_texts("owner/name:part", split="validation", max_documents=3)
    assert asked == []
    assert list(texts) == ["0", "1", "2"]
    assert taken == [0, 1, 2]
    assert asked == [(("owner/name", "part"), {"split": "validation", "streaming": True})]


def test_errors_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    cases: list[tuple[Exception, type[Exception], str]] = [
        (
            datasets.exceptions.DatasetNotFoundError("it does not exist"),
            FileNotFoundError,
            "'some' is neither a file nor a data set of the hub: it does not exist",
        ),
        (
            ConnectionError("no route"),
            ConnectionError,
            r"'some' is no file here.*\(no route\); check the name and the network, or",
        ),
        (ValueError("Bad split: x"), ValueError, "data set 'some' could not be read: Bad split: x"),
    ]
    for error, kind, words in cases:
        stub_hub(monkeypatch, error)
        with pytest.raises(kind, match=words):
            list(load_texts("some"))
    stub_hub(monkeypatch, [{"body": "x"}])
    with pytest.raises(ValueError, match=r"^text_field='text' is not in 'some'"):
        list(load_texts("some"))


def test_offline_for_real() -> None:
    pytest.importorskip("datasets")
    with pytest.raises(ConnectionError, match="pass a local file"):
        list(load_texts("wikitext:wikitext-103-raw-v1"))


def test_texts_go_straight_into_batches(tmp_path: Path) -> None:
    from tl_geometry.data import token_batches

    (tmp_path / "a.txt").write_text("x")
    model = SimpleNamespace(tokenizer=None, cfg=SimpleNamespace())
    with pytest.raises(ValueError, match="no tokenizer"):
        list(token_batches(load_texts(tmp_path), model))
