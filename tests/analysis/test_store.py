import errno
import math
import multiprocessing
import os
import random
import resource
import signal
import stat
import threading
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from analysis_data.forked import forked

from tl_geometry.analysis import store
from tl_geometry.analysis.files import replacement, sole_writer
from tl_geometry.analysis.flat_hdf5 import FlatFile
from tl_geometry.analysis.store import DamagedFileError, UnknownFormatError, load, save


def example(seed=0):
    rng = np.random.default_rng(seed)
    share = rng.random((3, 4)).astype(np.float32)
    share[1, 2] = np.nan
    share[0, 0] = -0.0
    wide = rng.normal(size=(3, 4))
    wide[2, 1] = np.inf
    return xr.Dataset(
        {
            "regime": (
                ("layer", "head"),
                rng.choice(["retriever", "mixer", "reset", ""], size=(3, 4)),
                {"long_name": "regime of the head", "units": "", "source": "TS, section 3"},
            ),
            "sink_rate": (
                ("layer", "head"),
                share,
                {"long_name": "sink rate", "units": "1", "bounds": [0, None], "signed": False},
            ),
            "sink_rate_se": (("layer", "head"), wide),
            "regime_rows": (("layer", "head"), rng.integers(0, 1 << 40, size=(3, 4))),
            "causal": ("layer", np.array([True, False, True])),
            "example_tokens": (
                ("example", "token"),
                np.array([["Ġthe", "</s>", "\u65e5"], ["a\0b\0", "é", "\n"]], dtype=object),
            ),
            "raw_bytes": ("head", np.array(["\ud800", "\udcff.", "", "x"])),
            "label": ((), np.array("scalar text")),
            "total": ((), np.int32(7)),
            "none_left": (("gone", "head"), np.zeros((0, 4), np.float32)),
        },
        coords={
            "layer": [0, 1, 2],
            "head": np.arange(4),
            "offset_bin": ("offset_bin", ["0", "1", "2-3"]),
            "layer_name": ("layer", ["blocks.0.attn", "blocks.1.attn", "blocks.2.attn"]),
        },
        attrs={
            "model_name": "tiny \0 \ud800 日",
            "prepend_bos": None,
            "value_bias": True,
            "documents": 3,
            "big": 10**30,
            "share": 0.1,
            "nan": math.nan,
            "skipped_layers": {3: "gated", "encoder.0": "clipped"},
            "weight_processing": {"folded": False, "nested": {"a": [1, None, {"b": ()}]}},
            "sink": (0, 1),
            "warnings": [],
            "text": "x" * 200_000,
        },
    )


def assert_same(left, right):
    """Equal to the bit, types included."""
    assert list(left.data_vars) == list(right.data_vars)
    assert list(left.coords) == list(right.coords)
    assert dict(left.sizes) == dict(right.sizes)
    for name in left.variables:
        one, two = left.variables[name], right.variables[name]
        assert one.dims == two.dims, name
        assert one.dtype == two.dtype, name
        if one.dtype.kind in "UO":
            assert one.values.tolist() == two.values.tolist(), name
        else:
            assert one.values.tobytes() == two.values.tobytes(), name
        assert repr(one.attrs) == repr(two.attrs), name
    assert repr(left.attrs) == repr(right.attrs)


def leftovers(directory):
    return [p.name for p in Path(directory).iterdir() if p.name.endswith(".tmp")]


def test_round_trip_to_the_bit(tmp_path):
    ds = example()
    before = ds.copy(deep=True)
    path = save(ds, tmp_path / "run.nc")
    assert path == tmp_path / "run.nc"
    assert_same(ds, before)
    assert_same(load(path), ds)
    assert_same(load(str(path)), ds)
    assert leftovers(tmp_path) == []


def test_empty_dataset(tmp_path):
    assert_same(
        load(save(xr.Dataset(attrs={"note": None}), tmp_path / "e.nc")),
        xr.Dataset(attrs={"note": None}),
    )


def test_saving_twice_and_a_loaded_result(tmp_path):
    once = load(save(example(), tmp_path / "a.nc"))
    assert_same(load(save(once, tmp_path / "b.nc")), example())


def test_numpy_scalars_in_attributes_become_python_numbers(tmp_path):
    ds = xr.Dataset(attrs={"n": np.int64(3), "f": np.float32(0.5), "b": np.bool_(True)})
    attrs = load(save(ds, tmp_path / "n.nc")).attrs
    assert repr(attrs) == "{'n': 3, 'f': 0.5, 'b': True}"


