"""Fixtures that every room shares: small random models of both classes, and SmolLM2.

The markers ``hooked`` and ``bridge`` skip a test where TransformerLens has no such class.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import importlib
import importlib.util
import warnings
from typing import Any

import pytest
import torch

warnings.filterwarnings("ignore", message=".*HookedTransformer.*", category=DeprecationWarning)

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))

WORDS = (
    "the a cat dog bird sat ran flew on over under mat hill tree and then it was quick brown fox "
    "jumps lazy Paris France capital of is city river old new house garden in by with . , ! ? "
    "one two three"
)
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
TINY_SIZE = {"layers": 2, "heads": 4, "kv_heads": 2, "d_head": 8, "d_model": 32, "vocab": 50}
WEIGHT_SCALE = 0.3
VALUE_BIAS_SCALE = 0.8


def _has_hooked() -> bool:
    try:
        from transformer_lens import HookedTransformer  # noqa: F401
    except ImportError:
        return False
    return True


def _has_bridge() -> bool:
    return importlib.util.find_spec("transformer_lens.model_bridge") is not None


_AVAILABLE = {"hooked": _has_hooked(), "bridge": _has_bridge()}
_CLASS_NAMES = {"hooked": "HookedTransformer", "bridge": "TransformerBridge"}


def _missing(backend: str) -> str:
    return f"the installed TransformerLens has no {_CLASS_NAMES[backend]}"


def pytest_configure(config: pytest.Config) -> None:
    for backend, name in _CLASS_NAMES.items():
        config.addinivalue_line("markers", f"{backend}: needs {name}; skipped where it is absent")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for backend, available in _AVAILABLE.items():
            if item.get_closest_marker(backend) is not None and not available:
                item.add_marker(pytest.mark.skip(reason=_missing(backend)))


def _require(backend: str) -> None:
    if not _AVAILABLE[backend]:
        pytest.skip(_missing(backend))


@torch.no_grad()
def _randomise(module: torch.nn.Module, seed: int) -> None:
    """Fill every parameter so that nothing is neutral: no zero bias, no norm weight of one."""
    generator = torch.Generator().manual_seed(seed)
    seen: set[int] = set()
    for name, parameter in module.named_parameters():
        if id(parameter) in seen:
            continue
        seen.add(id(parameter))
        is_value_bias = name.endswith(("b_V", "v_proj.bias"))
        scale = VALUE_BIAS_SCALE if is_value_bias else WEIGHT_SCALE
        noise = torch.randn(parameter.shape, generator=generator) * scale
        is_norm = parameter.ndim == 1 and name.endswith(("weight", ".w"))
        parameter.copy_(noise + 1.0 if is_norm else noise)


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    """A word-level tokenizer of 50 tokens built in memory: pad 0, bos 1, eos 2, unk 3.

    It prepends bos unless ``add_special_tokens=False``. Words are split at white space.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate((*SPECIAL, *WORDS.split()))}
    for index in range(len(vocabulary), TINY_SIZE["vocab"]):
        vocabulary[f"word{index}"] = index
    core = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = WhitespaceSplit()
    core.post_processor = TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        name_or_path="tiny-tokenizer",
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        add_bos_token=True,
        padding_side="right",
        model_max_length=64,
    )


