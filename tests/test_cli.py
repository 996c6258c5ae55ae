import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
import xarray as xr
from typer.testing import CliRunner

import tl_geometry.analysis
import tl_geometry.data
import tl_geometry.hooks
import tl_geometry.models
from tl_geometry.analysis import Regimes
from tl_geometry.analysis.files import sole_writer
from tl_geometry.analysis.store import load, save
from tl_geometry.cli import app
from tl_geometry.cli.demo import SAMPLE
from tl_geometry.views.summary import headline_tables

ANALYZE_DEFAULTS = {
    "measures": None,
    "n_ctx": 512,
    "batch_size": None,
    "prepend_bos": None,
    "sink": "first",
    "max_documents": None,
    "queries": 64,
    "top_n": (1, 2, 4, 8, 16, 32),
    "value_bias": "as_hooked",
    "output": "raw",
    "memory_budget": None,
    "on_unsupported": "raise",
    "layers": None,
    "heads": None,
    "seed": 0,
    "checkpoint": None,
    "checkpoint_every": 64,
    "resume": False,
    "progress": True,
    "keep_examples": 0,
}


class Tokenizer:
    def __call__(self, texts, add_special_tokens=True):
        assert not add_special_tokens
        return {"input_ids": [text.split() for text in texts]}


class Model:
    tokenizer = Tokenizer()


def small_result(**attrs):
    rng = np.random.default_rng(0)
    grid = ("layer", "head")
    return xr.Dataset(
        {
            "regime": (grid, np.array([["mixer", "retriever"], ["reset", "mixer"]])),
            "sink_rate": (grid, rng.random((2, 2)).astype(np.float32)),
            "contribution_attention_distance": (grid, rng.random((2, 2)).astype(np.float32)),
        },
        coords={"layer": [0, 1], "head": [0, 1]},
        attrs={"model_name": "tiny", "documents": 3, "tokens": 120, "n_ctx": 40, **attrs},
    )


@pytest.fixture
def calls(monkeypatch):
    """The package's own functions replaced by ones that note their arguments."""
    noted = {}

    def fake_load_model(name, **options):
        noted["load_model"] = (name, options)
        if name == "unknown":
            raise ValueError("name: 'unknown' is no model")
        return Model()

    def fake_analyze(model, data, **options):
        noted["analyze"] = (model, list(data), options)
        if "bug" in noted["analyze"][1]:
            raise KeyError("a genuine bug")
        return small_result()

    def fake_doctor(model):
        noted["doctor"] = model
        return "every layer is exact"

    monkeypatch.setattr(tl_geometry.models, "load_model", fake_load_model, raising=False)
    monkeypatch.setattr(tl_geometry.analysis, "analyze", fake_analyze, raising=False)
    monkeypatch.setattr(tl_geometry.hooks, "doctor", fake_doctor)
    return noted


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def assert_refused(result, *words):
    """Exit code 2, one line on stderr that holds the words, nothing on stdout."""
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("tl-geometry: error: ")
    for word in words:
        assert word in result.stderr


def text_file(directory, content="some words"):
    path = directory / "text.txt"
    path.write_text(content, encoding="utf-8")
    return path


# Usage.


def test_help_names_every_command():
    result = run("--help")
    assert result.exit_code == 0
    for command in ("demo", "analyze", "report", "compare", "doctor"):
        assert command in result.stdout


