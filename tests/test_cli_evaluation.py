import importlib
import inspect
import json

import pytest
from typer.testing import CliRunner
from views_data.dataset import make_dataset
from views_data.evaluations import (
    make_downstream,
    make_faithfulness,
    make_interventions,
    make_mixing,
    make_sensitivity,
    make_sparsify,
)

import tl_geometry.models
from tl_geometry import load, save, views
from tl_geometry.cli import app
from tl_geometry.cli.evaluating import _FUNCTIONS
from tl_geometry.measures.importances import IMPORTANCES
from tl_geometry.views.report import report_html

RESULTS = {
    "faithfulness": lambda: make_faithfulness(modes=("inter",), fractions=(0.1, 0.5)),
    "sparsify": make_sparsify,
    "sensitivity": make_sensitivity,
    "sinks": make_interventions,
    "mixing": make_mixing,
    "downstream": make_downstream,
}
WINDOWS = {"n_ctx": 256, "batch_size": None, "max_documents": 8, "prepend_bos": None}
RUNNING = {"seed": 0, "checkpoint": None, "resume": False, "progress": True}
DEFAULTS = {
    "faithfulness": {
        "importances": [
            "attention", "value_weighted", "value_weighted_normalized", "contribution", "random",
        ],
        "modes": ["intra", "inter"],
        "rankings": ["signed", "absolute"],
        "fractions": [0.01, 0.05, 0.1, 0.2, 0.5],
        "scope": "query",
        "reference": "online",
        "repeats": 1,
        "sink": "first",
        "layers": None,
        "heads": None,
        **WINDOWS,
        **RUNNING,
    },
    "sparsify": {
        "orders": None,
        "retention": [1.0, 0.9, 0.75, 0.5, 0.25, 0.1],
        "repeats": 3,
        "mode": "zero",
        "layers": None,
        "heads": None,
        **WINDOWS,
        **RUNNING,
    },
    "sensitivity": {"mode": "zero", "layers": None, "heads": None, **WINDOWS, **RUNNING},
    "sinks": {
        "interventions": ["zero_value", "renormalize", "rescale", "mean"],
        "factor": 2.0,
        "sink": "first",
        "layers": None,
        "heads": None,
        **WINDOWS,
        **RUNNING,
    },
    "mixing": {
        "targets": ["identity", "uniform"],
        "ts": [0.25, 0.5, 1.0],
        "sink": "first",
        "layers": None,
        "heads": None,
        **WINDOWS,
        **RUNNING,
    },
    "downstream": {
        "importances": list(IMPORTANCES),
        "fraction": 0.1,
        "scope": "query",
        "mode": "inter",
        "sink": "first",
        "limit": None,
        "num_fewshot": 0,
        "include_path": None,
        "n_ctx": None,
        "batch_size": 8,
        "prepend_bos": None,
        **RUNNING,
    },
}  # fmt: skip
COMMON = (
    "--n-ctx 64 --batch-size 3 --max-documents 5 --no-prepend-bos --seed 7 --no-progress "
    "--checkpoint run.json --resume"
)
COMMON_GIVEN = {
    "n_ctx": 64, "batch_size": 3, "max_documents": 5, "prepend_bos": False, "seed": 7,
    "progress": False, "resume": True,
}  # fmt: skip
GIVEN = {
    "faithfulness": (
        "--importances contribution,attention --modes inter --rankings absolute --fractions 0.1,0.25 "
        "--scope token --reference clean --repeats 4 --sink 0,2 --layers 0,2-3 --heads 0.1",
        {
            "importances": ["contribution", "attention"],
            "modes": ["inter"],
            "rankings": ["absolute"],
            "fractions": [0.1, 0.25],
            "scope": "token",
            "reference": "clean",
            "repeats": 4,
            "sink": [0, 2],
            "layers": [0, 2, 3],
            "heads": [(0, 1)],
        },
    ),
    "sparsify": (
        "--orders mixer>reset>retriever,random --retention 0.5,0.25 --repeats 2 --mode mean "
        "--layers 0-1 --heads 0.1,1.2",
        {
            "orders": ["mixer>reset>retriever", "random"],
            "retention": [0.5, 0.25],
            "repeats": 2,
            "mode": "mean",
            "layers": [0, 1],
            "heads": [(0, 1), (1, 2)],
        },
    ),
    "sensitivity": (
        "--mode mean --layers 1 --heads 1.0,1.3",
        {"mode": "mean", "layers": [1], "heads": [(1, 0), (1, 3)]},
    ),
    "sinks": (
        "--interventions mean,rescale --factor 0.5 --sink auto --layers 0 --heads 0.1",
        {
            "interventions": ["mean", "rescale"],
            "factor": 0.5,
            "sink": "auto",
            "layers": [0],
            "heads": [(0, 1)],
        },
    ),
    "mixing": (
        "--targets uniform,sink --ts 0.1,0.9 --sink 1 --layers 0-1 --heads 1.2",
        {
            "targets": ["uniform", "sink"],
            "ts": [0.1, 0.9],
            "sink": [1],
            "layers": [0, 1],
            "heads": [(1, 2)],
        },
    ),
}


