"""Accuracy by the evaluation harness, against answers scored one at a time without padding."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from analysis_data.reference import plain_package
from evaluation_data.reference import left_over_hooks, pair_losses, zero_heads
from zoo.architectures import build_bridge

from tl_geometry import load, save
from tl_geometry.ablations import mask_entries, zero_sink_values
from tl_geometry.data import Batch
from tl_geometry.evaluation import harness
from tl_geometry.evaluation.downstream import downstream
from tl_geometry.measures.importances import IMPORTANCES

pytest.importorskip("lm_eval", reason="lm_eval is an optional extra")

DATA = Path(__file__).parent / "data"
QUESTIONS = [
    ("the cat sat on", ["the mat", "a hill", "old fox"], 0),
    ("a dog ran over the hill and", ["then", "quick brown", "was lazy in Paris"], 1),
    ("Paris is", ["the capital of France", "a dog", "flew"], 0),
    ("one", ["two", "three", "garden"], 2),
    ("the old house by the river was new and", ["quick", "lazy", "brown"], 1),
    ("it was", ["under the tree with a bird", "over", "in it"], 2),
]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: {kind}
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: {metric}
    aggregation: mean
    higher_is_better: true
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def tasks(tmp_path):
    """A directory with two tasks over halves of the questions, and a group of both."""
    directory = tmp_path / "tasks"
    directory.mkdir()
    for name, some in (("first", QUESTIONS[:4]), ("second", QUESTIONS[4:])):
        file = directory / f"{name}.jsonl"
        rows = [dict(zip(("question", "choices", "answer"), row, strict=True)) for row in some]
        file.write_text("\n".join(json.dumps(row) for row in rows))
        add_task(directory, name, file)
    group = "group: both\ntask: [first, second]\naggregate_metric_list:\n  - metric: acc\n    weight_by_size: true\n"
    (directory / "both.yaml").write_text(group)
    return directory


def add_task(directory, name, file, kind="multiple_choice", metric="acc"):
    text = TASK.format(name=name, file=file, kind=kind, metric=metric)
    (directory / f"{name}.yaml").write_text(text)


@pytest.fixture
def build(backend, request, tiny_tokenizer):
    factory = request.getfixturevalue(f"tiny_{backend}")
    return lambda **options: factory(tokenizer=tiny_tokenizer, **options)


@pytest.fixture
def model(build):
    return build()


def run(model, tasks, names="first", importances=None, **options):
    return downstream(
        model, names, importances=importances, include_path=tasks, progress=False, **options
    )


def answer_scores(model, question, choices, hooks=None, bos=True):
    """Log-probability of each answer, each in a forward of its own."""
    found = []
    opening = [1] if bos else []
    prompt = opening + model.tokenizer(question, add_special_tokens=False)["input_ids"]
    for choice in choices:
        answer = model.tokenizer(" " + choice, add_special_tokens=False)["input_ids"]
        ids = torch.tensor([prompt + answer])
        read = ids[:, :-1]
        made = [] if hooks is None else hooks(torch.ones_like(read).bool())
        with torch.no_grad():
            logits = model.run_with_hooks(read, return_type="logits", fwd_hooks=made)
        padded = torch.cat([logits[0], logits[0, -1:]])
        found.append(-math.fsum(pair_losses(padded, ids[0].tolist())[len(prompt) - 1 :]))
    return found


def accuracy(model, questions, hooks=None, bos=True):
    right = [
        int(np.argmax(answer_scores(model, text, choices, hooks, bos)) == answer)
        for text, choices, answer in questions
    ]
    return sum(right) / len(right)


def with_known_answers(model, tasks, hooks=None, wrong=1):
    """Rewrite the answers so that the model is right about all but so many of the first questions."""
    rows = []
    for number, (text, choices, _) in enumerate(QUESTIONS[:4]):
        best = int(np.argmax(answer_scores(model, text, choices, hooks)))
        answer = (best + 1) % 3 if number < wrong else best
        rows.append({"question": text, "choices": choices, "answer": answer})
    (tasks / "first.jsonl").write_text("\n".join(json.dumps(row) for row in rows))


@pytest.mark.parametrize("wrong", [0, 1, 3])
def test_a_known_accuracy_is_found(model, tasks, wrong):
    with_known_answers(model, tasks, wrong=wrong)
    ds = run(model, tasks)
    share = 1 - wrong / 4
    assert ds.accuracy.dims == ("task", "variant")
    assert float(ds.accuracy.sel(task="first", variant="full")) == share
    error = math.sqrt(share * (1 - share) / 3)
    assert float(ds.accuracy_se.sel(task="first", variant="full")) == pytest.approx(error)
    assert int(ds.questions.sel(task="first")) == 4


def test_every_importance_masks_by_default(model, tasks):
    ds = downstream(model, "first", include_path=tasks, limit=2, progress=False)
    ends = [f"{name} {end}" for name in IMPORTANCES for end in ("top", "bottom")]
    assert ds.variant.values.tolist() == ["full", *ends]
    assert list(ds.attrs["settings"]["importances"]) == list(IMPORTANCES)
    assert ds.accuracy.notnull().all()


@pytest.mark.bridge
def test_a_model_that_can_not_be_masked_is_told_the_way_out(model, tasks):
    opt = build_bridge("opt")
    opt.tokenizer = model.tokenizer
    with pytest.raises(ValueError, match="give importances=None"):
        downstream(opt, "first", include_path=tasks, progress=False)


def heads_out(batch):
    return zero_heads([(0, 1), (1, 0), (1, 2)])


@pytest.mark.parametrize("size", [1, 5])
def test_hooks_are_active(model, tasks, size):
    """Answers are chosen so that the edited model is right and the whole model mostly is not."""
    with_known_answers(model, tasks, heads_out, wrong=0)
    rows = [json.loads(line) for line in (tasks / "first.jsonl").read_text().splitlines()]
    questions = [tuple(row.values()) for row in rows]
    batches = []

    def hooks(batch):
        batches.append(batch)
        return heads_out(batch)

    ds = run(model, tasks, hooks=hooks, batch_size=size).squeeze("task")
    assert ds.variant.values.tolist() == ["full", "hooks"]
    assert float(ds.accuracy.sel(variant="hooks")) == 1.0
    assert float(ds.accuracy.sel(variant="full")) == accuracy(model, questions)
    assert all(isinstance(batch, Batch) for batch in batches)
    # Of twelve answers three are one word to the same question: they are read off one row.
    assert sorted(row for batch in batches for row in batch.documents) == list(range(10))
    assert all(batch.tokens.shape == batch.attention_mask.shape for batch in batches)
    assert all(len(batch.tokens) == len(batch.documents) <= size for batch in batches)
    if size == 5:
        assert any(not batch.attention_mask.all() for batch in batches)  # rows of unequal length
    ready = run(model, tasks, hooks=heads_out(None)).squeeze("task")
    assert float(ready.accuracy.sel(variant="hooks")) == 1.0


def test_padding_changes_no_score(model, tasks):
    """Log-likelihoods of a padded batch equal those of each answer alone."""
    from lm_eval.api.instance import Instance

    from tl_geometry.evaluation import Checkpoint
    from tl_geometry.evaluation.harness import HookedLM

    done = Checkpoint(None, {})
    lm = HookedLM(
        model, "full", lambda batch: [], batch_size=4, n_ctx=64, bos=1, done=done, progress=False
    )
    requests, expected = [], []
    for text, choices, _ in QUESTIONS:
        expected += answer_scores(model, text, choices)
        requests += [Instance("loglikelihood", {}, (text, f" {choice}"), 0) for choice in choices]
    with torch.no_grad():
        found = lm.loglikelihood(requests)
    np.testing.assert_allclose([score for score, _ in found], expected, atol=2e-4, rtol=2e-5)
    assert {type(greedy) for _, greedy in found} == {bool}


def test_greedy_answers_are_recognised(model):
    from lm_eval.api.instance import Instance

    from tl_geometry.evaluation import Checkpoint
    from tl_geometry.evaluation.harness import HookedLM

    prompt = torch.tensor([[1, *model.tokenizer("the cat", add_special_tokens=False)["input_ids"]]])
    with torch.no_grad():
        first = int(model(prompt)[0, -1].argmax())
        second = int(model(torch.cat([prompt, torch.tensor([[first]])], 1))[0, -1].argmax())
    words = model.tokenizer.convert_ids_to_tokens([first, second])
    other = "fox" if words[1] != "fox" else "hill"
    lm = HookedLM(
        model, "full", lambda batch: [], batch_size=4, n_ctx=64, bos=1, done=Checkpoint(None, {})
    )
    requests = [
        Instance("loglikelihood", {}, ("the cat", f" {words[0]} {last}"), 0)
        for last in (words[1], other)
    ]
    with torch.no_grad():
        assert [greedy for _, greedy in lm.loglikelihood(requests)] == [True, False]


def test_importances_mask_from_both_ends(model, tasks):
    ds = run(model, tasks, names="both", importances=["attention", "contribution"], fraction=0.4)
    assert ds.variant.values.tolist() == [
        "full",
        "attention top",
        "attention bottom",
        "contribution top",
        "contribution bottom",
    ]
    for name in ("attention", "contribution"):
        for largest, end in ((True, "top"), (False, "bottom")):

            def hooks(mask, name=name, largest=largest):
                return mask_entries(
                    model, importance=name, fraction=0.4, largest=largest, attention_mask=mask
                )

            found = float(ds.accuracy.sel(variant=f"{name} {end}").squeeze())
            assert found == pytest.approx(accuracy(model, QUESTIONS, hooks))


def test_importances_of_your_own_and_the_random_one(model, tasks):
    seen = []

    def mine(geometry):
        seen.append(geometry.pattern.shape)
        return geometry.pattern

    ds = run(model, tasks, importances={"mine": mine, "random": "random"}, fraction=0.4)
    assert ds.variant.values.tolist()[1::2] == ["mine top", "random top"]
    assert seen
    own = run(model, tasks, importances=["attention"], fraction=0.4)
    assert float(own.accuracy.sel(variant="attention top").squeeze()) == float(
        ds.accuracy.sel(variant="mine top").squeeze()
    )


def test_groups_have_the_mean_of_their_tasks(model, tasks):
    ds = run(model, tasks, names=["both"])
    assert ds.task.values.tolist() == ["both"]
    assert int(ds.questions.squeeze()) == 6
    assert float(ds.accuracy.squeeze()) == pytest.approx(accuracy(model, QUESTIONS))
    parts = run(model, tasks, names=["first", "second"])
    shares = parts.accuracy.sel(variant="full").values
    assert float(ds.accuracy.squeeze()) == pytest.approx((4 * shares[0] + 2 * shares[1]) / 6)


def test_bos_and_limit(model, tasks):
    ds = run(model, tasks, limit=3, prepend_bos=False)
    assert float(ds.accuracy.squeeze()) == accuracy(model, QUESTIONS[:3], bos=False)
    assert int(ds.questions.squeeze()) == 3
    assert ds.attrs["prepend_bos"] is False
    assert run(model, tasks).attrs["prepend_bos"] is True


def test_long_rows_keep_bos_and_their_end(model, tasks):
    ds = run(model, tasks, n_ctx=6)
    assert ds.attrs["truncated_rows"] == 3
    questions = []
    for text, choices, answer in QUESTIONS[:4]:
        longest = {choice: len(choice.split()) for choice in choices}
        kept = [" ".join(text.split()[-(5 - longest[c] + 1) :]) for c in choices]
        scores = [answer_scores(model, t, [c])[0] for t, c in zip(kept, choices, strict=True)]
        questions.append(int(np.argmax(scores)) == answer)
    assert float(ds.accuracy.squeeze()) == sum(questions) / 4
    with pytest.raises(ValueError, match="n_ctx=3 is too short for an answer of 4 tokens"):
        run(model, tasks, n_ctx=3)


def test_resuming_runs_nothing_twice(model, tasks, tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    forward, calls = harness.forward_logits, []

    def interrupted(model, batch, hooks):
        calls.append((len(hooks), tuple(batch.tokens.shape)))
        if len(calls) == 5:
            raise RuntimeError("the power went")
        return forward(model, batch, hooks)

    whole = run(model, tasks, hooks=heads_out, batch_size=4)
    monkeypatch.setattr(harness, "forward_logits", interrupted)
    with pytest.raises(RuntimeError, match="the power went"):
        run(model, tasks, hooks=heads_out, batch_size=4, checkpoint=path)
    assert left_over_hooks(model) == 0
    resumed = run(model, tasks, hooks=heads_out, batch_size=4, checkpoint=path, resume=True)
    assert calls[5] == calls[4]  # the batch that failed is the first that runs again
    assert resumed.assign_attrs(created="").identical(whole.assign_attrs(created=""))
    after = len(calls)
    run(model, tasks, hooks=heads_out, batch_size=4, checkpoint=path, resume=True)
    assert len(calls) == after
    for options, said in (
        ({"hooks": heads_out, "limit": 2}, r"settings\.limit was null, now 2"),
        ({"hooks": lambda batch: []}, r"settings\.hooks was heads_out \w+, now .*<lambda>"),
        ({}, r"settings\.hooks was heads_out \w+, now null"),
    ):
        with pytest.raises(ValueError, match=said):
            run(model, tasks, batch_size=4, checkpoint=path, resume=True, **options)
    assert len(calls) == after


def test_a_checkpoint_and_functions(model, tasks, tmp_path):
    """The model is known to it; ready hooks of an ablation have a state of their own."""

    def hooks(batch):
        return zero_sink_values(model, attention_mask=batch.attention_mask)

    path = tmp_path / "run.json"
    ds = run(model, tasks, hooks=hooks, checkpoint=path)
    again = run(model, tasks, hooks=hooks, checkpoint=path, resume=True)
    assert again.assign_attrs(created="").identical(ds.assign_attrs(created=""))
    other = tmp_path / "other.json"
    ready = zero_sink_values(model)
    with pytest.raises(
        ValueError, match=r"checkpoint: hooks\[0\] can't be told .* function of the"
    ):
        run(model, tasks, hooks=ready, checkpoint=other)
    found = run(model, tasks, hooks=ready)
    np.testing.assert_array_equal(found.accuracy, ds.accuracy)
    of_mine = {"fraction": 0.4, "checkpoint": other}
    run(model, tasks, importances={"mine": lambda g: g.pattern}, **of_mine)
    with pytest.raises(ValueError, match=r"settings\.importances\.mine was"):
        run(model, tasks, importances={"mine": lambda g: -g.pattern}, resume=True, **of_mine)


def test_nan_names_the_variant(model, tasks):
    def broken(z, hook):
        return torch.full_like(z, torch.nan)

    with pytest.raises(ValueError, match="variant 'hooks' gives NaN"):
        run(model, tasks, hooks=[("blocks.1.attn.hook_z", broken)])
    assert left_over_hooks(model) == 0


def test_the_result_can_be_stored(model, tasks, tmp_path):
    ds = run(model, tasks)
    assert load(save(ds, tmp_path / "run.nc")).identical(ds)
    assert ds.attrs["settings"]["tasks"] == ["first"]
    assert ds.attrs["settings"]["lm_eval"]


def test_tasks_that_generate_are_refused(model, tasks):
    add_task(tasks, "writes", tasks / "first.jsonl", kind="generate_until", metric="exact_match")
    with pytest.raises(NotImplementedError, match="generate_until was asked for"):
        run(model, tasks, names="writes")


def test_tasks_without_accuracy_are_refused(model, tasks):
    add_task(tasks, "norms", tasks / "first.jsonl", metric="acc_norm")
    with pytest.raises(ValueError, match=r"'norms' has no accuracy \(acc\) but \['acc_norm'"):
        run(model, tasks, names="norms")


def test_without_lm_eval_the_message_says_what_to_install(model, tasks, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(ImportError, match=r'pip install "tl-geometry\[eval\]"'):
        run(model, tasks)


@pytest.mark.slow
@pytest.mark.hooked
def test_tasks_that_are_unknown_or_out_of_reach(tiny_hooked, tiny_tokenizer):
    model = tiny_hooked(tokenizer=tiny_tokenizer)
    with pytest.raises(ValueError, match="lm_eval knows no 'nonsense'"):
        downstream(model, ["boolq", "nonsense"], progress=False)
    with pytest.raises(ConnectionError, match=r"boolq can't be reached.*include_path="):
        downstream(model, "boolq", progress=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tasks": []}, "tasks is empty"),
        ({"include_path": "nowhere"}, "no directory nowhere"),
        ({"fraction": 1.5}, "fraction"),
        ({"scope": "word"}, "scope"),
        ({"mode": "outer"}, "mode"),
        ({"importances": ["size"]}, r"importances must be one or more of .*got \['size'\]"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"n_ctx": 100}, "n_ctx=100 is more than the model's context of 64"),
    ],
)
def test_refusals(tiny_hooked, tiny_tokenizer, tasks, options, words):
    with plain_package():
        from tl_geometry.evaluation.downstream import downstream as plain

        with pytest.raises(ValueError, match=words):
            plain(
                tiny_hooked(tokenizer=tiny_tokenizer),
                **{"tasks": "first", "include_path": tasks, "progress": False, **options},
            )


def test_a_model_without_a_tokenizer_is_refused(tiny_model, tasks):
    with pytest.raises(ValueError, match="no tokenizer"):
        run(tiny_model, tasks)


@pytest.mark.smollm2
@pytest.mark.slow
@pytest.mark.hooked
def test_smollm2_knows_facts_until_what_contributes_is_removed(smollm2_hooked, tmp_path):
    """Four answers to each of 32 questions: chance is 0.25, 0.5 is three standard errors above it."""
    text = (DATA / "facts.yaml").read_text()
    (tmp_path / "facts.yaml").write_text(text.replace("DATA_FILE", str(DATA / "facts.jsonl")))
    ds = downstream(
        smollm2_hooked,
        "local_facts",
        include_path=tmp_path,
        importances=["contribution"],
        fraction=0.5,
        progress=False,
    )
    found = {name: float(ds.accuracy.sel(variant=name).squeeze()) for name in ds.variant.values}
    assert found["full"] > 0.65
    assert found["contribution bottom"] > 0.65
    assert found["contribution top"] < 0.5


def test_the_users_hooks_and_random_numbers_stay(model, tasks):
    calls = []

    def count(x, hook):
        calls.append(1)
        if len(calls) == stop:
            raise KeyboardInterrupt

    stop = 0
    model.add_hook("blocks.0.hook_resid_pre", count, is_permanent=True)
    hooks, weights = left_over_hooks(model), [p.detach().clone() for p in model.parameters()]
    torch_state, numpy_state = torch.random.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    run(model, tasks, limit=2)
    assert calls
    stop = len(calls) + 1
    with pytest.raises(KeyboardInterrupt):
        run(model, tasks, limit=2)
    assert left_over_hooks(model) == hooks == 1
    assert torch.equal(torch.random.get_rng_state(), torch_state)
    assert str(np.random.get_state()) == numpy_state  # noqa: NPY002
    for parameter, before in zip(model.parameters(), weights, strict=True):
        assert torch.equal(parameter, before)