def test_other_tools_can_read_the_file(tmp_path):
    """Names, values, coordinates and the plain attributes are there without this package."""
    path = save(example(), tmp_path / "run.nc")
    with xr.open_dataset(path, engine="h5netcdf") as plain:
        assert plain["sink_rate"].attrs["long_name"] == "sink rate"
        np.testing.assert_array_equal(plain["sink_rate"], example()["sink_rate"])
        assert plain["regime"].values.tolist() == example()["regime"].values.tolist()
        assert plain["layer_name"].values[1] == "blocks.1.attn"
        assert "layer_name" in plain.coords


@pytest.mark.parametrize(
    ("ds", "message"),
    [
        (xr.Dataset({"a": ("x", np.array(["a", None], dtype=object))}), r"'a'.*(None|nan)"),
        (xr.Dataset({"a": ("x", np.array([1 + 2j]))}), "'a'.*complex128"),
        (xr.Dataset({"a": ("x", np.zeros(1, np.float16))}), "'a'.*float16"),
        (xr.Dataset({1: ("x", np.zeros(1))}), "1.*must be strings"),
        (xr.Dataset(attrs={"a": {"b": [np.zeros(2)]}}), r"ds\.attrs\['a'\]\['b'\]\[0\].*ndarray"),
        (xr.Dataset({"a": ("x", [1.0], {"k": {1, 2}})}), r"ds\['a'\]\.attrs\['k'\].*set"),
        (xr.Dataset(coords={"x": [1, 2], "y": [1, 2]}).stack(z=("x", "y")), "'z' is a MultiIndex"),
    ],
)
def test_what_cannot_be_stored_is_named(tmp_path, ds, message):
    with pytest.raises(ValueError, match=message):
        save(ds, tmp_path / "run.nc")
    assert list(tmp_path.iterdir()) == []