def _tiny_hooked(
    *,
    seed: int = 0,
    tokenizer: Any = None,
    dtype: torch.dtype = torch.float32,
    **overrides: Any,
) -> Any:
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    fields: dict[str, Any] = {
        "n_layers": TINY_SIZE["layers"],
        "n_heads": TINY_SIZE["heads"],
        "n_key_value_heads": TINY_SIZE["kv_heads"],
        "d_head": TINY_SIZE["d_head"],
        "d_model": TINY_SIZE["d_model"],
        "d_vocab": TINY_SIZE["vocab"],
        "d_mlp": 64,
        "n_ctx": 64,
        "act_fn": "gelu",
        "normalization_type": "LN",
        "positional_embedding_type": "rotary",
        "rotary_dim": TINY_SIZE["d_head"],
        "device": "cpu",
        "dtype": dtype,
    }
    fields.update(overrides)
    if fields["positional_embedding_type"] != "rotary" and "rotary_dim" not in overrides:
        del fields["rotary_dim"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = HookedTransformer(HookedTransformerConfig(**fields), tokenizer=tokenizer)
    _randomise(model, seed)
    return model.eval()


def _tiny_bridge(
    arch: str = "llama",
    *,
    seed: int = 0,
    tokenizer: Any = None,
    dtype: torch.dtype = torch.float32,
    attn_implementation: str = "eager",
    **overrides: Any,
) -> Any:
    from transformer_lens.model_bridge.sources import build_bridge_from_module
    from transformers import AutoConfig, AutoModelForCausalLM

    fields: dict[str, Any] = {
        "vocab_size": TINY_SIZE["vocab"],
        "hidden_size": TINY_SIZE["d_model"],
        "num_hidden_layers": TINY_SIZE["layers"],
        "num_attention_heads": TINY_SIZE["heads"],
        "num_key_value_heads": TINY_SIZE["kv_heads"],
        "head_dim": TINY_SIZE["d_head"],
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    if arch == "llama":
        fields["attention_bias"] = True
    known = AutoConfig.for_model(arch)
    fields = {name: value for name, value in fields.items() if hasattr(known, name)}
    config = AutoConfig.for_model(arch, **{**fields, **overrides})
    state = torch.random.get_rng_state()
    hf = AutoModelForCausalLM.from_config(config, attn_implementation=attn_implementation)
    torch.random.set_rng_state(state)
    _randomise(hf, seed)
    hf = hf.to(dtype).eval()
    bridge = build_bridge_from_module(
        hf, type(hf).__name__, hf_config=hf.config, tokenizer=tokenizer, dtype=dtype, device="cpu"
    )
    return bridge.eval()


@pytest.fixture(scope="session")
def tiny_hooked() -> Any:
    """Factory of small random HookedTransformers: ``tiny_hooked(normalization_type="RMS")``.

    2 layers, 4 heads, 2 key-value heads, d_head 8, d_model 32, 50 tokens, n_ctx 64; eval mode;
    every weight and bias N(0, 0.3), value biases N(0, 0.8), norm weights 1 + N(0, 0.3). ``seed``,
    ``dtype`` and ``tokenizer`` (the fixture ``tiny_tokenizer``) are taken as well; everything else
    is a field of HookedTransformerConfig.
    """
    _require("hooked")
    return _tiny_hooked


@pytest.fixture(scope="session")
def tiny_bridge() -> Any:
    """Factory of small random TransformerBridges: ``tiny_bridge("qwen2", num_hidden_layers=3)``.

    The first argument is a model type of transformers, overrides are fields of its config; sizes,
    weights, ``seed``, ``dtype`` and ``tokenizer`` are those of ``tiny_hooked``.
    """
    _require("bridge")
    return _tiny_bridge


@pytest.fixture(params=["hooked", "bridge"])
def backend(request: pytest.FixtureRequest) -> str:
    """Both model classes in turn, skipped where one is absent."""
    name = str(request.param)
    _require(name)
    return name


@pytest.fixture
def tiny_model(backend: str) -> Any:
    """A small random model of each class in turn, from ``tiny_hooked`` or ``tiny_bridge``."""
    return _tiny_hooked() if backend == "hooked" else _tiny_bridge()


@pytest.fixture(scope="session")
def smollm2_hooked() -> Any:
    """SmolLM2-135M as an unprocessed HookedTransformer on the CPU in float32."""
    _require("hooked")
    from tl_geometry.models import load_model

    return load_model("smollm2", backend="hooked", processing=False, device="cpu")


@pytest.fixture(scope="session")
def smollm2_bridge() -> Any:
    """SmolLM2-135M as an unprocessed TransformerBridge on the CPU in float32."""
    _require("bridge")
    from tl_geometry.models import load_model

    return load_model("smollm2", backend="bridge", processing=False, device="cpu")
