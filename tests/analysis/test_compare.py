"""Two runs side by side, against closed forms, scipy, and counting by hand."""

import math
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy import stats
from typer.testing import CliRunner

from tl_geometry.analysis.compare import compare
from tl_geometry.analysis.store import save
from tl_geometry.cli import app

REGIMES = ("retriever", "mixer", "reset")


def run(labels: Any, *, seed: int = 0, sizes: tuple[int, ...] = (), **maps: Any) -> xr.Dataset:
    """A result with the given regimes, two layers, and random F where sizes are given."""
    grid = np.array(labels, dtype=object).reshape(2, -1)
    data: dict[str, Any] = {"regime": (("layer", "head"), grid)}
    for name, values in maps.items():
        data[name] = (("layer", "head"), np.array(values, dtype=float).reshape(grid.shape))
    coords: dict[str, Any] = {"layer": [0, 1], "head": np.arange(grid.shape[1])}
    if sizes:
        f_score = np.random.default_rng(seed).uniform(size=(*grid.shape, len(sizes)))
        data["f_score"] = (("layer", "head", "top_n"), f_score)
        coords["top_n"] = list(sizes)
    return xr.Dataset(data, coords=coords)


def test_a_run_agrees_with_itself() -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(size=60)
    ds = run(rng.choice(REGIMES, size=60), sizes=(1, 2, 8), sink_rate=values, sink_cosine=-values)
    found = compare(ds, ds)
    assert found.heads == 60
    assert found.agreement == found.kappa == 1
    assert (found.regime_agreement == 1).all()
    assert np.trace(found.confusion.values) == 60
    assert list(found.correlations.index) == [
        "f_score, N = 2",
        "f_score, N = 8",
        "sink_rate",
        "sink_cosine",
    ]
    np.testing.assert_allclose(found.correlations[["pearson", "spearman"]], 1)


def test_closed_form_by_hand() -> None:
    a = ["retriever"] * 2 + ["mixer"] * 4 + ["reset"] * 4
    b = ["retriever", "mixer", "mixer", "mixer", "mixer", "reset"] + ["reset"] * 3 + ["retriever"]
    found = compare(run(a), run(b))
    assert found.confusion.values.tolist() == [[1, 1, 0], [0, 3, 1], [1, 0, 3]]
    assert found.agreement == pytest.approx(0.7)
    # rows 2 4 4, columns 2 4 4: chance 0.04 + 0.16 + 0.16
    assert found.kappa == pytest.approx((0.7 - 0.36) / 0.64)
    assert found.regime_agreement.tolist() == pytest.approx([2 / 4, 6 / 8, 6 / 8])


def test_independent_labels_have_a_kappa_of_zero() -> None:
    a, b = zip(*[(x, y) for x in REGIMES for y in REGIMES for _ in range(2)], strict=True)
    found = compare(run(list(a)), run(list(b)))
    assert found.agreement == pytest.approx(1 / 3)
    assert found.kappa == pytest.approx(0)


def test_opposite_labels_have_the_smallest_kappa() -> None:
    a, b = ["mixer"] * 5 + ["reset"] * 5, ["reset"] * 5 + ["mixer"] * 5
    found = compare(run(a), run(b))
    assert found.kappa == pytest.approx(-1)
    assert math.isnan(found.regime_agreement["retriever"])
    assert found.regime_agreement["mixer"] == 0


def test_kappa_is_unknown_when_both_runs_know_one_regime_only() -> None:
    found = compare(run(["mixer"] * 4), run(["mixer"] * 4))
    assert found.agreement == 1
    assert math.isnan(found.kappa)


def test_kappa_from_labels_shuffled_many_times() -> None:
    """Chance agreement is what permuting the heads of one run gives on average."""
    rng = np.random.default_rng(1)
    a = rng.choice(REGIMES, size=200, p=[0.1, 0.5, 0.4])
    b = np.where(rng.uniform(size=200) < 0.6, a, rng.choice(REGIMES, size=200, p=[0.2, 0.2, 0.6]))
    chance = np.mean([(a == rng.permutation(b)).mean() for _ in range(4000)])
    observed = (a == b).mean()
    found = compare(run(a), run(b))
    assert found.kappa == pytest.approx((observed - chance) / (1 - chance), abs=0.01)


def test_heads_without_a_regime_are_left_out() -> None:
    found = compare(
        run(["mixer", "", "reset", "mixer"]), run(["mixer", "reset", "nonsense", "reset"])
    )
    assert found.heads == 2
    assert found.agreement == 0.5


@pytest.mark.parametrize("ties", [False, True])
def test_correlations_agree_with_scipy(ties: bool) -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=40)
    y = x**3 + rng.normal(size=40)
    if ties:
        x, y = np.round(x), np.round(y)
    x[3], y[7] = np.nan, np.inf
    labels = ["mixer"] * 40
    found = compare(run(labels, sink_norm_ratio=x), run(labels, sink_norm_ratio=y)).correlations
    known = np.isfinite(x) & np.isfinite(y)
    row = found.loc["sink_norm_ratio"]
    assert row["heads"] == 38
    assert row["pearson"] == pytest.approx(stats.pearsonr(x[known], y[known]).statistic)
    assert row["spearman"] == pytest.approx(stats.spearmanr(x[known], y[known]).statistic)


