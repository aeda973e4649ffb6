"""Plans: read from files and dictionaries, refused before anything runs, extended and never mixed."""

import pytest

from hf_posenc.comparison import read_plan
from hf_posenc.comparison.probes import PROBES
from hf_posenc.errors import UserError
from tests.support.comparison import TOY, toy


def test_a_yaml_file_is_the_same_as_its_fields(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "about: mine\ntasks: [probes, halves, {data: cola, metric: matthews_correlation}]\n"
        "groups: {order: [probes]}\nschemes: [none, rope]\nseeds: 2\nreference: rope\ntest_lengths: [64, 128]\n"
    )
    plan = read_plan(tmp_path / "mine.yaml", seeds=[4, 7])
    assert [(task.name, task.data, task.metric) for task in plan.tasks] == [
        ("probes", "probes", "accuracy"),
        ("halves", "halves", "accuracy"),
        ("cola", "cola", "matthews_correlation"),
    ]
    assert (plan.seeds, plan.references, plan.train_length) == ((4, 7), ("rope",), 64)
    assert (plan.tested_groups, plan.lengths) == ({"order": ("probes",)}, (64, 128))
    assert read_plan(plan.to_dict()) == plan
    assert [run.name for run in plan.runs()][:3] == ["probes-none-seed4", "probes-rope-seed4", "halves-none-seed4"]
    assert len(plan.runs()) == 2 * 3 * 2


def test_tasks_without_groups_are_one_of_each_metric():
    def groups(*tasks):
        return read_plan({"tasks": list(tasks), "schemes": ["rope", "none"]}).tested_groups

    cola = {"data": "cola", "metric": "matthews_correlation"}
    assert groups("trec", "halves") == {"trec": ("trec",)}
    assert groups("trec", "sst2") == {"all tasks": ("trec", "sst2")}
    assert groups("trec", "sst2", cola) == {"accuracy": ("trec", "sst2"), "cola": ("cola",)}


def test_each_scheme_is_compared_with_none_and_with_rope():
    assert toy(schemes=["t5", "none", "rope"]).references == ("none", "rope")
    assert toy(schemes=["t5", "learned"]).references == ("t5",)
    assert toy(schemes=["t5", "none"], reference="t5").references == ("t5",)
    assert read_plan("practitioner_pretrained", checked=False).references == ("learned", "rope")


def test_plans_that_come_along_are_plans():
    names = {"practitioner_1000", "practitioner_3000", "practitioner_pretrained"}
    with pytest.raises(
        UserError, match="one: practitioner_1000, practitioner_3000, practitioner_pretrained, probes, quick"
    ):
        read_plan("slow")
    for name in ("quick", "probes", *names):
        plan = read_plan(name, checked=name != "practitioner_pretrained")  # whose checkpoints aren't here
        assert len(plan.seeds) >= 2 or name == "quick"  # the quick start ranks nothing
        pinned = plan.options.keys() | plan.options["set"].keys()
        assert {"learning_rate", "schedule", "batch_size"} <= pinned  # numbers stay true when defaults move
        assert plan.until_flat or all("epochs" in plan.options_of(task) for task in plan.tasks)
    assert {name for task in read_plan("probes").tasks for name in task.probes or PROBES} == set(PROBES)


def test_a_tasks_own_values_go_before_the_plans():
    options = {"max_steps": 3, "set": {"max_position_embeddings": 40}}
    plan = toy(tasks=["halves", {"data": "halves", "name": "own", "train_examples": 8, "options": options}])
    first, own = plan.tasks
    assert (plan.train_examples_of(first), plan.train_examples_of(own)) == (64, 8)
    assert "max_steps" not in plan.options_of(first)
    assert plan.options_of(own)["max_steps"] == 3
    fields = plan.options_of(own)["set"]
    assert (fields["max_position_embeddings"], fields["classifier_pooling"], fields["hidden_size"]) == (40, "cls", 32)


def test_options_beside_a_plan_leave_its_others():
    pinned = read_plan("quick").options
    assert pinned
    assert read_plan("quick", options={"epochs": 1}).options == {**pinned, "epochs": 1}
    fields = read_plan("quick", options={"set": {"hidden_dropout_prob": 0.1}}).options["set"]
    assert fields == {**pinned["set"], "hidden_dropout_prob": 0.1}
    assert len(fields) > 1


