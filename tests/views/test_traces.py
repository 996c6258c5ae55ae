import pytest

from tl_geometry.views.traces import decades


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (1, 10, ["1", "2", "5", "10"]),
        (1.5, 300, ["2", "5", "10", "20", "50", "100", "200"]),
        (1.5, 600, ["2", "5", "10", "20", "50", "100", "200", "500"]),  # eight are not too many
        (0.5, 200, ["1", "10", "100"]),
        (0.003, 0.03, ["0.005", "0.01", "0.02"]),
        (2.5, 4, []),
    ],
)
def test_ticks_of_a_logarithmic_axis(low: float, high: float, words: list[str]) -> None:
    found = decades(low, high)
    assert found["ticktext"] == words
    assert found["tickvals"] == [float(word) for word in words]
