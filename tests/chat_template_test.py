#!/usr/bin/env python3
"""Chats in a model's own Jinja template: `troupe data build` gives the ids of transformers' apply_chat_template and, where a
template has {% generation %} blocks, its mask; elsewhere the mask is what the assistant says, written down beside each
template in chat_templates.py."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy
from chat_templates import ANSWER, CALLS, LAST, LLAMA2, MARKED_CHATML, QWEN3, SPECIAL, TEMPLATES, TOOLS, talk
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TROUPE = pathlib.Path(os.environ["TROUPE_BUILD"], "troupe").resolve()
CHATML = dict((name, template) for name, template, _ in TEMPLATES)["chatml"]


def make_tokenizer(path):
    """Byte-level BPE whose ids keep their places in the text: of a trimmed token transformers' mask loses the spaces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [str(template) for _, template, _ in TEMPLATES] + [ANSWER, LAST] * 3
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                             show_progress=False))
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in SPECIAL])
    tokenizer.save(str(path))


class ChatTemplates(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.here = pathlib.Path(folder.name)
        (self.here / "model").mkdir()
        make_tokenizer(self.here / "model/tokenizer.json")

    def write_template(self, template, **more):
        config = {"bos_token": "<s>", "eos_token": {"content": "</s>", "__type": "AddedToken"}, **more}
        if template is not None:
            config["chat_template"] = template
        (self.here / "model/tokenizer_config.json").write_text(json.dumps(config))

    def theirs(self):
        return PreTrainedTokenizerFast.from_pretrained(self.here / "model")

    def run_troupe(self, *words, codes=(0,), env=None):
        end = subprocess.run([TROUPE, *map(str, words)], cwd=self.here, capture_output=True, text=True, check=False,
                             env={**os.environ, "TROUPE_PYTHON": sys.executable, **(env or {})})
        self.assertIn(end.returncode, codes, end.stdout + end.stderr)
        return end.stdout + end.stderr

    def write_rows(self, *rows):
        (self.here / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def build(self, *more, env=None):
        """What the program says; the ids and weights of all rows, one after the other, are in self.ids and self.weights."""
        said = self.run_troupe("data", "build", "x.jsonl", "--format", "chat", "-t", "model", "-o", "out", "--replace", *more, env=env)
        self.ids = numpy.fromfile(self.here / "out.bin", "<u2").tolist()
        self.weights = list((self.here / "out.weights").read_bytes())
        return said

    def refusal(self, *more, env=None):
        return self.run_troupe("data", "build", "x.jsonl", "--format", "chat", "-t", "model", "-o", "none", *more, codes=(2, 3), env=env)

    def learned(self, tokenizer):
        runs, last = [], 0
        for one, weight in zip(self.ids, self.weights):
            if weight and not last:
                runs.append([])
            if weight:
                runs[-1].append(one)
            last = weight
        return [tokenizer.decode(run, clean_up_tokenization_spaces=False) for run in runs]

    def test_ids_and_masks_are_those_of_transformers(self):
        self.assertGreaterEqual(len(TEMPLATES), 20)
        for name, template, more in TEMPLATES:
            with self.subTest(name):
                self.write_template(template)
                chat, settings = more.get("chat", talk()), more.get("settings", {})
                beside = {"tools": more["tools"]} if "tools" in more else {}
                self.write_rows({"messages": chat, "chat_template_kwargs": settings, **beside})
                said = self.build()
                self.assertIn("written by the template in model/tokenizer_config.json", said)
                tokenizer = self.theirs()
                expected = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True, **beside,
                                                         **settings)
                self.assertEqual(self.ids, expected["input_ids"])
                self.assertEqual(self.learned(tokenizer), more["says"])
                if more.get("marked"):
                    self.assertEqual(self.weights, expected["assistant_masks"])

    def test_workers_and_layouts_give_the_same(self):
        self.write_template(CHATML)
        chats = [[{"role": "user", "content": f"who sat {i}?"}, {"role": "assistant", "content": f"the cat {i}"}] for i in range(3000)]
        self.write_rows(*({"messages": chat} for chat in chats))
        self.build("-w", 1)
        expected = self.ids, self.weights
        self.build("-w", 3)
        self.assertEqual((self.ids, self.weights), expected)
        self.write_rows(*({"conversations": [{"from": "human", "value": a["content"]}, {"from": "gpt", "value": b["content"]}]}
                          for a, b in chats))
        self.build()
        self.assertEqual((self.ids, self.weights), expected)
        self.write_rows(*({"instruction": a["content"], "output": b["content"]} for a, b in chats))
        self.build()
        self.assertEqual((self.ids, self.weights), expected)
        self.write_rows(*({"prompt": chat[:1], "completion": chat[1:]} for chat in chats))
        self.build()
        self.assertEqual((self.ids, self.weights), expected)
        counted = json.loads(self.run_troupe("data", "count", "x.jsonl", "--format", "chat", "-t", "model", "--json", "-q"))
        self.assertEqual((counted["tokens"], counted["learned"]), (len(self.ids), sum(self.weights)))
        self.write_rows({"prompt": "1 + 2 =", "completion": " 3"})
        self.build()  # without marks: no template around them
        self.assertEqual(self.theirs().decode(self.ids), "1 + 2 = 3")

    def test_each_layout_has_the_ids_and_the_mask_of_transformers(self):
        self.write_template(MARKED_CHATML)
        chat = talk()
        (system, ask, answer, more, last), names = chat, {"user": "human", "assistant": "gpt"}
        turns = [{"from": names.get(m["role"], m["role"]), "value": m["content"]} for m in chat]
        short = [{"role": "system", "content": system["content"]}, {"role": "user", "content": f"{ask['content']}\n\nin"}, answer]
        rows = {"messages": [({"messages": chat}, chat)],
                "sharegpt": [({"conversations": turns}, chat),
                             ({"system": system["content"], "conversations": turns[1:]}, chat)],
                "prompt-completion": [({"prompt": chat[:2], "completion": [answer]}, chat[:3])],
                "alpaca": [({"instruction": ask["content"], "output": answer["content"]}, [ask, answer]),
                           ({"instruction": ask["content"], "input": "in", "output": answer["content"],
                             "system": system["content"]}, short)]}
        for layout, cases in rows.items():
            for row, messages in cases:
                with self.subTest(layout, keys=list(row)):
                    self.write_rows(row)
                    said = self.build()
                    self.assertRegex(said, rf"x\.jsonl:1: layout {layout}, by ")
                    theirs = self.theirs().apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
                    self.assertEqual((self.ids, self.weights), (theirs["input_ids"], theirs["assistant_masks"]))
                    found = self.ids, self.weights
                    self.build("--layout", layout)
                    self.assertEqual((self.ids, self.weights), found)
                    other = "alpaca" if layout != "alpaca" else "messages"
                    self.assertRegex(self.refusal("--layout", other), rf"x\.jsonl:1: E3106 .*the keys of layout {other}")
        self.write_rows({"messages": chat}, {"messages": chat, "instruction": "a", "output": "b"})
        self.assertRegex(self.refusal(), r"x\.jsonl:2: E3106 .*several layouts, messages \(.*alpaca \(.*--layout")
        self.build("--layout", "messages")
        self.assertEqual(self.ids, 2 * self.theirs().apply_chat_template(chat)["input_ids"])
        self.assertIn("exclude each other", self.refusal("--layout", "messages", "--key", "messages"))

    def test_a_pair_is_two_documents_whose_answers_are_learned(self):
        answers = [{"role": "assistant", "content": ANSWER}], [{"role": "assistant", "content": "None."}]
        earlier = [*talk(), {"role": "user", "content": "Again?"}]
        for template, prompt in ((CHATML, talk()[:2]), (MARKED_CHATML, earlier), (LLAMA2, earlier)):
            self.write_template(template)
            tokenizer = self.theirs()
            before = tokenizer.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"]
            both = [tokenizer.apply_chat_template(prompt + answer)["input_ids"] for answer in answers]
            masks = [[0] * len(before) + [1] * (len(ids) - len(before)) for ids in both]
            self.assertTrue(all(ids[:len(before)] == before for ids in both))
            chosen, rejected = answers
            for row in ({"prompt": prompt, "chosen": chosen, "rejected": rejected},
                        {"chosen": prompt + chosen, "rejected": prompt + rejected},
                        {"prompt": "as text", "chosen": prompt + chosen, "rejected": prompt + rejected, "score": 1}):
                with self.subTest(keys=list(row)):
                    self.write_rows(row)
                    said = self.build()
                    self.assertIn("x.jsonl:1: layout preference, by ", said)
                    self.assertIn("documents are preference pairs", said)
                    self.assertEqual((self.ids, self.weights), (both[0] + both[1], masks[0] + masks[1]))
                    self.assertTrue(json.loads((self.here / "out.json").read_text())["pairs"])
        self.write_rows({"messages": prompt, "prompt": prompt, "chosen": chosen, "rejected": rejected})
        self.assertIn("--layout", self.refusal())
        self.build("--layout", "preference")
        self.assertEqual(self.ids, both[0] + both[1])
        self.write_rows(row, {"messages": prompt}, {**row, "rejected": row["chosen"]})
        self.assertRegex(self.refusal(), r"x\.jsonl:2: E3106 is no preference pair, and the first chat is one")
        self.assertIn("2 skipped", self.build("--on-bad", "skip"))
        self.write_rows({"messages": talk()}, row)
        self.assertRegex(self.refusal(), r"x\.jsonl:2: E3106 is a preference pair, and the first chat is none")
        self.write_rows({"prompt": "a", "chosen": "b", "rejected": [{"role": "assistant", "content": "c"}]})
        self.assertRegex(self.refusal(), r"x\.jsonl:1: E3106 .*one is a text and one a list of messages")

    def test_halves_of_a_last_character_are_all_learned(self):
        self.write_template(MARKED_CHATML.replace("+ '<|im_end|>' }}{% endgen", "}}{% endgen"))
        chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b\U0001F980"}]
        self.write_rows({"messages": chat})
        self.build()
        self.assertEqual(self.learned(self.theirs()), ["b\U0001F980"])

    def test_the_template_is_chosen(self):
        named = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": QWEN3}]
        self.write_template(named)
        self.write_rows({"messages": CALLS, "tools": TOOLS}, {"messages": talk()})
        said = self.build()
        tokenizer = self.theirs()
        self.assertEqual(self.ids, tokenizer.apply_chat_template(CALLS, tools=TOOLS)["input_ids"] +
                         tokenizer.apply_chat_template(talk())["input_ids"])
        self.write_rows({"messages": talk()})
        self.assertIn("tokenizer_config.json, tool_use", self.build("--template", "tool_use"))
        self.assertEqual(self.ids, tokenizer.apply_chat_template(talk(), chat_template=QWEN3)["input_ids"])
        (self.here / "own.jinja").write_text(LLAMA2)
        self.build("--template", "own.jinja")
        llama = tokenizer.apply_chat_template(talk(), chat_template=LLAMA2)["input_ids"]
        self.assertEqual(self.ids, llama)
        self.build("--template", "own.jinja", "--eod", 1)
        self.assertEqual((self.ids, self.weights[-2:]), (llama + [1], [1, 1]))
        self.assertEqual(json.loads((self.here / "out.json").read_text())["model_template"]["templates"],
                         [{"name": "default", "text": LLAMA2}])
        said = self.build("--template", "none", "--no-eod")
        self.assertIn('messages are written as "<|im_start|>{role}\\u000a" content', said)
        marks = self.ids
        said = self.build("--close", "<|im_end|>\n", "--no-eod")
        self.assertIn("model/tokenizer_config.json is not used: --open and --close are given", said)
        self.assertEqual(self.ids, marks)
        (self.here / "model/chat_template.jinja").write_text(LLAMA2)
        self.assertIn("model/chat_template.jinja", self.build())
        self.assertEqual(self.ids, self.theirs().apply_chat_template(talk())["input_ids"])

    def test_refusals(self):
        self.write_template(LLAMA2)
        self.write_rows({"messages": talk()}, {"messages": talk(system=False)[1:]})
        self.assertRegex(self.refusal(), r"x\.jsonl:2: E3106 the template refuses the chat: Roles must alternate")
        self.assertIn("1 skipped", self.build("--on-bad", "skip"))
        for words, text in ((("--template", "rag"), "is no file, no folder and no template of model/tokenizer_config.json; it has default"),
                            (("--template", "none", "--close", "x"), "--open or --close exclude each other"),
                            (("--learn", "user"), "needs --template none"),
                            (("--special-as-text",), "would also encode the chat template")):
            self.assertIn(text, self.refusal(*words))
        self.assertIn("is for chats: set --format chat", self.run_troupe("data", "build", "x.jsonl", "-t", "model", "-o", "none",
                                                                         "--template", "rag", codes=(2,)))
        (self.here / "shadow").mkdir()
        (self.here / "shadow/jinja2.py").write_text("raise ImportError('none here')\n")
        self.assertRegex(self.refusal(env={"PYTHONPATH": str(self.here / "shadow")}),
                         r"model/tokenizer_config\.json: E3001 is a Jinja template, .* pip install jinja2 .*none here")
        self.assertRegex(self.refusal(env={"TROUPE_PYTHON": "no-such-python"}), "no-such-python does not start: .*TROUPE_PYTHON")
        for template, text in (("a\n{% for %}", "E3001 template default, line 2: "), ([{"name": "a", "template": "A"},
                               {"name": "b", "template": "B"}], "none that is called default: --template names one of a, b"),
                               ("{{ messages[9].content }}", "x.jsonl:1: E3106 the template refuses the chat: "),
                               ("{{ messages | length + 'a' }}", "x.jsonl:1: E3106 the template fails: TypeError"),
                               ("{{ ''.__class__.__mro__ }}", "x.jsonl:1: E3106 the template refuses the chat: "),
                               ("{{ messages | length }} {% for m in messages %}{{ m.content }};{% endfor %}",
                                "x.jsonl:1: E3106 message 3: the template writes it in another way")):
            with self.subTest(text):
                self.write_template(template)
                self.assertIn(text, self.refusal())
        self.write_template(CHATML)
        self.write_rows({"prompt": "a", "completion": [{"role": "assistant", "content": "b"}]})
        self.assertIn("x.jsonl:1: E3106 of prompt and completion one is a text and one a list", self.refusal())
        self.write_rows({"messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}]})
        self.assertIn("a message calls tools and has no content", self.refusal("--template", "none", "--no-eod"))
        self.write_template("{% for m in messages %}{{ m.content }}{% generation %}{% endgeneration %}{% endfor %}")
        self.write_rows({"messages": talk()})
        self.assertIn("marks nothing as the assistant's", self.build())


if __name__ == "__main__":
    unittest.main()
