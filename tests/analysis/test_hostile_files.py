"""Files that somebody made up: right digests, HDF5 that points elsewhere, lies about sizes, wrong records."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
import socket

import h5py
import numpy as np
import pytest
import xarray as xr
from analysis_data.forked import forked

from tl_geometry.analysis import store
from tl_geometry.analysis.flat_hdf5 import netcdf_bytes
from tl_geometry.analysis.record import RECORD, pack
from tl_geometry.analysis.store import DamagedFileError, UnknownFormatError, load, save

SECRET = np.arange(5.0)


@pytest.fixture
def ds():
    return xr.Dataset(
        {
            "share": (("layer", "head"), np.ones((2, 3))),
            "name": ("layer", np.array(["a", "b"])),
        },
        attrs={"documents": 1},
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.nc"


@pytest.fixture
def secret(tmp_path):
    """Another file, which no result may read."""
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["share"] = SECRET
    return tmp_path / "secret.h5"


def sealed(path, content):
    """The bytes with a digest that is right."""
    digest = hashlib.sha256(content).hexdigest()
    path.write_bytes(content + store._TRAILER + digest.encode())


def edited(ds, path, edit):
    """The file of a dataset after a change of its HDF5 content, sealed anew."""
    raw, digest = pack(ds)
    raw.attrs |= {store._FORMAT: 1, store._CONTENT: digest}
    buffer = io.BytesIO(netcdf_bytes(raw))
    with h5py.File(buffer, "r+") as file:
        edit(file)
    sealed(path, buffer.getvalue())


def refused(path, words, error=DamagedFileError):
    with pytest.raises(error, match=words) as caught:
        load(path)
    assert type(caught.value) is error
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600


def put(file, name, **options):
    """Another dataset in the place of one."""
    del file[name]
    return file.create_dataset(name, **options)


def test_an_untouched_file_is_read(ds, path):
    edited(ds, path, lambda file: None)
    assert load(path).identical(ds)


# HDF5 that reaches out.


def test_links_are_not_followed(ds, path, secret):
    def external(file):
        del file["share"]
        file["share"] = h5py.ExternalLink(str(secret), "/share")

    def soft(file):
        file.move("share", "elsewhere")
        file["share"] = h5py.SoftLink("/elsewhere")

    for edit in (external, soft):
        edited(ds, path, edit)
        refused(path, "'share' is a link to elsewhere")


def test_data_in_other_files_are_not_read(ds, path, secret):
    def raw(file):
        put(file, "share", shape=(2, 3), dtype="f8", external=[(str(secret), 0, 48)])

    def virtual(file):
        del file["share"]
        layout = h5py.VirtualLayout(shape=(2, 3), dtype="f8")
        layout[0] = h5py.VirtualSource(str(secret), "share", shape=(5,))[:3]
        file.create_virtual_dataset("share", layout)

    for edit in (raw, virtual):
        edited(ds, path, edit)
        refused(path, "'share' is kept elsewhere")


def test_filters_that_are_plugins_are_not_looked_for(ds, path):
    def lzf(file):
        put(file, "share", data=np.ones((2, 3)), compression="lzf", chunks=(2, 3))

    edited(ds, path, lzf)
    refused(path, "'share' is kept elsewhere or in a way no result is")


# Lies about sizes. Each would take more memory than there is.


def test_declared_sizes_are_not_believed(ds, path):
    def nothing_stored(file):
        put(file, "share", shape=(2**40, 3), dtype="f8", chunks=(1024, 3))

    def huge_chunk(file):
        put(file, "share", shape=(2, 3), maxshape=(None, 3), dtype="f8", chunks=(2**26, 3))

    def no_strings(file):
        put(file, "name", shape=(2**40,), dtype=h5py.string_dtype(), chunks=(1024,))

    for edit, name in ((nothing_stored, "share"), (huge_chunk, "share"), (no_strings, "name")):
        edited(ds, path, edit)
        refused(path, f"'{name}' claims to be of shape .*, more than the file can hold")


def test_strings_that_share_their_bytes_are_counted(path):
    """Each reference is made to point to the one long string: a gigabyte from a megabyte."""
    n, long = 2000, "x" * 500_000
    strings = xr.Dataset({"name": ("n", np.array([long, *["y"] * (n - 1)], dtype=object))})
    raw, digest = pack(strings)
    raw.attrs |= {store._FORMAT: 1, store._CONTENT: digest}
    content = bytearray(netcdf_bytes(raw))
    with h5py.File(io.BytesIO(bytes(content)), "r") as file:
        start = file["name"].id.get_offset()
    for k in range(1, n):
        content[start + 16 * k : start + 16 * (k + 1)] = content[start : start + 16]
    sealed(path, bytes(content))
    refused(path, "'name' claims to be of shape")


def test_a_type_of_wide_strings_is_not_believed(ds, path):
    edited(ds, path, record({"name": {"dtype": "<U500000000"}}))
    refused(path, "'name' can't be of type")


# Wrong types.


def test_other_types_are_refused(ds, path):
    kinds = {
        "opaque": np.dtype("V8"),
        "compound": np.dtype([("a", "f8"), ("b", "i4")]),
        "array": np.dtype(("f8", (2,))),
        "enum": h5py.enum_dtype({"a": 1}),
        "reference": h5py.ref_dtype,
        "region": h5py.regionref_dtype,
        "numbers of any length": h5py.vlen_dtype(np.float64),
        "fixed": np.dtype("S8"),
    }
    for kind, dtype in kinds.items():
        edited(ds, path, lambda file, dtype=dtype: put(file, "share", shape=(2, 3), dtype=dtype))
        with pytest.raises(DamagedFileError):
            load(path)
        assert path.exists(), kind


def test_groups_and_missing_arrays_are_refused(ds, path):
    def group(file):
        del file["share"]
        deep = file.create_group("share")
        for _ in range(200):
            deep = deep.create_group("share")

    def empty(file):
        del file["share"]
        file["share"] = h5py.Empty("f8")

    edited(ds, path, lambda file: file.__delitem__("share"))
    refused(path, "'share' is missing")
    for edit in (group, empty):
        edited(ds, path, edit)
        refused(path, "'share' is no array")


def test_objects_are_never_unpickled(ds, path, tmp_path):
    """Pickled code in every place that a reader might unpickle."""
    mark = tmp_path / "executed"

    class Code:
        def __reduce__(self):
            return os.mkdir, (str(mark),)

    code = np.frombuffer(pickle.dumps(Code()), np.uint8)

    def attributes(file):
        file.attrs["pickled"] = np.void(code.tobytes())
        file["share"].attrs["pickled"] = code
        file.attrs[RECORD] = code

    def bytes_for_text(file):
        file.attrs[RECORD] = np.void(code.tobytes())

    for edit in (attributes, bytes_for_text):
        edited(ds, path, edit)
        refused(path, f"there is no {RECORD}")
    sealed(path, code.tobytes())
    refused(path, "holds what tl_geometry.save does not write")
    assert not mark.exists()
    pickle.loads(code.tobytes())  # noqa: S301 - the trap works
    assert mark.exists()


# The record.


def record(changes=None, **top):
    """An edit of the record: entries of variables by name, and others."""

    def edit(file):
        found = json.loads(file.attrs[RECORD])
        for entry in found["variables"]:
            entry.update((changes or {}).get(entry["name"], {}))
        file.attrs[RECORD] = json.dumps({**found, **top})

    return edit


def text(content):
    return lambda file: file.attrs.__setitem__(RECORD, content)


RECORDS = {
    "no JSON": text("{"),
    "another value": text("3"),
    "nothing": text("null"),
    "deep": text("[" * 100_000),
    "deep attributes": text('{"variables": [], "attrs": ' + '{"a":' * 5000 + "1" + "}" * 5001),
    "a number without end": text('{"variables": [], "attrs": ' + "1" * 10_000 + "}"),
    "attributes that are a list": record(attrs=[1, 2]),
    "a dict without pairs": record(attrs={"!dict": 3}),
    "a dict with keys that are none": record(attrs={"!dict": [[[1], 2]]}),
    "no variables": record(variables=None),
    "variables that are text": record(variables="ab"),
    "a name that is a number": record({"share": {"name": 3}}),
    "a name that is a list": record({"share": {"name": ["share"]}}),
    "a name that leads out": record({"share": {"name": "/share/.."}}),
    "too few dims": record({"share": {"dims": ["layer"]}}),
    "dims that are a number": record({"share": {"dims": 3}}),
    "dims that do not fit": record({"name": {"dims": ["head"]}}),
    "no dtype": record({"share": {"dtype": "nothing"}}),
    "a dtype of Python objects": record({"share": {"dtype": "f8, O"}}),
    "a dtype that is a list": record({"share": {"dtype": [["a", "O"]]}}),
    "escaped that is no JSON": record({"name": {"escaped": True}}),
    "strings as numbers": record({"name": {"dtype": "<f8"}}),
    "another content": record({"share": {"attrs": {"units": "m"}}}),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_wrong_records_are_refused(ds, path, kind):
    edited(ds, path, RECORDS[kind])
    with pytest.raises(DamagedFileError) as caught:
        load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (2, r"has format 2, this version of tl_geometry reads format 1; update the package"),
        (0, r"has format 0, this version of tl_geometry reads format 1$"),
        (-(2**63), "has format -9223372036854775808"),
        ("one", "has format one,"),
        ("1" * 10_000, "has format 1{80},"),
        (1.0, "has format None"),
        (np.array([1, 1]), "has format None"),
        (np.void(b"1"), "has format None"),
    ],
)
def test_other_versions_are_refused(ds, path, version, words):
    edited(ds, path, lambda file: file.attrs.__setitem__(store._FORMAT, version))
    refused(path, words, UnknownFormatError)


def test_a_file_of_another_kind_is_refused(ds, path):
    edited(ds, path, lambda file: file.attrs.__setitem__(store._KIND, "something"))
    refused(path, "is a something, not a result", UnknownFormatError)


def test_another_programs_file_with_our_digest_is_refused(path):
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file["share"] = SECRET
    sealed(path, buffer.getvalue())
    refused(path, "has format None", UnknownFormatError)
    for content in (b"", b"\x89HDF\r\n\x1a\n", b"\x89HDF\r\n\x1a\n" + bytes(2000), b"PK\x03\x04"):
        sealed(path, content)
        refused(path, "holds what tl_geometry.save does not write")


def test_damaged_hdf5_with_a_right_digest_is_refused_or_the_same(ds, path):
    """In a process of its own, as the HDF5 library might not survive it."""
    whole = save(ds, path).read_bytes()[: -store._TRAILER_SIZE]
    chance, counts = random.Random(0), {"refused": 0, "same": 0, "other": 0}

    def work():
        for _ in range(400):
            content = bytearray(whole)
            content[chance.randrange(len(whole))] ^= chance.randrange(1, 256)
            sealed(path, bytes(content))
            try:
                counts["same" if load(path).identical(ds) else "other"] += 1
            except (DamagedFileError, UnknownFormatError):
                counts["refused"] += 1
        return json.dumps(counts)

    status, said = forked(work)
    assert status == 0
    found = json.loads(said)
    assert found["refused"] > 50
    assert found["same"] > 0  # bytes that nothing reads
    assert found["other"] == 0


# What is no file.


def test_pipes_devices_sockets_and_directories(ds, tmp_path):
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    address = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
        for place in (fifo, address, "/dev/null"):
            with pytest.raises(UnknownFormatError, match="a pipe, a socket or a device"):
                load(place)
            with pytest.raises(OSError, match="a pipe, a socket or a device"):
                save(ds, place)
    with pytest.raises(IsADirectoryError):
        load(tmp_path)


def test_symbolic_links(ds, tmp_path):
    """Read through; when written, the link gives way, and what it points to stays."""
    target, link, nowhere = (tmp_path / name for name in ("target.nc", "link.nc", "nowhere.nc"))
    save(ds, target)
    link.symlink_to(target)
    assert load(link).identical(ds)
    before = target.read_bytes()
    save(ds.assign_attrs(documents=2), link)
    assert target.read_bytes() == before
    assert not link.is_symlink()
    assert load(link).attrs["documents"] == 2
    nowhere.symlink_to(tmp_path / "missing.nc")
    with pytest.raises(FileNotFoundError):
        load(nowhere)


def test_what_json_could_not_read_again_is_not_saved(path):
    with pytest.raises(ValueError, match=r"ds\.attrs\['n'\] is an integer of more than"):
        save(xr.Dataset(attrs={"n": 10**5000}), path)
    assert not path.exists()