def test_common_sizes_are_compared_whatever_their_order_and_n_1_is_not() -> None:
    labels = ["mixer"] * 20
    a, b = run(labels, sizes=(1, 2, 16, 8)), run(labels, sizes=(8, 4, 2, 1), seed=5)
    found = compare(a, b.transpose("top_n", "head", "layer")).correlations
    assert list(found.index) == ["f_score, N = 2", "f_score, N = 8"]
    x, y = (ds["f_score"].sel(top_n=8).values.ravel() for ds in (a, b))
    assert found.loc["f_score, N = 8", "pearson"] == pytest.approx(stats.pearsonr(x, y).statistic)


def test_constant_values_have_no_correlation() -> None:
    labels = ["mixer"] * 4
    ds = run(labels, sink_rate=[0.5] * 4)
    row = compare(ds, run(labels, sink_rate=[0.1, 0.2, 0.3, 0.4])).correlations.loc["sink_rate"]
    assert math.isnan(row["pearson"])
    assert math.isnan(row["spearman"])
    nothing = run(labels, sink_rate=[np.nan] * 4)
    assert math.isnan(compare(nothing, ds).correlations.loc["sink_rate", "pearson"])


def test_it_shows_itself() -> None:
    ds = run(["mixer", "mixer", "reset", "mixer"], sink_rate=[0.1, 0.2, 0.3, 0.4])
    ds.attrs |= {"model_name": "<m>", "documents": 8, "n_ctx": 256, "corpus": [{"name": "prose"}]}
    found = compare(ds, ds)
    text = repr(found)
    assert "a: <m>, prose, 8 documents of up to 256 tokens" in text
    assert "1.000 of 4 heads agree, Cohen's kappa 1.000" in text
    assert "sink_rate" in text
    html = found._repr_html_()
    assert "&lt;m&gt;" in html
    assert "<m>" not in html
    assert html.count("<table") == 2


SETTINGS = {
    "model_name": "m",
    "weight_processing": {"folded_layer_norm": True, "backend": "HookedTransformer"},
    "value_bias": "as_hooked",
    "output": "raw",
    "sink": "first",
    "prepend_bos": True,
    "n_ctx": 256,
    "measures": {"Separability": {"top_n": (1, 8), "queries": 64}, "Sinks": {"epsilon": 0.3}},
}


def settings(**changed: Any) -> xr.Dataset:
    ds = run(["mixer", "mixer", "reset", "mixer"])
    ds.attrs = SETTINGS | changed
    return ds


def test_runs_that_differ_in_their_texts_alone_raise_no_warning() -> None:
    corpora = [[{"name": "prose"}], [{"name": "wiki", "split": "test"}, {"name": "code"}]]
    a, b = (settings(documents=k, created=str(k), corpus=corpora[k]) for k in (0, 1))
    found = compare(a, b)
    assert found.differences == {}
    assert "Warning" not in repr(found)
    assert "b: m, wiki (test) + code, 1 documents" in repr(found)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_name", "other"),
        ("value_bias", "remove"),
        ("output", "normed"),
        ("sink", [0, 1]),
        ("prepend_bos", False),
        ("n_ctx", 512),
    ],
)
def test_a_setting_that_differs_is_a_warning(name: str, value: Any) -> None:
    found = compare(settings(), settings(**{name: value}))
    assert found.differences == {name: (SETTINGS[name], value)}
    warning = (
        f"Warning: the runs were not made in the same way\n  {name}: {SETTINGS[name]} | {value}\n"
    )
    assert warning in repr(found)
    assert warning in found._repr_html_()


def test_of_nested_settings_the_entries_that_differ() -> None:
    processing = {"folded_layer_norm": False, "backend": "HookedTransformer"}
    measures = {"Separability": {"top_n": (1, 8), "queries": 9}, "Regimes": {}}
    found = compare(settings(), settings(weight_processing=processing, measures=measures))
    assert found.differences == {
        "weight_processing": ({"folded_layer_norm": True}, {"folded_layer_norm": False}),
        "measures": (
            {"Separability": {"queries": 64}, "Sinks": {"epsilon": 0.3}, "Regimes": "not recorded"},
            {"Separability": {"queries": 9}, "Sinks": "not recorded", "Regimes": {}},
        ),
    }
    unknown = settings()
    del unknown.attrs["sink"]
    assert compare(unknown, settings()).differences == {"sink": ("not recorded", "first")}


def test_wrong_runs_are_refused() -> None:
    ds = run(["mixer"] * 4)
    with pytest.raises(ValueError, match="ds_b holds no 'regime'"):
        compare(ds, ds.drop_vars("regime"))
    with pytest.raises(ValueError, match=r"same axis 'head': ds_a has 2 \(0, 1\), ds_b has 3"):
        compare(ds, run(["mixer"] * 6))
    with pytest.raises(ValueError, match=r"same axis 'layer': ds_a has 2 \(0, 1\), ds_b has 2"):
        compare(ds, ds.assign_coords(layer=[0, 2]))
    with pytest.raises(ValueError, match="no head has a regime in both"):
        compare(ds, run([""] * 4))
    with pytest.raises(TypeError):
        compare({}, ds)


def test_the_command_prints_the_comparison(tmp_path: Any) -> None:
    ds = run(["mixer", "mixer", "reset", "mixer"])
    for name in ("a.nc", "b.nc"):
        save(ds, tmp_path / name)
    result = CliRunner().invoke(app, ["compare", str(tmp_path / "a.nc"), str(tmp_path / "b.nc")])
    assert result.exit_code == 0
    assert "1.000 of 4 heads agree" in result.output