class Model:
    """Stands for a model; the functions that would use it are replaced as well."""


@pytest.fixture
def calls(monkeypatch):
    """Loader and evaluations replaced by ones that note their arguments."""
    noted = {}

    def fake_load_model(name, **options):
        noted["load_model"] = (name, options)
        return Model()

    def replace(command, module, function):
        def evaluate(model, data, **options):
            noted[command] = (model, list(data), options)
            return RESULTS[command]()

        found = importlib.import_module(f"tl_geometry.evaluation.{module}")
        monkeypatch.setattr(found, function, evaluate)

    monkeypatch.setattr(tl_geometry.models, "load_model", fake_load_model)
    for command, (module, function) in _FUNCTIONS.items():
        replace(command, module, function)
    return noted


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("some words", encoding="utf-8")
    return path


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def assert_refused(result, *words):
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("tl-geometry: error: ")
    for word in words:
        assert word in result.stderr


def inputs(command, source):
    return ("--tasks", "boolq,winogrande") if command == "downstream" else ("--text", source)


@pytest.mark.parametrize("command", DEFAULTS)
def test_defaults_are_passed_on_and_tables_printed(calls, source, command):
    result = run(command, "some/model", *inputs(command, source))
    assert result.exit_code == 0, result.output
    assert calls["load_model"] == (
        "some/model",
        {"backend": "auto", "processing": True, "device": None, "dtype": None},
    )
    model, data, options = calls[command]
    assert isinstance(model, Model)
    assert data == (["boolq", "winogrande"] if command == "downstream" else ["some words"])
    assert options == DEFAULTS[command]
    printed = " ".join(result.stdout.split())
    tables = views.evaluation_tables(RESULTS[command]())
    assert len(tables) >= 1
    for table in tables:
        assert table.title in printed
        assert table.rows[-1][0].split()[0] in printed
    assert printed.endswith(tables[-1].note.split()[-1]) == (command == "downstream")
    assert ("6 documents, 290 tokens" in printed) == (command != "downstream")
    assert list(source.parent.iterdir()) == [source]


@pytest.mark.parametrize("command", DEFAULTS)
def test_defaults_are_those_of_the_function(command):
    """Modes apart: the command compares both."""
    module, name = _FUNCTIONS[command]
    function = getattr(importlib.import_module(f"tl_geometry.evaluation.{module}"), name)
    parameters = inspect.signature(inspect.unwrap(function)).parameters
    for option, value in DEFAULTS[command].items():
        default = parameters[option].default
        plain = list(default) if isinstance(default, tuple) else default
        if option == "modes":
            assert plain == ["inter"]
        elif option == "retention":
            assert plain == value
        else:
            assert plain == value, option
    # What the command line leaves to the function's default.
    left = set(parameters) - set(DEFAULTS[command]) - {"model", "data", "tasks"}
    assert left <= {"resamples", "confidence", "hooks"}