def test_version():
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"tl-geometry {tl_geometry.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["Missing command"]),
        (["nothing"], ["No such command"]),
        (["analyze"], ["Missing"]),
        (["analyze", "m"], ["--out"]),
        (["doctor"], ["Missing argument"]),
        (["demo", "--nothing"], ["No such option"]),
        (["analyze", "m", "--out", "r.nc"], ["--text", "--dataset", "--corpus"]),
        (["analyze", "m", "--out", "r.nc", "--text", "a", "--dataset", "b"], ["give one of"]),
        (["analyze", "m", "--out", "r.nc", "--text", "a", "--sink", "last"], ["--sink", "'last'"]),
        (["analyze", "m", "--out", "r.nc", "--text", "a", "--layers", "-1"], ["--layers"]),
        (
            ["analyze", "m", "--out", "r.nc", "--text", "a", "--heads", "1"],
            ["--heads", "layer.head"],
        ),
        (["analyze", "m", "--out", "r.nc", "--text", "a", "--top-n", "1,x"], ["--top-n", "'1,x'"]),
        (
            ["analyze", "m", "--out", "r.nc", "--text", "a", "--measures", "sink"],
            ["--measures", "'sink'", "switches"],
        ),
        (["analyze", "m", "--out", "r.nc", "--text", "a", "--n-ctx", "1"], ["--n-ctx"]),
        (
            ["analyze", "m", "--out", "r.nc", "--text", "a", "--memory-budget", "lots"],
            ["memory_budget", "'lots'"],
        ),
        (["analyze", "m", "--out", "r.nc", "--text", "a", "--backend", "c"], ["--backend"]),
        (["analyze", "m", "--out", "r.nc", "--corpus", "mine"], ["--corpus", "demo-prose"]),
        (["doctor", "m", "--device", "toaster"], ["--device", "'toaster'"]),
    ],
)
def test_wrong_usage(calls, arguments, words):
    assert_refused(run(*arguments), *words)
    assert calls == {}


# analyze


def test_analyze_passes_everything_on(calls, tmp_path):
    out = tmp_path / "run.nc"
    source = text_file(tmp_path)
    options = (
        "--backend hooked --no-processing --device cpu --dtype float64 --n-ctx 64 --batch-size 3 "
        "--max-documents 5 --no-prepend-bos --sink 0,2 --layers 0,2-3,encoder.0 "
        "--heads 0.1,encoder.0.12 --top-n 2,4-6 --queries 9 --no-value-bias --output-norm --skip-unsupported "
        "--measures separability,sinks --keep-examples 2 --seed 7 --no-progress "
        "--checkpoint run.ckpt --checkpoint-every 5 --resume --memory-budget 1.5GiB"
    )
    result = run("analyze", "some/model", "--text", source, "--out", out, *options.split())
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{out}: 3 documents, 120 tokens\n"
    name, loading = calls["load_model"]
    assert name == "some/model"
    assert str(loading.pop("device")) == "cpu"
    assert str(loading.pop("dtype")) == "torch.float64"
    assert loading == {"backend": "hooked", "processing": False}
    _, data, analysis = calls["analyze"]
    assert str(analysis.pop("checkpoint")) == "run.ckpt"
    assert data == ["some words"]
    assert analysis == {
        "measures": ["separability", "sinks"],
        "n_ctx": 64,
        "batch_size": 3,
        "max_documents": 5,
        "prepend_bos": False,
        "sink": [0, 2],
        "layers": [0, 2, 3, "encoder.0"],
        "heads": [(0, 1), ("encoder.0", 12)],
        "queries": 9,
        "top_n": (2, 4, 5, 6),
        "value_bias": "remove",
        "output": "normed",
        "memory_budget": "1.5GiB",
        "on_unsupported": "skip",
        "keep_examples": 2,
        "seed": 7,
        "checkpoint_every": 5,
        "resume": True,
        "progress": False,
    }
    corpus = {"name": "text.txt", "source": str(source), "texts": 1, "tokens": 120}
    assert load(out).identical(small_result(corpus=[corpus]))


def test_analyze_with_its_defaults(calls, tmp_path):
    run("analyze", "m", "--corpus", "demo-prose", "--out", tmp_path / "run.nc")
    assert calls["load_model"] == (
        "m",
        {"backend": "auto", "processing": True, "device": None, "dtype": None},
    )
    _, data, options = calls["analyze"]
    assert data == tl_geometry.data.demo_corpora()["demo-prose"]
    assert options == ANALYZE_DEFAULTS
    assert load(tmp_path / "run.nc").attrs["corpus"] == [
        {"name": "demo-prose", "source": "demo corpus", "texts": len(data), "tokens": 120}
    ]


