"""A corpus in one call: every form of data, windows, restrictions, examples, refusals."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from analysis_data.reference import assert_equal, plain_package, soften, tokens
from zoo.architectures import build_bridge, build_hooked

from tl_geometry import Contributions, Probe, Regimes, Sinks, analyze, prompt_contributions

TEXTS = ["the cat sat on the mat .", "a dog ran over the hill and under a tree", "the lazy fox"]


def three():
    return [Contributions(), Regimes(), Sinks()]


@pytest.fixture
def build(backend, request):
    factory = request.getfixturevalue(f"tiny_{backend}")
    return lambda **options: soften(factory(**options))


@pytest.fixture
def model(build, tiny_tokenizer):
    return build(tokenizer=tiny_tokenizer)


@pytest.fixture(scope="module")
def plain():
    with plain_package() as package:
        yield package


def run(model, data, **options):
    options = {"measures": three(), "progress": False, "n_ctx": 32, **options}
    return analyze(model, data, **options)


def probed(model, *batches):
    """The same batches (tokens, mask) through a probe."""
    probe = Probe(model, three())
    for ids, mask in batches:
        model.run_with_hooks(ids, attention_mask=mask, fwd_hooks=probe.hooks(mask))
    return probe.result()


def encode(model, text):
    return torch.tensor(model.tokenizer(text, add_special_tokens=False)["input_ids"])


def ones(*shape):
    return torch.ones(*shape, dtype=torch.long)


def test_texts_are_tokenised_with_a_bos_token_where_asked(model):
    for bos in (True, False):
        rows = [encode(model, text) for text in TEXTS]
        if bos:
            rows = [torch.cat([torch.tensor([1]), row]) for row in rows]
        expected = probed(model, *((row[None], ones(1, len(row))) for row in rows))
        found = run(model, TEXTS, prepend_bos=bos)
        assert_equal(found, expected, 2e-6)
        assert found.attrs["documents"] == 3
        assert found.attrs["tokens"] == sum(map(len, rows))
        assert found.attrs["prepend_bos"] is bos
        assert "prepend_bos" in found.attrs["bos_rule"]


def test_every_form_of_data_gives_the_same(model):
    ids, mask = tokens(3, 12), ones(3, 12)
    mask[1, 7:] = 0
    expected = probed(model, (ids, mask))
    pairs = [(ids[row : row + 1], mask[row : row + 1]) for row in range(3)]
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(ids, mask), batch_size=2, shuffle=False
    )
    forms = {
        "pair": (ids, mask),
        "dict": {"input_ids": ids, "attention_mask": mask},
        "list of pairs": pairs,
        "generator of dicts": ({"input_ids": row, "attention_mask": marks} for row, marks in pairs),
        "rows of unequal length": [ids[0], ids[1, :7], ids[2]],
        "loader": loader,
    }
    for name, data in forms.items():
        found = run(model, data)
        assert_equal(found, expected, 2e-6)
        assert found.attrs["documents"] == 3, name
        assert found.attrs["tokens"] == 31, name


def test_token_tensors_of_one_and_two_axes(model):
    ids = tokens(3, 12)
    assert_equal(run(model, ids), probed(model, (ids, ones(3, 12))), 2e-6)
    assert_equal(run(model, ids[0]), probed(model, (ids[:1], ones(1, 12))), 2e-6)
    assert run(model, ids[0], prepend_bos=None).attrs["prepend_bos"] is False


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_batch_size_changes_nothing(model, size):
    data = [tokens(length, seed=length) for length in (9, 14, 5, 9, 11)]
    assert_equal(run(model, data, batch_size=size), run(model, data), 2e-6)


def test_a_long_text_is_cut_in_windows(model):
    text = " ".join(TEXTS * 4)
    ids = encode(model, text)
    windows = [torch.cat([torch.tensor([1]), ids[at : at + 9]]) for at in range(0, len(ids), 9)]
    found = run(model, text, n_ctx=10, prepend_bos=True)
    expected = probed(model, *((row[None], ones(1, len(row))) for row in windows))
    assert_equal(found, expected, 2e-6)
    assert found.attrs["documents"] == len(windows)
    assert found.attrs["n_ctx"] == 10


def test_the_number_of_documents_is_limited(model):
    ids = tokens(5, 9)
    assert_equal(run(model, ids, max_documents=2), run(model, ids[:2]), 2e-6)
    endless = (tokens(9, seed=seed) for seed in range(10**9))
    assert run(model, endless, max_documents=3).attrs["documents"] == 3


def test_a_context_beyond_the_models_is_reduced_and_recorded(model):
    ds = run(model, TEXTS, n_ctx=500)
    assert ds.attrs["n_ctx"] == 64
    assert any("n_ctx=500" in warning for warning in ds.attrs["warnings"])


def test_short_and_empty_documents_are_skipped_and_counted(model):
    ds = run(model, ["the cat sat", "", "   ", "dog"], prepend_bos=False)
    assert ds.attrs["documents"] == 1
    assert sum(ds.attrs["skipped_documents"].values()) == 3


def test_the_bar_shows_progress_only_if_asked(model, capsys):
    run(model, tokens(2, 9))
    assert capsys.readouterr().err == ""
    run(model, tokens(2, 9), progress=True)
    assert "2/2" in capsys.readouterr().err


@pytest.mark.hooked
def test_an_encoder_with_its_own_name_for_the_mask():
    from transformer_lens import HookedEncoder, HookedTransformerConfig
    from zoo.architectures import enlarge

    encoder = enlarge(
        HookedEncoder(
            HookedTransformerConfig(
                n_layers=2, d_model=32, n_heads=4, d_head=8, d_mlp=64, d_vocab=50, n_ctx=64,
                act_fn="gelu", device="cpu", attention_dir="bidirectional",
                normalization_type="LN",
            )
        )
    ).eval()  # fmt: skip
    ids, mask = tokens(2, 9), ones(2, 9)
    mask[1, 6:] = 0
    padded = run(encoder, (ids, mask))
    assert padded.attrs["tokens"] == 15
    assert_equal(run(encoder, [ids[0], ids[1, :6]], batch_size=1), padded, 5e-5)


# -- restrictions ------------------------------------------------------------------------------------


def test_some_layers_only(model):
    ids = tokens(2, 12)
    whole, one = run(model, ids), run(model, ids, layers=[1])
    assert one["layer"].values.tolist() == [1]
    assert_equal(one, whole.sel(layer=[1]), 0)


def test_some_heads_only(model):
    ids = tokens(2, 12)
    whole, some = run(model, ids), run(model, ids, heads=[(1, 2), (1, 0)])
    assert some["layer"].values.tolist() == [1]
    kept = np.array([True, False, True, False])
    for name in some.data_vars:
        found, expected = some[name].values[0], whole[name].values[1]
        if name == "regime":
            assert found[kept].tolist() == expected[kept].tolist()
            assert found[~kept].tolist() == ["", ""]
        else:
            np.testing.assert_array_equal(found[kept], expected[kept])
            assert np.isnan(found[~kept]).all(), name
    both = run(model, ids, layers=[0, 1], heads=[(1, 3)])
    assert np.isnan(both.sink_rate.values).tolist() == [[True] * 4, [True] * 3 + [False]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [2]}, r"layers: \[2\] given, the attention layers are \[0, 1\]"),
        ({"layers": ["blocks.0.attn"]}, "layers: "),
        ({"layers": []}, "layers: "),
        ({"heads": [(0, 4)]}, "heads: there is no head 4 in layer 0"),
        ({"heads": [(0, -1)]}, "heads: there is no head -1"),
        ({"heads": [(5, 0)]}, "5"),
        ({"layers": [0], "heads": [(1, 0)]}, "heads: there is no head 0 in layer 1"),
        ({"heads": []}, "heads"),
    ],
)
def test_unknown_layers_and_heads(build, plain, options, message):
    with pytest.raises(ValueError, match=message):
        plain.analyze(build(), tokens(2, 9), progress=False, **options)


def mixed(build):
    """A model of which one layer can't be measured: a hook of the user's always changes its z."""
    model = build()

    def halve(z, hook):
        return z * 0.5

    model.add_hook("blocks.1.attn.hook_z", halve, is_permanent=True)
    return model


def test_an_unsupported_layer_is_refused_or_skipped_with_its_reason(build):
    model = mixed(build)
    ids = tokens(2, 12)
    with pytest.raises(ValueError, match="layer 1 can't be measured: "):
        run(model, ids)
    ds = run(model, ids, on_unsupported="skip")
    assert ds["layer"].values.tolist() == [0]
    assert list(ds.attrs["skipped_layers"]) == ["1"]
    assert "pattern @ v" in ds.attrs["skipped_layers"]["1"]
    assert_equal(ds, run(build(), ids, layers=[0]), 0)
    with pytest.raises(ValueError, match="layer 1 can't be measured"):
        run(model, ids, layers=[1], on_unsupported="skip")
    heads = run(model, ids, heads=[(0, 1), (1, 2)], on_unsupported="skip")
    assert np.isnan(heads.sink_rate.values).tolist() == [[True, False, True, True]]


@pytest.mark.bridge
@pytest.mark.parametrize(
    ("arch", "reason"),
    [
        ("deepseek_v3", "latent attention"),
        ("bitnet", "attn_sub_norm"),
        ("qwen3_next", "gate"),
        ("olmo_clip", "clipped"),
        ("gemma4", "v_norm"),
    ],
)
def test_architectures_that_are_never_measured(arch, reason):
    for how in ("raise", "skip"):
        with pytest.raises(ValueError, match=f"can't be measured: .*{reason}"):
            run(build_bridge(arch), tokens(2, 9), on_unsupported=how)


# -- examples ----------------------------------------------------------------------------------------


def test_examples_are_the_matrices_of_the_first_documents(model):
    data = [tokens(12, seed=1), tokens(7, seed=2), tokens(10, seed=3)]
    ds = run(model, data, keep_examples=2, batch_size=1, n_ctx=12)
    assert ds.sizes["example"] == 2
    for row in range(2):
        n = int(ds.example_length[row])
        text = ds.example_tokens.values[row].tolist()
        source = next(ids for ids in data if [model.tokenizer.decode([i]) for i in ids] == text[:n])
        assert text[n:] == [""] * (len(text) - n)
        visible = np.tril(np.ones((n, n), bool))
        for name, mode in (("example_attention", "attention"), ("example_contribution", "intra")):
            found = ds[name].values[row]
            expected = prompt_contributions(model, source, mode=mode).values
            np.testing.assert_allclose(
                found[:, :, :n, :n][..., visible], expected[..., visible], atol=1e-6
            )
            outside = np.ones(found.shape[-2:], bool)
            outside[:n, :n] = ~visible
            assert np.isnan(found[..., outside]).all()
    assert ds.example_attention.dtype == np.float32
    assert ds.example_attention.dims == ("example", "layer", "head", "query", "key")


def test_examples_of_padded_batches_and_of_long_documents(model):
    mask = ones(1, 12)
    mask[0, :4] = 0
    ds = run(model, (tokens(1, 12), mask), keep_examples=5)
    assert ds.sizes["example"] == 1
    assert ds.example_length.values.tolist() == [8]
    expected = prompt_contributions(model, tokens(1, 12)[0, 4:], mode="attention").values
    visible = np.tril(np.ones((8, 8), bool))
    np.testing.assert_allclose(
        ds.example_attention.values[0][..., visible], expected[..., visible], atol=1e-6
    )
    assert "example_tokens" not in run(model, tokens(2, 9))


@pytest.mark.hooked
def test_examples_hide_what_a_window_hides():
    ds = run(build_hooked("window"), tokens(1, 12), keep_examples=1)
    distance = np.arange(12)[:, None] - np.arange(12)
    seen = (distance >= 0) & (distance < 5)
    for name in ("example_attention", "example_contribution"):
        found = ~np.isnan(ds[name].sel(example=0, layer=1).values)
        assert (found == seen).all()
        assert (~np.isnan(ds[name].sel(example=0, layer=0).values) == (distance >= 0)).all()


@pytest.mark.bridge
def test_examples_with_attention_both_ways_hide_nothing():
    ds = run(build_bridge("bert"), tokens(1, 9), keep_examples=1)
    assert not np.isnan(ds.example_attention.values).any()


def test_examples_follow_the_treatment_of_the_value_bias(build):
    """The matrices shown beside the numbers are of the same quantity."""
    model, ids = build(), tokens(1, 9)
    ds = run(model, ids, keep_examples=1, value_bias="remove")
    c = ds.example_contribution.values[0]
    later = np.nanmean(c[:, :, 1:, 0], -1)
    np.testing.assert_allclose(later, ds.contribution_sink.values, atol=1e-5)


@pytest.mark.bridge
def test_examples_follow_the_norm_behind_the_attention():
    ds = run(build_bridge("olmo2"), tokens(1, 9), keep_examples=1, output="normed")
    c = ds.example_contribution.values[0]
    later = np.nanmean(c[:, :, 1:, 0], -1)
    np.testing.assert_allclose(later, ds.contribution_sink.values, atol=1e-5)


# -- bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ("", ValueError, "no document"),
        ("  \n ", ValueError, "no document"),
        ([], ValueError, "no document"),
        (torch.tensor([5]), ValueError, "fewer than 2 tokens"),
        ([torch.tensor([5]), torch.tensor([6])], ValueError, "fewer than 2 tokens"),
        (torch.full((1, 65), 5), ValueError, "64 tokens"),
        (torch.full((1, 33), 5), ValueError, "n_ctx=33"),
        (torch.tensor([[5, 50]]), ValueError, "token id 50"),
        (torch.tensor([[5, -1]]), ValueError, "token id -1"),
        (torch.tensor([[5.0, 6.0]]), TypeError, "integers"),
        (torch.ones(2, 2, 2, dtype=torch.long), ValueError, r"\(2, 2, 2\)"),
        ((torch.full((2, 5), 5), torch.ones(2, 4)), ValueError, r"\(2, 4\)"),
        (
            (torch.full((2, 3), 5), torch.tensor([[1, 1, 1], [0, 0, 0]])),
            ValueError,
            "row 1 is all padding",
        ),
        ((torch.full((1, 3), 5), torch.tensor([[1, 2, 0]])), ValueError, "only 0 and 1"),
        (7, TypeError, "text, token ids"),
        (None, TypeError, "text, token ids"),
        ([[5, 6, 7]], TypeError, "torch.tensor"),
        ({"ids": torch.tensor([[5]])}, ValueError, "input_ids"),
    ],
)
def test_bad_data(build, plain, tiny_tokenizer, data, error, message):
    model = build(tokenizer=tiny_tokenizer)
    with pytest.raises(error, match=message):
        plain.analyze(model, data, n_ctx=32, prepend_bos=False, progress=False)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"keep_examples": -1}, ValueError, "keep_examples must be at least 0, got -1"),
        ({"measures": []}, ValueError, "measures is empty: name at least one"),
        ({"queries": 2.5}, TypeError, "queries must be an integer, got 2.5"),
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ({"on_unsupported": "ignore"}, ValueError, "on_unsupported must be one of"),
        ({"value_bias": "none"}, ValueError, "value_bias must be one of"),
        ({"output": "norm"}, ValueError, "output must be one of"),
        ({"sink": "last"}, ValueError, "sink must be"),
        ({"sink": 9}, ValueError, "sink"),
        ({"sink": torch.tensor([0.5])}, ValueError, "sink"),
        ({"n_ctx": 1}, ValueError, "n_ctx"),
        ({"n_ctx": 8.0}, TypeError, "n_ctx"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"max_documents": 0}, ValueError, "max_documents"),
        ({"prepend_bos": "yes"}, TypeError, "prepend_bos"),
        ({"prepend_bos": True}, ValueError, "prepend_bos=True"),
    ],
)
def test_bad_options(build, plain, options, error, message):
    options = {"n_ctx": 16, "progress": False, **options}
    with pytest.raises(error, match=message):
        plain.analyze(build(), tokens(2, 9), **options)


def test_numpy_integers_are_integers(build, plain):
    """Of every argument that takes one; the result is that of Python's, and plain numbers are recorded."""
    ids, one = tokens(2, 9), np.int64(1)
    found, expected = (
        plain.analyze(
            build(),
            ids,
            ["sinks", "separability"],
            **{name: number(1) for name in ("layers", "sink", "queries", "seed")},
            top_n=sizes,
            heads=[(number(1), number(2))],
            n_ctx=number(16),
            batch_size=number(1),
            max_documents=number(2),
            keep_examples=number(1),
            progress=False,
        )
        for number, sizes in ((np.int64, np.array([2, 4])), (int, [2, 4]))
    )
    assert_equal(found, expected, 0)
    assert found.layer.values.tolist() == [1]
    assert json.loads(json.dumps(found.attrs["sink"])) == found.attrs["sink"] == 1
    for attrs in (found.attrs, expected.attrs):
        attrs.pop("created")
    assert json.dumps(found.attrs) == json.dumps(expected.attrs)
    listed = plain.analyze(build(), ids, ["sinks"], sink=[np.int64(0), one], progress=False)
    assert json.dumps(listed.attrs["sink"]) == "[0, 1]"