@pytest.mark.parametrize("command", GIVEN)
def test_every_option_is_passed_on(calls, source, command, monkeypatch):
    monkeypatch.chdir(source.parent)
    text, expected = GIVEN[command]
    loading = "--backend hooked --no-processing --device cpu --dtype float64"
    result = run(command, "m", "--text", source, *text.split(), *COMMON.split(), *loading.split())
    assert result.exit_code == 0, result.output
    options = calls[command][2]
    assert str(options.pop("checkpoint")) == "run.json"
    assert options == expected | COMMON_GIVEN
    assert str(calls["load_model"][1].pop("dtype")) == "torch.float64"
    assert str(calls["load_model"][1].pop("device")) == "cpu"
    assert calls["load_model"] == ("m", {"backend": "hooked", "processing": False})


def test_options_of_downstream(calls, tmp_path):
    options = (
        "--tasks mine --importances contribution,random --fraction 0.25 --scope head --mode intra "
        "--sink 0 --limit 5 --num-fewshot 2 --n-ctx 32 --batch-size 2 --no-prepend-bos"
    )
    result = run("downstream", "m", *options.split(), "--include-path", tmp_path)
    assert result.exit_code == 0, result.output
    _, tasks, found = calls["downstream"]
    assert tasks == ["mine"]
    assert found == RUNNING | {
        "importances": ["contribution", "random"],
        "fraction": 0.25,
        "scope": "head",
        "mode": "intra",
        "sink": [0],
        "limit": 5,
        "num_fewshot": 2,
        "include_path": tmp_path,
        "n_ctx": 32,
        "batch_size": 2,
        "prepend_bos": False,
    }


@pytest.mark.parametrize("command", DEFAULTS)
def test_result_and_report(calls, source, tmp_path, command):
    out, page = tmp_path / "run.nc", tmp_path / "page.html"
    arguments = (command, "m", *inputs(command, source), "--out", out, "--report", page)
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith(f"{out}\n{page}\n")
    stored = load(out)
    expected = RESULTS[command]()
    if command != "downstream":
        entry = {"name": "text.txt", "source": str(source), "texts": 1, "tokens": 290}
        assert stored.attrs["corpus"] == [entry]
        expected.attrs["corpus"] = [entry]
    assert stored.identical(expected)
    assert "synthetic-135M" in page.read_text(encoding="utf-8")
    calls.clear()
    assert_refused(run(*arguments), "run.nc exists", "--force")
    out.unlink()
    assert_refused(run(*arguments), "page.html exists", "--force")
    assert calls == {}
    assert run(*arguments, "--force").exit_code == 0
    page_again = tmp_path / "again.html"
    assert run("report", out, "--out", page_again).exit_code == 0
    assert page_again.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", DEFAULTS)
