"""Winners of rows and regimes of heads against the literal count and hand-made rows."""

from __future__ import annotations

import itertools

import pytest
import torch
from literal import regimes as literal
from literal.masks import all_masks, causal, padded, real_queries, token_mask
from literal.problems import assert_same, problem

from tl_geometry.measures.regimes import head_regimes, source_winners

MASKS = all_masks(batch=2, heads=4, length=6)
SPACES = ("head", "model")
SINKS = {
    "first": "first",
    "first, as int": 0,
    "third": 2,
    "two": [0, 2],
    "tuple": (1,),
    "tensor b k": torch.tensor([[0, 1, 0, 0, 1, 0], [1, 0, 0, 1, 0, 0]], dtype=torch.bool),
    "tensor b h k": torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(1)) < 0.3,
}


def check(made, **options) -> None:
    tensors = made.tensors
    expected = literal.source_winners(*tensors, available=made.available, **options)
    actual = source_winners(*tensors, available=made.available, **options)
    assert not (actual.position.is_floating_point())
    assert not (actual.category.is_floating_point())
    category = torch.from_numpy(expected[1])
    assert torch.equal(actual.category.long(), category)
    counted = category >= 0
    assert torch.equal(actual.position.long()[counted], torch.from_numpy(expected[0])[counted])
    if made.available is not None:
        mask = made.available if made.available.ndim == 4 else made.available[..., None, :, :]
        empty = ~mask.broadcast_to(made.pattern.shape).any(-1)
        assert (actual.position[empty] == -1).all()
        assert (actual.category[empty] == -1).all()
    regimes = head_regimes(*tensors, available=made.available, **options)
    labels, *numbers = zip(
        *literal.head_regimes(*tensors, available=made.available, **options), strict=True
    )
    assert regimes.labels == labels
    assert regimes.rows.tolist() == list(numbers[3])
    for field, values in zip(
        ("self_share", "sink_share", "other_share", "margin"),
        numbers[:3] + numbers[4:],
        strict=True,
    ):
        assert_same(getattr(regimes, field), values, 1e-6)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", MASKS)
def test_every_mask(name, space):
    check(problem(available=MASKS[name], seed=1), space=space)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", SINKS)
def test_every_kind_of_sink(name, space):
    check(problem(available=MASKS["causal: 1 q k"], sharpness=0.5, seed=2), sink=SINKS[name])
    if "tensor" not in name:  # with padding, numbers count real tokens
        for mask in ("causal, left: b q k", "causal, gaps: b q k"):
            check(problem(available=MASKS[mask], seed=3), sink=SINKS[name], space=space)


@pytest.mark.parametrize("queries", ["all", "last"])
@pytest.mark.parametrize("side", ["left", "right", "both", "gaps"])
def test_all_or_last_queries(side, queries):
    made = problem(available=MASKS[f"causal, {side}: b q k"], seed=4)
    check(made, queries=queries)
    regimes = head_regimes(*made.tensors, available=made.available, queries="last")
    assert regimes.rows.tolist() == [2] * 4


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 1), (6, 2), (6, 3)])
def test_grouped_queries(heads, kv_heads, space):
    check(problem(heads=heads, kv_heads=kv_heads, available=causal(6)[None], seed=5), space=space)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_dtypes(dtype):
    made = problem(available=causal(6)[None], seed=6)
    made.v.copy_((2 * made.v).round())  # no two products closer than the rounding of the dtype
    check(made.to(dtype))


def test_shares_keep_double_precision():
    made = problem(queries=4, keys=4, available=causal(4)[None], seed=6)
    for dtype, found in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
        regimes = head_regimes(*made.to(dtype).tensors)
        for name in ("self_share", "sink_share", "other_share", "margin"):
            assert getattr(regimes, name).dtype == found
        thirds = 3 * regimes.rows * regimes.self_share
        assert (thirds - thirds.round()).abs().max() < 10 * torch.finfo(found).eps


@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (3, 7), (7, 3)])
def test_cross_attention_has_no_self(queries, keys):
    made = problem(queries=queries, keys=keys, seed=7)
    check(made, cross=True)
    winners = source_winners(*made.tensors, cross=True)
    assert set(winners.category.flatten().tolist()) == {1, 2}  # no self, and no row is skipped
    assert (head_regimes(*made.tensors, cross=True).self_share == 0).all()


