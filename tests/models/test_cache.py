"""The cache keeps whole directories, notices damage, and survives interruptions and rivals."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tl_geometry.models.cache import CACHE_VARIABLE, cache_root, cached_directory, file_digest
from tl_geometry.models.errors import ModelUnavailableError

ROOT = Path(__file__).parents[2]


class Builder:
    """Writes two files and counts how often it had to."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, directory: Path) -> None:
        self.calls += 1
        (directory / "weights.bin").write_bytes(bytes(range(256)) * 40)
        (directory / "config.json").write_text("{}")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def build() -> Builder:
    return Builder()


def test_built_once(root: Path, build: Builder) -> None:
    first = cached_directory("thing", build)
    assert cached_directory("thing", build) == first == root / "thing"
    assert build.calls == 1
    assert (first / "weights.bin").stat().st_size == 256 * 40


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _garble_manifest(path: Path) -> None:
    (path.parent / "manifest.json").write_text("[1, 2")


def _empty_manifest(path: Path) -> None:
    (path.parent / "manifest.json").write_text("{}")


@pytest.mark.parametrize(
    "damage", [_flip, _truncate, Path.unlink, _garble_manifest, _empty_manifest]
)
def test_damage_is_repaired(
    root: Path,
    build: Builder,
    damage: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    entry = cached_directory("thing", build)
    whole = file_digest(entry / "weights.bin")
    damage(entry / "weights.bin")
    assert cached_directory("thing", build) == entry
    assert build.calls == 2
    assert file_digest(entry / "weights.bin") == whole
    assert "damaged" in caplog.text
    assert sorted(path.name for path in root.iterdir()) == ["thing", "thing.lock"]


def test_a_failed_build_leaves_nothing(root: Path, build: Builder) -> None:
    def fail(directory: Path) -> None:
        (directory / "weights.bin").write_bytes(b"half")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        cached_directory("thing", fail)
    assert [path.name for path in root.iterdir()] == ["thing.lock"]
    cached_directory("thing", build)
    assert build.calls == 1


def _python(code: str, root: Path) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, CACHE_VARIABLE: str(root), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code], env=environment)


def test_a_killed_build_is_ignored_and_cleared_away(root: Path, build: Builder) -> None:
    code = (
        "import os; from tl_geometry.models.cache import cached_directory\n"
        "def build(d): (d / 'weights.bin').write_bytes(b'half'); os._exit(9)\n"
        "cached_directory('thing', build)"
    )
    assert _python(code, root).wait() == 9
    assert (root / ".thing.new" / "weights.bin").exists()
    cached_directory("thing", build)
    assert build.calls == 1
    assert sorted(path.name for path in root.iterdir()) == ["thing", "thing.lock"]


def test_two_processes_build_once(root: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import time; from tl_geometry.models.cache import cached_directory\n"
        "def build(d):\n"
        f"    open({str(log)!r}, 'a').write('x'); time.sleep(1)\n"
        "    (d / 'weights.bin').write_bytes(b'whole')\n"
        "assert (cached_directory('thing', build) / 'weights.bin').read_bytes() == b'whole'"
    )
    rivals = [_python(code, root) for _ in range(2)]
    assert [rival.wait() for rival in rivals] == [0, 0]
    assert log.read_text() == "x"
    assert list(json.loads((root / "thing" / "manifest.json").read_text())) == ["weights.bin"]


def test_unwritable_cache_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Builder
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(ModelUnavailableError, match=f"export {CACHE_VARIABLE}=") as caught:
        cached_directory("thing", build)
    assert str(tmp_path / "file") in str(caught.value)


def test_a_cache_that_is_only_readable_is_used(
    root: Path, build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = cached_directory("thing", build)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tl_geometry.models.cache.FileLock.acquire", refuse)
    assert cached_directory("thing", build) == entry
    assert build.calls == 1
    with pytest.raises(ModelUnavailableError, match="Permission denied"):
        cached_directory("other", build)


def test_default_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "tl_geometry"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "tl_geometry"
