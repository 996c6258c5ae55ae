"""Wrong arguments are refused by a message that says what was given and what would be right."""

from __future__ import annotations

import sys

import pytest
import torch
from ablations.runs import bridged, hooked, logits, model_of
from analysis_data.reference import plain_package, tokens

NAN = float("nan")
ONE = torch.ones(2, 4, 9, 9, dtype=torch.bool)

# name of the ablation, arguments, the error, and what its message must say.
AT_ONCE = [
    ("zero_sink_values", {"layers": [7]}, ValueError, r"layers: \[7\] given, .* \[0, 1\]"),
    ("zero_sink_values", {"layers": []}, ValueError, r"layers: \[\] given"),
    ("zero_sink_values", {"layers": "attn"}, ValueError, r"layers: \['attn'\] given"),
    ("zero_sink_values", {"layers": [0.5]}, TypeError, r"layers must be labels .* got \[0.5\]"),
    ("zero_sink_values", {"heads": []}, ValueError, "heads is empty"),
    ("zero_sink_values", {"heads": [(0, 4)]}, ValueError, "layer 0 has the heads 0 to 3, got 4"),
    ("zero_sink_values", {"heads": [(0, -1)]}, ValueError, "heads 0 to 3, got -1"),
    ("zero_sink_values", {"heads": [(0, True)]}, ValueError, "heads 0 to 3, got True"),
    ("zero_sink_values", {"heads": [(0, 1.0)]}, ValueError, r"pairs, got \(0, 1.0\)"),
    ("zero_sink_values", {"heads": [(2, 0)]}, ValueError, r"\(2, 0\) is in none of the layers"),
    ("zero_sink_values", {"heads": [3]}, ValueError, r"\(layer, head\) pairs, got 3"),
    (
        "zero_sink_values",
        {"layers": [0], "heads": [(1, 0)]},
        ValueError,
        r"\(1, 0\) is in none of the layers \[0\]",
    ),
    ("zero_sink_values", {"sink": 0.5}, TypeError, "zero_sink_values: sink must be .* got 0.5"),
    ("zero_sink_values", {"sink": -1}, ValueError, r"sink names the tokens \(-1,\); .* from 0"),
    ("zero_sink_values", {"sink": []}, ValueError, r"sink names the tokens \(\); give one"),
    ("zero_sink_values", {"sink": "last"}, ValueError, "sink must be one of .* got 'last'"),
    ("zero_sink_values", {"sink": torch.ones(2, 9)}, TypeError, "sink must be"),
    ("zero_sink_values", {"sink": None}, TypeError, "sink must be .* got None"),
    ("zero_sink_values", {"sink": True}, TypeError, "sink must be .* got True"),
    ("zero_sink_values", {"per": "head"}, ValueError, "per must be one of .* got 'head'"),
    ("zero_sink_values", {"attention_mask": [[1]]}, TypeError, "must be a tensor, got list"),
    ("rescale_sink_values", {"factor": NAN}, ValueError, "factor must be a finite .* got nan"),
    ("rescale_sink_values", {"factor": True}, ValueError, "factor must be .* got True"),
    ("replace_sink_values", {"value": "median"}, ValueError, "value must be \"mean\" .* 'median'"),
    ("replace_sink_values", {"value": {0: torch.ones(2, 8)}}, ValueError, "no mean for layer 1"),
    (
        "replace_sink_values",
        {"value": {0: torch.ones(4, 8), 1: torch.ones(4, 8)}, "layers": [0]},
        ValueError,
        r"kv_head d_head \(2, 8\), got \(4, 8\)",
    ),
    ("mask_tokens", {"positions": "first"}, TypeError, "positions must be .* got 'first'"),
    ("mask_tokens", {"positions": [1.5]}, TypeError, r"mask_tokens: positions must be .* \[1.5\]"),
    ("remove_heads", {}, ValueError, "heads is None: name .* or give layers="),
    ("remove_heads", {"layers": [5]}, ValueError, r"layers: \[5\] given"),
    ("remove_heads", {"layers": [0], "heads": []}, ValueError, "heads is empty"),
    ("remove_heads", {"heads": [(0, 9)]}, ValueError, "heads 0 to 3, got 9"),
    ("remove_heads", {"heads": [(0, 1)], "mode": "half"}, ValueError, "mode must be one of"),
    ("remove_heads", {"heads": [(0, 1)], "reference": {}}, ValueError, 'needs mode="mean"'),
    (
        "remove_heads",
        {"heads": [(0, 1)], "mode": "mean", "reference": {}},
        ValueError,
        "for layer 0, head 1; it has nothing",
    ),
    (
        "remove_heads",
        {"heads": [(0, 1)], "mode": "mean", "reference": {(0, 1): torch.ones(7)}},
        ValueError,
        r"d_head \(8\) .* shape \(7,\)",
    ),
    ("mix_pattern", {"t": 1.5}, ValueError, r"t is a share .* \[0, 1\], got 1.5"),
    ("mix_pattern", {"t": -0.1}, ValueError, "got -0.1"),
    ("mix_pattern", {"t": NAN}, ValueError, "got nan"),
    ("mix_pattern", {"t": 0.5, "target": "diagonal"}, ValueError, "target must be one of"),
    ("mix_pattern", {"t": 0.5, "target": "sink", "sink": 1.5}, TypeError, "sink must be"),
    ("mask_entries", {}, ValueError, "either mask= or importance="),
    (
        "mask_entries",
        {"mask": ONE, "importance": "attention"},
        ValueError,
        "either mask= or importance=",
    ),
    ("mask_entries", {"mask": ONE, "fraction": 0.1}, ValueError, "fraction goes with importance="),
    (
        "mask_entries",
        {"mask": ONE.float()},
        TypeError,
        r"mask must be a bool tensor .* got torch.float32",
    ),
    ("mask_entries", {"mask": {0: ONE}, "layers": [1]}, TypeError, "one for layer 1; got NoneType"),
    ("mask_entries", {"mask": {5: ONE}}, ValueError, r"layers: \[5\] given"),
    ("mask_entries", {"importance": "attention"}, ValueError, "needs fraction="),
    *[
        (
            "mask_entries",
            {"importance": "attention", "fraction": fraction},
            ValueError,
            rf"fraction must be a number in \[0, 1\], got {fraction}",
        )
        for fraction in (-0.01, 1.01, NAN, True)
    ],
    *[
        (
            "mask_entries",
            {"importance": "attention", "fraction": 0.1, name: "other"},
            ValueError,
            f"{name} must be one of .* got 'other'",
        )
        for name in ("scope", "mode", "reference")
    ],
    (
        "mask_entries",
        {"importance": "gradient", "fraction": 0.1},
        ValueError,
        "importance must be one of 'attention'.* got 'gradient'",
    ),
    (
        "mask_entries",
        {"importance": "attention", "fraction": 0.1, "reference": "clean"},
        ValueError,
        "cache=model.run_with_cache",
    ),
]


