"""A long run that is broken and gone on with: the same result bit for bit, or a refusal that says why."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from analysis_data.runs import Longest, StopError, corpus, fail, run, same

from tl_geometry import Probe, Regimes, Separability, Sinks, load, save
from tl_geometry.analysis import checkpoint
from tl_geometry.analysis.checkpoint_file import DamagedCheckpointError
from tl_geometry.analysis.store import CHECKPOINT, UnknownFormatError, read_file, write_file

TEXTS = [
    "the cat sat on the mat . " * 3,
    "a dog ran over the hill and under a tree",
    "the lazy fox",
]


@pytest.fixture
def model(tiny_model):
    return tiny_model


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ckpt"


@pytest.fixture
def forwards(model, monkeypatch):
    """Grows with every forward of the model, by whatever way."""
    seen = []
    handle = next(iter(model.hook_dict.values())).register_forward_pre_hook(
        lambda *args: seen.append(None)
    )
    yield seen
    handle.remove()


def interrupt():
    raise KeyboardInterrupt


def broken(model, path, *, stop, error=StopError, **options):
    """A run that ends before its time."""
    ending = interrupt if error is KeyboardInterrupt else fail
    with pytest.raises(error):
        run(model, stop=stop, ending=ending, checkpoint=path, **options)


def documents(path):
    return read_file(path, CHECKPOINT).attrs["progress"]["documents"]


# The same result.


HELD = {0: None, 1: None, 3: 2, 6: 6, 7: 6}  # documents in the file, by where the run is broken


@pytest.mark.parametrize(("error", "stops"), [(StopError, (0, 1, 3, 7)), (KeyboardInterrupt, (6,))])
def test_broken_anywhere_and_resumed_is_the_same(model, path, error, stops):
    """In the first batch, in either layer, in the last batch; each time the last whole batch is kept."""
    whole = run(model)
    for stop in stops:
        broken(model, path, stop=stop, error=error)
        assert (documents(path) if path.exists() else None) == HELD[stop]
        same(run(model, checkpoint=path, resume=True), whole)
        path.unlink()


def test_broken_again_and_again(model, path):
    for stop, held in ((3, 2), (1, 2), (2, 4), (2, 6)):
        broken(model, path, stop=stop, resume=True)
        assert documents(path) == held
    same(run(model, checkpoint=path, resume=True), run(model))


def test_broken_between_the_last_batch_and_the_result(model, path, monkeypatch):
    """All is measured, nothing is run again, and no count is lost with which results are checked."""
    with monkeypatch.context() as patch:
        patch.setattr(Probe, "result", lambda self: interrupt())
        with pytest.raises(KeyboardInterrupt):
            run(model, checkpoint=path)
    assert documents(path) == 8
    same(run(model, checkpoint=path, resume=True), run(model))


CASES = {
    "examples": {"keep_examples": 3},
    "random control": {"measures": lambda: [Separability((2, 4), queries=3), Regimes()]},
    "names": {"measures": lambda: ["regimes", "switches", "smoothing"], "seed": 3},
    "part of the heads": {"heads": [(1, 2)], "sink": [0, 1]},
    "documents": {"max_documents": 6, "measures": lambda: ["sinks", "regimes"]},
    "padding": {"data": lambda: padded()},
    "generator": {"data": lambda: (row[None] for row in corpus((8, 8, 9, 7)))},
    "whole batches": {"data": lambda: [torch.stack(corpus((8,) * 3, seed)) for seed in range(3)]},
}


def padded():
    """Pairs of tokens and mask, padded on both sides."""
    pairs = []
    for seed, (left, right) in enumerate(((0, 2), (3, 0), (1, 1), (0, 0))):
        mask = torch.ones(2, 10, dtype=torch.long)
        mask[0, :left] = 0
        mask[0, 10 - right :] = 0
        pairs.append((torch.stack(corpus((10, 10), seed)), mask))
    return pairs


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_run_goes_on(model, path, case):
    def options():
        return {k: v() if callable(v) else v for k, v in CASES[case].items()}

    whole = run(model, **options())
    broken(model, path, stop=3, **options())
    assert 0 < documents(path) < whole.attrs["documents"]
    same(run(model, checkpoint=path, resume=True, **options()), whole)


def test_texts_go_on(tiny_tokenizer, tiny_bridge, tiny_hooked, backend, path):
    model = {"bridge": tiny_bridge, "hooked": tiny_hooked}[backend](tokenizer=tiny_tokenizer)
    options = {"n_ctx": 8, "measures": None}
    whole = run(model, TEXTS, **options)
    broken(model, path, data=iter(TEXTS), stop=3, **options)
    found = run(model, iter(TEXTS), checkpoint=path, resume=True, **options)
    same(found, whole)
    assert found.attrs["prepend_bos"] is whole.attrs["prepend_bos"]


def test_rows_that_were_left_out_are_counted_once(model, path):
    data = [corpus((1,))[0], *corpus(), corpus((1,))[0]]
    whole = run(model, data)
    broken(model, path, data=data, stop=5)
    found = run(model, data, checkpoint=path, resume=True)
    assert found.attrs["skipped_documents"] == {"fewer than 2 tokens": 2}
    same(found, whole)


def test_a_run_with_a_checkpoint_is_the_run_without(model, path):
    same(run(model, checkpoint=path), run(model))
    path.unlink()
    same(run(model, checkpoint=str(path), resume=True), run(model))  # begun anew


def test_a_finished_run_runs_nothing(model, path, forwards):
    whole = run(model, checkpoint=path, keep_examples=1)
    forwards.clear()
    before = path.read_bytes()
    found = run(model, iter(corpus()), checkpoint=path, resume=True, keep_examples=1)
    assert forwards == []
    assert found.identical(whole)
    same(found, whole)
    assert found.attrs["created"] == whole.attrs["created"]
    assert path.read_bytes() == before


def test_what_was_measured_is_not_run_again(model, path, forwards):
    run(model, corpus()[:2], checkpoint=path.with_name("short.ckpt"))
    of_two = len(forwards)  # the doctor's, and one batch
    broken(model, path, stop=7)
    forwards.clear()
    run(model, checkpoint=path, resume=True)
    assert len(forwards) == of_two


def test_it_is_written_every_so_many_documents(model, path, monkeypatch):
    written = []

    def noted(ds, target, kind):
        written.append(ds.attrs["progress"]["documents"])
        write_file(ds, target, kind)

    monkeypatch.setattr(checkpoint, "write_file", noted)
    for every, expected in ((1, [2, 4, 6, 8, 8]), (3, [4, 8, 8]), (5, [6, 8]), (64, [8])):
        run(model, checkpoint=path, checkpoint_every=every)
        assert written == expected
        written.clear()
        path.unlink()


# Measures of a user's own.


def test_what_a_measure_changes_of_itself_is_kept(model, path):
    """Not only its states; and what it was made with stays as it is made now."""
    first = [Longest()]
    first[0].note = "of the first run"
    broken(model, path, stop=7, measures=[*first, Regimes()])
    assert first[0].calls == 8
    again = Longest()
    whole = run(model, measures=[Longest(), Regimes()])
    same(run(model, checkpoint=path, resume=True, measures=[again, Regimes()]), whole)
    assert again.calls == 8
    assert again.peak > 0
    assert len(again.seen) == len(again.lengths) == 8
    assert not hasattr(again, "note")


class Holder(Regimes):
    """Regimes that holds something else besides."""

    def __init__(self, held, change=lambda held: held):
        super().__init__()
        self.held, self.change = held, change

    def measure(self, geometry):
        found = super().measure(geometry)  # which may end the run
        self.held = self.change(self.held)
        return found


def test_arrays_are_kept_as_arrays(model, path):
    def holder():
        return Holder(np.zeros(2), lambda x: x + 0.1)

    broken(model, path, stop=7, measures=[holder()])
    again = holder()
    run(model, checkpoint=path, resume=True, measures=[again])
    expected = np.zeros(2)
    for _ in range(8):
        expected = expected + 0.1
    assert isinstance(again.held, np.ndarray)
    assert again.held.tolist() == expected.tolist()


def test_what_can_not_be_kept_is_refused(model, path):
    for held in (torch.Generator(), np.random.default_rng(0)):
        with pytest.raises(ValueError, match=r"checkpoint: .*Generator.*geometry\.documents"):
            run(model, measures=[Holder(held)], checkpoint=path)
    for change in (lambda held: {*held, len(held)}, lambda held: held.add(len(held)) or held):
        with pytest.raises(ValueError, match=r"checkpoint: Holder\.held, a set, was changed"):
            run(model, measures=[Holder({"a"}, change)], checkpoint=path)
    assert not path.exists()
    run(model, measures=[Holder({"a"})], checkpoint=path)


# Refusals, all before any forward.


def other_weights(model):
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-3


def other_configuration(model):
    model.cfg.rotary_base += 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_ctx": 40}, r"settings\.n_ctx was 32, now 40"),
        ({"batch_size": 4}, r"settings\.batch_size was 2, now 4"),
        (
            {"max_documents": 7},
            r"settings\.max_documents was null, now 7",
        ),
        ({"sink": 1}, r"settings\.sink was first, now 1"),
        ({"layers": [0]}, r"settings\.layers was null, now \[0\]"),
        ({"value_bias": "remove"}, r"settings\.value_bias was as_hooked, now remove"),
        ({"keep_examples": 1}, r"settings\.keep_examples was 0, now 1"),
        ({"seed": 1}, r"settings\.seed was 0, now 1"),
        ({"measures": [Longest()]}, r"measures\.1 Regimes was there, now nothing"),
        (
            {"measures": [Longest(), Regimes("model")]},
            r"measures\.1 Regimes\.settings\.space was head, now model",
        ),
        (
            {"measures": [Longest(3.0), Regimes()]},
            r"measures\.0 Longest\.settings\.power was 2\.0, now 3\.0",
        ),
        ({"model": other_weights}, r"model\.parameters was"),
        ({"model": other_configuration}, r"model\.config\.rotary_base was 10000, now 10001"),
    ],
)
def test_another_run_is_refused(model, path, forwards, change, words):
    broken(model, path, stop=3)
    before = path.read_bytes()
    forwards.clear()
    change = dict(change)
    change.pop("model", lambda model: None)(model)
    with pytest.raises(ValueError, match=words) as caught:
        run(model, checkpoint=path, resume=True, **change)
    assert "another file" in str(caught.value)
    assert forwards == []
    assert path.read_bytes() == before


def test_another_code_of_a_measure_is_refused(model, path, monkeypatch):
    broken(model, path, stop=3)
    monkeypatch.setattr(Longest, "measure", lambda self, g: {"longest": g.pattern.amax((2, 3))})
    with pytest.raises(ValueError, match=r"measures\.0 Longest\.code was"):
        run(model, checkpoint=path, resume=True)


@pytest.mark.parametrize("finished", [False, True])
def test_other_data_are_refused(model, path, finished):
    """Another token, another order, fewer; after the end more, too. What was not read yet may differ."""
    data = [torch.stack(corpus((8, 8), seed)) for seed in range(4)]
    options = {"measures": ["regimes"], "checkpoint": path}
    if finished:
        run(model, data, **options)
    else:
        broken(model, path, data=data, stop=5, measures=["regimes"])
    before = path.read_bytes()
    changed = [data[0], data[1].flip(1), *data[2:]]
    cases = [
        (changed, "their tokens, masks or batches differ"),
        ([data[1], data[0], *data[2:]], "their tokens, masks or batches differ"),
        (data[:1], "there are only 2 documents now"),
    ]
    if finished:
        cases.append(([*data, data[0]], "there are more now"))
    for other, words in cases:
        with pytest.raises(ValueError, match=words) as caught:
            run(model, iter(other), resume=True, **options)
        assert "Give the same data" in str(caught.value)
        assert path.read_bytes() == before
    if not finished:
        later = [*data[:2], data[0]]
        found = run(model, later, resume=True, **options)
        same(found, run(model, later, measures=["regimes"]))


def test_places_and_arguments(model, path, forwards):
    with pytest.raises(ValueError, match="resume=True needs checkpoint="):
        run(model, resume=True)
    with pytest.raises(FileNotFoundError, match=r"checkpoint: there is no directory .*nowhere"):
        run(model, checkpoint=path.parent / "nowhere" / "run.ckpt")
    with pytest.raises(IsADirectoryError, match=r"checkpoint: .* is a directory"):
        run(model, checkpoint=path.parent)
    with pytest.raises(ValueError, match="checkpoint_every must be at least 1, got 0"):
        run(model, checkpoint=path, checkpoint_every=0)
    path.write_text("a file of the user's")
    with pytest.raises(FileExistsError, match="resume=True"):
        run(model, checkpoint=path)
    assert path.read_text() == "a file of the user's"
    assert forwards == []


def test_a_setting_that_json_has_not_is_refused_beforehand(model, path, forwards):
    class Odd(Sinks):
        @property
        def settings(self):
            return {"of": torch.zeros(1)}

    with pytest.raises(ValueError, match=r"measures: settings of Odd\['of'\] is of type Tensor"):
        run(model, measures=[Odd()], checkpoint=path)
    assert forwards == []


def test_a_second_run_is_kept_out(model, path):
    def second():
        run(model, checkpoint=path, resume=True)

    with pytest.raises(RuntimeError, match="another run is writing"):
        run(model, stop=3, ending=second, checkpoint=path)
    assert documents(path) == 2
    same(run(model, checkpoint=path, resume=True), run(model))


# Files that are no checkpoint of this run.


def test_damage_is_refused(model, path, forwards):
    broken(model, path, stop=5)
    whole = path.read_bytes()
    forwards.clear()
    positions = [0, len(whole) - 1, *np.random.default_rng(0).integers(0, len(whole), 30)]
    damaged = [whole[:k] + bytes([whole[k] ^ 16]) + whole[k + 1 :] for k in map(int, positions)]
    damaged += [b"", whole[:8], whole[: len(whole) // 2], whole[:-1], whole + b"\n", b"{}"]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(DamagedCheckpointError, match="remove it to start anew"):
            run(model, checkpoint=path, resume=True)
        assert path.read_bytes() == content
    assert forwards == []


def test_a_result_is_no_checkpoint_and_a_checkpoint_is_no_result(model, path):
    save(run(model), path)
    with pytest.raises(DamagedCheckpointError, match="is a result, not a checkpoint of analyze"):
        run(model, checkpoint=path, resume=True)
    path.unlink()
    broken(model, path, stop=3)
    with pytest.raises(UnknownFormatError, match=r"checkpoint of analyze.*resume=True"):
        load(path)
    run(model, checkpoint=path, resume=True)
    with pytest.raises(UnknownFormatError, match="not a result"):
        load(path)


def hostile(ds):
    """Contents whose digests are right, and which no run has written."""
    states = ds["states"].values
    plain = ds.attrs["plain"]
    longest = {**plain["0 Longest"], "attributes": {"update": 1}}

    def with_plain(**change):
        return ds.assign_attrs(plain={**plain, **change})

    return {
        "no states": ds.drop_vars("states"),
        "states cut": ds.isel(byte=slice(0, len(states) // 2)),
        "a huge header": ds.assign(states=("byte", np.full(len(states), 255, np.uint8))),
        "no progress": ds.assign_attrs(progress=None),
        "negative progress": ds.assign_attrs(progress={**ds.attrs["progress"], "batches": -1}),
        "no digest": ds.assign_attrs(progress={**ds.attrs["progress"], "digest": 3}),
        "no number of documents": ds.assign_attrs(
            progress={**ds.attrs["progress"], "documents": None}
        ),
        "progress of another shape": ds.assign_attrs(progress={"batches": 1, "more": 2}),
        "batches that are no number": ds.assign_attrs(
            progress={**ds.attrs["progress"], "batches": "many"}
        ),
        "no plain part": ds.assign_attrs(plain=[]),
        "other layers": with_plain(fired=[1]),
        "fired is text": with_plain(fired="ab"),
        "a method replaced": with_plain(**{"0 Longest": longest}),
        "no measure": with_plain(**{"0 Longest": None}),
        "endless lists": with_plain(
            **{"0 Longest": {**plain["0 Longest"], "lengths": {"seen": 10**12}}}
        ),
    }


def test_hostile_contents_with_right_digests_are_refused(model, path):
    broken(model, path, stop=5)
    ds = read_file(path, CHECKPOINT)
    for what, content in hostile(ds).items():
        write_file(content, path, CHECKPOINT)
        with pytest.raises(DamagedCheckpointError, match="remove it to start anew"):
            run(model, checkpoint=path, resume=True)
        assert path.exists(), what


def test_states_of_another_shape_are_refused(model, path):
    from safetensors.torch import load as load_tensors, save as save_tensors

    broken(model, path, stop=5)
    ds = read_file(path, CHECKPOINT)
    tensors = load_tensors(ds["states"].values.tobytes())
    name = "1 Regimes/self_share"
    for change in (
        {name: tensors[name].float()},
        {name: tensors[name][:, :1].contiguous()},
        {"9 More/more": torch.zeros(1)},
        {"example x": torch.zeros(1)},
    ):
        content = np.frombuffer(save_tensors({**tensors, **change}), np.uint8)
        write_file(ds.drop_vars("states").assign(states=("byte", content)), path, CHECKPOINT)
        with pytest.raises(DamagedCheckpointError, match="remove it to start anew"):
            run(model, checkpoint=path, resume=True)


def test_left_overs_of_a_killed_write_are_cleared_away(model, path):
    (path.parent / f".run.ckpt.{'a' * 16}.tmp").write_text("half a fi")
    run(model, checkpoint=path, measures=[Regimes()])
    assert sorted(p.name for p in path.parent.iterdir()) == ["run.ckpt", "run.ckpt.lock"]


def test_a_write_that_fails_ends_the_run(model, path, monkeypatch):
    broken(model, path, stop=3)
    before = path.read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_file", full)
        with pytest.raises(OSError, match=r"No space left on device.*run\.ckpt"):
            run(model, checkpoint=path, resume=True, checkpoint_every=2)
    assert path.read_bytes() == before
    same(run(model, checkpoint=path, resume=True), run(model))
