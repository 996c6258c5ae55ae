import json

import numpy as np
import pytest
from views_data.dataset import make_dataset

from tl_geometry import views
from tl_geometry.views.averages import nearest_fraction


def test_a_mark_for_every_head_at_the_fraction() -> None:
    ds = make_dataset(5, 4)
    figure = views.off_rates(ds, fraction=0.2)
    (marks,) = figure.data
    np.testing.assert_allclose(marks.x, ds["sink_rate"].values.ravel(), atol=6e-4)
    np.testing.assert_allclose(marks.y, ds["off_rate"].sel(fraction=0.2).values.ravel(), atol=6e-4)
    assert marks.text[6] == "L1H2"
    np.testing.assert_array_equal(marks.marker.color, np.repeat(np.arange(5), 4))
    assert figure.layout.title.text == "Heads that are off, f = 0.2"
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0, 4)


def test_rows_off_are_drawn_over_rows_on() -> None:
    ds = make_dataset(5, 4)
    ds["sink_rate_off"].values[2, 3] = np.nan  # a head that is never off
    alike, marks = views.off_and_on(ds).data
    assert (alike.x, alike.y) == ((0, 1), (0, 1))
    expected = ds["sink_rate_off"].sel(fraction=0.1).values.ravel()
    np.testing.assert_allclose(np.array(marks.y, float), expected, atol=6e-4)
    known = np.arange(20) != 11
    expected = ds["sink_rate_on"].sel(fraction=0.1).values.ravel()
    np.testing.assert_allclose(np.array(marks.x, float)[known], expected[known], atol=6e-4)
    assert marks.x[11] is marks.y[11] is None


@pytest.mark.parametrize(("wanted", "place"), [(0.1, 1), (0.01, 0), (0.13, 1), (0.15, 2), (9, 3)])
def test_the_nearest_fraction(wanted: float, place: int) -> None:
    assert nearest_fraction(make_dataset(), wanted) == place


def test_extreme_results_can_be_drawn() -> None:
    for ds in (make_dataset(1, 1), make_dataset(2, 2, blank_layers=(0, 1))):
        for draw in (views.off_rates, views.off_and_on):
            json.loads(draw(ds).to_json(), parse_constant=pytest.fail)


def test_labels_are_text_for_plotly() -> None:
    figure = views.off_rates(make_dataset(2, 1, layers=["<a href='x'>b</a>", "\u202eabc"]))
    assert figure.data[0].text[0].startswith("&lt;a")
    assert figure.layout.coloraxis.colorbar.ticktext[1] == "\\u202eabc"


def test_wrong_requests_say_what_there_is() -> None:
    ds = make_dataset()
    with pytest.raises(ValueError, match="ds holds no 'off_rate' per layer, head and fraction"):
        views.off_rates(ds.drop_vars("off_rate"))
    with pytest.raises(ValueError, match="ds holds no 'sink_rate' per layer and head"):
        views.off_rates(ds.drop_vars("sink_rate"))
    with pytest.raises(ValueError, match="ds holds no 'sink_rate_off'"):
        views.off_and_on(ds.drop_vars("sink_rate_off"))
    with pytest.raises(ValueError, match="fraction=0 must be above 0"):
        views.off_and_on(ds, fraction=0)
