"""Several processes on the CPU: the numbers of one, the same refusal everywhere, no end that hangs or is silent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import conftest
import pytest
from analysis_data.killed_analyze import digest
from analysis_data.reference import assert_equal
from analysis_data.runs import run
from analysis_data.shared_runs import ALONE, RUNS, options_of
from typer.testing import CliRunner

from tl_geometry import analyze, load
from tl_geometry.cli import app
from tl_geometry.models import load_model

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "analysis_data"
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(ROOT)]),
}
TEXT = (
    "the cat sat on the mat . a dog ran over the hill and under a tree and then it was quick " * 3
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def place(tmp_path_factory, tiny_tokenizer):
    """A directory with a model and a text for the command."""
    from transformers import LlamaConfig, LlamaForCausalLM

    directory = tmp_path_factory.mktemp("processes")
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    conftest._randomise(model, 0)
    model.save_pretrained(directory / "model")
    tiny_tokenizer.save_pretrained(directory / "model")
    (directory / "text.txt").write_text(TEXT)
    return directory


@pytest.fixture(scope="session")
def outcome(place):
    arguments = [place, place / "model", place / "text.txt"]
    done = subprocess.run(
        [sys.executable, str(DATA / "shared_analyze.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "destroy_process_group" not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def model():
    return conftest._tiny_hooked() if conftest._has_hooked() else conftest._tiny_bridge()


def of_each(outcome, world):
    """What each of several processes tells, after its runs and refusals."""
    told = outcome[f"{world} processes"]
    assert [said[:1] for said in told] == ["["] * world, told
    return [json.loads(said) for said in told]


# The same numbers.


@pytest.fixture(scope="module")
def alone(model):
    """What one process finds, each run made once."""
    found = {}

    def of(name):
        if name not in found:
            data, given = {**RUNS, **ALONE}[name]
            found[name] = analyze(model, data(), **options_of(given))
        return found[name]

    return of


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", RUNS)
def test_several_processes_give_the_numbers_of_one(outcome, place, alone, world, name):
    digests = {found[name] for found, *_ in of_each(outcome, world)}
    assert len(digests) == 1
    one, several = alone(name), load(place / f"{name} {world}.nc")
    assert digest(several) in digests
    if name == "other batches":
        one, several = (ds.drop_vars("calls") for ds in (one, several))
    assert_equal(several, one, 1e-6)
    assert (several.attrs["processes"], one.attrs["processes"]) == (world, 1)
    for attribute in {*several.attrs, *one.attrs} - {"created", "processes"}:
        assert several.attrs[attribute] == one.attrs[attribute], attribute


def test_the_run_of_one_batch_leaves_processes_without_documents(alone):
    ds = alone("one batch")
    assert (ds.calls == ds.sizes["layer"]).all()


@pytest.mark.parametrize("world", [2, 3])
def test_only_the_first_process_warns(outcome, world):
    """Of what a measure warns of here, with every batch; of nothing else."""
    warned = [warned for _, warned, _ in of_each(outcome, world)]
    assert warned == [["a batch"], *[[]] * (world - 1)]


# Refusals.


SAME = "ValueError: the 2 processes must do the same, but "


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("first batch", [SAME, "data.digest is ", "all of the data in the same order"]),
        ("last batch", [SAME, "data.documents is 8 in process 0 and 7 in process 1"]),
        ("settings", [SAME, "settings.n_ctx is 32 in process 0 and 33 in process 1"]),
        ("weights", [SAME, "model.parameters is "]),
        ("attribute", ["ValueError: measures: Counting.calls was changed", "add_state"]),
        ("list", ["ValueError: measures: the list Listing.seen", 'dist_reduce_fx="cat"']),
        ("shapes", ["ValueError: measures: the states of Growing can't be merged"]),
        ("random", ["ValueError: distributed: a measure holds a Generator", "geometry.documents"]),
        ("empty", ["ValueError: data holds no document to analyse"]),
    ],
)
def test_what_is_refused_is_refused_in_each_process(outcome, name, words):
    for *_, refused in of_each(outcome, 2):
        for word in words:
            assert word in refused[name]


def test_a_failure_of_one_process_is_told_to_the_other(outcome):
    (*_, first), (*_, second) = of_each(outcome, 2)
    assert second["one place"].startswith("FileNotFoundError: checkpoint: there is no directory")
    assert (
        first["one place"] == f"OtherProcessError: process 1 has failed with {second['one place']}"
    )
    assert second["data of one"] == "OSError: the disk of process 1"
    assert "another process has ended or does not answer" in first["data of one"]
    assert "not all of the 2 processes have come here" in first["absent"]


def test_alone_and_together_on_demand(outcome, model):
    (*_, first), (*_, second) = of_each(outcome, 2)
    assert (first["alone"], second["alone"]) == ([8, 1], [7, 1])
    assert first["together"] == second["together"] == [8, 2]
    with pytest.raises(
        ValueError, match="this process is the only one: start several with torchrun"
    ):
        run(model, distributed=True)


# Processes that die.


def test_a_process_that_dies_ends_the_run_and_it_goes_on(outcome):
    """Loudly everywhere, with what was measured kept; afterwards the same numbers bit for bit."""
    ((whole, files),) = outcome["whole"]
    assert len(set(whole)) == 1
    assert len(whole[0]) == 64
    assert files == [10, None]  # the first one's holds the result, the other's is gone
    gone = "OtherProcessError: process {} of 2: another process has ended or does not answer"
    expected = {
        # name: how each process ended, and the documents up to which its file goes
        "killed in a batch": [(gone.format(0), "SIGKILL", [10, 4])],
        "first one killed": [("SIGKILL", gone.format(1), [2, 10])],
        "failed": [(gone.format(0), "StopError", [10, 4])],
        "killed before the result": [("SIGKILL", gone.format(1), [10, 10])],
        "killed after the result": [(gone.format(0), "SIGKILL", [10, 10])],
    }
    for name, broken in expected.items():
        for (ended, kept), (first, second, held) in zip(outcome[name], broken, strict=False):
            assert ended[0].startswith(first), name
            assert ended[1].startswith(second), name
            assert kept == held, name
        for ended, kept in outcome[name][len(broken) :]:
            assert ended == whole, name
            assert kept == [10, None], name


def test_another_number_of_processes_is_refused(outcome):
    first, second, third = outcome["three"]
    for said in (first, second):
        assert "belongs to another run. processes was 2, now 3" in said
    assert third.startswith("OtherProcessError: process 0 has failed with ValueError: checkpoint: ")
    assert "processes was 2, now 1" in outcome["single"]
    assert all("process was" in said for said in outcome["swapped"])


# The command.


def test_only_the_first_process_checks_writes_and_speaks(outcome):
    commands = outcome["commands"]
    codes, (first, second) = commands["refused"]
    assert codes == ["2", "2"]
    assert first.endswith("taken.nc exists; pass --force to replace it\n")
    assert "process 0 has failed with FileExistsError" in second
    assert commands["taken"] == "mine"
    codes, (first, second) = commands["resumed"]
    assert codes == ["0", "0"]
    assert first.endswith("command.nc: 10 documents, 76 tokens, 2 processes\n")
    assert second == ""


def test_a_terminated_command_keeps_what_it_has_measured(outcome):
    codes, (first, second) = outcome["commands"]["terminated"]
    assert codes == ["130", "2"]
    assert first.endswith("tl-geometry: interrupted\n")
    assert "another process has ended" in second
    assert outcome["commands"]["there"] == [False, 1]


def test_the_command_under_torchrun(place):
    out = place / "torchrun.nc"
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "tl_geometry"]
    options = ["--n-ctx", 8, "--measures", "regimes,sinks", "--keep-examples", 2, "--out", out]
    done = subprocess.run(
        [sys.executable, "-m", *launch, "analyze", place / "model", "--text", place / "text.txt"]
        + [str(option) for option in options],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{out}: 10 documents, 76 tokens, 2 processes\n"
    assert "Warning" not in done.stderr
    assert "destroy_process_group" not in done.stderr
    found = load(out)
    alone = analyze(
        load_model(place / "model"),
        [TEXT],
        ["regimes", "sinks"],
        n_ctx=8,
        keep_examples=2,
        progress=False,
    )
    assert_equal(found, alone, 1e-6)
    assert found.attrs["corpus"] == [
        {"name": "text.txt", "source": str(place / "text.txt"), "texts": 1, "tokens": 76}
    ]


def test_other_commands_are_refused_in_several_processes(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 2
    assert "demo runs in one process, and 2 were started: only analyze" in result.output
