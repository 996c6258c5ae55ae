"""Directories, hub names and arguments of load_model, on tiny models written by the tests."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from tl_geometry.models import (
    BackendUnavailableError,
    ModelUnavailableError,
    UnknownModelError,
    load_model,
)

ROOT = Path(__file__).parents[2]
TOKENS = torch.tensor([[1, 4, 5, 6, 7, 8, 9], [1, 9, 10, 11, 12, 13, 14]])
LLAMA: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-4,
}
COMMON: dict[str, Any] = {
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}


def _write(directory: Path, model_type: str = "llama", **fields: Any) -> torch.Tensor:
    """Save a small random model and return its log-probabilities on TOKENS."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = LLAMA if model_type == "llama" else {"n_embd": 32, "n_layer": 2, "n_head": 4}
    config = AutoConfig.for_model(model_type, **{**COMMON, **sizes, **fields})
    torch.manual_seed(0)
    hf = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    hf.save_pretrained(directory)
    with torch.no_grad():
        return hf(TOKENS).logits.log_softmax(-1)


def _log_probabilities(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS).log_softmax(-1)


@pytest.mark.parametrize("processing", [False, True])
def test_llama_directory(
    tmp_path: Path, backend: str, processing: bool, tiny_tokenizer: Any
) -> None:
    expected = _write(tmp_path / "mine")
    tiny_tokenizer.save_pretrained(tmp_path / "mine")
    model = load_model(tmp_path / "mine", backend=backend, processing=processing, device="cpu")
    assert (_log_probabilities(model) - expected).abs().max() < 2e-5
    assert model.cfg.model_name == "mine"
    assert not model.training
    assert model.to_tokens("the cat sat").tolist() == [[1, 4, 6, 9]]


def test_directory_without_tokenizer_as_string_and_double(tmp_path: Path, backend: str) -> None:
    expected = _write(tmp_path)
    model = load_model(str(tmp_path), backend=backend, processing=False, dtype=torch.float64)
    found = _log_probabilities(model)
    assert found.dtype == torch.float64
    assert (found - expected).abs().max() < 2e-5
    assert model.tokenizer is None


@pytest.mark.bridge
def test_auto_takes_the_bridge_where_only_it_can_hold_the_model(tmp_path: Path) -> None:
    expected = _write(tmp_path, "gpt2")
    model = load_model(tmp_path, processing=False, device="cpu")
    assert type(model).__name__ == "TransformerBridge"
    assert (_log_probabilities(model) - expected).abs().max() < 2e-5


@pytest.mark.hooked
@pytest.mark.parametrize(
    ("model_type", "fields", "reason"),
    [
        ("gpt2", {}, "its architecture is 'gpt2'"),
        ("llama", {"attention_bias": True}, "it has attention_bias"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
            "rotary embedding is scaled \\('linear'\\)",
        ),
    ],
)
def test_hooked_refuses_what_it_would_get_wrong(
    tmp_path: Path, model_type: str, fields: dict[str, Any], reason: str
) -> None:
    _write(tmp_path, model_type, **fields)
    with pytest.raises(BackendUnavailableError, match=f"{reason}.*backend='bridge'"):
        load_model(tmp_path, backend="hooked")


def test_directory_that_holds_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing here")
    with pytest.raises(UnknownModelError, match=r"no config\.json \(it holds: notes\.txt\)"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UnknownModelError, match="does not name an architecture"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["NoSuchForCausalLM"]}))
    with pytest.raises(UnknownModelError, match="'NoSuchForCausalLM'"):
        load_model(tmp_path)


def test_damaged_weights(tmp_path: Path) -> None:
    _write(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    with pytest.raises(ModelUnavailableError, match="damaged"):
        load_model(tmp_path)
    weights.unlink()
    with pytest.raises(OSError, match=r"model\.safetensors"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["no such model", "smolm2", "./absent", "/absent/model"])
def test_unknown_model(name: str) -> None:
    with pytest.raises(UnknownModelError) as caught:
        load_model(name)
    assert repr(name) in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_unknown_model_suggests_near_names() -> None:
    with pytest.raises(UnknownModelError, match="Did you mean 'smollm2'"):
        load_model("smolm2")


def test_hub_out_of_reach(backend: str) -> None:
    with pytest.raises(ModelUnavailableError, match="run: hf download gpt2 ") as caught:
        load_model("gpt2", backend=backend)
    assert isinstance(caught.value, OSError)


def test_short_names_of_transformerlens_are_known(backend: str) -> None:
    with pytest.raises(ModelUnavailableError, match="hf download EleutherAI/gpt-neo-125M ;"):
        load_model("gpt-neo-small", backend=backend)


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("RepositoryNotFoundError", UnknownModelError, "unknown model 'gpt2'"),
        ("GatedRepoError", ModelUnavailableError, "hf auth login"),
    ],
)
def test_what_the_hub_answers(
    monkeypatch: pytest.MonkeyPatch, kind: str, error: type[Exception], message: str
) -> None:
    """The hub's own errors arrive as the cause of a plain OSError."""

    def answer(*_: object, **__: object) -> None:
        raise OSError("translated by transformers") from type(kind, (Exception,), {})()

    class Hub:
        from_pretrained = from_pretrained_no_processing = boot_transformers = staticmethod(answer)

    monkeypatch.setattr("tl_geometry.models.hub.model_class", lambda _: Hub)
    with pytest.raises(error, match=message):
        load_model("gpt2")


@pytest.mark.slow
def test_name_from_the_hub_cache(tmp_path: Path, backend: str, tiny_tokenizer: Any) -> None:
    """A tiny model in the place where the hub keeps gpt2 loads under that name, offline."""
    repository = tmp_path / "hub" / "models--gpt2"
    snapshot = repository / "snapshots" / ("0" * 40)
    expected = _write(snapshot, "gpt2", n_ctx=64)
    tiny_tokenizer.save_pretrained(snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    code = (
        "import sys, torch\n"
        "from tl_geometry.models import load_model\n"
        f"tokens, found = torch.tensor({TOKENS.tolist()}), []\n"
        "for processing in (False, True):\n"
        f"    model = load_model('gpt2', {backend!r}, processing, 'cpu', 'float32')\n"
        "    assert not model.training\n"
        "    found.append(model(tokens).log_softmax(-1))\n"
        "torch.save(torch.stack(found), sys.argv[1])"
    )
    environment = {
        **os.environ,
        "HF_HOME": str(tmp_path),
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "PYTHONPATH": str(ROOT),
    }
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out.pt")], env=environment, check=True
    )
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert (found - expected).abs().max() < 5e-5


def test_backend_that_this_release_lacks() -> None:
    major = int(version("transformer-lens").split(".")[0])
    if major == 3:
        pytest.skip("the installed TransformerLens has both classes")
    lacking, name = {
        2: ("bridge", "TransformerBridge"),
        4: ("hooked", "HookedTransformer"),
    }[major]
    with pytest.raises(BackendUnavailableError, match=name) as caught:
        load_model("smollm2", backend=lacking)
    assert "pip install 'transformer-lens>=" in str(caught.value)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="backend must be 'auto', 'hooked' or 'bridge', got 'tb'"):
        load_model("smollm2", backend="tb")
    for dtype in ("int8", "float99", torch.int64):
        with pytest.raises(ValueError, match="dtype must be a floating point type"):
            load_model("smollm2", dtype=dtype)
    with pytest.raises(ValueError, match="device must be a torch device"):
        load_model("smollm2", device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no CUDA device"):
            load_model("smollm2", device="cuda")