def test_a_runs_length_is_that_of_the_last_who_says_it():
    plan = read_plan("quick", options={"max_steps": 10})
    assert ("epochs" in plan.options, plan.options["max_steps"]) == (False, 10)
    own = {"data": "halves", "name": "own", "options": {"epochs": 2}}
    plan = toy(tasks=[own], options={"max_steps": 3})
    chosen = plan.options_of(plan.tasks[0])
    assert (chosen["epochs"], "max_steps" in chosen) == (2, False)


def test_an_encoder_learns_by_the_defaults_of_train():
    """A comparison measures what a user gets: nothing that a model learns by is set, unless the plan says so."""
    own = {"eval_strategy", "save_strategy", "save_steps", "save_total_limit", "logging_strategy", "logging_steps"}
    plan = toy(tasks=["mine.csv"], options={}, train_examples=None)
    options = plan.options_of(plan.tasks[0])
    assert options.keys() == {"max_length", "validation_share", "bf16", "size", "set"}
    assert options["set"].keys() == own | {"max_position_embeddings"}


def test_data_is_found_where_the_variable_says(tmp_path, monkeypatch):
    def found(data):
        plan = toy(tasks=[data])
        return plan.data_options(plan.tasks[0]).data

    (tmp_path / "cola").mkdir()
    monkeypatch.delenv("HF_POSENC_DATA", raising=False)
    assert found("cola") == "cola"
    monkeypatch.setenv("HF_POSENC_DATA", str(tmp_path))
    assert found("cola") == str(tmp_path / "cola")
    assert found("blimp_order") == "blimp_order"
    assert found(str(tmp_path)) == str(tmp_path)


_COLA = {"data": "x", "metric": "matthews_correlation"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tasks": []}, "There are no tasks. Give data, or tasks: [...] in a plan"),
        ({"schemes": None}, "There are no schemes"),
        ({"options": None}, "The plan has options: None. Field"),
        ({"seeds": 1.5}, "The plan has seeds: 1.5. Field"),
        ({"seeds": True}, "seeds=True is out of range"),
        ({"tasks": [{"data": "probes", "probes": ["parity"] * 2}]}, "probes of 'probes' 'parity' stands twice"),
        ({"tasks": [{"data": "probes", "metric": "matthews_correlation"}]}, "is generated: its metric is accuracy"),
        (
            {"search": [1, 2000], "options": {"learning_rate": 0.001}},
            "2000 times the learning rate 0.001 is out of range. Give a number from 0",
        ),
        ({"until_flat": {"every": 0}}, "The plan's until_flat's every 0 is out of range. Give a whole number from 1"),
        (
            {"until_flat": {"most": 9}},
            "before 1000 steps (least), and all after 9 (most). Lower least, or raise most",
        ),
        ({"until_flat": {"cap": 9}}, "The plan's until_flat has a field 'cap', which doesn't exist"),
        ({"shemes": ["rope"]}, "'shemes', which doesn't exist. Did you mean 'schemes'?"),
        ({"tasks": [{"data": "probes", "probs": []}]}, "A task has a field 'probs' ... Did you mean 'probes'"),
        ({"tasks": [{"metric": "accuracy"}]}, "names no data"),
        ({"groups": {"a": ["sst2"]}}, "group 'a' names 'sst2', which isn't among probes"),
        ({"groups": {"a": ["probes", "x"]}, "tasks": ["probes", _COLA]}, "'a' has tasks with different metrics"),
        ({"threads": 0}, "threads 0 is out of range. Give a whole number from 1"),
        ({"tasks": [3]}, "task 3 names no data. Give a name, or fields"),
        ({"tasks": ["halves", "halves"]}, "Two tasks of the plan have one name. Give one of them a name: of its own"),
        (
            {"tasks": [{"data": f"/{n}/x.csv", "name": n} for n in "ab"]},
            "different data of one name, which a folder of",
        ),
        ({"tasks": [{"data": "halves", "name": "a-b"}]}, "'a-b' can't name a file"),
        ({"tasks": [{"data": "x", "metric": "f1"}]}, "A task has metric: 'f1'. Field 'metric' expected one of"),
        ({"schemes": ["none+rope"]}, "adds nothing"),
        ({"reference": "t5"}, "reference names 't5', which isn't among none, rope"),
        ({"seeds": []}, "no seeds. Give one or more; intervals need two"),
        ({"seeds": [-1]}, "The plan's seeds -1 is out of range"),
        ({"train_length": 16}, "16 tokens of an input is out of range. Give a whole number from 32"),
        ({"test_lengths": [64, 48]}, "test_lengths [64, 48]"),
        ({"search": [0, 1]}, "search 0 is out of range. Give a positive number"),
        ({"search": [1, 2], "seeds": [1_000_000]}, "is the one that search chooses on. Report others"),
        ({"train_examples": 1}, "train_examples 1 is out of range. Give a whole number from 2"),
        ({"scheme_kwargs": {"t5": {}}}, "scheme_kwargs names 't5'"),
        ({"scheme_kwargs": {"rope": {"bucket": 3}}}, "'bucket'"),
        ({"groups": {"later": []}}, "The group 'later' has no tasks. Name some of probes, or leave it out"),
        ({"options": {"set": ["a"]}}, "The task 'probes', options: "),
        ({"options": {"seed": 3}}, "can't set 'seed'"),
        ({"options": {"learning_rate": 0, 1: None}}, "1: None}. Invalid key"),
        ({"options": {"learning_rate": "1e-3"}}, "the rate '1e-3' is a word. Write 0.001, or 1.0e-3 in YAML"),
        ({"seeds": 10**12}, "seeds=1000000000000 is out of range. Give a whole number from 1 to 10000"),
        ({"schemes": ["../none"], "reference": "../none"}, "'../none' can't name a file"),
        ({"size": "huge"}, "'huge' is unknown"),
        ({"pretrained": "checkpoint", "size": "base"}, "'base' is for new encoders, and pretrained='checkpoint' has"),
        ({"pretrained": "./{scheme}", "options": {}}, "There is no folder './none'"),
    ],
)
def test_what_could_not_run_is_refused_at_once(fields, message):
    with pytest.raises(UserError) as refused:
        read_plan({**TOY, **fields})
    assert all(part in str(refused.value) for part in message.split(" ... ")), str(refused.value)


