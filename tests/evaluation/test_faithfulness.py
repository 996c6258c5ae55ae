"""Faithfulness: masked losses by hand, an oracle, random removals, and the arithmetic of the table."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
import xarray as xr
from evaluation_data.reference import corpus, document_loss, left_over_hooks
from literal.contributions import importance as literal_importance
from literal.selection import select_entries as literal_selection
from zoo.architectures import build_bridge, build_hooked

from tl_geometry import faithfulness, mask_entries
from tl_geometry.evaluation.checkpoint import DamagedCheckpointError
from tl_geometry.hooks import attention_sites

KINDS = ("attention", "value_weighted", "value_weighted_normalized", "contribution")
FEW = {"progress": False, "max_documents": None, "resamples": 200}


def literal_masking(
    model, *, kind, fraction, largest, scope, mode="inter", absolute=False, clean=None
):
    """Hooks that remove entries of one unpadded document, chosen entry by entry."""
    hooks = []
    for site in attention_sites(model):
        held = {}

        def see(v, hook, held=held):
            held["v"] = v

        def edit(pattern, hook, held=held, site=site):
            shown, v = (pattern, held["v"]) if clean is None else clean[site.layer]
            scores = literal_importance(shown, v, site.W_O, kind=kind, mode=mode, absolute=absolute)
            candidates = np.tril(np.ones(pattern.shape, dtype=bool))
            candidates[:, :, 0] = False
            gone = literal_selection(scores, candidates, fraction, scope=scope, largest=largest)
            return pattern.masked_fill(torch.from_numpy(gone), 0)

        hooks += [(site.v_hook, see), (site.pattern_hook, edit)]
    return hooks


def clean_layers(model, ids):
    kept = {}
    hooks = []
    for site in attention_sites(model):
        place = kept.setdefault(site.layer, [None, None])

        def keep(x, hook, place=place, at=0):
            place[at] = x.detach()

        hooks.append((site.pattern_hook, keep))
        hooks.append((site.v_hook, lambda x, hook, keep=keep: keep(x, hook, at=1)))
    with torch.no_grad():
        model.run_with_hooks(ids[None], fwd_hooks=hooks)
    return kept


@pytest.mark.parametrize("reference", ["online", "clean"])
@pytest.mark.parametrize("kind", KINDS)
def test_masked_losses_are_those_of_a_literal_masking(tiny_model, kind, reference):
    tokens, mask, documents = corpus((8, 6, 8), side="left")
    ds = faithfulness(
        tiny_model, (tokens, mask), [kind], fractions=(0.1, 0.4), reference=reference, **FEW
    )
    assert ds.targets.values.tolist() == [7, 5, 7]
    for ranking in ("signed", "absolute"):
        for direction in ("comprehensiveness", "sufficiency"):
            for fraction in (0.1, 0.4):
                found = ds.nll.sel(
                    direction=direction,
                    importance=kind,
                    mode="inter",
                    ranking=ranking,
                    fraction=fraction,
                )
                expected = [
                    document_loss(
                        tiny_model,
                        ids,
                        literal_masking(
                            tiny_model,
                            kind=kind,
                            fraction=fraction,
                            largest=direction == "comprehensiveness",
                            scope="query",
                            absolute=ranking == "absolute",
                            clean=None if reference == "online" else clean_layers(tiny_model, ids),
                        ),
                    )
                    for ids in documents
                ]
                np.testing.assert_allclose(found, expected, rtol=2e-5)


@pytest.mark.parametrize("scope", ["row", "head", "layer", "token"])
def test_scopes_and_intra_mode(tiny_model, scope):
    ids = corpus((7,))[2][0]
    ds = faithfulness(
        tiny_model,
        ids[None],
        ["contribution"],
        ["intra"],
        (0.3,),
        scope,
        rankings=("signed",),
        **FEW,
    )
    for direction in ("comprehensiveness", "sufficiency"):
        hooks = literal_masking(
            tiny_model,
            kind="contribution",
            mode="intra",
            fraction=0.3,
            largest=direction == "comprehensiveness",
            scope=scope,
        )
        found = ds.nll.sel(direction=direction, importance="contribution").item()
        assert found == pytest.approx(document_loss(tiny_model, ids, hooks), rel=2e-5)


def test_nothing_and_everything_removed(tiny_model):
    tokens, mask, _ = corpus((9, 9))
    ds = faithfulness(tiny_model, (tokens, mask), fractions=(0, 1), **FEW)
    for direction in ("comprehensiveness", "sufficiency"):
        assert (ds[direction].sel(fraction=0) == 0).all()
        everything = ds.nll.sel(direction=direction, fraction=1).values
        np.testing.assert_array_equal(everything, np.broadcast_to(everything[0], everything.shape))
    gone = torch.ones(1, 1, 9, 1, dtype=torch.bool)
    gone[:, :, 0] = False
    expected = [document_loss(tiny_model, ids, mask_entries(tiny_model, gone)) for ids in tokens]
    np.testing.assert_allclose(everything[0, 0, 0], expected, rtol=2e-5)


@pytest.mark.hooked
def test_an_oracle_wins():
    """The entries' own effect on the loss, to first order, orders them better than any geometry."""
    model = _one_layer()
    tokens = torch.randint(4, 50, (6, 24), generator=torch.Generator().manual_seed(5))

    gradient = _output_gradient(model, tokens)

    def oracle(geometry):
        """What the loss would gain without the entry: minus alpha_ij <d loss / d o_i, v_j W_O>."""
        values = geometry.per_head(geometry.v.transpose(1, 2))
        terms = torch.einsum("bhkd,hdm->bhkm", values, geometry.W_O)
        return -geometry.pattern * torch.einsum("bqm,bhkm->bhqk", gradient, terms)

    named = {"oracle": oracle, **{kind: kind for kind in KINDS}}
    ds = faithfulness(model, tokens, named, fractions=(0.05, 0.1, 0.2), batch_size=6, **FEW)
    ds = ds.sel(mode="inter", ranking="signed")
    others = [name for name in ds.importance.values if name != "oracle"]
    assert set(others) == {*KINDS, "random"}
    assert (ds.comprehensiveness_difference.sel(importance="oracle", other=others) > 0).all()
    assert (ds.sufficiency_difference.sel(importance="oracle", other=others) < 0).all()
    assert (
        ds.aopc_comprehensiveness_difference_low.sel(importance="oracle", other=others) > 0
    ).all()


