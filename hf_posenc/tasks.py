"""The tasks of a model, by the Hub's names: the one table of heads, classes and Auto classes."""

TASKS = {
    "feature-extraction": "Model",
    "fill-mask": "ForMaskedLM",
    "text-classification": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
    "question-answering": "ForQuestionAnswering",
    "multiple-choice": "ForMultipleChoice",
}
"""Each task, and how the names of its classes end, here and in transformers."""

LABELLED = ("text-classification", "token-classification")
"""The tasks whose heads have a row for each label of the configuration."""

CLASSES = {f"PosEnc{ending}": task for task, ending in TASKS.items()}
"""Our class of each task, and the task."""


def task_of(model_class: str) -> str | None:
    """The task of a class, here or in transformers, by its name; None if it has none of these heads."""
    return next((task for task, ending in TASKS.items() if model_class.endswith(ending)), None)


def auto_class(task: str) -> str:
    """The name of the Auto class that loads a task's models."""
    return f"AutoModel{TASKS[task].removeprefix('Model')}"
