import numpy as np
import xarray as xr
from views_data.dataset import make_dataset

from tl_geometry.views.sentences import summary_sentences


def dataset(**variables: object) -> xr.Dataset:
    held = {name: (("layer", "head"), np.array(grid)) for name, grid in variables.items()}
    return xr.Dataset(held, coords={"layer": [0, 1], "head": [0, 1]})


def test_regimes_counted_by_hand() -> None:
    labels = np.array([["mixer", "mixer"], ["retriever", ""]], dtype=object)
    ds = dataset(regime=labels, regime_margin=[[0.3, 0.01], [0.5, np.nan]])
    assert summary_sentences(ds) == [
        "1 of 3 heads (33 %) is a retriever, 2 (67 %) mixers and 0 (0 %) resets. "
        "The regime of 1 head is not known. "
        "It is a close call in 1 head: the runner-up is less than 0.05 behind."
    ]


def test_sinks_counted_by_hand() -> None:
    ds = dataset(
        sink_rate=[[0.1, 0.9], [0.6, np.nan]],
        sink_norm_ratio=[[0.5, 2.0], [0.25, np.nan]],
        sink_cosine=[[-0.5, 0.1], [-0.1, np.nan]],
        contribution_sink=[[0.2, -0.1], [0.5, np.nan]],
    )
    rate, values, effect = summary_sentences(ds)
    assert rate == (
        "The median head gives 0.60 of its attention to the sink; 2 heads of 3 give more than "
        "half. The strongest sink is that of L0H1 (0.90)."
    )
    assert "shorter than the median of the other tokens' in 2 of 3 heads" in values
    assert "(median ratio 0.500)" in values
    assert values.endswith("(negative cosine) in 2.")
    assert effect == (
        "In 2 of 3 heads the sink contributes less to the head's output than the attention it "
        "gets; in 1 its mean contribution is negative."
    )


def test_distance_names_the_most_distant_head() -> None:
    ds = dataset(contribution_attention_distance=[[0.1, 0.2], [0.3, 1.25]])
    assert "by 0.25 in the median head" in summary_sentences(ds)[0]
    assert summary_sentences(ds)[0].endswith("most in L1H1 (1.25).")


def test_silent_about_what_has_no_values() -> None:
    ds = make_dataset(2, 2, blank_layers=(0, 1))
    assert summary_sentences(ds) == ["No head could be given a regime."]
    assert summary_sentences(ds[["undefined_rows"]]) == []


def test_how_sinks_work_counted_by_hand() -> None:
    ds = dataset(
        sink_optimum=[[0.2, 0.6], [0.4, np.nan]], sink_below_optimum=[[0.1, 0.3], [0.2, np.nan]]
    )
    dims = ("layer", "head", "fraction")
    ds["off_rate"] = (dims, [[[0.9, 0.8], [0.5, 0.1]], [[0.3, 0.2], [np.nan, np.nan]]])
    ds["sink_rate_off"] = (dims, [[[1, 0.9], [1, np.nan]], [[1, 0.7], [np.nan, np.nan]]])
    ds["sink_rate_on"] = (dims, np.full((2, 2, 2), 0.25))
    ds = ds.assign_coords(fraction=[0.3, 0.1])
    for name, values in {
        "similarity_in": [0.1, 0.3],
        "similarity_out": [0.75, 0.5],
        "halfspace_feasible": [1.0, 0.5],
    }.items():
        ds[name] = ("layer", values)
    optimum, off, likeness, halfspaces = summary_sentences(ds)
    assert optimum == (
        "Outputs would be shortest with 0.40 of the attention on the sink (mean over heads of the "
        "optimum a*); 20 % of the rows give it less."
    )
    assert off == (
        "The median head is off (output below 0.1 of a typical value) in 20 % of its rows; 1 head "
        "of 3 is off in more than half. Rows that are off give the sink 0.80 of their attention, "
        "the others 0.25 (mean over 2 heads)."
    )
    assert likeness == (
        "The mean cosine between tokens goes from 0.10 at the input of layer 0 to 0.50 at the "
        "output of layer 1; it is highest behind layer 0 (0.75)."
    )
    assert halfspaces == (
        "The tokens could all be made to attend to the first one (half-space conditions) in every "
        "document at 1 of 2 layers, in 75 % of documents and layers."
    )
    alone = ds.drop_vars(["sink_rate_on", "similarity_in", "halfspace_feasible", "sink_optimum"])
    (off,) = summary_sentences(alone)
    assert off.endswith("off in more than half.")