def test_a_checkpoint_is_checked_before_anything_is_loaded(calls, source, tmp_path, command):
    checkpoint = tmp_path / "run.json"
    checkpoint.write_text("{}")
    arguments = (command, "m", *inputs(command, source))
    assert_refused(run(*arguments, "--checkpoint", checkpoint), "run.json exists", "--resume")
    assert_refused(run(*arguments, "--resume"), "--resume needs --checkpoint")
    nowhere = tmp_path / "nowhere" / "run.json"
    assert_refused(run(*arguments, "--checkpoint", nowhere), "there is no directory")
    assert calls == {}
    assert run(*arguments, "--checkpoint", checkpoint, "--resume").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["faithfulness"], ["Missing argument"]),
        (["faithfulness", "m"], ["--text", "--dataset", "--corpus"]),
        (["faithfulness", "m", "--text", "a", "--scope", "all"], ["--scope", "'all'"]),
        (["faithfulness", "m", "--text", "a", "--fractions", "0.1,x"], ["--fractions", "'0.1,x'"]),
        (["faithfulness", "m", "--text", "a", "--reference", "x"], ["--reference"]),
        (["faithfulness", "m", "--text", "a", "--repeats", "0"], ["--repeats"]),
        (["sparsify", "m", "--text", "a", "--retention", ""], ["--retention"]),
        (["sparsify", "m", "--text", "a", "--mode", "half"], ["--mode"]),
        (["sensitivity", "m", "--text", "a", "--heads", "1"], ["--heads", "layer.head"]),
        (["sensitivity", "m", "--text", "a", "--report", "/"], ["--report must name a file"]),
        (["sinks", "m", "--text", "a", "--sink", "last"], ["--sink", "'last'"]),
        (["sinks", "m", "--text", "a", "--max-documents", "0"], ["--max-documents"]),
        (["mixing", "m", "--text", "a", "--ts", "half"], ["--ts", "'half'"]),
        (["downstream", "m"], ["--tasks"]),
        (["downstream", "m", "--tasks", "a", "--limit", "0"], ["--limit"]),
    ],
)
def test_wrong_usage(calls, arguments, words):
    assert_refused(run(*arguments), *words)
    assert calls == {}


def test_a_report_of_several_results(calls, source, tmp_path):
    files = [tmp_path / f"{command}.nc" for command in ("sinks", "mixing")]
    for path in files:
        assert run(path.stem, "m", "--text", source, "--out", path).exit_code == 0
    measured = save(make_dataset(), tmp_path / "run.nc")
    page = tmp_path / "page.html"
    result = run("report", files[0], measured, files[1], "-o", page)
    assert (result.exit_code, result.stdout) == (0, f"{page}\n")
    html = page.read_text(encoding="utf-8")
    assert html == report_html([load(path) for path in (measured, *files)])
    for heading in ("Head regimes", "Interventions on the sink", "Denser and sparser attention"):
        assert f"{heading}</h2>" in html
    refused = run("report", measured, measured, "-o", tmp_path / "none.html")
    assert_refused(refused, "2 results of analyze", "a report takes one", "compare")
    other = save(make_dataset(model_name="gpt2"), tmp_path / "other.nc")
    refused = run("report", other, files[0], "-o", tmp_path / "none.html")
    assert_refused(refused, "several models", "'gpt2', 'synthetic-135M'")
    assert not (tmp_path / "none.html").exists()
    assert_refused(run("report", "-o", page), "Missing argument", "runs")


def test_help_names_the_commands():
    result = run("--help")
    for command in DEFAULTS:
        assert command in result.stdout


def test_mistakes_that_only_the_evaluation_sees_are_one_line(calls, source, monkeypatch):
    module = importlib.import_module("tl_geometry.evaluation.sparsify")

    def refuse(model, data, **options):
        raise ValueError("orders must be some of\n'entropy'")

    monkeypatch.setattr(module, "sparsify", refuse)
    result = run("sparsify", "m", "--text", source, "--orders", "x")
    assert_refused(result, "orders must be some of 'entropy'")


def test_a_running_checkpoint_and_a_task_that_generates_are_no_bugs(
    calls, source, tmp_path, monkeypatch
):
    pytest.importorskip("lm_eval", reason="lm_eval is an optional extra")
    from tl_geometry.evaluation.checkpoint import Checkpoint
    from tl_geometry.evaluation.harness import HookedLM

    def locked(model, data, **options):
        path = tmp_path / "run.json"
        with Checkpoint(path, {}), Checkpoint(path, {}):
            pass

    def generates(model, data, **options):
        HookedLM.generate_until(None, [])

    module = importlib.import_module("tl_geometry.evaluation.sinks")
    for replacement, words in ((locked, "another run is writing"), (generates, "generate_until")):
        monkeypatch.setattr(module, "sink_interventions", replacement)
        assert_refused(run("sinks", "m", "--text", source), words)
    monkeypatch.setattr(module, "sink_interventions", lambda *args, **options: 1 / 0)
    assert isinstance(run("sinks", "m", "--text", source).exception, ZeroDivisionError)


