import pytest
from test_cli_evaluation import Model, assert_refused, run
from views_data.costs import make_token_costs
from views_data.dataset import make_dataset

import tl_geometry.analysis
import tl_geometry.models
from tl_geometry import load, save, views

DEFAULTS = {
    "ds": None,
    "lengths": (8, 16, 32, 64),
    "layer": None,
    "norms": ["frobenius", "nuclear"],
    "samples": 8,
    "causal": True,
    "n_ctx": 256,
    "batch_size": None,
    "max_documents": 8,
    "prepend_bos": None,
    "seed": 0,
    "progress": True,
}


@pytest.fixture
def calls(monkeypatch):
    """Loader and analysis replaced by ones that note their arguments."""
    noted = []

    def fake(model, data, **options):
        noted.append((model, None if data is None else list(data), options))
        return make_token_costs(heads=options["ds"] is not None)

    monkeypatch.setattr(tl_geometry.models, "load_model", lambda *args, **options: Model())
    monkeypatch.setattr(tl_geometry.analysis, "token_costs", fake)
    return noted


def test_without_texts_the_vocabulary_is_drawn_from(calls):
    result = run("costs", "some/model")
    assert result.exit_code == 0, result.output
    ((model, data, options),) = calls
    assert isinstance(model, Model)
    assert data is None
    assert options == DEFAULTS
    printed = " ".join(result.stdout.split())
    for table in views.evaluation_tables(make_token_costs()):
        assert table.title in printed


def test_every_option_is_passed_on_and_the_result_is_written(calls, tmp_path):
    text, analysed = tmp_path / "text.txt", tmp_path / "run.nc"
    text.write_text("some words", encoding="utf-8")
    save(make_dataset(), analysed)
    out, report = tmp_path / "costs.nc", tmp_path / "costs.html"
    result = run(
        "costs", "some/model", "--text", text, "--lengths", "4,9", "--layer", "2", "--norms", "nuclear",
        "--samples", 2, "--no-causal", "--run", analysed, "--n-ctx", 64, "--batch-size", 3,
        "--max-documents", 5, "--no-prepend-bos", "--seed", 7, "--out", out, "--report", report,
        "--no-progress",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    ((_, data, options),) = calls
    assert data == ["some words"]
    assert options.pop("ds").identical(make_dataset())
    assert options == {
        "lengths": (4, 9),
        "layer": 2,
        "norms": ["nuclear"],
        "samples": 2,
        "causal": False,
        "n_ctx": 64,
        "batch_size": 3,
        "max_documents": 5,
        "prepend_bos": False,
        "seed": 7,
        "progress": False,
    }
    written = load(out)
    assert written.attrs["corpus"][0]["name"] == "text.txt"
    assert "spearman" in written
    assert report.read_text(encoding="utf-8").count("<h1") == 1


def test_labels_of_layers_are_words_too(calls):
    assert run("costs", "some/model", "--layer", "blocks.0.attn").exit_code == 0
    assert calls[0][2]["layer"] == "blocks.0.attn"


def test_mistakes_are_refused_before_the_model_is_loaded(calls, tmp_path):
    assert_refused(run("costs", "some/model", "--lengths", "8,many"), "8,many", "--lengths")
    existing = tmp_path / "there.nc"
    existing.write_bytes(b"")
    assert_refused(run("costs", "some/model", "--out", existing), "there.nc", "--force")
    assert_refused(run("costs", "some/model", "--run", tmp_path / "none.nc"), "none.nc")
    assert_refused(
        run("costs", "some/model", "--text", existing, "--corpus", "demo-prose"), "give one of"
    )
    assert calls == []
