"""The file of finished work: exact, atomic, refusing what it does not belong to."""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading

import pytest

from tl_geometry.evaluation import Checkpoint, DamagedCheckpointError, checkpoint

SETTINGS = {"model": {"name": "m", "dtype": "float32"}, "seed": 0, "fractions": (0.1, 0.2)}
NUMBERS = [0.1 + 0.2, -0.0, 5e-324, 1.7976931348623157e308, 1 / 3, 2.0**-1074, math.pi]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.json"


def written(path, settings=SETTINGS, units=None):
    with Checkpoint(path, settings) as done:
        for name, numbers in (units or {"0/full": NUMBERS}).items():
            done[name] = numbers


def test_numbers_come_back_bit_for_bit(path):
    written(path)
    with Checkpoint(path, SETTINGS, resume=True) as done:
        assert "0/full" in done
        assert "1/full" not in done
        assert [x.hex() for x in done["0/full"]] == [x.hex() for x in NUMBERS]
        assert len(done) == 1


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Checkpoint(None, SETTINGS) as done:
        done["a"] = [1.0]
        assert done["a"] == [1.0]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="checkpoint="):
        Checkpoint(None, SETTINGS, resume=True)


def test_resuming_from_nothing_starts_anew(path):
    with Checkpoint(path, SETTINGS, resume=True) as done:
        assert len(done) == 0
        done["a"] = [1.0]
    with Checkpoint(path, SETTINGS, resume=True) as done:
        assert done["a"] == [1.0]


def test_an_existing_file_is_not_destroyed(path):
    written(path)
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match="resume=True"), Checkpoint(path, SETTINGS):
        pass
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, r"seed was 0, now 1"),
        ({"model": {"name": "n", "dtype": "float32"}}, r"model\.name was m, now n"),
        ({"fractions": (0.1,)}, r"fractions was \[0\.1, 0\.2\], now \[0\.1\]"),
        ({"extra": True}, r"extra was nothing, now true"),
    ],
)
def test_another_fingerprint_is_refused_with_what_differs(path, change, words):
    written(path)
    before = path.read_bytes()
    with (
        pytest.raises(ValueError, match=words),
        Checkpoint(path, {**SETTINGS, **change}, resume=True),
    ):
        pass
    assert path.read_bytes() == before


def damaged(text):
    body = json.loads(text)
    swapped = json.dumps({**body, "units": {"0/full": [9.0]}})
    other = json.dumps({**body, "format": "tl_geometry evaluation checkpoint 99"})
    return {
        "empty": "",
        "truncated": text[: len(text) // 2],
        "no JSON": "PK\x03\x04",
        "another list": "[1, 2]",
        "another mapping": '{"a": 1}',
        "a changed number": swapped,
        "another version": other,
    }


@pytest.mark.parametrize("kind", damaged('{"units": {}, "format": ""}'))
def test_a_damaged_file_is_refused(path, kind):
    written(path)
    path.write_text(damaged(path.read_text())[kind])
    before = path.read_bytes()
    with (
        pytest.raises(DamagedCheckpointError, match="remove it to start anew"),
        Checkpoint(path, SETTINGS, resume=True),
    ):
        pass
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "units", [{"a": "text"}, {"a": [None]}, {"a": [[1.0]]}, {"a": [True]}, ["a"], "a", None]
)
def test_units_that_are_no_numbers_are_refused_under_a_right_digest(path, units):
    written(path)
    body = {"fingerprint": json.loads(path.read_text())["fingerprint"], "units": units}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"format": checkpoint.FORMAT, "sha256": digest, **body}))
    with (
        pytest.raises(DamagedCheckpointError, match="remove it to start anew"),
        Checkpoint(path, SETTINGS, resume=True),
    ):
        pass


def test_json_that_is_too_deep_is_refused(path):
    path.write_text("[" * 100_000)
    with (
        pytest.raises(DamagedCheckpointError, match="remove it to start anew"),
        Checkpoint(path, SETTINGS, resume=True),
    ):
        pass


