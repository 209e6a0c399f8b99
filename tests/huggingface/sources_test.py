"""Data files as users of transformers, TRL and LLaMA-Factory have them: read as they mean them, or refused in one sentence.

Catches: a field that is dropped without a word, records learned as prose, a traceback for bad data, and a file that
look_at_source.py accepts and make_tokens.py refuses, or the other way round.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import support

sys.path.insert(0, str(support.HUGGINGFACE))
support.require("numpy", "tokenizers", "h5py", "xxhash")

import generated_records
import look_at_source
import reading
import source_shape
import sources
from common import UsageError


def render(messages, add_generation_prompt=False, tools=None):
    """A chat template that shows what it is given."""
    text = "" if tools is None else f"[tools {json.dumps(tools)}]"
    for message in messages:
        content = message.get("content", "-")
        content = content if isinstance(content, str) else "+".join(part["text"] for part in content)
        calls = "".join(f"(call {call['function']['name']} {call['function']['arguments']})" for call in
                        message.get("tool_calls", []))
        text += f"<{message['role']}>{content}{calls}\n"
    return text + ("<assistant>" if add_generation_prompt else "")


class Sources(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def write(self, name, data):
        path = self.root / name
        if not isinstance(data, (str, bytes)):
            data = "".join(json.dumps(record) + "\n" for record in data)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def read(self, data, format_="", template="", label_mask="all", name="data.jsonl", template_of_chat=render):
        """(documents, warnings): with no format, as it is recognized."""
        path = data if isinstance(data, Path) else self.write(name, data)
        if not format_:
            shape = source_shape.recognize(path)
            self.assertTrue(shape.format, shape)
            format_, template = shape.format, shape.template
        warnings = []
        source = sources.Source(path, format_, template, label_mask)
        found = list(sources.documents(source, template_of_chat, on_unused=lambda *said: warnings.append(said)))
        return found, warnings

    def texts(self, *args, **kw):
        return ["".join(document.pieces) for document in self.read(*args, **kw)[0]]

    def answers(self, *args, **kw):
        return [[document.pieces[piece][begin:end] for piece, begin, end in document.answers]
                for document in self.read(*args, label_mask="answer", **kw)[0]]

    def look(self, path, *options):
        out, err = io.StringIO(), io.StringIO()
        with mock.patch.object(sys, "argv", ["look_at_source.py", str(path), *map(str, options)]), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), self.assertRaises(SystemExit) as end:
            look_at_source.run_main(look_at_source.main)
        if end.exception.code:
            self.assertEqual((end.exception.code, err.getvalue().count("\n"), out.getvalue()), (2, 1, ""), err.getvalue())
            return err.getvalue()
        return json.loads(out.getvalue())

    def assert_refused(self, data, *words, name="data.jsonl", **kw):
        path = data if isinstance(data, Path) else self.write(name, data)
        with self.assertRaises(UsageError) as refused:
            self.read(path, **kw)
        for word in (path.name, *words):
            self.assertIn(word, str(refused.exception))
        self.assertNotIn("\n", str(refused.exception))

    def test_null_is_as_if_an_optional_field_were_missing(self):
        self.assertEqual(*(self.texts([{"instruction": "a", "output": "b", **more}]) for more in (
            {}, {"input": None, "system": None, "history": None})))

    def test_history_and_system_of_alpaca_stand_in_the_prompt(self):
        record = {"instruction": "now", "input": "", "output": "c", "system": "Be short.", "history": [["one", "two"]]}
        wanted = "### Instruction:\none\n\n### Response:\ntwo\n\n### Instruction:\nnow\n\n### Response:\nc"
        self.assertEqual(self.texts([record]), ["Be short.\n\n" + wanted])
        self.assertEqual(self.answers([record]), [["c"]])
        text = self.texts([{**record, "system": ""}])[0]
        self.assertTrue(text.startswith("Below is an instruction that describes a task. Write"), text)
        self.assertTrue(text.endswith(wanted), text)
        self.assert_refused([{**record, "history": [["one"]]}], "jsonl:1", "'history'", "[instruction, response]")

    def test_names_of_dolly_are_those_of_alpaca(self):
        dolly = [{"instruction": "a", "context": "x", "response": "b", "category": "qa"}]
        self.assertEqual(self.texts(dolly), self.texts([{"instruction": "a", "input": "x", "output": "b"}]))

    def test_prompts_and_completions_are_joined_and_the_completion_is_the_answer(self):
        self.assertEqual(self.texts([{"prompt": "1 +", "completion": " 1"}]), ["1 + 1"])
        self.assertEqual(self.answers([{"prompt": "1 +", "completion": " 1"}]), [[" 1"]])
        chat = [{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                            {"role": "user", "content": "c"}], "completion": [{"role": "assistant", "content": "d"}]}]
        self.assertEqual(self.texts(chat), ["<user>a\n<assistant>b\n<user>c\n<assistant>d\n"])
        self.assertEqual(self.answers(chat), [["d\n"]])
        turns = [[{"role": "assistant", "content": said}] for said in "bd"]
        self.assertEqual(self.answers([{"prompt": turns[0], "completion": turns[1], "system": "s"}]), [["d\n"]])

    def read_more(self, path, format_, **fields):
        return list(sources.documents(sources.Source(path, format_, "", **fields), render))

    def test_shots_make_one_document_of_so_many_records(self):
        data = self.write("data.jsonl", [{"instruction": f"i{n}", "input": "", "output": f"o{n}"} for n in range(5)])
        found = self.read_more(data, "records", label_mask="answer", shots=2)
        self.assertEqual(["".join(one.pieces) for one in found], ["i0\n\no0\n\ni1\n\no1", "i2\n\no2\n\ni3\n\no3", "i4\n\no4"])
        answers = [[one.pieces[piece][begin:end] for piece, begin, end in one.answers] for one in found]
        self.assertEqual(answers, [["o0", "o1"], ["o2", "o3"], ["o4"]])
        chats = self.write("chats.jsonl", [{"messages": [{"role": "user", "content": f"{n}"}]} for n in range(2)])
        self.assertEqual(["".join(one.pieces) for one in self.read_more(chats, "chat", label_mask="all", shots=2)],
                         ["<user>0\n<user>1\n"])

    def test_generated_records_are_those_of_the_file_and_none_of_a_task(self):
        path = self.write("keys.json", '{"samples": 3, "lengths": [100, 200], "seed": 7}')
        found = self.read_more(path, "passkey", label_mask="answer")
        self.assertEqual(found, self.read_more(path, "passkey", label_mask="answer"))
        self.assertEqual(len(found), 6)
        for document in found:
            [(piece, begin, end)] = document.answers
            key = document.pieces[piece][begin:end].strip()
            self.assertRegex(key, "^[0-9]{5}$")
            self.assertIn(f"The pass key is {key}.", document.pieces[0])
            self.assertTrue(document.pieces[0].endswith("The pass key is"))
        asked = {record["answer"] for record in generated_records.records("passkey", len, [100, 200], 20, 7)}
        self.assertFalse(asked & {document.pieces[1].strip() for document in found})
        for text, words in (("[]", "found list"), ('{"samples": 3, "length": [100]}', "the key 'length'"),
                            ('{"samples": 0, "lengths": [100]}', "samples: expected"),
                            ('{"samples": 1, "lengths": [9]}', "numbers of tokens from 64 on"), ("{", "expected JSON")):
            with self.subTest(text), self.assertRaisesRegex(UsageError, re.escape(words)):
                self.read_more(self.write("wrong.json", text), "passkey", label_mask="all")

    def test_turns_are_read_in_each_spelling(self):
        wanted = ["<user>a\n<assistant>b\n"]
        for key in reading.TURNS:
            for turns in ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                          [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
                          [{"from": None, "value": None, "role": "user", "content": "a"},
                           {"role": "assistant", "content": "b", "tool_calls": None}],
                          [{"role": "user", "content": [{"type": "text", "text": "a", "image": None}]},
                           {"role": "assistant", "content": [{"type": "text", "text": "b"}]}]):
                with self.subTest(key=key, turns=turns):
                    self.assertEqual(self.texts([{key: turns}]), wanted)
                    self.assertEqual(self.answers([{key: turns}]), [["b\n"]])
        self.assertEqual(self.texts([{"messages": None, "conversations": [{"from": "human", "value": "a"}]}]), ["<user>a\n"])

    def test_system_beside_turns_is_the_first_message(self):
        turns = [{"from": "human", "value": "a"}]
        self.assertEqual(self.texts([{"system": "s", "conversations": turns}]), ["<system>s\n<user>a\n"])
        self.assertEqual(self.texts([{"system": "", "conversations": turns}]), ["<user>a\n"])
        both = [{"from": "system", "value": "s"}, *turns]
        self.assertEqual(self.texts([{"system": "s", "conversations": both}]), ["<system>s\n<user>a\n"])
        self.assert_refused([{"system": "t", "conversations": both}], "jsonl:1", "'system'", "differ")

    def test_function_calls_of_sharegpt_are_the_tool_calls_of_transformers(self):
        call = json.dumps({"name": "f", "arguments": {"x": 1}})
        turns = [{"from": "human", "value": "a"}, {"from": "function_call", "value": call},
                 {"from": "observation", "value": "3"}, {"from": "gpt", "value": "b"}]
        record = {"conversations": turns, "tools": json.dumps([{"name": "f", "parameters": {}}])}
        tools = '[tools [{"type": "function", "function": {"name": "f", "parameters": {}}}]]'
        self.assertEqual(self.texts([record]), [tools + "<user>a\n<assistant>(call f {'x': 1})\n<tool>3\n<assistant>b\n"])
        self.assertEqual(self.read([record])[1], [])
        for value in ("{}", '{"arguments": {}}', '{"name": "f"}', "f(1)"):
            turns[1]["value"] = value
            self.assert_refused([record], "jsonl:1", "'conversations' 1", "'function_call'", "name")
        turns[1]["from"] = "narrator"
        self.assert_refused([record], "jsonl:1", "'narrator'", "human")

    def test_tools_and_calls_of_transformers_go_to_the_template_as_they_are(self):
        turn = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
        tools = [{"name": "f"}]
        for written in (tools, json.dumps(tools)):
            self.assertEqual(self.texts([{"messages": [turn], "tools": written}]),
                             ['[tools [{"name": "f"}]]<assistant>-(call f {})\n'])
        self.assertEqual(self.texts([{"messages": [{"role": "user", "content": "a"}], "tools": ""}]), ["<user>a\n"])
        self.assert_refused([{"messages": [turn], "tools": "{"}], "jsonl:1", "'tools'", "JSON")
        self.assert_refused([{"messages": [turn], "tools": ["f"]}], "jsonl:1", "'tools'", "list of objects")
        self.assert_refused([{"messages": [{"role": "assistant", "content": None}]}], "jsonl:1", "'content'", "string")

    def test_parts_that_are_no_text_or_that_a_template_would_print_are_refused(self):
        def only_strings(messages, add_generation_prompt=False):
            return "".join(str(message["content"]) for message in messages)

        image = [{"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]}]
        self.assert_refused(image, "jsonl:1", "'messages' 0", "'image'")
        text = [{"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}]
        self.assert_refused(text, "jsonl:1", "takes only strings", template_of_chat=only_strings)

    def test_a_template_that_rewrites_turns_or_fails_is_asked_no_more_than_it_must(self):
        def last_only(messages, add_generation_prompt=False):
            self.calls.append(len(messages))
            return "".join(f"<{m['role']}>{'<think>' if m is messages[-1] else ''}{m['content']}" for m in messages)

        def fails(messages, add_generation_prompt=False):
            raise UsageError("the template says:\nroles must alternate")

        self.calls = []
        chat = [{"messages": [{"role": role, "content": "a"} for role in ("user", "assistant") * 2]}]
        self.assertEqual(self.texts(chat, template_of_chat=last_only), ["<user>a<assistant>a<user>a<assistant><think>a"])
        self.assertEqual(self.calls, [4])
        self.assert_refused(chat, "jsonl:1", "rewrites earlier turns", label_mask="answer", template_of_chat=last_only)
        self.assert_refused(chat, "jsonl:1", "roles must alternate", template_of_chat=fails)

    def test_a_chat_that_no_answer_counts_of_is_named(self):
        chat = [{"messages": [{"role": "user", "content": "a"}]}] * 3
        _, warnings = self.read(chat, label_mask="answer")
        self.assertEqual([(field, "no turn of the assistant" in text) for field, text in warnings], [("", True)])

    def test_a_field_with_text_that_is_not_read_is_named_once(self):
        record = {"instruction": "a", "output": "b", "id": 7, "uuid": "0" * 36, "label": "short", "score": None,
                  "text": "### Instruction:\na\n\n### Response:\nb", "reasoning": "It follows from what was said."}
        path = self.write("a.jsonl", [record] * 3)
        _, warnings = self.read(path)
        self.assertEqual([field for field, _ in warnings], ["reasoning"])
        self.assertIn(f"{path}:1: the field 'reasoning'", warnings[0][1])
        self.assertEqual(self.look(path)["unused"], ["reasoning"])
        for field, value in (("system", "s"), ("history", [["a", "b"]])):
            _, warnings = self.read([{"instruction": "a", "output": "b", field: value}], "records")
            self.assertEqual([name for name, _ in warnings], [field])
        nested = {"messages": [{"role": "user", "content": "a"}], "chosen": [{"role": "user", "content": "words " * 9}]}
        self.assertEqual([field for field, _ in self.read([nested])[1]], ["chosen"])

    def test_a_wrapped_array_pretty_objects_and_lines_are_the_same_records(self):
        records = [{"text": f"a {i} \u00e4" * 9, "n": {"m": [i]}} for i in range(9)]
        wanted = [record["text"] for record in records]
        pretty = [json.dumps(record, indent=2) for record in records]
        for name, text in (("lines", "\r\n".join(map(json.dumps, records))), ("pretty", "\n".join(pretty)),
                           ("pretty, joined", "".join(pretty) + "\n\n"), ("array", json.dumps(records, indent=1)),
                           ("wrapped", json.dumps({"data": records})),
                           ("rows", json.dumps({"rows": records}, indent=1) + "\n")):
            for most in (30, 1 << 20):
                for read_bytes in (3, 1 << 20):
                    with self.subTest(name, most=most, read_bytes=read_bytes), \
                            mock.patch.object(reading, "FIRST_VALUE_CHARACTERS", most), \
                            mock.patch.object(reading, "READ_BYTES", read_bytes):
                        self.assertEqual(self.texts(text, "jsonl", "{text}"), wanted)
        self.assertEqual(self.texts('{"messages": [{"role": "user", "content": "a"}]}'), ["<user>a\n"])
        self.assertEqual(self.texts('{\n"text": "a"\n}'), ["a"])

    def test_a_broken_file_is_named_with_its_line_and_not_read_to_its_end(self):
        for text, word in (('{\n "text": "a"\n}\n{\n "text": oops\n}\n', "jsonl:5"), ('{"text": \n', "jsonl:"),
                           ('{"text": "a"}\n{"text": oops}\n', "jsonl:2"), ('{"data": [{"text": "a"}, 3]}', "record 1"),
                           ('{"text": oops}\n', "jsonl:1"), ("[" * 100000, "nested too deeply"),
                           ('{"text": ' + "[" * 100000, "nested too deeply"), ('{"text": "a"}\n' + "[" * 100000, "jsonl:2"),
                           ('{"text": "a", "n": ' + "9" * 5000 + "}", "digits")):
            with self.subTest(text[:40]):
                self.assert_refused(text, word, format_="jsonl", template="{text}")
        path = self.write("long.jsonl", '[{"text": oops},' + '{"text": "a"},\n' * 10000)
        read = []
        with mock.patch.object(reading, "READ_BYTES", 1 << 10), self.assertRaises(UsageError):
            list(reading.read_records(path, read.append))
        self.assertLess(max(read), 1 << 12)

    def test_columns_lists_of_strings_and_unknown_records_are_refused_with_advice(self):
        for name, text, words in (("pandas.json", '{"text": {"0": "a", "1": "b"}}', ("columns", "'text'", "to_json")),
                                  ("lists.json", '{"text": ["a", "b"], "n": [1, 2]}', ("columns", "'text', 'n'", "to_json")),
                                  ("strings.txt", '["a", "b"]', ("record 0", "a string", '{"text": "..."}')),
                                  ("nested.txt", '[["a"], ["b"', ("record 0", "a list")),
                                  ("cut.txt", '[{"text": "a"}, {"te', ("record 1", "not valid JSON")),
                                  ("qa.txt", '{"question": "a", "answer": "b"}\n', ("JSON records with 'question', 'answer'",
                                   "no format takes them as they are", "--template '{question} {answer}'", "--format")),
                                  ("turns.jsonl", '{"role": "user", "content": "a"}\n', ("'role', 'content'", "--template")),
                                  ("none.json", "[]", ("no record",)), ("empty.jsonl", "", ("empty",)),
                                  ("prose.json", "Once upon a time\n", ("not valid JSON",))):
            with self.subTest(name):
                refused = self.look(self.write(name, text))
                for word in (name, *words):
                    self.assertIn(word, refused)

    def test_records_are_never_plain_text_and_prose_with_brackets_is(self):
        for name, data, word in (("a.txt", '[{"text": "a"}]', '"jsonl"'), ("b.txt", '{"messages": []}\n', '"jsonl" with'),
                                 ("c.jsonl", '{"instruction": "a", "output": "b"}\n', '"alpaca"'),
                                 ("d.csv", "text,n\na,1\n", '"jsonl"'), ("e.txt", '{\n "text": "a"\n}', '"jsonl"'),
                                 ("f.txt", '["a", "b"]', "a string"), ("g.txt", '{"data": [{"text": "a"}]}', '"jsonl"'),
                                 ("numbers.txt", "[1, 2, 3, 4]\n[5, 6]\n", "expected a JSON object"),
                                 ("h.json.gz", gzip.compress(b'[{"text": "a"}]'), '"jsonl"'),
                                 ("i.json", "Once upon a time", "not valid JSON")):
            with self.subTest(name):
                self.assert_refused(data, word, name=name, format_="text")
                self.assertIn(word, self.look(self.write(name, data), "--format", "text"))
        for text in ("{see below} is no JSON, and [1] is none\n", "[1] a footnote\n", "[1]\nSmith et al.\n",
                     "[1, 2, 3, 4] showed it\n", "[Verse 1]\nLa\n",
                     '["Yes," she said]\n', '{"a": 1} is an object\n', "[", "{", "[]\n",
                     '"quoted"\n', '["Yes"] she said\n'):
            with self.subTest(text):
                self.assertEqual(self.texts(text, name="prose.txt"), [text])
                self.assertEqual(self.look(self.write("prose.txt", text))["format"], "text")

    def test_csv_is_read_by_its_first_line(self):
        path = self.write("a.csv", '\ufefftext,n\r\n"a, ""b""\r\nc",1\r\n\r\nd,2\r\n')
        self.assertEqual(self.texts(path), ['a, "b"\r\nc', "d"])
        self.assertEqual(self.look(path)["what"], 'CSV records with a "text"')
        self.assertEqual(self.texts("instruction\toutput\na\tb\n", "jsonl", "{instruction}{output}", name="a.tsv"), ["ab"])
        packed = self.write("a.csv.gz", gzip.compress(b"text\nrow\n"))
        self.assertEqual(self.texts(packed), ["row"])
        for text, *words in (("text,n\na\n", "csv:2", "expected 2 values", "found 1"),
                             ("text,n\n\na,b,c\n", "csv:3", "found 3"),
                             ("text;n\na;1\n", "separated by ';'"), ('text\n"a\n', "csv:2", "not valid CSV"),
                             ("text,text\na,b\n", "two columns", "'text'")):
            self.assert_refused(text, *words, name="bad.csv", format_="jsonl", template="{text}")

    def test_parquet_is_read_a_batch_at_a_time(self):
        support.require("pyarrow")
        import pyarrow
        from pyarrow import parquet

        path = self.root / "a.parquet"
        records = [{"messages": [{"role": "user", "content": f"a{i}"}, {"role": "assistant", "content": "b", "name": None}]}
                   for i in range(700)]
        parquet.write_table(pyarrow.Table.from_pylist(records), path, row_group_size=300)
        self.assertEqual(self.texts(path), [f"<user>a{i}\n<assistant>b\n" for i in range(700)])
        self.assertEqual(self.look(path)["what"], "chat messages")
        self.assert_refused(path, "chat", format_="text")
        calls = [{"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {name: 1}}}]}]}
                 for name in "xy"]
        parquet.write_table(pyarrow.Table.from_pylist(calls), path)
        self.assertEqual(self.texts(path), [f"<assistant>-(call f {{'{name}': 1}})\n" for name in "xy"])
        parquet.write_table(pyarrow.table({"text": ["a", None]}), path)
        self.assert_refused(path, "row 1", "'text'", "null", format_="jsonl", template="{text}")
        self.assert_refused(path.read_bytes()[:-9], "Parquet", name="cut.parquet", format_="jsonl", template="{text}")
        self.assert_refused(b"plain", "Parquet", name="no.parquet", format_="jsonl", template="{text}")

    def test_zstd_is_unpacked_frame_by_frame(self):
        support.require("zstandard")
        import zstandard

        lines = "".join(json.dumps({"text": f"row {i} of it"}) + "\n" for i in range(5000)).encode()
        packed = zstandard.compress(lines[:1000]) + zstandard.compress(lines[1000:])
        wanted = [f"row {i} of it" for i in range(5000)]
        with mock.patch.object(reading, "ZSTD_BYTES", 100):
            self.assertEqual(self.texts(packed, name="a.jsonl.zst"), wanted)
        self.assertEqual(self.texts(zstandard.compress(b"prose\n"), name="a.txt.zst"), ["prose\n"])
        for damaged in (packed[:-9], packed[:4] + b"\xff" * 30, b"plain"):
            self.assert_refused(damaged, "damaged zstd", name="bad.jsonl.zst", format_="jsonl", template="{text}")

    def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(self):
        for package, name in (("pyarrow", "a.parquet"), ("zstandard", "a.jsonl.zst")):
            path = self.write(name, b"data")
            with mock.patch.dict(sys.modules, {package: None, f"{package}.parquet": None}):
                for format_ in ("jsonl", "text"):
                    command = f"{sys.executable} -m pip install {package}"
                    self.assert_refused(path, command, format_=format_, template="{text}")
                    self.assertTrue(self.look(path).endswith(command + "\n"))

    def test_what_is_no_text_is_named_with_its_record_and_field(self):
        for value, found in ((1, "a number (1)"), (float("nan"), "NaN"), (None, "null"), (True, "true"), (["a"], "a list"),
                             ({"a": 1}, "an object"), ("\ud83d!", "\\ud83d"), ("a\0b", "NUL")):
            with self.subTest(found):
                record = {"instruction": "a", "output": value}
                good = {"instruction": "a", "output": "b"}
                self.assert_refused([good, record], "jsonl:2", "'output'", found, format_="alpaca")
                self.assert_refused([record], "jsonl:1", "'output'", found, format_="jsonl", template="{output}")
                self.assertIn("'output'", self.look(self.write("a.json", json.dumps([record]))))
                turn = {"role": "user", "content": value if value != ["a"] else 3}
                self.assert_refused([{"messages": [turn]}], "jsonl:1", "'messages' 0", "'content'", format_="chat")

    def test_bytes_that_are_no_utf8_text_are_named(self):
        text = "row of text\n"
        for data, word in ((text.encode("utf-16"), "UTF-16"), (text.encode("utf-16-be"), "NUL"),
                           (text.encode("utf-32"), "UTF-32"), (b"a\0b", "byte 1 is NUL"), (b"PK\x03\x04..", "zip"),
                           (b"%PDF-1.7", "PDF")):
            for format_ in ("text", "jsonl"):
                self.assert_refused(data, word, name="a.txt", format_=format_, template="{text}")
            self.assertIn(word, self.look(self.write("a.txt", data)))
        self.assert_refused('{"text": "a"}\n\ufeff{"text": "b"}\n', "jsonl:2", format_="jsonl", template="{text}")
        self.assertEqual(self.texts(gzip.compress(b"packed without a name"), name="blob"), ["packed without a name"])

    def test_the_options_go_before_what_a_file_looks_like(self):
        path = self.write("a.jsonl", [{"instruction": "a", "output": "b"}])
        seen = self.look(path)
        self.assertEqual(seen, {"event": "source", "format": "alpaca", "template": "", "what": "Alpaca records",
                                "fields": ["instruction", "output"], "unused": []})
        seen = self.look(path, "--template", "{instruction} {output}", "--label-mask", "answer")
        self.assertEqual((seen["format"], seen["template"]), ("jsonl", "{instruction} {output}"))
        self.assertEqual(self.look(path, "--format", "records")["format"], "records")
        for options, word in ((("--format", "jsonl"), "names 'text'"), (("--format", "chat"), "'messages'"),
                              (("--format", "alpaca", "--template", "{a}"), "is for format jsonl, not for alpaca"),
                              (("--format", "xml"), "'xml' is not one of"), (("--template", "{b}"), "'b'"),
                              (("--model", self.root / "none", "--format", "chat"), "none")):
            self.assertIn(word, self.look(path, *options))

    def test_the_program_ends_with_one_line_and_exit_code_2(self):
        program = [sys.executable, support.HUGGINGFACE / "look_at_source.py"]
        done = subprocess.run([*program, self.write("q.jsonl", [{"q": "a"}])], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
        self.assertTrue(done.stderr.startswith("error: "), done.stderr)
        self.assertIn("--template '{q}'", done.stderr)

    def test_only_the_beginning_of_a_large_file_is_read_and_all_of_a_small_one(self):
        path = self.write("a.jsonl", [{"text": "a"}] * 300 + [{"text": 1}])
        self.assertIn("jsonl:301", self.look(path))
        with mock.patch.object(look_at_source, "WHOLE_BYTES", 10):
            self.assertEqual(self.look(path)["format"], "jsonl")


if __name__ == "__main__":
    unittest.main()