@pytest.mark.parametrize("text", ["tasks: [", "- a\n", "\xff", "a: 2020-99-99", "[" * 500])
def test_a_file_that_is_no_plan_is_named(tmp_path, text):
    path = tmp_path / "bad.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match="bad.yaml.*(can't be read|Write fields)"):
        read_plan(path)


def test_plans_grow_and_are_not_mixed():
    old, new = toy(schemes=["none"], seeds=2), toy(schemes=["rope"], seeds=[5], tasks=["halves"])
    both = old.extended(new, "here")
    assert (both.schemes, both.seeds) == (("none", "rope"), (0, 1, 5))
    assert [task.name for task in both.tasks] == ["probes", "halves"]
    with pytest.raises(UserError, match="differs in train_length .32 there, 40 here."):
        old.extended(toy(train_length=40), "here")
    assert (both.references, old.extended(toy(reference="rope"), "here").references) == (("none", "rope"), ("rope",))
    stepped = toy(schemes=["none", "alibi"], scheme_kwargs={"alibi": {"learned": False}})
    assert read_plan(stepped.to_dict(), schemes=["none"]).scheme_kwargs == {}
    assert old.extended(stepped, "here").extended(new, "here").scheme_kwargs == stepped.scheme_kwargs
    with pytest.raises(UserError, match=r"differs in scheme_kwargs of alibi \(.*False.* there, None here"):
        stepped.extended(toy(schemes=["alibi"]), "here")
    with pytest.raises(UserError, match="differs in task .*order_near"):
        old.extended(toy(tasks=[{"data": "probes", "probes": ["order_near"]}]), "here")


def test_a_folder_of_the_same_name_hides_no_plan(tmp_path, monkeypatch):
    built_in = read_plan("quick")
    (tmp_path / "quick").mkdir()
    monkeypatch.chdir(tmp_path)
    assert read_plan("quick") == built_in


@pytest.mark.parametrize(
    ("data", "name"),
    [("my-reviews", "my_reviews"), ("SetFit/20-newsgroups", "20_newsgroups"), ("a b/c.d", "c.d"), (".", "my_data")],
)
def test_a_task_is_named_after_its_data(data, name, tmp_path, monkeypatch):
    (tmp_path / "my-data").mkdir()
    monkeypatch.chdir(tmp_path / "my-data")
    assert [task.name for task in toy(tasks=[{"data": data}]).tasks] == [name]
