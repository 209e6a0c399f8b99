"""Public tasks from files of one's own, without the hub: `hedgerow evaluate --tasks piqa --data DIR`.

What DIR holds, as the tasks' authors publish it:

    piqa/valid.jsonl, piqa/valid-labels.lst            {"goal", "sol1", "sol2"}; a label a line
    arc/ARC-Easy-Test.jsonl, arc/ARC-Challenge-Test.jsonl   {"question": {"stem", "choices"}, "answerKey"}
    hellaswag/hellaswag_val.jsonl                      {"ctx_a", "ctx_b", "activity_label", "endings", "label"}
    winogrande/dev.jsonl                               {"sentence", "option1", "option2", "answer"}
    mmlu/test/<subject>_test.csv, mmlu/dev/<subject>_dev.csv   question, four choices, letter
    wikitext/wiki.test.raw, or wikitext/*.txt          text, whose perplexity is taken by word and byte

Prompts are those of lm-eval's tasks of the same name, so figures compare with published ones.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any, Callable

from common import UsageError

ACCURACY = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]
BOTH = [*ACCURACY, {"metric": "acc_norm", "aggregation": "mean", "higher_is_better": True}]


def lines_of(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; --data names the folder that holds it "
                         "(deploy/huggingface/README.md, \"Tasks\")") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start} is no UTF-8; get the file again") from None


def records_of(path: Path, keys: tuple[str, ...]) -> list[dict]:
    records = []
    for number, line in enumerate(lines_of(path), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            missing = [key for key in keys if key not in record]
        except (ValueError, TypeError):
            raise UsageError(f"{path}: line {number}: expected a JSON object with {', '.join(keys)}") from None
        if missing:
            raise UsageError(f"{path}: line {number}: '{missing[0]}' is missing; expected {', '.join(keys)}")
        records.append(record)
    if not records:
        raise UsageError(f"{path}: no record in it; get the file again")
    return records


def task(name: str, documents: list[dict], **more: Any) -> dict[str, Any]:
    import datasets
    return {"task": name, "test_split": "test", "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(documents)},
            "output_type": "multiple_choice", "metric_list": BOTH, "metadata": {"version": 1.0}, **more}


def piqa(data: Path) -> list[dict]:
    folder = data / "piqa"
    records = records_of(folder / "valid.jsonl", ("goal", "sol1", "sol2"))
    labels = [line.strip() for line in lines_of(folder / "valid-labels.lst") if line.strip()]
    if len(labels) != len(records):
        raise UsageError(f"{folder / 'valid-labels.lst'}: {len(labels)} labels, {len(records)} questions in valid.jsonl")
    documents = [{key: record[key] for key in ("goal", "sol1", "sol2")} | {"label": int(label)}
                 for record, label in zip(records, labels)]
    return [task("piqa", documents, doc_to_text="Question: {{goal}}\nAnswer:", doc_to_target="label",
                 doc_to_choice="{{[sol1, sol2]}}")]


def arc(data: Path, name: str, file: str) -> list[dict]:
    documents = []
    for record in records_of(data / "arc" / file, ("question", "answerKey")):
        choices = record["question"]["choices"]
        documents.append({"question": record["question"]["stem"], "choices": [choice["text"] for choice in choices],
                          "answer": [choice["label"] for choice in choices].index(record["answerKey"])})
    return [task(name, documents, doc_to_text="Question: {{question}}\nAnswer:", doc_to_target="answer",
                 doc_to_choice="{{choices}}")]


def clean(text: str) -> str:
    """Of HellaSwag's WikiHow records, as lm-eval cleans them."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def hellaswag(data: Path) -> list[dict]:
    keys = ("ctx_a", "ctx_b", "activity_label", "endings", "label")
    documents = [{"query": clean(f"{record['activity_label']}: {record['ctx_a']} {record['ctx_b'].capitalize()}"),
                  "choices": [clean(ending) for ending in record["endings"]], "label": int(record["label"])}
                 for record in records_of(data / "hellaswag" / "hellaswag_val.jsonl", keys)]
    return [task("hellaswag", documents, doc_to_text="{{query}}", doc_to_target="{{label}}", doc_to_choice="choices")]