# A real model.


@pytest.fixture
def real_model(tiny_hooked, tiny_tokenizer, monkeypatch):
    model = tiny_hooked(tokenizer=tiny_tokenizer)
    monkeypatch.setattr(tl_geometry.models, "load_model", lambda name, **options: model)


@pytest.fixture
def texts(tmp_path):
    directory = tmp_path / "texts"
    directory.mkdir()
    (directory / "a.txt").write_text("the cat sat on the mat . " * 3)
    (directory / "b.txt").write_text("Paris is the capital of France . it was quick and old !")
    return directory


@pytest.mark.hooked
@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("faithfulness", "--fractions 0.1,0.5"),
        ("sparsify", "--orders mixer>reset>retriever,entropy,random --retention 1,0.5"),
        ("sensitivity", "--layers 1"),
        ("sinks", ""),
        ("mixing", "--ts 0.5,1"),
    ],
)
def test_commands_on_a_real_model(real_model, texts, tmp_path, command, options):
    out, page = tmp_path / "run.nc", tmp_path / "page.html"
    arguments = (command, "m", "--text", texts, "--no-progress", *options.split())
    result = run(*arguments, "--out", out, "--report", page, "--checkpoint", tmp_path / "run.json")
    assert result.exit_code == 0, result.output
    ds = load(out)
    assert (ds.attrs["documents"], ds.attrs["corpus"][0]["texts"]) == (2, 2)
    tables = views.evaluation_tables(ds)
    printed = " ".join(result.stdout.split())
    assert all(table.title in printed for table in tables)
    assert all("nan" not in cell for table in tables for row in table.rows for cell in row)
    assert views.evaluation_findings(ds) or command in ("sparsify", "sensitivity")
    if command == "faithfulness":
        # Alike by construction, and so they are: the same entries go, up to ties in rounding.
        alike = ds["aopc_comprehensiveness_difference"].sel(
            importance="value_weighted_normalized", other="value_weighted", mode="inter"
        )
        assert abs(alike).max() < 1e-3
        assert abs(alike).max() < float(abs(ds["aopc_comprehensiveness"]).max()) / 100
    again = run(*arguments, "--checkpoint", tmp_path / "run.json", "--resume")
    assert again.exit_code == 0, again.output
    assert again.stdout == result.stdout.removesuffix(f"{out}\n{page}\n")
    assert json.loads((tmp_path / "run.json").read_text())


@pytest.mark.hooked
def test_downstream_on_a_real_model(real_model, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("lm_eval", reason="lm_eval is an optional extra")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [("the cat sat on", ["the mat", "a hill"], 0), ("Paris is", ["a dog", "the capital"], 1)]
    keys = ("question", "choices", "answer")
    lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in rows]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    (tmp_path / "mine.yaml").write_text(
        "task: mine\ndataset_path: json\ntest_split: test\noutput_type: multiple_choice\n"
        f"dataset_kwargs:\n  data_files:\n    test: {tmp_path / 'mine.jsonl'}\n"
        'doc_to_text: "{{question}}"\ndoc_to_choice: "{{choices}}"\ndoc_to_target: "{{answer}}"\n'
        "metric_list:\n  - metric: acc\n"
    )
    out, page = tmp_path / "run.nc", tmp_path / "page.html"
    result = run(
        "downstream", "m", "--tasks", "mine", "--include-path", tmp_path, "--importances", "random",
        "--out", out, "--report", page, "--no-progress",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert load(out).sizes == {"task": 1, "variant": 3}
    assert "random, bottom" in result.stdout
    assert "Accuracy on downstream tasks" in page.read_text(encoding="utf-8")