def test_analyze_a_data_set(calls, tmp_path, monkeypatch):
    def fake_load_texts(source, **options):
        calls["load_texts"] = (source, options)
        return iter(["one", "two"])

    monkeypatch.setattr(tl_geometry.data, "load_texts", fake_load_texts)
    arguments = ["--dataset", "a:b", "--split", "test", "--text-field", "body"]
    result = run("analyze", "m", *arguments, "--out", tmp_path / "run.nc")
    assert result.exit_code == 0, result.output
    assert calls["load_texts"] == ("a:b", {"split": "test", "text_field": "body"})
    assert calls["analyze"][1] == ["one", "two"]
    assert result.stderr == (
        "tl-geometry: warning: without --max-documents the whole split 'test' of a:b is read\n"
    )
    assert load(tmp_path / "run.nc").attrs["corpus"] == [
        {
            "name": "a:b",
            "source": "Hugging Face hub",
            "split": "test",
            "field": "body",
            "texts": 2,
            "tokens": 120,
        }
    ]
    some = run("analyze", "m", *arguments, "--max-documents", 9, "--out", tmp_path / "some.nc")
    assert (some.exit_code, some.stderr) == (0, "")


def test_a_file_given_as_a_data_set_is_no_stream(calls, tmp_path):
    source = text_file(tmp_path)
    result = run("analyze", "m", "--dataset", source, "--out", tmp_path / "run.nc")
    assert (result.exit_code, result.stderr) == (0, "")
    (entry,) = load(tmp_path / "run.nc").attrs["corpus"]
    assert entry == {"name": "text.txt", "source": str(source), "texts": 1, "tokens": 120}


def test_existing_output_is_refused_before_anything_is_loaded(calls, tmp_path):
    out = tmp_path / "run.nc"
    out.write_text("precious")
    source = text_file(tmp_path)
    assert_refused(run("analyze", "m", "--text", source, "--out", out), "exists", "--force")
    assert calls == {}
    assert out.read_text() == "precious"
    assert run("analyze", "m", "--text", source, "--out", out, "--force").exit_code == 0
    assert load(out).attrs["documents"] == 3


def test_a_checkpoint_is_checked_before_anything_is_loaded(calls, tmp_path):
    checkpoint, out = tmp_path / "run.ckpt", tmp_path / "run.nc"
    checkpoint.write_text("half a run")
    arguments = ("analyze", "m", "--text", text_file(tmp_path), "--out", out)
    assert_refused(run(*arguments, "--checkpoint", checkpoint), "run.ckpt exists", "--resume")
    assert_refused(run(*arguments, "--resume"), "--resume needs --checkpoint")
    nowhere = tmp_path / "nowhere" / "run.ckpt"
    assert_refused(run(*arguments, "--checkpoint", nowhere), "there is no directory")
    assert_refused(run(*arguments, "--checkpoint", out), "two files")
    assert_refused(run(*arguments, "--checkpoint-every", "0"), "--checkpoint-every")
    assert calls == {}
    assert run(*arguments, "--checkpoint", checkpoint, "--resume").exit_code == 0


def test_output_that_cannot_be_written_is_refused_before_anything_is_loaded(calls, tmp_path):
    source = text_file(tmp_path)
    nowhere = tmp_path / "nowhere" / "run.nc"
    assert_refused(run("analyze", "m", "--text", source, "--out", nowhere), "no directory")
    assert_refused(run("analyze", "m", "--text", source, "--out", tmp_path), "is a directory")
    assert_refused(run("analyze", "m", "--text", source, "--out", source / "run.nc"), "directory")
    assert calls == {}