def mmlu(data: Path) -> list[dict]:
    folder = data / "mmlu" / "test"
    files = sorted(folder.glob("*_test.csv"))
    if not files:
        raise UsageError(f"{folder}: no file *_test.csv; --data names the folder that holds mmlu/test and mmlu/dev")
    tasks = []
    for path in files:
        subject = path.name.removesuffix("_test.csv")
        examples = data / "mmlu" / "dev" / f"{subject}_dev.csv"
        documents, shots = csv_records(path), csv_records(examples)
        tasks.append(task(f"mmlu_{subject}", documents, metric_list=ACCURACY, fewshot_split="dev",
                          custom_dataset=splits(documents, shots), fewshot_config={"sampler": "first_n"},
                          description=f"The following are multiple choice questions (with answers) about "
                                      f"{subject.replace('_', ' ')}.\n\n",
                          doc_to_text="{{question.strip()}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\n"
                                      "D. {{choices[3]}}\nAnswer:",
                          doc_to_choice=["A", "B", "C", "D"], doc_to_target="answer"))
    return tasks


def splits(documents: list[dict], shots: list[dict]) -> Callable[..., dict]:
    import datasets
    return lambda **_: {"test": datasets.Dataset.from_list(documents), "dev": datasets.Dataset.from_list(shots)}


def csv_records(path: Path) -> list[dict]:
    records = []
    for number, row in enumerate(csv.reader(lines_of(path)), 1):
        if len(row) != 6 or row[5].strip() not in "ABCD":
            raise UsageError(f"{path}: record {number}: expected a question, four choices and a letter, found {len(row)} fields")
        records.append({"question": row[0], "choices": row[1:5], "answer": "ABCD".index(row[5].strip())})
    return records


def winogrande(data: Path) -> list[dict]:
    documents = [{"choices": [record["sentence"][:record["sentence"].index("_")] + record[option]
                              for option in ("option1", "option2")],
                  "rest": record["sentence"][record["sentence"].index("_") + 1:].strip(), "answer": int(record["answer"]) - 1}
                 for record in records_of(data / "winogrande" / "dev.jsonl", ("sentence", "option1", "option2", "answer"))]
    # Partial evaluation: the same end after each of the two beginnings.
    return [task("winogrande", documents, metric_list=ACCURACY, doc_to_text="answer", doc_to_target="rest",
                 doc_to_choice="choices")]


def wikitext(data: Path) -> list[dict]:
    folder = data / "wikitext"
    files = [path for path in (folder / "wiki.test.raw",) if path.exists()] or sorted(folder.glob("*.txt"))
    if not files:
        raise UsageError(f"{folder}: neither wiki.test.raw nor a .txt file; --data names the folder that holds wikitext/")
    documents = [{"page": page} for path in files for page in pages_of("\n".join(lines_of(path)))]
    import datasets
    return [{"task": "wikitext", "test_split": "test", "output_type": "loglikelihood_rolling", "doc_to_text": "",
             "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(documents)}, "doc_to_target": "{{page}}",
             "metric_list": [{"metric": metric} for metric in ("word_perplexity", "byte_perplexity", "bits_per_byte")],
             "metadata": {"version": 1.0}}]


def pages_of(text: str) -> list[str]:
    """WikiText's articles, which begin with " = Title = "; of another text all of it."""
    pages = re.split(r"(?m)^(?= = [^=].* = *$)", text)
    return [page for page in pages if page.strip()]


TASKS: dict[str, Callable[[Path], list[dict]]] = {
    "piqa": piqa,
    "arc_easy": lambda data: arc(data, "arc_easy", "ARC-Easy-Test.jsonl"),
    "arc_challenge": lambda data: arc(data, "arc_challenge", "ARC-Challenge-Test.jsonl"),
    "hellaswag": hellaswag,
    "winogrande": winogrande,
    "mmlu": mmlu,
    "wikitext": wikitext,
}