@pytest.mark.parametrize("space", SPACES)
def test_default_masks(space):
    check(problem(seed=13), space=space)  # bidirectional
    check(problem(available=causal(6), seed=14), space=space)


def test_head_space_needs_no_output_projection():
    made = problem(available=causal(6)[None], seed=8)
    with_W, without = source_winners(*made.tensors), source_winners(made.pattern, made.v)
    assert torch.equal(with_W.position, without.position)
    assert head_regimes(made.pattern, made.v).labels == head_regimes(*made.tensors).labels


def test_space_decides_which_norm():
    pattern = torch.full((1, 1, 3, 3), 1 / 3)
    v = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]])[None, :, None]
    W_O = torch.tensor([[[1.0, 0.0], [0.0, 5.0]]])  # the second axis counts five times
    assert (source_winners(pattern, v).position[..., 1:] == 1).all()
    assert (source_winners(pattern, v, W_O, space="model").position[..., 1:] == 2).all()


def row(weights, norms, query, **options):
    """The winner and category of one query over keys of given attention and norm."""
    length = len(weights)
    pattern = torch.eye(length)[None, None].clone()
    pattern[0, 0, query] = torch.tensor(weights)
    v = torch.tensor([[3.0, 4.0]]) * torch.tensor(norms)[:, None] / 5
    mask = torch.ones(1, length, length, dtype=torch.bool)
    winners = source_winners(pattern, v[None, :, None], available=mask, **options)
    return winners.position[0, 0, query].item(), winners.category[0, 0, query].item()


@pytest.mark.parametrize("places", list(itertools.combinations(range(1, 5), 2)))
def test_ties_go_to_the_lower_index(places):
    weights = [0.25 if place in places else 0.125 for place in range(5)]
    assert row(weights, [5.0] * 5, query=4)[0] == places[0]
    # 0.5 * 5 = 0.25 * 10: equal products of unequal factors
    weights = [0.0] * 5
    weights[places[0]], weights[places[1]] = 0.5, 0.25
    norms = [10.0 if place == places[1] else 5.0 for place in range(5)]
    assert row(weights, norms, query=4)[0] == places[0]


def test_a_row_of_zeros_is_a_tie():
    """Half precision can round every weight to zero; a key that is not available never wins."""
    made = problem(available=MASKS["window, left: b q k"], seed=15)
    made.v[0] = 0
    made.pattern[1] = 0
    check(made)
    assert source_winners(*made.tensors, available=made.available).position[0, 0, 5] == 3


def test_categories_of_rows():
    assert row([0.5, 0.3, 0.2], [5.0] * 3, query=2) == (0, 1)  # the sink
    assert row([0.2, 0.5, 0.3], [5.0] * 3, query=2) == (1, 2)  # another token
    assert row([0.2, 0.3, 0.5], [5.0] * 3, query=2) == (2, 0)  # itself
    assert row([0.9, 0.05, 0.05], [0.25, 5.0, 2.0], query=2) == (1, 2)  # norms count
    assert row([0.5, 0.3, 0.2], [5.0] * 3, query=0)[1] == -1  # the query is a sink
    assert row([0.2, 0.5, 0.3], [5.0] * 3, query=2, sink=1) == (1, 1)
    assert row([0.5, 0.3, 0.2], [5.0] * 3, query=2, sink=1) == (0, 2)
    assert row([0.2, 0.3, 0.5], [5.0] * 3, query=2, cross=True) == (2, 2)
    assert row([0.2, 0.5, 0.3], [5.0] * 3, query=0, cross=True) == (1, 2)


