"""The sink-aware certificate: its formula, that no row violates it, and where it is exact."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from literal import certificate as literal
from literal.masks import all_masks, causal
from literal.problems import problem
from literal.rows import eps_of, layers, profile
from literal.separability import inversion_bounds

from tl_geometry import separability, sink_aware_certificate

TOP_N = (1, 2, 3, 4, 6, 8)
BOUNDS = ("precision", "recall", "f_score")
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
MASKS = all_masks(batch=2, heads=4, length=6)


def compare(tensors, *, available=None, top_n=TOP_N, **options):
    """Against the literal form; pairs within a few ulp of touching may count either way."""
    found = sink_aware_certificate(*tensors, top_n=top_n, available=available, **options)
    eps = eps_of(tensors[0].dtype)
    expected = literal.certificate(*tensors, top_n=top_n, available=available, eps=eps, **options)
    counts = Counter()
    for place in np.ndindex(expected["inversions"].shape):
        n, actual = top_n[place[3]], found.inversions[place].item()
        bounds = [getattr(found, name)[place].item() for name in BOUNDS]
        if math.isnan(expected["inversions"][place]):
            assert np.isnan([actual, *bounds]).all()
            continue
        least, most = expected["fewest"][place], expected["most"][place]
        assert least <= actual <= most, (place, n, expected["inversions"][place], actual)
        assert bounds == pytest.approx(inversion_bounds(actual, n), abs=1e-6)
        counts["rows"] += 1
        counts["ambiguous"] += least != most
    return counts


OPTIONS = {
    "measured": {},
    "model space": {"space": "model"},
    "cosine": {"cosine": (-0.2, 0.7)},
    "sink cosine": {"sink_cosine": (-1.0, -0.25)},
    "ratio": {"sink_norm_ratio": 0.3},
    "all assumed": {"cosine": (0.1, 0.4), "sink_cosine": (-0.5, 0.0), "sink_norm_ratio": 1.5},
    "no sink value": {"sink_norm_ratio": 0.0, "cosine": (0.5, 0.5)},
    "other sink": {"sink": 1},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_formula(name):
    options, total = OPTIONS[name], Counter()
    masks = ("causal", "full", "window", "rectangular", "random", "padding")

    @profile
    @given(layers(dtypes=DTYPES, masks=masks))
    def run(rows):
        made = rows.made
        if "sink" in options and made.v.shape[1] < 2:
            return
        W_O = made.W_O if "space" in options else None
        tensors = (made.pattern, made.v, W_O)
        total.update(compare(tensors, available=made.available, **options))

    run()
    assert total["rows"] > 1500
    assert total["ambiguous"] < 0.01 * total["rows"], total


@pytest.mark.parametrize("name", [name for name in MASKS if not name.startswith("heads")])
def test_formula_under_every_mask(name):
    made = problem(available=MASKS[name], dtype=torch.float64, seed=1)
    for space in ("head", "model"):
        counts = compare(made.tensors, available=made.available, space=space)
        assert counts["rows"] > 0
        assert counts["ambiguous"] == 0


def assert_holds(certificate, scores):
    """More possible inversions than there are, and bounds below what is measured."""
    known = ~scores.inversions.isnan()
    assert torch.equal(known, ~certificate.inversions.isnan())
    assert torch.equal(certificate.query, scores.query)
    assert (certificate.inversions >= scores.inversions)[known].all()
    for name in BOUNDS:
        slack = getattr(scores, name) - getattr(certificate, name)
        assert (slack >= -1e-6)[known].all(), (name, slack[known].min())
    return int(known.sum())


@pytest.mark.parametrize("space", ["head", "model"])
def test_no_random_row_violates_it(space):
    total = Counter()

    @profile
    @given(layers(dtypes=(*DTYPES, torch.float16), longest=16))
    def run(rows):
        made = rows.made
        options = {"available": made.available, "top_n": TOP_N, "space": space}
        total["rows"] += assert_holds(
            sink_aware_certificate(*made.tensors, **options),
            separability(*made.tensors, **options),
        )

    run()
    assert total["rows"] > 2000


@pytest.mark.parametrize("sink", [0, 2, 4])
def test_any_single_key_may_play_the_sink(sink):
    for name, mask in MASKS.items():
        made = problem(available=mask, seed=2)
        if name.startswith("heads") or "padding" in name:
            continue
        options = {"available": mask, "top_n": (1, 2, 3, 4)}
        certificate = sink_aware_certificate(
            *made.tensors, sink=min(sink, 2) if "both" in name else sink, **options
        )
        assert assert_holds(certificate, separability(*made.tensors, **options)) > 0


# -- where it is exact -------------------------------------------------------------------------------


def equiangular(keys, cosine, sink_cosine, ratio, d=None):
    """Unit values with one and the same cosine between any two, and a sink at another to all."""
    values = torch.zeros(keys, keys + 2, dtype=torch.float64)
    values[:, 0] = math.sqrt(cosine)
    values[:, 1 : keys + 1] = math.sqrt(1 - cosine) * torch.eye(keys, dtype=torch.float64)
    values[0] = 0
    values[0, 0] = sink_cosine / math.sqrt(cosine)
    values[0, -1] = math.sqrt(1 - sink_cosine**2 / cosine)
    values[0] *= ratio
    return values


@pytest.mark.parametrize("ratio", [0.1, 1.0, 2.5])
@pytest.mark.parametrize(
    ("cosine", "sink_cosine"), [(0.3, -0.4), (0.6, 0.5), (0.9, -0.9), (0.2, 0)]
)
def test_it_is_exact_where_all_cosines_are_equal(cosine, sink_cosine, ratio):
    keys = 12
    v = equiangular(keys, cosine, sink_cosine, ratio)
    others = v[1:] @ v[1:].T - (1 - cosine) * torch.eye(keys - 1)
    torch.testing.assert_close(others, torch.full_like(others, cosine))
    torch.testing.assert_close(v[1:] @ v[0], torch.full_like(v[1:, 0], sink_cosine * ratio))
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(1, 2, 60, keys, generator=generator, dtype=torch.float64)
    logits[..., 0] += 1  # the sink in and out of the selected set
    pattern, v = logits.softmax(-1), v[None, :, None]
    sizes = {"top_n": (1, 2, 3, 5, 8, 11)}
    scores = separability(pattern, v, **sizes)
    assert (scores.inversions > 0).any()
    assumed = {"cosine": (cosine, cosine), "sink_cosine": (sink_cosine, sink_cosine)}
    for options in ({}, assumed, {**assumed, "sink_norm_ratio": ratio}):
        certificate = sink_aware_certificate(pattern, v, **sizes, **options)
        assert torch.equal(certificate.inversions, scores.inversions), options
    # A scale common to all values, and a quarter turn in model space, change nothing.
    turn = torch.eye(v.shape[-1], dtype=torch.float64).roll(1, 0).expand(2, -1, -1)
    certificate = sink_aware_certificate(pattern, 1e-20 * v, turn, space="model", **sizes)
    assert torch.equal(certificate.inversions, scores.inversions)


def test_ranges_may_be_arrays_and_tensors():
    tensors = problem(available=causal(9)[None], queries=9, seed=3).tensors
    usual = sink_aware_certificate(*tensors, cosine=(-0.5, 0.5), sink_cosine=(-1.0, 0.0))
    other = sink_aware_certificate(
        *tensors, cosine=np.array([-0.5, 0.5]), sink_cosine=torch.tensor([-1.0, 0.0])
    )
    assert torch.equal(usual.f_score.nan_to_num(-1), other.f_score.nan_to_num(-1))


def test_wider_ranges_never_certify_more():
    made = problem(available=causal(9)[None], queries=9, dtype=torch.float64, seed=3)
    previous = None
    for width in (0.0, 0.2, 0.5, 0.9):
        found = sink_aware_certificate(
            *made.tensors, top_n=TOP_N, cosine=(0.1 - width, 0.1 + width), sink_cosine=(-width, 0)
        ).inversions.nan_to_num()
        assert previous is None or (found >= previous).all()
        previous = found


def test_two_keys_by_hand():
    """Weights 0.5 (sink), 0.3, 0.2, unit values, ratio 0.2, cosines 1 and -1, N = 2.

    q = 0.1, 0.3, 0.2; Q = 0.3, t = 1. Selected: key 1: -0.09 + 0.06 = -0.03; sink:
    -0.01 + 0.06 = 0.05. The other: 0.04 - 0.4 (0.3 - 0.1) = -0.04: nearer than both.
    N = 1: Q = 0. The sink's own: -0.01; the others: 0.09 + 0.06 = 0.15 and 0.04 + 0.04 = 0.08.
    """
    pattern = torch.tensor([[[[0.5, 0.3, 0.2]]]])
    v = torch.ones(1, 3, 1, 1)
    found = sink_aware_certificate(
        pattern, v, top_n=(1, 2, 3), cosine=(1, 1), sink_cosine=(-1, -1), sink_norm_ratio=0.2
    )
    assert found.inversions[0, 0, 0, :2].tolist() == [0, 2]
    assert found.precision[0, 0, 0, :2].tolist() == [1, 0.5]
    assert found.recall[0, 0, 0, :2].tolist() == [1, 0]
    assert found.f_score[0, 0, 0, :2].tolist() == [1, 0]
    for name in (*BOUNDS, "inversions"):
        assert getattr(found, name)[..., 2].isnan().all()


def test_queries_are_picked_as_in_separability():
    made = problem(available=MASKS["causal, left: b q k"], seed=4)
    every = sink_aware_certificate(*made.tensors, available=made.available, top_n=(1, 2))
    for queries in ("last", 2, torch.tensor([4, 2]), torch.tensor([[5, 3], [2, 4]])):
        some = sink_aware_certificate(
            *made.tensors, available=made.available, top_n=(1, 2), queries=queries
        )
        scores = separability(*made.tensors, available=made.available, top_n=1, queries=queries)
        assert torch.equal(some.query, scores.query)
        places = some.query[:, None, :, None].expand(-1, 4, -1, 2)
        expected = every.inversions.gather(2, places)
        torch.testing.assert_close(some.inversions, expected, equal_nan=True)


@pytest.mark.parametrize("garbage", [1e30, np.inf, np.nan])
def test_values_of_padding_do_not_leak(garbage):
    mask = MASKS["causal, left: b q k"]
    made = problem(available=mask, seed=5)
    v = torch.where(mask.any(1)[..., None, None], made.v, garbage)
    for space in ("head", "model"):
        options = {"available": mask, "space": space, "top_n": (1, 2, 3)}
        usual = sink_aware_certificate(*made.tensors, **options)
        spoilt = sink_aware_certificate(made.pattern, v, made.W_O, **options)
        torch.testing.assert_close(spoilt.inversions, usual.inversions, equal_nan=True)


# -- a pretrained model ------------------------------------------------------------------------------


@pytest.mark.smollm2
@pytest.mark.hooked
def test_no_row_of_smollm2_violates_it(smollm2_hooked):
    from tl_geometry.data import demo_corpora

    texts = [text for corpus in demo_corpora().values() for text in corpus[:2]]
    layers_ = (0, 7, 15, 29)
    names = [f"blocks.{n}.attn.hook_{kind}" for n in layers_ for kind in ("pattern", "v")]
    checked = 0
    for text in texts:
        ids = smollm2_hooked.tokenizer(text, add_special_tokens=False).input_ids[:96]
        tokens = torch.tensor([[smollm2_hooked.tokenizer.bos_token_id, *ids]])
        with torch.no_grad():
            _, cache = smollm2_hooked.run_with_cache(tokens, names_filter=names, stop_at_layer=30)
        for n in layers_:
            pattern, v = (cache[f"blocks.{n}.attn.hook_{kind}"] for kind in ("pattern", "v"))
            W_O = smollm2_hooked.blocks[n].attn.W_O.detach()
            for space in ("head", "model"):
                options = {"space": space, "queries": 24}
                certificate = sink_aware_certificate(pattern, v, W_O, **options)
                scores = separability(pattern, v, W_O, **options)
                checked += assert_holds(certificate, scores)
    assert checked > 10_000
