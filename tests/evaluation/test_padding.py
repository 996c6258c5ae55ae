"""An evaluation of padded batches gives what it gives on the documents one by one."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from analysis_data.reference import tokens

from tl_geometry import (
    faithfulness,
    head_sensitivity,
    pattern_mixing,
    sink_interventions,
    sparsify,
)

LENGTHS = (12, 3, 8)
WIDTH = 14
EVALUATIONS = {
    "faithfulness": partial(
        faithfulness, importances=("contribution", "random"), fractions=(0.2,), resamples=5
    ),
    "interventions": partial(sink_interventions, resamples=5),
    "mixing": partial(pattern_mixing, targets=("uniform", "sink"), ts=(0.5,), resamples=5),
    "sensitivity": partial(head_sensitivity, layers=[0]),
    "sparsify": partial(sparsify, orders=("output_norm", "random"), retention=(0.5,), repeats=1),
}


def documents():
    rows = [tokens(1, n, seed=n)[0] for n in LENGTHS]
    for row in rows:
        row[0] = 0  # bos, which is what rows are padded with
    return rows


def batch_of(kind):
    ids, mask = torch.zeros(3, WIDTH).long(), torch.zeros(3, WIDTH).long()
    for row, document in enumerate(documents()):
        n = len(document)
        free = WIDTH - n
        places = list(range(free, WIDTH))
        if kind == "gaps":
            places = [1 + k + (k * (free - 1)) // n for k in range(n)]
        ids[row, places], mask[row, places] = document, 1
    return ids, mask


ALONE = {}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_padded_batches_are_their_documents(tiny_model, backend, name):
    run = partial(EVALUATIONS[name], tiny_model, progress=False)
    alone = run(documents(), batch_size=1)
    for kind in ("left", "gaps"):
        padded = run([batch_of(kind)])
        assert set(padded.data_vars) == set(alone.data_vars)
        for variable in alone.data_vars:
            one, other = (ds[variable].values for ds in (alone, padded))
            if one.dtype.kind not in "fi":
                assert one.tolist() == other.tolist(), (kind, variable)
                continue
            np.testing.assert_allclose(
                other, one, rtol=2e-4, atol=2e-4, err_msg=f"{kind}, {variable}"
            )
