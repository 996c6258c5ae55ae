"""Two runs side by side: do their heads agree?"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from tl_geometry.measures.regimes import REGIMES

__all__ = ["Comparison", "compare"]

_QUANTITIES = (
    "sink_rate",
    "sink_norm_ratio",
    "sink_cosine",
    "contribution_attention_distance",
)
# What must be equal for a difference between two runs to come from their texts alone.
_SETTINGS = (
    "model_name",
    "weight_processing",
    "value_bias",
    "output",
    "sink",
    "prepend_bos",
    "n_ctx",
    "measures",
)
_NOT_RECORDED = "not recorded"


@dataclass(frozen=True, eq=False)
class Comparison:
    """How far two runs agree about the heads of a model.

    Attributes:
        heads: heads with a regime in both runs.
        agreement: share of them with the same regime in both.
        kappa: Cohen's kappa, agreement beyond what the two runs' regime counts make likely: 1 is
            full agreement, 0 that of chance; NaN where both runs know a single regime only.
        regime_agreement: of each regime 2 n_both / (n_a + n_b), the share of its labels that the
            other run confirms; NaN where neither run has it.
        confusion: counts of heads, first run by row, second run by column.
        correlations: Pearson and Spearman correlation over heads of each quantity that both runs
            hold (``f_score`` once for each common N above 1), and the number of heads.
        differences: settings that are not the same in both runs, by name, the first run's and the
            second's; of nested settings only the entries that differ. Empty when the runs differ
            in their texts alone.
        names: what was compared, one line a run.
    """

    heads: int
    agreement: float
    kappa: float
    regime_agreement: pd.Series
    confusion: pd.DataFrame
    correlations: pd.DataFrame
    differences: dict[str, tuple[Any, Any]]
    names: tuple[str, str]

    def __repr__(self) -> str:
        lines = [*self._head(), "", self._confusion_with_agreement().to_string(na_rep="–")]
        if len(self.correlations):
            lines += ["", "Correlations over heads", self.correlations.round(3).to_string()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        tables = [self._confusion_with_agreement(), self.correlations.round(3)]
        head = html.escape("\n".join(self._head()))
        return f"<pre>{head}</pre>" + "".join(table.to_html() for table in tables)

    def _head(self) -> list[str]:
        lines = [f"a: {self.names[0]}", f"b: {self.names[1]}", ""]
        if self.differences:
            lines.append("Warning: the runs were not made in the same way")
            lines += [f"  {name}: {a} | {b}" for name, (a, b) in self.differences.items()]
            lines.append("")
        return [
            *lines,
            f"Regimes: {self.agreement:.3f} of {self.heads} heads agree, "
            f"Cohen's kappa {self.kappa:.3f}",
        ]

    def _confusion_with_agreement(self) -> pd.DataFrame:
        return self.confusion.assign(agreement=self.regime_agreement.round(3))


def compare(ds_a: xr.Dataset, ds_b: xr.Dataset) -> Comparison:
    """Compare two runs head by head: regimes, separability, sinks, contributions.

    >>> compare(load("wikitext.nc"), load("openwebtext.nc"))  # doctest: +SKIP

    Cohen's kappa is (p - e) / (1 - e) with p the share of equal labels and e = sum_r a_r b_r, the
    share expected from the two runs' regime frequencies. Regimes after Mudarisov et al., arXiv
    2602.01893, who found them stable between corpora. N = 1 is left out: F is 1 there for any rule.
    Settings in which the runs differ are listed first: agreement of such runs says little.

    Args:
        ds_a: a result of :func:`tl_geometry.analyze`.
        ds_b: another one of a model with the same layers and heads.

    Raises:
        TypeError: when an argument is no Dataset.
        ValueError: when layers or heads differ, a run lacks regimes, or no head has one in both.
    """
    for name, ds in (("ds_a", ds_a), ("ds_b", ds_b)):
        if not isinstance(ds, xr.Dataset):
            raise TypeError(f"{name} must be an xarray.Dataset, got {type(ds).__name__}")
        if "regime" not in ds:
            raise ValueError(f"{name} holds no 'regime'; analyze with the measure Regimes")
    for axis in ("layer", "head"):
        labels = [[str(x) for x in ds[axis].values.tolist()] for ds in (ds_a, ds_b)]
        if labels[0] != labels[1]:
            raise ValueError(
                f"the runs must have the same axis {axis!r}: ds_a has {_brief(labels[0])}, "
                f"ds_b has {_brief(labels[1])}"
            )
    first, second = (
        ds["regime"].transpose("layer", "head").values.astype(str).ravel() for ds in (ds_a, ds_b)
    )
    both = np.isin(first, REGIMES) & np.isin(second, REGIMES)
    if not both.any():
        raise ValueError("no head has a regime in both ds_a and ds_b")
    counts = _confusion(first[both], second[both])
    total = counts.sum()
    rows, columns = counts.sum(1), counts.sum(0)
    agreement = float(np.trace(counts) / total)
    chance = float(rows @ columns) / float(total) ** 2
    labelled = rows + columns
    shared = np.divide(
        2.0 * counts.diagonal(), labelled, out=np.full(3, np.nan), where=labelled > 0
    )
    return Comparison(
        heads=int(total),
        agreement=agreement,
        kappa=(agreement - chance) / (1 - chance) if chance < 1 else float("nan"),
        regime_agreement=pd.Series(shared, index=list(REGIMES), name="agreement"),
        confusion=pd.DataFrame(
            counts,
            index=pd.Index(REGIMES, name="a"),
            columns=pd.Index(REGIMES, name="b"),
        ),
        correlations=_correlations(ds_a, ds_b),
        differences=_differences(ds_a.attrs, ds_b.attrs, _SETTINGS),
        names=(_name(ds_a), _name(ds_b)),
    )


def _differences(
    a: Mapping[Any, Any], b: Mapping[Any, Any], names: Iterable[Any]
) -> dict[str, tuple[Any, Any]]:
    """The entries that are not equal; within mappings those of their entries that are not."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in names:
        first, second = a.get(name, _NOT_RECORDED), b.get(name, _NOT_RECORDED)
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            nested = _differences(first, second, dict.fromkeys([*first, *second]))
            first, second = ({key: pair[k] for key, pair in nested.items()} for k in (0, 1))
        if first != second:
            found[str(name)] = (first, second)
    return found


