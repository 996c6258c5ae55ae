"""The toy that ships: the same in every class, good at its task, and with a sink that switches."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tl_geometry as tlg
from benchmarks.toy import OUT, measured
from tl_geometry.data import bigram_backcopy
from tl_geometry.models import load_model
from tl_geometry.models.toy import WEIGHTS, new_toy, toy_from_weights
from tl_geometry.models.train_toy import main, score_toy, train_toy

SHIPPED = Path(tlg.models.__file__).parent / WEIGHTS
VARIANTS = [
    pytest.param(backend, processing, marks=getattr(pytest.mark, backend))
    for backend in ("hooked", "bridge")
    for processing in (False, True)
]


@pytest.fixture(scope="module")
def tokens() -> Tensor:
    return bigram_backcopy(77).sample(64, 128)


@pytest.fixture(scope="module")
def expected(tokens: Tensor) -> Tensor:
    """Log-probabilities of the Hugging Face model itself."""
    with torch.no_grad():
        return toy_from_weights(SHIPPED)(tokens).logits.log_softmax(-1)


@pytest.mark.parametrize(("backend", "processing"), VARIANTS)
def test_every_class_holds_the_same_model(
    backend: str, processing: bool, tokens: Tensor, expected: Tensor
) -> None:
    model = load_model("toy", backend=backend, processing=processing, device="cpu")
    with torch.no_grad():
        found = model(tokens).log_softmax(-1)
    assert (found - expected).abs().max() < 1e-4
    assert not model.training
    assert model.tokenizer is None
    assert (model.cfg.model_name, model.cfg.n_ctx, model.cfg.d_vocab) == ("toy", 128, 65)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(("backend", "processing"), VARIANTS)
def test_it_solves_the_task_with_a_sink_that_switches(
    backend: str, processing: bool, tokens: Tensor
) -> None:
    """Less than 0.01 nats above the optimum; bos is looked at only where nothing is to be copied."""
    model = load_model("toy", backend=backend, processing=processing, device="cpu")
    task = bigram_backcopy()
    trigger = task.is_trigger(tokens)
    with torch.no_grad():
        logits, cache = model.run_with_cache(tokens)
    excess = task.excess_loss(logits, tokens)
    assert 0 < excess[~trigger].mean() < 0.01
    assert 0 < excess[trigger].mean() < 0.01
    pattern = cache["blocks.0.attn.hook_pattern"]
    assert pattern.shape == (64, 1, 128, 128)
    to_bos, idle = pattern[:, 0, 1:, 0], ~trigger[:, 1:]
    assert to_bos[idle].mean() - to_bos[~idle].mean() > 0.8
    to_source = pattern[:, 0].diagonal(-1, 1, 2)[:, 1:]  # one back, from position 2 on
    assert to_source[trigger[:, 2:]].mean() > 0.7  # measured: 0.85


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(
    backend: str, dtype: torch.dtype, tokens: Tensor, expected: Tensor
) -> None:
    model = load_model("toy", backend=backend, processing=False, device="cpu", dtype=dtype)
    with torch.no_grad():
        found = model(tokens)
    assert found.dtype == dtype
    difference = (found.double().softmax(-1) - expected.double().exp()).abs().max()
    assert difference < (1e-5 if dtype == torch.float64 else 0.1)


def test_the_figures_in_docs_are_those_of_the_shipped_toy() -> None:
    """And they say what the toy shows: the value of bos hardly matters, its place in the row does."""
    committed = json.loads(OUT.read_text(encoding="utf-8"))
    (shipped,) = (name for name in committed if name.startswith("shipped"))
    found = measured(toy_from_weights(SHIPPED))
    assert _numbers(found) == pytest.approx(_numbers(committed[shipped]), rel=1e-2, abs=2e-4)
    assert len(committed) >= 2
    for name, figures in committed.items():
        losses = figures["excess_loss"]
        assert losses["none"]["plain"] < 0.01, name
        assert losses["none"]["trigger"] < 0.01, name
        assert losses["zero_sink_values"] == losses["remove_sinks"], name
        cost = {key: loss["plain"] - losses["none"]["plain"] for key, loss in losses.items()}
        assert cost["remove_sinks_renormalize"] > 10 * abs(cost["zero_sink_values"]), name
        sinks = [h for h in figures["heads"] if _switch(h["bos_attention"]) > 0.8]
        assert sinks, name
        assert all(head["bos_value"]["norm_ratio"] < 0.3 for head in sinks), name


def _switch(attention: dict[str, float]) -> float:
    return attention["plain"] - attention["trigger"]


def _numbers(tree: Any) -> list[float]:
    """The leaves of nested lists and dictionaries, in order."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    return (
        [leaf for branch in tree for leaf in _numbers(branch)] if isinstance(tree, list) else [tree]
    )


def test_analyze_takes_its_rows(backend: str, tokens: Tensor) -> None:
    model = load_model("toy", backend=backend, device="cpu")
    found = tlg.analyze(model, tokens[:8], n_ctx=128, progress=False)
    assert found.regime.shape == (1, 1)
    assert 0.7 < found.sink_rate.item() < 0.85  # about 77 % of the tokens are no triggers
    assert found.sink_norm_ratio.item() < 0.3


def test_it_is_small() -> None:
    assert SHIPPED.stat().st_size < 1_500_000
    assert sum(weight.numel() for weight in new_toy().parameters()) < 60_000


def test_a_few_steps_of_training_make_it_better() -> None:
    before, after = (score_toy(m, rows=8) for m in (new_toy(), train_toy(steps=12, progress=False)))
    assert after.excess_plain < before.excess_plain - 0.3


def test_training_depends_on_the_seed_alone() -> None:
    state = torch.random.get_rng_state()
    models = [train_toy(steps=2, seed=seed, progress=False) for seed in (3, 3, 4)]
    assert torch.equal(torch.random.get_rng_state(), state)
    first, again, other = (model.transformer.wte.weight for model in models)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_command_writes_what_can_be_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.safetensors"
    main(["--steps", "2", "--layers", "3", "--seed", "1", "--out", str(file)])
    model = toy_from_weights(file)
    expected = train_toy(layers=3, seed=1, steps=2, progress=False).state_dict()
    assert all(torch.equal(weight, expected[name]) for name, weight in model.state_dict().items())
    said = capsys.readouterr().out
    assert "excess loss" in said
    assert said.count(" / ") == 3
