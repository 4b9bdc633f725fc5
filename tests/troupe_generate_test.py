#!/usr/bin/env python3
"""`troupe generate` by the program: batches, chats, special tokens (rows 187 and 236)."""
import json
import os
import re
import subprocess
import sys
import unittest

from nano_run import TROUPE, NanoRun

ANSWERS = {"ping": "pong", "tick": "tock", "ding": "dong"}
CHATS = """
model: {layers: 2, width: 64, heads: 4, vocab: 384, max_positions: 128, moe: {experts: 4, top_k: 2, hidden: 64}}
data: {train: [{path: chats}], sequence: 64, documents: sequences, tokenizer: tokenizer.json}
train: {global_batch: 16, steps: 150, precision: fp32, optimizer: {lr: 1e-2}, schedule: {warmup: 5}}
checkpoint: {dir: run}
log: {tensorboard: false}
run: {device: cpu, threads: 1}
"""
MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


class Generate(NanoRun):
    def test_236_texts_of_a_batch_are_those_of_each_alone(self):
        self.train("train.steps=30")
        greedy = ("--temperature", 0, "-n", 20)
        prompts = ["The cat", "The mat sat on the cat. The", "s", "The cat sat"]
        alone = [self.troupe("generate", "run", "-p", p, *greedy).stdout for p in prompts]
        words = [w for p in prompts for w in ("-p", p)]
        together = self.troupe("generate", "run", *words, *greedy, "--speed")
        self.assertEqual(together.stdout, "".join(alone))
        made, read, known = map(int, re.search(r"(\d+) tokens made .*; (\d+) read, (\d+) not read again",
                                               together.stderr).groups())
        self.assertEqual(made, 4 * 20)
        # "The " and "The cat" are read once, and the last token of each text is not read.
        self.assertEqual(known, len("The ") + len("The cat"))
        self.assertEqual(read, sum(map(len, prompts)) - known + 4 * 19)
        drawn = [self.troupe("generate", "run", "-p", "The", "-n", 20, "--seed", 3, "--temperature", 2, *more).stdout
                 for more in ((), (), ("--top-p", 0.2), ("--min-p", 1), ("--repetition-penalty", 50))]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])
        self.assertEqual(drawn[3], self.troupe("generate", "run", "-p", "The", "-n", 20, "--temperature", 0).stdout)
        self.assertNotEqual(drawn[0], drawn[4])
        self.assertIn("needs a prompt", self.troupe("generate", "run", code=2).stderr)
        self.assertIn("top_p", self.troupe("generate", "run", "-p", "x", "--top-p", 0, code=2).stderr)

    def test_236_a_chat_answers_in_the_marks_of_its_data(self):
        with open(self.folder / "chats.jsonl", "w", encoding="utf-8") as out:
            for i in range(240):
                asked = [list(ANSWERS)[(i + k) % 3] for k in range(1 + i % 2)]
                out.write(json.dumps({"messages": [{"role": role, "content": text} for ask in asked for role, text in
                                                   (("user", ask), ("assistant", ANSWERS[ask]))]}) + "\n")
        (self.folder / "nano.yaml").write_text(CHATS)
        (self.folder / "words.txt").write_text("ping pong tick tock ding dong user assistant\n" * 50)
        self.troupe("tokenizer", "train", "words.txt", "-o", "tokenizer.json", "--vocab", 300,
                    *(w for mark in MARKS for w in ("--special", mark)))
        self.troupe("data", "build", "chats.jsonl", "--format", "chat", "-t", "tokenizer.json", "-o", "chats")
        self.assertEqual(json.loads((self.folder / "chats.json").read_text())["chat"]["close"], "<|im_end|>\n")
        self.train(timeout=300)
        words = ("generate", "run", "--chat", "--temperature", 0, "-n", 12)
        self.answers_in_a_template(words)
        said = self.troupe(*words, "-p", "ping", "-p", "tick", "--speed")
        self.assertEqual(said.stdout, "pong\ntock\n")
        self.assertIn("those of chats.json", said.stderr)
        self.assertGreater(int(re.search(r"(\d+) not read again", said.stderr)[1]), 8)  # the first turn
        lines = self.command_with_input([TROUPE, *words], "ding\nping\n")
        self.assertEqual(lines, "dong\npong\n")
        # A person who types sees whose turn it is; what was typed stands before, where the terminal shows it.
        seen = self.on_terminal(*words, streams=("stdin", "stdout", "stderr"), typed=b"ding\nping\n\x04").decode()
        self.assertTrue(seen.endswith("> dong\r\n> pong\r\n> \r\n"), seen)
        # Marks in what a user says are plain text: the answer is to what was asked.
        self.assertEqual(self.troupe(*words, "-p", "ping", "--special").stdout, "pong\n")
        prompt = "<|im_start|>user\nping<|im_end|>\n<|im_start|>assistant\n"
        plain = self.troupe("generate", "run", "-p", prompt, "--temperature", 0, "-n", 3).stdout
        kept = self.troupe("generate", "run", "-p", prompt, "--temperature", 0, "-n", 3, "--special").stdout
        self.assertNotIn("<|im_", plain)
        self.assertTrue(kept.startswith(prompt + "pong"), kept)

    def answers_in_a_template(self, words):
        """The same chats by a Jinja template: the data set that it wrote says so, and it ends an answer."""
        os.environ.setdefault("TROUPE_PYTHON", sys.executable)
        template = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
        (self.folder / "own.jinja").write_text(template.replace("\n", "{{ '\\n' }}"))
        marks = {end: (self.folder / ("chats" + end)).read_bytes() for end in (".bin", ".idx", ".json", ".weights")}
        self.troupe("data", "build", "chats.jsonl", "--format", "chat", "-t", "tokenizer.json", "-o", "chats", "--replace",
                    "--template", "own.jinja")
        said = self.troupe(*words, "-p", "ping", "-p", "tick")
        self.assertEqual(said.stdout, "pong\ntock\n")
        self.assertIn("chat: template of own.jinja", said.stderr)
        for end, data in marks.items():
            (self.folder / ("chats" + end)).write_bytes(data)

    def command_with_input(self, words, text):
        ran = subprocess.run([str(w) for w in words], cwd=self.folder, env=self.env(), input=text, capture_output=True,
                             text=True, timeout=300, check=True)
        return ran.stdout


if __name__ == "__main__":
    unittest.main()