@pytest.mark.parametrize(
    ("categories", "label", "margin"),
    [
        (["self", "self", "sink"], "retriever", 1 / 3),
        (["sink", "self", "sink"], "mixer", 1 / 3),
        (["other", "other", "sink"], "reset", 1 / 3),
        (["self", "sink"], "reset", 0),
        (["self", "other"], "reset", 0),
        (["other", "sink"], "reset", 0),
        (["self", "sink", "other"], "reset", 0),
        (["self", "self", "sink", "other"], "retriever", 1 / 4),
        (["sink"] * 4, "mixer", 1),
    ],
)
def test_plurality(categories, label, margin):
    """Each document of two tokens and a spare key gives the one counted row asked for."""
    pattern = torch.zeros(len(categories), 1, 3, 3)
    for document, category in enumerate(categories):
        pattern[document, 0, 1, {"sink": 0, "self": 1, "other": 2}[category]] = 1
    mask = torch.tensor([[1, 0, 0], [1, 1, 1], [0, 0, 0]], dtype=torch.bool)[None]
    regimes = head_regimes(pattern, torch.ones(len(categories), 3, 1, 1), available=mask)
    assert regimes.labels == (label,)
    assert regimes.rows.tolist() == [len(categories)]
    torch.testing.assert_close(regimes.margin, torch.tensor([margin], dtype=regimes.margin.dtype))
    shares = (regimes.self_share, regimes.sink_share, regimes.other_share)
    for kind, share in zip(("self", "sink", "other"), shares, strict=True):
        assert share.item() == pytest.approx(categories.count(kind) / len(categories))


def test_a_head_without_rows_has_no_regime():
    made = problem(queries=1, available=causal(1)[None], seed=9)  # only the sink itself
    regimes = head_regimes(*made.tensors, available=made.available)
    assert regimes.labels == ("",) * 4
    assert regimes.rows.tolist() == [0] * 4
    assert regimes.self_share.isnan().all()
    assert regimes.margin.isnan().all()


def test_documents_are_counted_together():
    """Plurality over all rows of all documents, not of the documents' own pluralities."""
    tokens = torch.ones(3, 6, dtype=torch.bool)
    tokens[1:, 2:] = False  # one document of five counted rows, two of one
    mask = padded(causal(6), tokens)
    pattern = torch.zeros(3, 1, 6, 6)
    pattern[0, 0, :, 0] = 1
    pattern[1:, 0] = torch.eye(6)
    regimes = head_regimes(pattern, torch.ones(3, 6, 1, 1), available=mask)
    assert regimes.labels == ("mixer",)
    assert regimes.rows.tolist() == [7]


def test_auto_finds_the_sinks_of_each_head():
    length = 24
    pattern = torch.zeros(1, 3, length, length)
    pattern[0, 0, :, 0] = 1  # everything on the first token
    pattern[0, 1] = torch.eye(length)  # no key receives more than its own query gives
    pattern[0, 2] = torch.eye(length)
    pattern[0, 2, 7:, 7] = 1  # everything after it on the eighth token: 16 later queries
    pattern[0, 2, 8:, 8:] = 0
    v = torch.ones(1, length, 1, 1)
    regimes = head_regimes(pattern, v, available=causal(length)[None], sink="auto")
    assert regimes.labels == ("mixer", "retriever", "mixer")
    assert regimes.rows.tolist() == [length - 1, length, length - 1]
    shorter = length - 1  # now only 15 later queries: no longer a sink
    regimes = head_regimes(
        pattern[..., :shorter, :shorter],
        v[:, :shorter],
        available=causal(shorter)[None],
        sink="auto",
    )
    assert regimes.labels == ("mixer", "retriever", "reset")
    assert regimes.rows.tolist() == [shorter - 1, shorter, shorter]


def test_auto_on_random_rows():
    tokens = token_mask("both", 2, 24)
    for sharpness in (1.0, 6.0):
        made = problem(
            queries=24, available=padded(causal(24), tokens), sharpness=sharpness, seed=10
        )
        made.pattern[..., 3] *= 4
        made.pattern.div_(made.pattern.sum(-1, keepdim=True))
        check(made, sink="auto")


def test_all_padding_document_counts_nothing():
    tokens = torch.tensor([[True] * 6, [False] * 6])
    made = problem(available=padded(causal(6), tokens), seed=11)
    both = head_regimes(*made.tensors, available=made.available)
    alone = head_regimes(made.pattern[:1], made.v[:1], made.W_O, available=made.available[:1])
    assert both.labels == alone.labels
    assert torch.equal(both.rows, alone.rows)
    assert real_queries(made.available[:, None].numpy()).sum() == 6
