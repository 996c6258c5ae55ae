import numpy as np
import pytest
from views_data.dataset import make_dataset

from tl_geometry.views.summary import headline_tables


def test_three_tables_with_full_rows() -> None:
    tables = headline_tables(make_dataset(30, 9))
    assert [table.key for table in tables] == ["regimes", "sinks", "contributions"]
    assert [len(table.rows) for table in tables] == [3, 10, 10]
    assert tables[1].title == "Ten strongest sinks"
    for table in tables:
        assert len(table.numeric) == len(table.columns)
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_regime_counts_are_those_of_the_dataset() -> None:
    ds = make_dataset(6, 4, blank_layers=(2,))
    counts = {row[0]: int(row[2]) for row in headline_tables(ds)[0].rows}
    labels = ds["regime"].values.ravel().tolist()
    assert counts == {
        "retriever": labels.count("retriever"),
        "mixer": labels.count("mixer"),
        "reset": labels.count("reset"),
        "unknown": 4,
    }


@pytest.mark.parametrize(
    ("key", "variable"),
    [("sinks", "sink_rate"), ("contributions", "contribution_attention_distance")],
)
def test_rankings_agree_with_xarray(key: str, variable: str) -> None:
    ds = make_dataset(8, 5)
    table = next(table for table in headline_tables(ds) if table.key == key)
    frame = ds[variable].to_dataframe().reset_index().sort_values(variable, ascending=False)[:10]
    expected = [f"L{row.layer}H{row.head}" for row in frame.itertuples()]
    assert [row[0] for row in table.rows] == expected
    assert table.rows[0][1].startswith(f"{frame[variable].iloc[0]:.2f} ± 0.0")


def test_columns_and_tables_that_were_not_measured_are_left_out() -> None:
    ds = make_dataset()[["sink_rate", "regime"]]
    regimes, sinks = headline_tables(ds)
    assert regimes.key == "regimes"
    assert sinks.columns == ("head", "sink rate", "regime")


def test_no_rows_no_table() -> None:
    ds = make_dataset()[["sink_rate"]]
    ds["sink_rate"].values[:] = np.nan
    assert headline_tables(ds) == []
