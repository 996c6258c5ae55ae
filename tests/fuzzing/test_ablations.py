"""Ablations with random options: what they say they leave alone stays, and nothing is left behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

import tl_geometry as tlg
from fuzzing.profile import examples
from fuzzing.registry import ABLATIONS

SINKS = ("first", 0, 1, [0, 1], (1,), torch.tensor([0, 1]))


@pytest.fixture(scope="module", params=["hooked", "bridge"])
def model(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(f"tiny_{request.param}")()


def logits(model, tokens, mask=None, hooks=()):
    options = {} if mask is None else {"attention_mask": mask}
    with torch.no_grad():
        return model.run_with_hooks(tokens, fwd_hooks=list(hooks), return_type="logits", **options)


def calls(draw, name: str) -> list[tuple[dict[str, Any], bool]]:
    """Options of an ablation, and whether they take nothing out."""
    where = {
        "layers": draw(st.sampled_from((None, 0, [1], (0, 1)))),
        "heads": draw(st.sampled_from((None, [(0, 1)], [(0, 0), (1, 3)], ((1, 2),)))),
    }
    if where["heads"] is not None:
        where["layers"] = None
    sink = {"sink": draw(st.sampled_from(SINKS))}
    flag = draw(st.booleans())
    if name == "remove_heads" and where["heads"] is where["layers"] is None:
        where["layers"] = 0
    if name == "zero_sink_values":
        return [(where | sink, False)]
    if name == "rescale_sink_values":
        factor = draw(st.sampled_from((0, 0.5, 1, 2.0, -1)))
        return [(where | sink | {"factor": factor}, factor == 1)]
    if name == "replace_sink_values":
        return [(where | sink, False)]
    if name == "remove_sinks":
        return [(where | sink | {"renormalize": flag}, False)]
    if name == "mask_tokens":
        places = {"positions": draw(st.sampled_from(SINKS[1:]))}
        return [(where | places | {"renormalize": flag}, False)]
    if name == "remove_heads":
        return [(where | {"mode": draw(st.sampled_from(("zero", "mean")))}, False)]
    if name == "mix_pattern":
        t = draw(st.sampled_from((0, 0.25, 1)))
        target = draw(st.sampled_from(("identity", "uniform", "sink")))
        return [(where | {"t": t, "target": target}, t == 0)]
    kind = draw(st.sampled_from(("attention", "contribution", "value_weighted", "random")))
    fraction = draw(st.sampled_from((0, 0.1, 0.5, 1)))
    scope = draw(st.sampled_from(("row", "query", "head", "layer", "token")))
    more = {"importance": kind, "fraction": fraction, "scope": scope, "largest": flag}
    return [(where | more, fraction == 0)]


@pytest.mark.parametrize("name", ABLATIONS)
def test_random_options(name, model):
    @examples(4)
    @given(st.data())
    def run(data):
        length, batch = data.draw(st.integers(3, 9)), data.draw(st.integers(1, 3))
        generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
        tokens = torch.randint(4, 50, (batch, length), generator=generator)
        mask = torch.ones_like(tokens)
        if data.draw(st.booleans()):
            mask[0, length - 1 :] = 0
        before = logits(model, tokens, mask)
        for options, nothing in calls(data.draw, name):
            hooks = getattr(tlg, name)(model, attention_mask=mask, **options)
            found = logits(model, tokens, mask, hooks)
            assert found.shape == before.shape
            assert found[mask.bool()].isfinite().all()
            changed = (found - before)[mask.bool()].abs().max()
            assert (changed <= 1e-4) if nothing else (changed > 0 or name != "remove_heads")
            if name == "zero_sink_values":
                same = tlg.rescale_sink_values(model, 0, attention_mask=mask, **options)
                again = logits(model, tokens, mask, same)
                torch.testing.assert_close(again, found, rtol=1e-4, atol=1e-4)
        assert torch.equal(logits(model, tokens, mask), before)

    run()