@pytest.mark.hooked
def test_random_removal_takes_its_share_of_the_output_on_average():
    """Every entry goes with probability floor(f n) / n, so that share of each row's output is expected to go."""
    model, n, repeats = _one_layer(), 16, 300
    ids = torch.randint(4, 50, (1, n), generator=torch.Generator().manual_seed(1))
    (site,) = attention_sites(model)
    seen = []

    def keep(z, hook):
        seen.append(z.detach())

    read = (site.z_hook, keep)
    with torch.no_grad():
        model.run_with_hooks(ids, fwd_hooks=[read])
        for seed in range(repeats):
            hooks = mask_entries(model, importance="random", fraction=0.5, seed=seed)
            model.run_with_hooks(ids, fwd_hooks=[*hooks, read])
    full, masked = seen[0], torch.stack(seen[1:])
    counts = 4 * torch.arange(1, n + 1)
    share = (counts * 0.5).floor() / counts
    share[0] = 0  # the sink's own row
    expected = full * (1 - share)[None, :, None, None]
    error = masked.std(0) / repeats**0.5
    deviation = ((masked.mean(0) - expected).abs() / error.clamp(min=1e-6))[:, 1:]
    assert deviation.mean() == pytest.approx(0.8, abs=0.1)  # E|t| of a standard normal
    assert deviation.max() < 6