@pytest.fixture(scope="module")
def plain():
    """The package without run-time shape checks: they would stop a wrong argument before its own message."""
    with plain_package():
        import importlib

        yield importlib.import_module("tl_geometry.ablations")


def names(entry):
    return f"{entry[0]} {entry[3]}"


@pytest.mark.parametrize("case", [*hooked("llama"), *bridged("llama")])
@pytest.mark.parametrize("entry", AT_ONCE, ids=names)
def test_refused_when_the_hooks_are_made(plain, case, entry):
    name, arguments, error, message = entry
    with pytest.raises(error, match=message):
        getattr(plain, name)(model_of(case), **arguments)


CACHE_OF_OTHERS = {
    f"blocks.{n}.attn.hook_{kind}": torch.ones(shape)
    for n in (0, 1)
    for kind, shape in (("pattern", (2, 4, 5, 5)), ("v", (2, 5, 2, 8)))
}
CLEAN = {"importance": "attention", "fraction": 0.1, "reference": "clean"}
WHILE_RUNNING = [
    ("zero_sink_values", {"sink": 9}, ValueError, r"sink names the tokens \(9,\), but .* 0 to 8"),
    ("zero_sink_values", {"sink": torch.ones(2, 7, dtype=torch.bool)}, ValueError, r"\(2, 7\)"),
    (
        "zero_sink_values",
        {"sink": torch.zeros(2, 9, dtype=torch.bool)},
        ValueError,
        "no real token",
    ),
    ("mask_tokens", {"positions": [2, 30]}, ValueError, r"mask_tokens: positions .* \(2, 30\)"),
    ("mask_tokens", {"positions": torch.ones(9, 2, dtype=torch.bool)}, ValueError, r"\(9, 2\)"),
    ("mix_pattern", {"t": 0.5, "target": "sink", "sink": 9}, ValueError, "mix_pattern: sink names"),
    ("mask_entries", {"mask": ONE[:, :, :8]}, ValueError, r"\(2, 4, 8, 9\), which does not"),
    (
        "mask_entries",
        {"importance": lambda geometry: geometry.pattern[:, :2], "fraction": 0.1},
        ValueError,
        r"score batch head query key \(2, 4, 9, 9\), got \(2, 2, 9, 9\)",
    ),
    (
        "mask_entries",
        {"importance": lambda geometry: None, "fraction": 0.1},
        ValueError,
        "got NoneType",
    ),
    (
        "mask_entries",
        {**CLEAN, "cache": {}},
        ValueError,
        r"cache has no blocks.0.attn.hook_pattern",
    ),
    ("mask_entries", {**CLEAN, "cache": CACHE_OF_OTHERS}, ValueError, "from the same tokens"),
    (
        "mask_entries",
        {"importance": "random", "fraction": 0.1, "documents": [0]},
        ValueError,
        "documents names 1 rows, but the batch has 2",
    ),
    (
        "mix_pattern",
        {"t": 0.5, "target": "permuted", "documents": [0, 1, 2]},
        ValueError,
        "documents names 3 rows",
    ),
]


@pytest.mark.parametrize("case", [*hooked("llama"), *bridged("llama")])
@pytest.mark.parametrize("entry", WHILE_RUNNING, ids=names)
def test_refused_while_the_model_runs(plain, case, entry):
    name, arguments, error, message = entry
    hooks = getattr(plain, name)(model_of(case), **arguments)
    with pytest.raises(error, match=message):
        logits(model_of(case), tokens(2, 9), hooks=hooks)


@pytest.mark.bridge
def test_identity_in_cross_attention(plain):
    with pytest.raises(ValueError, match="no query is a key in the cross-attention"):
        plain.mix_pattern(model_of(("bridge", "bart")), 0.5)


@pytest.mark.parametrize("model", [object(), torch.nn.Linear(2, 2)])
def test_what_is_no_model_with_attention(plain, model):
    with pytest.raises(ValueError, match="has no attention layer"):
        plain.zero_sink_values(model)
    assert sys.modules["tl_geometry.ablations"]