@pytest.mark.parametrize("sizes", [[2, 4], (2, 4), np.array([2, 4]), torch.tensor([2, 4])])
def test_sizes_without_separability_are_refused(build, plain, sizes):
    with pytest.raises(ValueError, match="queries and top_n set measures that go by a name"):
        plain.analyze(build(), tokens(2, 9), ["sinks"], top_n=sizes, progress=False)


@pytest.mark.parametrize(
    "options", [{"halfspace_tokens": 2.5}, {"halfspace_tokens": True}, {"seed": 0.5}]
)
def test_options_of_measures_are_integers(plain, options):
    for measure in (plain.Switches, plain.Smoothing):
        with pytest.raises(TypeError, match=f"{next(iter(options))} must be an integer"):
            measure(**options)
        assert (
            measure(halfspace=True, halfspace_tokens=np.int64(3)).settings["halfspace_tokens"] == 3
        )


@pytest.mark.bridge
def test_a_model_of_images_takes_no_tokens():
    with pytest.raises(ValueError, match="is a model of images and takes no tokens"):
        run(build_bridge("vit"), tokens(2, 9))


def test_a_sink_beyond_a_document_does_not_depend_on_the_batch(model):
    """A document too short to have the token has no such sink, alone as among others."""
    data = [tokens(4), tokens(12, seed=1)]
    together = run(model, data, sink=6, batch_size=2)
    apart = run(model, data, sink=6, batch_size=1)
    assert_equal(apart, together, 2e-6)