def test_the_table_is_the_arithmetic_of_its_losses(tiny_model):
    tokens, mask, _ = corpus((12, 9, 12, 7))
    ds = faithfulness(tiny_model, (tokens, mask), modes=("intra", "inter"), **FEW)
    full, count = float(ds.nll_document.sum()), float(ds.targets.sum())
    assert float(ds.nll_full) == pytest.approx(full / count)
    assert float(ds.perplexity_full) == pytest.approx(np.exp(full / count))
    for direction in ("comprehensiveness", "sufficiency"):
        mean = ds.nll.sel(direction=direction).sum("document") / count
        np.testing.assert_allclose(ds[direction], mean - full / count, atol=1e-12)
        np.testing.assert_allclose(
            ds[f"{direction}_perplexity"], np.exp(mean) - np.exp(full / count), rtol=1e-9
        )
        np.testing.assert_allclose(ds[f"aopc_{direction}"], ds[direction].mean("fraction"))
        pair = ds[f"{direction}_difference"].sel(importance="contribution", other="random")
        one, other = (ds[direction].sel(importance=name) for name in ("contribution", "random"))
        np.testing.assert_allclose(pair, one - other, atol=1e-12)
        low, high = ds[f"{direction}_low"], ds[f"{direction}_high"]
        assert ((low <= ds[direction] + 1e-9) & (ds[direction] <= high + 1e-9)).mean() > 0.95
    indifferent = ds.comprehensiveness.sel(importance=["attention", "value_weighted", "random"])
    assert (indifferent == indifferent.isel(mode=0, ranking=0)).all()
    signed = ds.nll.sel(importance="contribution", ranking="signed")
    assert not np.allclose(signed, ds.nll.sel(importance="contribution", ranking="absolute"))
    assert ds.attrs["settings"]["scope"] == "query"
    assert ds.attrs["settings"]["modes"] == ["intra", "inter"]


@pytest.mark.parametrize(
    ("scope", "mode", "alike"),
    [
        ("query", "inter", True),
        ("row", "intra", True),
        ("query", "intra", False),
        ("head", "inter", False),
    ],
)
def test_runs_are_shared_only_where_importances_rank_alike(tiny_model, scope, mode, alike):
    ids = corpus((12,))[2][0][None]
    names = ["value_weighted", "value_weighted_normalized"]
    options = {"modes": [mode], "fractions": (0.3,), "scope": scope, **FEW}
    both = faithfulness(tiny_model, ids, names, **options)
    alone = [faithfulness(tiny_model, ids, [name], **options) for name in names]
    for name, ds in zip(names, alone, strict=True):
        xr.testing.assert_allclose(both.nll.sel(importance=name), ds.nll.sel(importance=name))
    plain, normalized = (both.nll.sel(importance=name, drop=True) for name in names)
    assert np.array_equal(plain, normalized) == alike


def test_padding_batching_and_repeats_of_random(tiny_model):
    tokens, mask, documents = corpus((12, 9, 12, 7))
    options = {"importances": ["contribution"], "fractions": (0.2,), **FEW}
    together = faithfulness(tiny_model, (tokens, mask), **options)
    alone = faithfulness(tiny_model, documents, batch_size=1, **options)
    np.testing.assert_allclose(together.nll, alone.nll, rtol=2e-5)
    twice = faithfulness(tiny_model, documents, repeats=2, batch_size=1, **options)
    first = alone.nll.sel(importance="random")
    second = faithfulness(tiny_model, documents, seed=1, batch_size=1, **options).nll.sel(
        importance="random"
    )
    np.testing.assert_allclose(twice.nll.sel(importance="random"), (first + second) / 2, rtol=1e-12)
    assert not np.allclose(first, second)


def test_resumed_equals_uninterrupted(tiny_model, tmp_path):
    tokens, mask, _ = corpus((12, 9, 12))
    options = {"importances": ["attention"], "fractions": (0.1, 0.3), "batch_size": 1, **FEW}
    whole = faithfulness(tiny_model, (tokens, mask), **options)
    path = tmp_path / "run.json"
    stop = {"left": 7}

    class StoppedError(Exception):
        pass

    def count(x, hook):
        stop["left"] -= 1
        if stop["left"] < 0:
            raise StoppedError

    with (
        tiny_model.hooks(fwd_hooks=[(attention_sites(tiny_model)[-1].z_hook, count)]),
        pytest.raises(StoppedError),
    ):
        faithfulness(tiny_model, (tokens, mask), checkpoint=path, **options)
    assert left_over_hooks(tiny_model) == 0
    resumed = faithfulness(tiny_model, (tokens, mask), checkpoint=path, resume=True, **options)
    for name in whole.data_vars:
        np.testing.assert_array_equal(whole[name], resumed[name])
    with pytest.raises(ValueError, match="scope"):
        faithfulness(
            tiny_model, (tokens, mask), checkpoint=path, resume=True, scope="row", **options
        )
    path.write_text("{}")
    with pytest.raises(DamagedCheckpointError):
        faithfulness(tiny_model, (tokens, mask), checkpoint=path, resume=True, **options)