def test_bad_paths(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a directory"):
        save(example(), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no directory .*nowhere"):
        save(example(), tmp_path / "nowhere" / "run.nc")
    with pytest.raises(FileNotFoundError, match=r"no file .*missing\.nc"):
        load(tmp_path / "missing.nc")
    with pytest.raises(IsADirectoryError):
        load(tmp_path)


def test_overwriting(tmp_path):
    path = save(example(0), tmp_path / "run.nc")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        save(example(1), path, overwrite=False)
    assert_same(load(path), example(0))
    save(example(1), path)
    assert_same(load(path), example(1))


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04" + bytes(500), bytes(3)])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "other.nc"
    path.write_bytes(content)
    with pytest.raises(UnknownFormatError, match="not a netCDF file of"):
        load(path)


def test_a_netcdf_file_of_another_program_is_refused(tmp_path):
    path = tmp_path / "other.nc"
    xr.Dataset({"a": ("x", [1.0])}).to_netcdf(path, engine="h5netcdf")
    with pytest.raises(DamagedFileError, match="did not write"):
        load(path)


def test_a_later_format_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(store, "FORMAT_VERSION", 2)
        path = save(example(), tmp_path / "run.nc")
    with pytest.raises(UnknownFormatError, match=r"format 2.*reads format 1"):
        load(path)


def test_content_that_the_library_reads_differently_is_refused(tmp_path, monkeypatch):
    path = save(example(), tmp_path / "run.nc")
    read = FlatFile.arrays

    def misread(self, names):
        arrays = read(self, names)
        arrays["sink_rate"][0, 1] += 1e-7
        return arrays

    monkeypatch.setattr(FlatFile, "arrays", misread)
    with pytest.raises(DamagedFileError, match="content"):
        load(path)


def test_random_damage_is_detected(tmp_path):
    """Each of 200 changed bytes is found; the start, the end and the middle are among them."""
    whole = save(example(), tmp_path / "run.nc").read_bytes()
    path = tmp_path / "damaged.nc"
    chosen = random.Random(0).sample(range(len(whole)), 197)
    for position in [0, len(whole) // 2, len(whole) - 1, *chosen]:
        flip = random.Random(position).randrange(1, 256)
        path.write_bytes(whole[:position] + bytes([whole[position] ^ flip]) + whole[position + 1 :])
        with pytest.raises((DamagedFileError, UnknownFormatError)):
            load(path)


def test_truncation_is_detected(tmp_path):
    whole = save(example(), tmp_path / "run.nc").read_bytes()
    path = tmp_path / "short.nc"
    for length in [8, 100, len(whole) // 2, len(whole) - 200, len(whole) - 64, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedFileError, match="truncated"):
            load(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(DamagedFileError):
        load(path)


def test_nothing_is_unpickled(tmp_path, monkeypatch):
    import pickle

    def refuse(*args, **kwargs):
        raise AssertionError("pickle was used")

    for name in ("load", "loads", "dump", "dumps", "Unpickler", "Pickler"):
        monkeypatch.setattr(pickle, name, refuse)
    assert_same(load(save(example(), tmp_path / "run.nc")), example())


def test_the_file_is_closed(tmp_path):
    path = save(example(), tmp_path / "run.nc")
    load(path)
    if Path("/proc/self/fd").is_dir():
        open_files = {os.path.realpath(p) for p in Path("/proc/self/fd").iterdir()}
        assert str(path.resolve()) not in open_files


def test_interrupted_before_the_last_step(tmp_path, monkeypatch):
    path = save(example(0), tmp_path / "run.nc")

    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        save(example(1), path)
    monkeypatch.undo()
    assert_same(load(path), example(0))
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_failing_while_writing(tmp_path, monkeypatch, step):
    path = save(example(0), tmp_path / "run.nc")

    def fail(*args, **kwargs):
        raise OSError("disk")

    if step == "write":
        monkeypatch.setattr(Path, "open", fail)
    else:
        monkeypatch.setattr(os if step == "fsync" else Path, step, fail)
    with pytest.raises(OSError, match="disk"):
        save(example(1), path)
    monkeypatch.undo()
    assert_same(load(path), example(0))
    assert leftovers(tmp_path) == []


def test_the_content_is_on_disk_before_it_takes_its_place(tmp_path, monkeypatch):
    """The file is synced whole, then renamed, then the directory is synced: in this order."""
    steps = []
    sync, replace = os.fsync, Path.replace

    def noted_sync(descriptor):
        place = Path(f"/proc/self/fd/{descriptor}").readlink()
        steps.append(("sync", place.is_dir(), place.stat().st_size if place.is_file() else None))
        sync(descriptor)

    def noted_replace(self, target):
        steps.append(("replace", self.parent == target.parent, self.stat().st_size))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    size = save(example(), tmp_path / "run.nc").stat().st_size
    assert steps == [("sync", False, size), ("replace", True, size), ("sync", True, None)]


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no file size limits here")
def test_a_full_disk(tmp_path):
    """The write fails for real, by a limit on the size of files; the old file is still whole."""
    path = save(example(0), tmp_path / "run.nc")
    large = xr.Dataset({"a": ("x", np.random.default_rng(0).random(100_000))})

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        for limit in (0, 1, 1_000, 50_000, 400_000, 760_000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            with pytest.raises(OSError) as caught:
                save(large, path)
            assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))
        return "six times"

    assert forked(work) == (0, "six times")
    assert_same(load(path), example(0))
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_while_saving(tmp_path, when):
    path = save(example(0), tmp_path / "run.nc")
    replace = Path.replace

    def killed(self, target):
        if when == "after":
            replace(self, target)
        os.kill(os.getpid(), signal.SIGKILL)

    def work():
        Path.replace = killed
        return str(save(example(1), path))

    assert forked(work) == (signal.SIGKILL, "")
    assert_same(load(path), example(0 if when == "before" else 1))
    assert_same(load(save(example(2), path)), example(2))


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_file_mode_follows_the_umask(tmp_path, umask, mode):
    previous = os.umask(umask)
    try:
        path = save(example(), tmp_path / "run.nc")
    finally:
        os.umask(previous)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def write_many(path, seed):
    for _ in range(5):
        save(example(seed), path)


def test_concurrent_writers_leave_one_whole_result(tmp_path):
    """Two processes and two threads write, and what is read in between is always one of their results."""
    path = tmp_path / "run.nc"
    save(example(0), path)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(path, seed)) for seed in (0, 1)]
    for writer in writers:
        writer.start()
    writers += [threading.Thread(target=write_many, args=(path, seed)) for seed in (2, 3)]
    for writer in writers[2:]:
        writer.start()
    expected = {example(seed)["sink_rate_se"].values.tobytes() for seed in range(4)}
    while any(writer.is_alive() for writer in writers):
        assert load(path)["sink_rate_se"].values.tobytes() in expected
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers[:2]] == [0, 0]
    assert leftovers(tmp_path) == []


def test_the_lock_of_one_file_leaves_another_files_write_alone(tmp_path):
    with replacement(tmp_path / "run.nc") as temporary, sole_writer(tmp_path / "run"):
        temporary.write_text("whole")
    assert (tmp_path / "run.nc").read_text() == "whole"
    left = tmp_path / f".run.{'0' * 16}.tmp"
    left.touch()
    with sole_writer(tmp_path / "run"):
        assert not left.exists()


def test_strings_of_very_different_length(tmp_path):
    """Wide in memory, small in the file: still read again."""
    texts = np.array(["x" * 50_000, *[""] * 500])
    assert_same(
        load(save(xr.Dataset({"text": ("document", texts)}), tmp_path / "t.nc")),
        xr.Dataset({"text": ("document", texts)}),
    )