def test_a_pipe_is_no_place_for_a_checkpoint(path):
    os.mkfifo(path)
    with (
        pytest.raises(OSError, match=r"checkpoint: .* is a pipe"),
        Checkpoint(path, SETTINGS, resume=True),
    ):
        pass


def test_bytes_that_are_no_text_are_refused(path):
    path.write_bytes(b"\xff\xfe\x00\x01")
    with (
        pytest.raises(DamagedCheckpointError, match="damaged"),
        Checkpoint(path, SETTINGS, resume=True),
    ):
        pass


def test_finished_work_is_kept_when_the_block_fails(path):
    def interrupted():
        with Checkpoint(path, SETTINGS) as done:
            done["a"] = [1.0]
            done["b"] = [2.0]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with Checkpoint(path, SETTINGS, resume=True) as done:
        assert (done["a"], done["b"]) == ([1.0], [2.0])


def test_writes_are_seconds_apart(path, monkeypatch):
    saved = []
    clock = [100.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: clock[0])
    save = Checkpoint.save
    monkeypatch.setattr(Checkpoint, "save", lambda self: (saved.append(clock[0]), save(self)))
    with Checkpoint(path, SETTINGS) as done:
        for step in range(12):
            clock[0] = 100.0 + step
            done[str(step)] = [float(step)]
    assert saved == [100.0, 105.0, 110.0, 111.0]


def test_a_write_that_fails_leaves_the_old_file(path, monkeypatch):
    written(path)
    before = path.read_bytes()
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN_WRITES", 0.0)

    def full(descriptor):
        raise OSError("no space left on device")

    def write():
        with Checkpoint(path, SETTINGS, resume=True) as done:
            monkeypatch.setattr(os, "fsync", full)
            done["1/full"] = [1.0]

    with pytest.raises(OSError, match="no space"):
        write()
    assert path.read_bytes() == before
    assert sorted(p.name for p in path.parent.iterdir()) == ["run.json", "run.json.lock"]


def test_a_file_in_place_is_never_written_into(path, monkeypatch):
    """Another name of the same file keeps what it had: the new content is a new file."""
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN_WRITES", 0.0)
    written(path)
    before = path.read_bytes()
    os.link(path, path.parent / "kept")
    with Checkpoint(path, SETTINGS, resume=True) as done:
        done["1/full"] = [1.0]
        done["2/full"] = [2.0]
    assert (path.parent / "kept").read_bytes() == before != path.read_bytes()


def test_left_overs_of_a_killed_write_are_cleared_away(path):
    written(path)
    for name in (".run.json.0123456789abcdef.tmp", ".other.json.abc.tmp"):
        (path.parent / name).write_text("half a fi")
    with Checkpoint(path, SETTINGS, resume=True):
        pass
    names = {p.name for p in path.parent.iterdir()}
    assert names == {"run.json", "run.json.lock", ".other.json.abc.tmp"}


def test_a_second_run_is_kept_out_while_the_first_writes(path):
    with Checkpoint(path, SETTINGS) as done:
        done["a"] = [1.0]
        with pytest.raises(RuntimeError, match="another run"), Checkpoint(path, SETTINGS):
            pass
        errors = []

        def other():
            try:
                with Checkpoint(path, SETTINGS, resume=True):
                    pass
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert len(errors) == 1
        done["b"] = [2.0]
    with Checkpoint(path, SETTINGS, resume=True) as done:
        assert len(done) == 2


def test_places_that_do_not_exist(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match="no directory"),
        Checkpoint(tmp_path / "a" / "run.json", SETTINGS),
    ):
        pass
    with pytest.raises(IsADirectoryError, match="is a directory"), Checkpoint(tmp_path, SETTINGS):
        pass


def test_the_umask_decides_who_may_read_the_file(path):
    written(path)
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