def test_a_checkpoint_knows_what_functions_do(tiny_model, tmp_path):
    data = corpus((9, 9))[:2]
    options = {"fractions": (0.3,), "checkpoint": tmp_path / "run.json", **FEW}

    def weighted(w):
        return {"mine": lambda g: w * g.pattern}

    scorer = {"mine": lambda g: g.pattern * len(tiny_model.blocks)}  # the model is known
    faithfulness(tiny_model, data, scorer, **options | {"checkpoint": tmp_path / "other.json"})
    first = faithfulness(tiny_model, data, weighted(1.0), **options)
    again = faithfulness(tiny_model, data, weighted(1.0), resume=True, **options)
    for other in (weighted(-1.0), {"mine": lambda g: -g.pattern}, {"mine": "attention"}):
        with pytest.raises(ValueError, match=r"settings\.importances\.mine was .*, now"):
            faithfulness(tiny_model, data, other, resume=True, **options)
    np.testing.assert_array_equal(first.nll, again.nll)
    assert first.attrs["settings"]["importances"]["random"] == "random"
    assert first.attrs["settings"]["importances"]["mine"].startswith("test_a_checkpoint")


def test_a_checkpoint_refuses_functions_it_cannot_tell_apart(tiny_model, tmp_path):
    class Scorer:
        def __call__(self, geometry):
            return geometry.pattern

    weights = torch.ones(9)
    data, path = corpus((9, 9))[:2], tmp_path / "run.json"
    for scorer, what in ((Scorer(), "it is a Scorer"), (lambda g: weights * g.pattern, "weights")):
        message = rf"checkpoint: importances\['mine'\] can't be told .*{what}.* by name, or run"
        with pytest.raises(ValueError, match=message):
            faithfulness(tiny_model, data, {"mine": scorer}, checkpoint=path, **FEW)
        assert not path.exists()
        ds = faithfulness(tiny_model, data, {"mine": scorer}, fractions=(0.3,), **FEW)
        nll = ds.nll.sel(importance="mine")
        plain = faithfulness(tiny_model, data, ["attention"], fractions=(0.3,), **FEW).nll
        np.testing.assert_array_equal(nll, plain.sel(importance="attention"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fractions": (1.5,)}, r"fraction must be a number in \[0, 1\], got 1.5"),
        ({"fractions": ()}, "fractions must be one or more"),
        ({"fractions": (0.1, 0.1)}, "each once"),
        ({"scope": "sentence"}, "scope"),
        ({"modes": ("outer",)}, "modes"),
        ({"modes": "inter"}, "modes must be one or more"),
        ({"importances": ["magic"]}, "importances"),
        ({"importances": []}, "importances must be one or more"),
        ({"importances": ["random", "random"]}, "each once"),
        ({"importances": {"mine": "magic"}}, r"got \['magic'\]"),
        ({"rankings": ("upside down",)}, "rankings"),
        ({"reference": "dirty"}, "reference"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"layers": [7]}, r"layers: \[7\]"),
        ({"heads": [(0, 9)]}, "heads 0 to 3, got 9"),
        ({"heads": []}, "heads is empty"),
        ({"resume": True}, "checkpoint"),
    ],
)
def test_wrong_options_are_refused(tiny_model, options, said):
    tokens, mask, _ = corpus((8, 8))
    unchecked = inspect.unwrap(faithfulness)  # the tests' type checks would answer first
    with pytest.raises(ValueError, match=said):
        unchecked(tiny_model, (tokens, mask), **{**FEW, **options})


@pytest.mark.bridge
def test_a_model_whose_pattern_cannot_be_edited_is_refused():
    tokens, mask, _ = corpus((8, 8))
    with pytest.raises(ValueError, match="mixes its values before hook_pattern fires"):
        faithfulness(build_bridge("gptj"), (tokens, mask), **FEW)


def _one_layer():
    """Logits that are linear in the attention output."""
    return build_hooked("attention_only", n_layers=1)


def _output_gradient(model, tokens):
    """d (summed loss) / d (attention output), batch pos d_model."""
    kept = {}

    def keep(x, hook):
        kept["out"] = x.detach().clone().requires_grad_()
        return kept["out"]

    with torch.enable_grad():
        logits = model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.hook_attn_out", keep)])
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum"
        )
        return torch.autograd.grad(loss, kept["out"])[0]
