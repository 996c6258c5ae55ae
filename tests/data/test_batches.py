"""Windows and batches, checked by hand on a tokenizer with one id per letter (a = 10)."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, tensor

from tl_geometry.data import BatchStream, token_batches
from tl_geometry.data.items import read_items

BOS, PAD = 1, 0


class Letters:
    bos_token, bos_token_id, eos_token_id, pad_token_id = "^", BOS, 2, PAD

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        assert add_special_tokens is False
        return {"input_ids": [BOS if c == "^" else ord(c) - 87 for c in text]}


def letters_model(**cfg: Any) -> Any:
    defaults = {"default_prepend_bos": True, "n_ctx": 100, "d_vocab": 40}
    return SimpleNamespace(tokenizer=Letters(), cfg=SimpleNamespace(**{**defaults, **cfg}))


MODEL = letters_model()


def rows(stream: BatchStream) -> dict[int, list[int]]:
    """The real tokens of every document by its index."""
    return {
        number: ids[mask].tolist()
        for batch in stream
        for number, ids, mask in zip(
            batch.documents, batch.tokens, batch.attention_mask, strict=True
        )
    }


def test_windows_of_a_text() -> None:
    stream = token_batches("abcdefgh", MODEL, n_ctx=4, batch_size=1)
    assert rows(stream) == {0: [1, 10, 11, 12], 1: [1, 13, 14, 15], 2: [1, 16, 17]}
    assert (stream.documents, stream.tokens, stream.skipped) == (3, 11, {})
    assert stream.bos.prepend is True
    assert stream.warnings == []


def test_without_bos() -> None:
    stream = token_batches("abcdefgh", MODEL, n_ctx=4, prepend_bos=False)
    assert rows(stream) == {0: [10, 11, 12, 13], 1: [14, 15, 16, 17]}
    assert "prepend_bos=False" in stream.bos.rule


def test_full_windows_share_batches_and_tails_are_padded_right() -> None:
    batches = list(token_batches(["abcdefg", "hijk", "lm"], MODEL, n_ctx=4, batch_size=2))
    assert [b.documents for b in batches] == [(0, 1), (3,), (5, 2), (4,)]
    assert batches[0].attention_mask.all()
    tail = batches[2]  # three tokens and two tokens, the longer first
    assert tail.tokens.tolist() == [[BOS, 21, 22], [BOS, 16, PAD]]
    assert tail.attention_mask.tolist() == [[True, True, True], [True, True, False]]
    assert tail.tokens.dtype == torch.int64
    assert tail.attention_mask.dtype == torch.bool


def test_short_texts_share_batches_of_similar_length() -> None:
    texts = ["a" * (1 + i % 5) for i in range(20)]
    batches = list(token_batches(texts, MODEL, n_ctx=50, batch_size=4))
    assert [len(b.documents) for b in batches] == [4] * 5
    assert all(b.attention_mask.all() for b in batches)  # sorted: nothing was padded


def test_default_batch_size_makes_about_1024_tokens() -> None:
    wide = letters_model(n_ctx=4096)
    sizes = {n: next(iter(token_batches("ab" * 6000, wide, n_ctx=n))) for n in (512, 256, 3000)}
    assert {n: len(b.documents) for n, b in sizes.items()} == {512: 2, 256: 4, 3000: 1}
    short = next(iter(token_batches(["a" * 31] * 40, wide)))
    assert tuple(short.tokens.shape) == (32, 32)


def test_the_windows_do_not_depend_on_the_batch_size() -> None:
    texts = ["abcdefghij" * k for k in (1, 7, 3, 20)]
    results = [rows(token_batches(texts, MODEL, n_ctx=16, batch_size=b)) for b in (1, 3, None)]
    assert results[0] == results[1] == results[2]


def test_two_passes_are_equal_and_count_anew() -> None:
    stream = token_batches(["abcdefg", "", "a" * 30], MODEL, n_ctx=4, batch_size=3)
    first = [(b.documents, b.tokens.tolist()) for b in stream]
    counts = stream.documents, stream.tokens, dict(stream.skipped)
    assert [(b.documents, b.tokens.tolist()) for b in stream] == first
    assert (stream.documents, stream.tokens, stream.skipped) == counts


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_max_documents_counts_windows_in_reading_order(limit: int) -> None:
    texts = ["abcdefgh", "ij"]
    everything = rows(token_batches(texts, MODEL, n_ctx=4))
    stream = token_batches(texts, MODEL, n_ctx=4, max_documents=limit)
    assert rows(stream) == {k: v for k, v in everything.items() if k < limit}
    assert stream.documents == limit


def test_generators_are_read_lazily() -> None:
    taken = []

    def endless() -> Iterator[str]:
        while True:
            taken.append(1)
            yield "abc"

    stream = iter(token_batches(endless(), MODEL, n_ctx=4, batch_size=2))
    next(stream)
    assert len(taken) == 2
    next(stream)
    assert len(taken) == 4


def test_the_look_ahead_of_short_texts_is_bounded() -> None:
    taken = []

    def endless() -> Iterator[str]:
        while True:
            taken.append(1)
            yield "ab" if len(taken) % 2 else "a"

    next(iter(token_batches(endless(), MODEL, n_ctx=50, batch_size=2)))
    assert len(taken) == 64


def test_no_more_is_read_than_max_documents_needs() -> None:
    taken = []
    texts = (taken.append(t) or t for t in ["abcdefgh", "xyz", "xyz"])
    assert len(rows(token_batches(texts, MODEL, n_ctx=4, max_documents=3))) == 3
    assert taken == ["abcdefgh"]


def test_n_ctx_beyond_the_model_is_reduced_with_a_warning() -> None:
    stream = token_batches("a" * 30, letters_model(n_ctx=8), n_ctx=512)
    assert stream.n_ctx == 8
    assert {len(row) for row in rows(stream).values()} == {8, 3}
    assert stream.warnings == ["n_ctx=512 is more than the model's context: windows have 8 tokens"]


def test_a_model_that_states_no_limits() -> None:
    unlimited = SimpleNamespace(tokenizer=Letters(), cfg=SimpleNamespace())
    assert rows(token_batches("ab", unlimited)) == {0: [1, 10, 11]}
    assert rows(token_batches(tensor([[900, 901]]), unlimited)) == {0: [900, 901]}


def test_a_padding_id_outside_the_vocabulary_is_not_used() -> None:
    model = letters_model(d_vocab=40)
    model.tokenizer.pad_token_id = 40
    batch = next(iter(token_batches(["abc", "a"], model)))
    assert batch.tokens[1].tolist() == [1, 10, 0, 0]


def test_text_with_ids_beyond_the_vocabulary() -> None:
    with pytest.raises(ValueError, match="the tokenizer's output: token id 35 at index \\[1\\]"):
        list(token_batches("az", letters_model(d_vocab=20)))


def test_skips_are_counted() -> None:
    texts = ["", "  \n", "ab", "c"]
    stream = token_batches(texts, MODEL, prepend_bos=False)
    assert rows(stream) == {0: [10, 11]}
    assert stream.skipped == {"empty text": 2, "fewer than 2 tokens": 1}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("", "skipped: 1 with empty text"),
        ([], "it is empty"),
        (["", "a"], "1 with empty text, 1 with fewer than 2 tokens"),
        (tensor([5]), "1 with fewer than 2 tokens"),
        (tensor([[5], [6]]), "2 with fewer than 2 tokens"),
        (torch.zeros(0, 5, dtype=torch.int64), "it is empty"),
        ([(tensor([[5, 6]]), tensor([[1, 0]]))], "1 with fewer than 2 tokens"),
    ],
)
def test_nothing_left(data: Any, words: str) -> None:
    stream = token_batches(data, MODEL, prepend_bos=False)
    with pytest.raises(ValueError, match=f"data holds no document to analyse.*{words}"):
        list(stream)


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("n_ctx", 1, ValueError, "n_ctx must be at least 2, got 1"),
        ("batch_size", 0, ValueError, "batch_size must be at least 1, got 0"),
        ("max_documents", 0, ValueError, "max_documents must be at least 1, got 0"),
        ("n_ctx", True, TypeError, "n_ctx must be an integer, got True"),
    ],
)
def test_bad_arguments_are_refused_at_once(
    name: str, value: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        token_batches("abc", MODEL, **{name: value})


def test_text_without_tokenizer() -> None:
    bare = SimpleNamespace(tokenizer=None, cfg=MODEL.cfg)
    with pytest.raises(ValueError, match="data is text, but the model has no tokenizer"):
        list(token_batches("abc", bare))
    with pytest.raises(ValueError, match="prepend_bos=True, but the model has no tokenizer"):
        token_batches("abc", bare, prepend_bos=True)
    assert rows(token_batches(tensor([3, 4]), bare)) == {0: [3, 4]}


# Hypothesis: windows lose nothing and invent nothing.

texts = st.lists(st.text("abcdefghij", max_size=60), min_size=1, max_size=8)


@settings(deadline=None)
@given(
    texts, st.integers(3, 20), st.sampled_from([None, 1, 2, 5]), st.booleans(), st.integers(0, 99)
)
def test_windows_without_bos_give_the_tokens_back(
    texts: list[str], n_ctx: int, batch_size: int | None, bos: bool, filler: int
) -> None:
    texts = [*texts, "ab"]
    stream = token_batches(texts, MODEL, n_ctx=n_ctx, batch_size=batch_size, prepend_bos=bos)
    found = rows(stream)
    assert sorted(found) == list(range(len(found)))
    assert all(2 <= len(row) <= n_ctx for row in found.values())
    if bos:
        assert all(row[0] == BOS for row in found.values())
    step = n_ctx - bos
    expected = []
    for text in texts:
        ids = [ord(c) - 87 for c in text]
        if not bos and len(ids) % step == 1:  # a tail of one token cannot be analysed
            ids = ids[:-1]
        expected += ids
    assert [t for k in sorted(found) for t in found[k][bos:]] == expected
    assert stream.tokens == sum(map(len, found.values()))
    assert stream.documents == len(found)


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(2, 12), st.data())
def test_ready_batches_pass_unchanged(batch: int, length: int, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(3, 39), min_size=batch * length, max_size=batch * length))
    real = st.lists(st.sets(st.integers(0, length - 1), min_size=2), min_size=batch, max_size=batch)
    masks = [[int(k in row) for k in range(length)] for row in data.draw(real)]
    tokens, mask = tensor(ids).reshape(batch, length), tensor(masks)
    stream = token_batches([(tokens, mask)], MODEL, batch_size=1)
    (only,) = list(stream)
    assert torch.equal(only.tokens, tokens)
    assert torch.equal(only.attention_mask, mask.bool())
    assert stream.tokens == int(mask.sum())


def as_list(stream: BatchStream) -> list[tuple[list, list]]:
    return [(b.tokens.tolist(), b.attention_mask.tolist()) for b in stream]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_token_tensors_are_taken_as_they_are(dtype: torch.dtype) -> None:
    ids = tensor([[5, 6, 7], [8, 9, 10], [11, 12, 13]], dtype=dtype)
    before = ids.clone()
    stream = token_batches(ids, MODEL, batch_size=2)
    assert stream.total == 3
    batches = list(stream)
    assert [b.tokens.tolist() for b in batches] == [ids[:2].tolist(), ids[2:].tolist()]
    assert all(b.tokens.dtype == torch.int64 for b in batches)
    assert torch.equal(ids, before)
    assert stream.bos.prepend is False
    assert stream.bos.rule.startswith("token ids are taken as they are")
    assert token_batches(ids[0], MODEL).total == 1
    assert token_batches(ids, MODEL, max_documents=2).total == 2
    assert token_batches("abc", MODEL).total is None


@pytest.mark.parametrize(
    "data",
    [
        np.array([[5, 6, 7], [8, 9, 10]]),
        (tensor([[5, 6], [7, 8]]), tensor([[1, 1], [1, 1]])),
        {"input_ids": tensor([[5, 6], [7, 8]])},
        [tensor([5, 6]), tensor([7, 8, 9])],
        [tensor([[5, 6], [7, 8]])],
        [[tensor([[5, 6], [7, 8]]), tensor([[1, 1], [1, 1]])]],
        [tensor([5, 6]), {"input_ids": tensor([7, 8, 9])}],
        ["a text", tensor([5, 6])],
        ["ab", "cd"],
        [],
        {"text": "ab"},
        iter([tensor([5, 6]), tensor([7, 8])]),
    ],
)
def test_the_total_is_known_where_shapes_tell(data: Any) -> None:
    stream = token_batches(data, MODEL)
    if stream.total is not None:
        list(stream)
        assert stream.total == stream.documents == 2
        assert token_batches(data, MODEL, max_documents=1).total == 1
    texts = isinstance(data, list) and (not data or isinstance(data[0], str))
    assert (stream.total is None) == (texts or "text" in data or isinstance(data, Iterator))


@pytest.mark.parametrize(
    "item",
    [
        (tensor([[5, 6, 7]]), tensor([[1, 1, 0]])),
        [tensor([[5, 6, 7]]), tensor([[True, True, False]])],
        {"input_ids": [[5, 6, 7]], "attention_mask": [[1, 1, 0]]},
        {"input_ids": tensor([5, 6, 7]), "attention_mask": tensor([1.0, 1.0, 0.0])},
        {"input_ids": np.array([[5, 6, 7]]), "attention_mask": np.array([[1, 1, 0]])},
    ],
)
def test_forms_of_a_ready_batch(item: Any) -> None:
    expected = [([[5, 6, 7]], [[True, True, False]])]
    assert as_list(token_batches([item], MODEL)) == expected
    if not isinstance(item, list):
        assert as_list(token_batches(item, MODEL)) == expected


@pytest.mark.parametrize(
    "item", [tensor([5, 6]), np.array([5, 6]), [tensor([5, 6])], {"input_ids": [5, 6]}]
)
def test_rows_without_padding_share_batches(item: Any) -> None:
    assert as_list(token_batches([item, item], MODEL)) == [([[5, 6]] * 2, [[True, True]] * 2)]


def test_records_with_text_and_everything_mixed() -> None:
    data = iter([{"text": "ab"}, tensor([[5, 6]]), "c", tensor([7, 8, 9])])
    stream = token_batches(data, MODEL)
    assert rows(stream) == {0: [1, 10, 11], 1: [5, 6], 2: [1, 12], 3: [7, 8, 9]}
    assert stream.bos.prepend is True
    assert "default_prepend_bos=True" in stream.bos.rule
    assert "token ids are taken as they are" in stream.bos.rule


def test_asking_for_bos_on_token_ids_is_noted() -> None:
    stream = token_batches([tensor([5, 6]), tensor([5, 6])], MODEL, n_ctx=50, prepend_bos=True)
    assert rows(stream) == {0: [5, 6], 1: [5, 6]}
    assert stream.warnings == ["prepend_bos=True has no effect on token ids"]
    assert stream.bos.prepend is False


def test_short_rows_of_a_ready_batch_are_dropped_and_max_documents_cuts_it() -> None:
    block = (tensor([[5, 6, 7], [5, 6, 7], [8, 9, 9]]), tensor([[1, 1, 1], [0, 1, 0], [0, 1, 1]]))
    stream = token_batches([block, block], MODEL)
    assert rows(stream) == {0: [5, 6, 7], 1: [9, 9], 2: [5, 6, 7], 3: [9, 9]}
    assert stream.skipped == {"fewer than 2 tokens": 2}
    assert rows(token_batches([block, block], MODEL, max_documents=3)) == {
        0: [5, 6, 7],
        1: [9, 9],
        2: [5, 6, 7],
    }


def bad(tokens: Any, mask: Any = None) -> list[Any]:
    return [tokens] if mask is None else [(tokens, mask)]


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ([3, 4], TypeError, "data\\[0\\] is of type int; .*wrap it in torch.tensor"),
        ([[3, 4]], TypeError, "data\\[0\\] is of type list"),
        (tensor([[0.5, 1.0]]), TypeError, "token ids must be integers, got dtype torch.float32"),
        (tensor([True, False]), TypeError, "must be integers, got dtype torch.bool"),
        (torch.ones(1, 2, 3, dtype=torch.int64), ValueError, r"\(batch, pos\), got \(1, 2, 3\)"),
        ({"train": []}, ValueError, "keys \\['train'\\]; it needs 'input_ids'"),
        ({"input_ids": [[1, 2], [3]]}, ValueError, "token ids do not form a tensor"),
        (
            bad(tensor([[5, 6, 7]]), tensor([[1, 1]])),
            ValueError,
            r"attention_mask has shape \(1, 2\), but the tokens have shape \(1, 3\)",
        ),
        (bad(tensor([[5, 6]]), tensor([[1, 2]])), ValueError, "attention_mask must hold only 0"),
        (
            bad(tensor([[5, 6], [5, 6]]), tensor([[1, 1], [0, 0]])),
            ValueError,
            r"data\[0\]: row 1 is all padding",
        ),
        (
            tensor([[5, 6], [5, 40]]),
            ValueError,
            r"data\[1\]: token id 40 at index \[1\] is outside .* between 0 and 39",
        ),
        (
            bad(tensor([[5, 6, -100]]), tensor([[1, 1, 0]])),
            ValueError,
            r"token id -100 at index \[0, 2\] .* padded",
        ),
        (torch.full((2, 60), 5), ValueError, r"\(60,\) are longer than n_ctx=50; pass n_ctx=60"),
        (torch.full((120,), 5), ValueError, "longer than the model's context of 100 tokens"),
        (tensor([[5, 6, 0, 0]]), ValueError, "ends with 2 padding tokens .id 0., but no mask"),
        (
            bad(tensor([[0, 0, 0, 6, 7]])),
            ValueError,
            r"data\[0\]: a row .* begins or ends with 3 padding",
        ),
    ],
)
def test_bad_data(data: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        list(BatchStream(data, MODEL, n_ctx=50))


@pytest.mark.parametrize(
    ("data", "words"), [(3, "of type int"), (None, "None"), (b"ab", "of type bytes")]
)
def test_data_of_another_kind(data: Any, words: str) -> None:
    with pytest.raises(TypeError, match=f"data must be text, token ids or .* got {words}"):
        list(read_items(data))


def test_padding_tokens_with_a_mask_are_believed() -> None:
    tokens: Tensor = tensor([[5, 6, 0, 0]])
    assert rows(token_batches((tokens, torch.ones_like(tokens)), MODEL)) == {0: [5, 6, 0, 0]}


def test_a_single_padding_token_is_real_but_noted() -> None:
    stream = token_batches(tensor([[5, 6, 0], [7, 8, 0]]), MODEL, n_ctx=50)
    assert rows(stream)[0] == [5, 6, 0]
    assert len(stream.warnings) == 1
    assert "without a mask it counts as a real token" in stream.warnings[0]


def test_a_padding_token_that_is_also_bos_may_open_a_row() -> None:
    model = letters_model()
    model.tokenizer.pad_token_id = BOS
    stream = token_batches(tensor([[BOS, 6, 7]]), model, n_ctx=50)
    assert rows(stream) == {0: [BOS, 6, 7]}
    assert stream.warnings == []


def test_a_data_loader(tiny_tokenizer: Any) -> None:
    from torch.utils.data import DataLoader, TensorDataset

    ids = torch.arange(3, 27).reshape(6, 4)
    loader = DataLoader(TensorDataset(ids, torch.ones_like(ids)), batch_size=4)
    assert [b.documents for b in token_batches(loader, MODEL)] == [(0, 1, 2, 3), (4, 5)]
    encoding = tiny_tokenizer(["the cat sat", "a dog"], padding=True, return_tensors="pt")
    model = SimpleNamespace(tokenizer=tiny_tokenizer, cfg=SimpleNamespace(n_ctx=64, d_vocab=50))
    (batch,) = list(token_batches(encoding, model))
    assert torch.equal(batch.tokens, encoding["input_ids"])
    assert batch.attention_mask.sum(1).tolist() == [4, 3]


@pytest.mark.hooked
def test_on_a_hooked_transformer(tiny_hooked: Any, tiny_tokenizer: Any) -> None:
    _as_to_tokens(tiny_hooked(tokenizer=tiny_tokenizer))


@pytest.mark.bridge
def test_on_a_transformer_bridge(tiny_bridge: Any, tiny_tokenizer: Any) -> None:
    _as_to_tokens(tiny_bridge(tokenizer=tiny_tokenizer))


def _as_to_tokens(model: Any) -> None:
    texts = ["the cat sat on the mat", "a dog ran"]
    found = rows(token_batches(texts, model))
    assert found == {i: model.to_tokens(text)[0].tolist() for i, text in enumerate(texts)}
    long = token_batches("the cat sat " * 60, model)
    assert long.n_ctx == 64
    for batch in long:
        logits = model(batch.tokens, attention_mask=batch.attention_mask.to(torch.int64))
        assert logits.shape[:2] == batch.tokens.shape


def test_half_a_surrogate_pair_is_shown() -> None:
    with pytest.raises(ValueError, match="half a surrogate pair at character 3"):
        list(token_batches(["abc", "abc\ud800"], letters_model()))