def test_an_output_directory_without_permission_is_refused(calls, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    source = text_file(tmp_path)
    result = run("analyze", "m", "--text", source, "--out", tmp_path / "run.nc")
    assert_refused(result, "cannot write into", "Permission denied")
    assert calls == {}


def test_mistakes_in_the_input(calls, tmp_path):
    out = tmp_path / "run.nc"
    source = text_file(tmp_path)
    assert_refused(run("analyze", "unknown", "--text", source, "--out", out), "is no model")
    assert_refused(run("analyze", "m", "--text", tmp_path / "none.txt", "--out", out), "none.txt")
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe\x00")
    assert_refused(run("analyze", "m", "--text", binary, "--out", out), "UTF-8")
    pytest.importorskip("datasets")
    records = tmp_path / "x.jsonl"
    records.write_text('{"id": 7, "text": "some words"}\n')
    arguments = ("analyze", "m", "--text", records, "--out", out)
    assert_refused(run(*arguments, "--text-field", "id"), "text_field='id'", "int, not text")
    assert_refused(run(*arguments, "--text-field", "x"), "text_field='x'", "['id', 'text']")
    assert not out.exists()


@pytest.mark.parametrize("signal", [KeyboardInterrupt, typer.Abort])
def test_an_interruption_is_one_line(calls, monkeypatch, signal):
    def interrupted(model):
        raise signal

    monkeypatch.setattr(tl_geometry.hooks, "doctor", interrupted)
    result = run("doctor", "m")
    assert result.exit_code == 130
    assert (result.stdout, result.stderr) == ("", "tl-geometry: interrupted\n")


def test_hooks_that_never_fired_are_no_bug(calls, monkeypatch, tiny_model):
    def never_run(model):
        tl_geometry.Probe(tiny_model).result()

    def broken(model):
        raise RuntimeError("a genuine bug")

    monkeypatch.setattr(tl_geometry.hooks, "doctor", never_run)
    assert_refused(run("doctor", "m"), "no hook of this probe has fired", "eager")
    monkeypatch.setattr(tl_geometry.hooks, "doctor", broken)
    assert isinstance(run("doctor", "m").exception, RuntimeError)


def test_a_bug_shows_itself(calls, tmp_path):
    result = run("analyze", "m", "--text", text_file(tmp_path, "bug"), "--out", tmp_path / "r.nc")
    assert result.exit_code == 1
    assert isinstance(result.exception, KeyError)


def test_a_failed_import_is_a_bug_unless_it_says_what_to_install(calls, monkeypatch):
    def without_package(name, **options):
        raise ImportError("loading smollm2 needs gguf; pip install 'tl-geometry[smollm2]'")

    def broken(name, **options):
        from tl_geometry import no_such_name  # noqa: F401

    monkeypatch.setattr(tl_geometry.models, "load_model", without_package)
    assert_refused(run("doctor", "m"), "pip install")
    monkeypatch.setattr(tl_geometry.models, "load_model", broken)
    assert isinstance(run("doctor", "m").exception, ImportError)


def test_every_traceback_on_demand(calls, monkeypatch):
    monkeypatch.setenv("TL_GEOMETRY_TRACEBACK", "1")
    assert isinstance(run("doctor", "unknown").exception, ValueError)


# doctor, report, demo


def test_doctor(calls):
    result = run("doctor", "m", "--backend", "bridge", "--no-processing")
    assert (result.exit_code, result.stdout) == (0, "'every layer is exact'\n")
    assert calls["load_model"][1]["backend"] == "bridge"
    assert calls["load_model"][1]["processing"] is False
    assert isinstance(calls["doctor"], Model)


def test_report(tmp_path):
    run_file, page = save(small_result(), tmp_path / "run.nc"), tmp_path / "page.html"
    result = run("report", run_file, "--out", page, "--title", "Tiny & small")
    assert (result.exit_code, result.stdout) == (0, f"{page}\n")
    assert "Tiny &amp; small" in page.read_text(encoding="utf-8")
    assert_refused(run("report", run_file, "--out", page), "exists", "--force")
    assert run("report", run_file, "--out", page, "--force").exit_code == 0


def test_report_of_a_bad_file(tmp_path):
    page = tmp_path / "page.html"
    assert_refused(run("report", tmp_path / "none.nc", "--out", page), "there is no file")
    assert_refused(run("report", text_file(tmp_path), "--out", page), "not a netCDF file")
    damaged = save(small_result(), tmp_path / "run.nc")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert_refused(run("report", damaged, "--out", page), "truncated")
    assert not page.exists()


def test_demo(calls, tmp_path):
    out = tmp_path / "new" / "out"
    result = run("demo", "--out", out, "--no-progress")
    assert result.exit_code == 0, result.output
    assert calls["load_model"] == ("smollm2", {})
    _, texts, options = calls["analyze"]
    assert options == {"keep_examples": 1, "progress": False}
    whole = tl_geometry.data.demo_corpora()
    corpora = {name: whole[name][:count] for name, count in SAMPLE.items()}
    assert texts == [text for corpus in corpora.values() for text in corpus]
    printed = " ".join(result.stdout.split())
    tables = headline_tables(small_result())
    assert [table.key for table in tables] == ["regimes", "sinks", "contributions"]
    for table in tables:
        assert table.title in printed
        assert all(cell in printed for row in table.rows for cell in row)
    assert "3 windows of up to 40 tokens, 120 tokens in all" in printed
    stored = load(out / "demo.nc")
    for entry, (name, corpus) in zip(stored.attrs["corpus"], corpora.items(), strict=True):
        words = sum(len(text.split()) for text in corpus)
        assert entry == {"name": name, "texts": len(corpus), "tokens": words}
        assert f"{name}: {len(corpus)} texts, {words} tokens" in printed
    assert (out / "demo.html").is_file()
    assert result.stdout.endswith(f"\n{out / 'demo.nc'}\n{out / 'demo.html'}\n")


def test_demo_keeps_existing_output(calls, tmp_path):
    (tmp_path / "demo.html").write_text("precious")
    assert_refused(run("demo", "--out", tmp_path), "demo.html exists", "--force")
    assert_refused(run("demo", "--out", tmp_path / "demo.html"), "demo.html")
    assert calls == {}


# A real model.


@pytest.fixture
def model_directory(tmp_path, tiny_tokenizer):
    from transformers import LlamaConfig, LlamaForCausalLM

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
    directory = tmp_path / "tiny-llama"
    LlamaForCausalLM(config).save_pretrained(directory)
    tiny_tokenizer.save_pretrained(directory)
    return directory


def test_every_command_on_a_real_model(model_directory, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("the cat sat on the mat . " * 6)
    (texts / "b.txt").write_text("Paris is the capital of France . it was quick and old !")
    files = tmp_path / "a.nc", tmp_path / "b.nc"
    common = ("analyze", model_directory, "--text", texts, "--no-progress", "--keep-examples", 1)
    for file, options in zip(files, [(), ("--no-prepend-bos", "--n-ctx", 24)], strict=True):
        result = run(*common, *options, "--top-n", "1,2,4", "--out", file)
        assert result.exit_code == 0, result.output
    first, second = map(load, files)
    assert (first.sizes["layer"], first.sizes["head"]) == (2, 4)
    # Words and stops: 42 and 13, a bos before each text; then windows of 24, 18 and 13.
    assert (first.attrs["documents"], first.attrs["tokens"]) == (2, 42 + 13 + 2)
    assert (second.attrs["documents"], second.attrs["tokens"]) == (3, 42 + 13)
    entry = {"name": "texts", "source": str(texts), "texts": 2, "tokens": 57}
    assert first.attrs["corpus"] == [entry]
    assert bool(np.isfinite(first["f_score"]).all())

    page = tmp_path / "page.html"
    result = run("report", files[0], "--out", page)
    assert (result.exit_code, result.stdout) == (0, f"{page}\n")
    html = page.read_text(encoding="utf-8")
    assert "Geometry of attention in tiny-llama" in html
    assert "How tight the bounds are" in html

    result = run("compare", *files)
    assert result.exit_code == 0, result.output
    assert "  prepend_bos: True | False\n  n_ctx: 64 | 24\n" in result.stdout
    assert "of 8 heads agree" in result.stdout

    result = run("doctor", model_directory)
    assert result.exit_code == 0, result.output
    assert "2 of 2 attention layers supported" in result.stdout


def last_line(result):
    """What a command says at its end, behind the bars of loading a model."""
    return result.stderr.splitlines()[-1]


def test_an_interrupted_analyze_goes_on(model_directory, tmp_path, monkeypatch):
    source = text_file(tmp_path, "the cat sat on the mat . " * 12)
    arguments = ("analyze", model_directory, "--text", source, "--no-progress", "--n-ctx", 16)
    arguments += ("--batch-size", 2, "--measures", "regimes", "--checkpoint-every", 2)
    whole, out, checkpoint = (tmp_path / name for name in ("whole.nc", "run.nc", "run.ckpt"))
    assert run(*arguments, "--out", whole).exit_code == 0
    arguments += ("--out", out, "--checkpoint", checkpoint)
    measure, calls = Regimes.measure, []

    def interrupted(self, geometry):
        calls.append(geometry)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return measure(self, geometry)

    with monkeypatch.context() as patch:
        patch.setattr(Regimes, "measure", interrupted)
        result = run(*arguments)
    assert (result.exit_code, last_line(result)) == (130, "tl-geometry: interrupted")
    assert not out.exists()
    content = checkpoint.read_bytes()
    assert_refused(run(*arguments), "run.ckpt exists", "--resume")
    with sole_writer(checkpoint):
        locked = run(*arguments, "--resume")
    other_settings = run(*arguments, "--resume", "--sink", "1")
    checkpoint.write_bytes(content[:-100])
    damaged = run(*arguments, "--resume")
    for result, words in (
        (locked, "another run is writing"),
        (other_settings, "settings.sink was first, now [1]"),
        (damaged, "is damaged or no checkpoint"),
    ):
        assert result.exit_code == 2
        assert "Traceback" not in result.stderr
        assert last_line(result).startswith("tl-geometry: error: checkpoint: ")
        assert words in last_line(result)
    checkpoint.write_bytes(content)
    assert run(*arguments, "--resume").exit_code == 0
    one, other = load(out), load(whole)
    assert one.equals(other)
    assert one.attrs["documents"] == other.attrs["documents"] == 6
    assert_refused(run("report", checkpoint, "--out", tmp_path / "page.html"), "not a result")
    assert_refused(run(*arguments, "--force", "--resume", "--out", "/dev/null"), "a device")


# In a process of its own.


def process(*arguments):
    root = Path(tl_geometry.__file__).parents[1]
    paths = [str(root), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )


def test_module_and_exit_code(tmp_path):
    done = process("-m", "tl_geometry", "report", str(tmp_path / "none.nc"), "--out", "page.html")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"tl-geometry: error: path: there is no file {tmp_path / 'none.nc'}\n"


def test_help_loads_nothing_heavy():
    code = (
        "import sys; sys.argv = ['tl-geometry', '--help']\n"
        "from tl_geometry.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'transformer_lens', 'xarray', 'plotly', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = process("-c", code)
    assert done.returncode == 0, done.stderr


def test_defaults_of_the_command_are_those_of_the_function():
    """Every option of `analyze` that the command passes on has the function's own default."""
    from tl_geometry.analysis import analyze

    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(inspect.unwrap(analyze)).parameters.items()
    }
    for name, value in ANALYZE_DEFAULTS.items():
        assert defaults[name] == value, name
