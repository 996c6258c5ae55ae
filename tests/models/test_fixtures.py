"""The shared tiny models are what their description says."""

from typing import Any

import pytest
import torch


def _tokens() -> torch.Tensor:
    return torch.tensor([[1, 4, 5, 6, 7, 8], [1, 9, 10, 11, 12, 13]])


def test_sizes_and_eval_mode(tiny_model: Any) -> None:
    assert not tiny_model.training
    _, cache = tiny_model.run_with_cache(_tokens())
    assert cache["blocks.1.attn.hook_pattern"].shape == (2, 4, 6, 6)
    assert cache["blocks.1.attn.hook_v"].shape == (2, 6, 2, 8)
    assert cache["blocks.1.attn.hook_z"].shape == (2, 6, 4, 8)
    assert tiny_model.blocks[0].attn.W_O.shape == (4, 8, 32)


def test_nothing_is_neutral(tiny_model: Any) -> None:
    for name, parameter in tiny_model.named_parameters():
        if name == "lm_head._original_component.bias":  # added by the bridge of 3.9, always zero
            continue
        assert parameter.std() > 0.05, name


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype(backend: str, dtype: torch.dtype, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(f"tiny_{backend}")(dtype=dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert model(_tokens()).dtype == dtype


def test_same_seed_same_model(backend: str, request: pytest.FixtureRequest) -> None:
    make = request.getfixturevalue(f"tiny_{backend}")
    assert torch.equal(make(seed=3)(_tokens()), make(seed=3)(_tokens()))
    assert not torch.allclose(make(seed=3)(_tokens()), make(seed=4)(_tokens()))


def test_text_without_a_hub(
    backend: str, tiny_tokenizer: Any, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(f"tiny_{backend}")(tokenizer=tiny_tokenizer)
    assert model.to_tokens("the cat sat").tolist() == [[1, 4, 6, 9]]
    assert model.to_tokens("the cat sat", prepend_bos=False).tolist() == [[4, 6, 9]]
    ids = model.tokenizer("the cat", add_special_tokens=False)["input_ids"]
    assert ids == [4, 6]
    assert (model.tokenizer.pad_token_id, model.tokenizer.bos_token_id) == (0, 1)


@pytest.mark.hooked
@pytest.mark.parametrize("normalization", ["LN", "RMS"])
def test_hooked_overrides(tiny_hooked: Any, normalization: str) -> None:
    model = tiny_hooked(normalization_type=normalization, n_key_value_heads=None, n_layers=1)
    assert model.cfg.normalization_type == normalization
    assert model(_tokens()).shape == (2, 6, 50)


@pytest.mark.bridge
@pytest.mark.parametrize("arch", ["llama", "qwen2", "mistral", "gpt2", "gemma2", "gpt_neox", "opt"])
def test_bridge_architectures(tiny_bridge: Any, arch: str) -> None:
    model = tiny_bridge(arch)
    assert model(_tokens()).shape == (2, 6, 50)
    assert len(model.blocks) == 2