def test_a_text_without_a_tokenizer(build, plain):
    with pytest.raises(ValueError, match="no tokenizer; pass token ids"):
        plain.analyze(build(), "the cat", progress=False)


@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_nan_weights_are_refused_with_the_layer(build, which):
    """HookedTransformer turns NaN scores into an attention of zero, which must not pass either."""
    model = build()
    names = (f"blocks.1.attn.W_{which.upper()}", f"blocks.1.attn._W_{which.upper()}")
    endings = (*names, f"layers.1.self_attn.{which}_proj.weight", f"blocks.1.attn.{which}.weight")
    found = [p for name, p in model.named_parameters() if clean(name).endswith(endings)]
    assert len(found) == 1
    with torch.no_grad():
        found[0].fill_(torch.nan)
    with pytest.raises(ValueError, match="layer 1"):
        run(model, tokens(2, 9))


def clean(name):
    return name.replace("._original_component", "").replace(".original_component", "")


def test_an_error_on_the_way_comes_with_its_batch_and_not_after_all(build):
    """A broken document stops the analysis at once."""
    model = build()
    calls = []

    def poison(x, hook):
        calls.append(1)
        return x * torch.nan if len(calls) == 3 else None

    probe_free = copy.deepcopy(model)
    assert run(probe_free, tokens(6, 9), batch_size=1).attrs["documents"] == 6
    model.add_hook("blocks.1.attn.hook_v", poison, is_permanent=True)  # call 1: the doctor's
    with pytest.raises(ValueError, match=r"NaN.*layer 1, head 0"):
        run(model, tokens(6, 9), batch_size=1)
    assert len(calls) == 3