def _confusion(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.int64]:
    return np.array(
        [[((first == a) & (second == b)).sum() for b in REGIMES] for a in REGIMES], dtype=np.int64
    )


def _correlations(ds_a: xr.Dataset, ds_b: xr.Dataset) -> pd.DataFrame:
    pairs = {}
    if all("f_score" in ds for ds in (ds_a, ds_b)):
        others = [int(n) for n in ds_b["top_n"].values]
        for n in (int(n) for n in ds_a["top_n"].values if n > 1 and n in others):
            pairs[f"f_score, N = {n}"] = [ds["f_score"].sel(top_n=n) for ds in (ds_a, ds_b)]
    for name in _QUANTITIES:
        if all(name in ds for ds in (ds_a, ds_b)):
            pairs[name] = [ds[name] for ds in (ds_a, ds_b)]
    found = {}
    for name, arrays in pairs.items():
        x, y = (
            array.transpose("layer", "head").values.astype(np.float64).ravel() for array in arrays
        )
        known = np.isfinite(x) & np.isfinite(y)
        x, y = x[known], y[known]
        found[name] = (_pearson(x, y), _pearson(_ranks(x), _ranks(y)), int(known.sum()))
    return pd.DataFrame.from_dict(found, orient="index", columns=["pearson", "spearman", "heads"])


def _pearson(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Pearson's correlation; NaN where one side is constant or there are fewer than two heads."""
    if x.size < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])


def _ranks(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks, equal values sharing their mean."""
    return np.asarray(pd.Series(x).rank().values, dtype=np.float64)


def _name(ds: xr.Dataset) -> str:
    model = ds.attrs.get("model_name") or "unnamed model"
    corpora = [
        f"{part['name']} ({part['split']})" if "split" in part else str(part["name"])
        for part in ds.attrs.get("corpus") or []
        if "name" in part
    ]
    parts = [str(model), *([" + ".join(corpora)] if corpora else [])]
    if "documents" in ds.attrs:
        parts.append(f"{ds.attrs['documents']} documents of up to {ds.attrs.get('n_ctx')} tokens")
    return ", ".join(parts)


def _brief(labels: list[str]) -> str:
    shown = ", ".join(labels[:6])
    return f"{len(labels)} ({shown}{', ...' if len(labels) > 6 else ''})"
