#include "troupe/data/text/chat_script.h"

namespace troupe {

// Environment, filters and the generation block are those of transformers'
// utils/chat_template_utils.py: a template that it renders is rendered here to the same bytes.
const char* const kChatScript = R"py(
import sys
sys.path[:] = [folder for folder in sys.path if folder]
import datetime, json, os, re
try:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
except ImportError as e:
    sys.exit(f"is a Jinja template, which Python's jinja2 renders: pip install jinja2 ({sys.executable}: {e})")
if tuple(int(n) for n in re.findall(r"\d+", jinja2.__version__)[:2]) < (3, 1):
    sys.exit(f"is rendered by jinja2 of 3.1 or later: pip install -U jinja2 ({sys.executable}: {jinja2.__version__})")


class Fault(Exception):
    pass


class Generation(jinja2.ext.Extension):
    tags = {"generation"}
    blocks, spans = [], []

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller):
        text = caller()
        begin = len("".join(Generation.blocks))
        Generation.spans.append((begin, begin + len(text)))
        return text


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def read_line():
    return sys.stdin.buffer.readline().decode("utf-8", "replace")


environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                           extensions=[Generation, jinja2.ext.loopcontrols])
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = raise_exception
environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
given = json.loads(read_line(), strict=False)
tokens = {token["name"]: token["text"] for token in given["tokens"]}
templates, marked = {}, {}
for one in given["templates"]:
    try:
        templates[one["name"]] = environment.from_string(one["text"])
    except jinja2.TemplateSyntaxError as e:
        sys.exit(f"template {one['name']}, line {e.lineno}: {e.message}")
    marked[one["name"]] = re.search(r"\{%[-+]?\s*generation\s*[-+]?%\}", one["text"])
if not given["chosen"] and len(templates) > 1 and "default" not in templates:
    sys.exit(f"has several templates and none that is called default: --template names one of {', '.join(templates)}")


class Chat:
    def __init__(self, row):
        self.messages, self.tools, self.settings = row["messages"], row["tools"], row["settings"] or {}
        self.asked = row["asked"]
        if isinstance(self.tools, str):
            self.tools = json.loads(self.tools)
        if isinstance(self.settings, str):
            self.settings = json.loads(self.settings)
        self.name = given["chosen"] or ("tool_use" if self.tools is not None and "tool_use" in templates else "default")
        if len(templates) == 1:
            self.name = next(iter(templates))

    def render(self, messages, prompt):
        Generation.blocks, Generation.spans = [], []
        names = {"messages": messages, "tools": self.tools, "documents": None, "add_generation_prompt": prompt}
        for block in templates[self.name].generate(**{**names, **tokens, **self.settings}):
            Generation.blocks.append(block)
        return "".join(Generation.blocks)

    def masked(self):
        text = self.render(self.messages, False)
        spans = Generation.spans
        if not marked[self.name]:
            spans = [self.turn(text, i) for i, m in enumerate(self.messages) if m["role"] == "assistant"]
        return {"text": clean(text), "learned": [len(clean(text[:at]).encode()) for span in spans for at in span]}

    # All behind the prompt, of which the first `asked` messages are made.
    def answered(self):
        text, before = self.render(self.messages, False), self.render(self.messages[:self.asked], True)
        begin = len(before) if text.startswith(before) else self.begin_without_thinking(text, before, self.asked)
        if begin is None:
            raise Fault("the template writes the prompt in another way when an answer follows: where the answer begins is "
                        "not known")
        return {"text": clean(text), "learned": [len(clean(text[:at]).encode()) for at in (begin, len(text))]}

    def prompt(self):
        return {"text": clean(self.render(self.messages, True))}

    def close(self):
        word = "troupe1answer"
        text = self.render(self.messages + [{"role": "assistant", "content": word}], False)
        if word not in text:
            raise Fault("the template does not write what the assistant says")
        return {"text": clean(text[text.rindex(word) + len(word):])}

    # Where in the text of all messages the turn of message i begins and ends: behind its prompt, and where the
    # text of the messages up to it ends. Both may be written otherwise within a longer chat: many templates drop
    # the thinking of earlier turns.
    def turn(self, text, i):
        before, through = self.render(self.messages[:i], True), self.render(self.messages[:i + 1], False)
        begin = len(before) if text.startswith(before) else self.begin_without_thinking(text, before, i)
        if begin is not None and len(through) >= begin and text.startswith(through):
            return begin, len(through)
        if begin is not None and through.startswith(text[:begin]):
            end = self.end_of(text[begin:], through[begin:], i)
            if end is not None:
                return begin, begin + end
        raise Fault(f"message {i + 1}: the template writes it in another way when messages follow, and has no "
                    "{% generation %} blocks: which text is the assistant's is not known")

    # How much of `rest`, a text from where the turn of message i begins, is that turn. `alone` is the turn as it is
    # written where no message follows: it may have more at its beginning, and another token at its end.
    def end_of(self, rest, alone, i):
        words = words_of(self.messages[i])
        at = alone.find(rest[0]) if rest and words else -1
        while at >= 0:
            same = len(common(rest, alone[at:]))
            if all(word in rest[:same] for word in words):
                if at + same == len(alone):
                    return same
                last = tag_at(alone, at + same)
                if last and not alone[last[1]:].strip():
                    return next((end for end in tag_at(rest, same) or () if self.next_begins(rest[end:], i)), None)
            at = alone.find(rest[0], at + 1)
        return None

    # Whether `rest` begins with message i + 1, as it is written where message i is left out.
    def next_begins(self, rest, i):
        before, after = self.render(self.messages[:i], False), self.render(self.messages[:i] + self.messages[i + 1:i + 2], False)
        begin = len(common(before, after))
        begin = (tag_at(after, begin) or (begin, 0))[0]
        words = words_of(self.messages[i + 1])
        return bool(words) and all(word in common(rest, after[begin:]) for word in words)

    # A prompt that opens the thinking of a turn which then has none.
    def begin_without_thinking(self, text, before, i):
        plain = self.render(self.messages[:i], False)
        opened = re.search(r"<think>\s*(</think>\s*)?$", before)
        if not opened or opened.start() < len(plain) or not before.startswith(plain):
            return None
        return opened.start() if text.startswith(before[:opened.start()]) else None


# What must stand in the text of a turn, however it is written.
def words_of(message):
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    words = [content.split("</think>")[-1].strip()]
    words += [(call.get("function") or call).get("name", "") for call in message.get("tool_calls") or []]
    return [word for word in words if word]


def common(a, b):
    return os.path.commonprefix([a, b])


# Begin and end of the special token, <|...|> or <...>, in which `at` is.
def tag_at(text, at):
    first = max(0, at - 64)
    for tag in re.finditer(r"<\|?[^<>\s]*\|?>", text[first:at + 64]):
        begin, end = (first + n for n in tag.span())
        if begin <= at < end:
            return begin, end
    return None


def clean(text):
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def answer(line):
    try:
        row = json.loads(line, strict=False)
        return {"masked": Chat.masked, "answer": Chat.answered, "prompt": Chat.prompt, "close": Chat.close}[row["want"]](Chat(row))
    except Fault as e:
        return {"fault": clean(str(e))}
    except jinja2.exceptions.TemplateError as e:
        return {"fault": clean(f"the template refuses the chat: {e}")}
    except Exception as e:
        return {"fault": clean(f"the template fails: {type(e).__name__}: {e}")}


print("ready", flush=True)
while count := read_line():
    for _ in range(int(count)):
        print(json.dumps(answer(read_line()), ensure_ascii=False))
    sys.stdout.flush()
)py";

}  // namespace troupe
