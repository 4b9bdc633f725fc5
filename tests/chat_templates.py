"""Chat templates in the shapes that popular families of models have, each written here: what tests/chat_template_test.py
renders. A row is (name, template, more); more has `says`, the text that is learned of each turn, with the answer as {},
and where the usual chat is not it: `chat`, `tools`, `settings`. `marked` are those with {% generation %} blocks."""

SYSTEM, ASK, ANSWER = "Be brief: \u00e4\u00f6.", "Who sat \U0001F600 there?", "The cat \u4e2d \U0001F600 sat!"
MORE, LAST = "And then?\nTell.", "It ran.\n\n  - away"


def talk(*, system=True, answers=(ANSWER, LAST)):
    out = [{"role": "system", "content": SYSTEM}] if system else []
    for ask, answer in zip((ASK, MORE), answers):
        out += [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]
    return out


THOUGHT = [f"<think>\nhm {i}\n</think>\n\n{text}" for i, text in enumerate((ANSWER, LAST))]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The \u00e4ir <now> & \"later\"", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}]
CALLS = [{"role": "user", "content": ASK},
         {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {
             "name": "weather", "arguments": {"city": "K\u00f6ln"}}}]},
         {"role": "tool", "name": "weather", "content": "{\"sun\": true}"}, {"role": "assistant", "content": LAST}]
HEADED = ("{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + "
          "m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}")

CHATML = """{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}{% else %}
{% set rest = messages %}{% set system = false %}{% endif %}
{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{% if loop.index0 == 0 and system %}{% set words = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + m['content'] %}{% else %}
{% set words = m['content'] %}{% endif %}
{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + words.strip() + ' [/INST]' }}
{%- elif m['role'] == 'assistant' %}{{ ' ' + words.strip() + ' ' + eos_token }}{%- endif %}
{%- endfor %}"""

LLAMA3_TOOLS = """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\nToday Date: " + date_string + "\\n\\n" + system + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role == 'user' and loop.first and tools is not none %}
        {{- '<|start_header_id|>user<|end_header_id|>\\n\\nFunctions:\\n' }}
        {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
        {{- message.content | trim + "<|eot_id|>" }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception("One call at once!") }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- elif message.role == 'tool' %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" + message.content | tojson + "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}{%- set system = messages[0]["content"] %}{%- set rest = messages[1:] %}
{%- else %}{%- set rest = messages %}{%- endif %}
{{- bos_token }}
{%- for m in rest %}
    {%- if m.role == "user" %}
        {%- if loop.last and system is defined %}{{- "[INST] " + system + "\\n\\n" + m.content + "[/INST]" }}
        {%- else %}{{- "[INST] " + m.content + "[/INST]" }}{%- endif %}
    {%- elif m.role == "assistant" %}{{- " " + m.content | trim + eos_token }}
    {%- else %}{{- raise_exception("Only user and assistant roles are supported!") }}{%- endif %}
{%- endfor %}"""

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}
{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""

PHI = """{% for message in messages %}{% if message['content'] %}{{'<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n'}}
{%- endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""

QWEN3 = """{%- if tools %}{{- '<|im_start|>system\\n# Tools\\n<tools>' }}
{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}{{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- set ns = namespace(last=messages|length - 1, look=true) %}
{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.look and message.role == "user" %}{%- set ns.look = false %}{%- set ns.last = index %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" %}{{- '<|im_start|>user\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}{%- set thinking = '' %}
        {%- if '</think>' in content %}
            {%- set thinking = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and (loop.last or thinking) %}
            {{- '<think>\\n' + thinking.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}{{- content }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}{{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

DEEPSEEK = """{% set ns = namespace(system='') %}{%- for m in messages %}{%- if m['role'] == 'system' %}{%- set ns.system = m['content'] %}
{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system }}
{%- for m in messages %}{%- if m['role'] == 'user' %}{{ '<|User|>' + m['content'] }}{%- endif %}
{%- if m['role'] == 'assistant' %}{% set content = m['content'] %}{% if '</think>' in content %}
{%- set content = content.split('</think>')[-1].lstrip() %}{% endif %}{{ '<|Assistant|>' + content + '<|end_of_sentence|>' }}
{%- endif %}{%- endfor %}{% if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% endif %}"""

OLMO = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}{{ '<|assistant|>\\n' + message['content'] }}
{%- if not loop.last %}{{ eos_token + '\\n' }}{% else %}{{ eos_token }}{% endif %}
{%- else %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + '\\n' }}{% endif %}
{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}"""

GRANITE = """{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}{%- set turns = messages[1:] %}
{%- else %}{%- set system = "Today's Date: " + strftime_now('%B %d, %Y') + ".\\nYou are Granite." %}{%- set turns = messages %}{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system + '<|end_of_text|>\\n' }}
{%- if tools %}{{- '<|start_of_role|>tools<|end_of_role|>' + tools | tojson(indent=4) + '<|end_of_text|>\\n' }}{%- endif %}
{%- for message in turns %}
{{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}
{%- if loop.last and add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}{%- endfor %}"""

HARMONY = """{%- macro header(role) %}{{- "<|start|>" + role }}{%- endmacro %}
{{- header("system") + "<|message|>You are a model.\\nCurrent date: " + strftime_now("%Y-%m-%d") + "\\n\\nReasoning: "
    + (reasoning_effort or "medium") + "<|end|>" }}
{%- for message in messages %}
    {%- if message.role == "system" %}{{- header("developer") + "<|message|># Instructions\\n\\n" + message.content + "<|end|>" }}
    {%- elif message.role == "assistant" %}
        {%- if loop.last and message.thinking %}{{- header("assistant") + "<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}{%- endif %}
        {{- header("assistant") + "<|channel|>final<|message|>" + message.content }}
        {%- if loop.last and not add_generation_prompt %}{{- "<|return|>" }}{%- else %}{{- "<|end|>" }}{%- endif %}
    {%- else %}{{- header(message.role) + "<|message|>" + message.content + "<|end|>" }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- header("assistant") }}{%- endif %}"""

COMMAND_R = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set turns = messages[1:] %}{% set system = messages[0]['content'] %}
{% else %}{% set turns = messages %}{% set system = false %}{% endif %}
{% if system != false %}{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system + '<|END_OF_TURN_TOKEN|>' }}{% endif %}
{%- for message in turns %}{% set content = message['content'] %}
{%- if message['role'] == 'user' %}{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}
{%- elif message['role'] == 'assistant' %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}
{%- endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"""

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

VICUNA = """{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + ' ' %}{% set turns = messages[1:] %}{% else %}
{% set system = '' %}{% set turns = messages %}{% endif %}{{ system }}{% for m in turns %}{% if m['role'] == 'user' %}
{{ 'USER: ' + m['content'] + ' ' }}{% elif m['role'] == 'assistant' %}{{ 'ASSISTANT: ' + m['content'] + eos_token }}
{%- endif %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"""

FALCON = """{% for m in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}{% if m['role'] == 'system' %}{{ m['content'].strip() }}
{%- elif m['role'] == 'user' %}{{ 'User: ' + m['content'].strip().replace('\\r\\n', '\\n').replace('\\n\\n', '\\n') }}
{%- elif m['role'] == 'assistant' %}{{ 'Falcon: ' + m['content'] }}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '\\nFalcon:' }}{% endif %}"""

STARCHAT = """{% for m in messages if m.role != 'system' %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""

PARTS = """{% for m in messages %}{{ '[' + m.role + ']' }}{% if m.content is string %}{{ m.content }}{% else %}
{% for part in m.content if part.type == 'text' %}{{ part.text + '|' }}{% endfor %}{% endif %}{{ '[/]' }}{% endfor %}
{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"""

LOOPS = """{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.role }}> {{ m.content }}{{ eos_token }}
{% if loop.index > 99 %}{% break %}{% endif %}{% endfor %}{% if add_generation_prompt %}assistant> {% endif %}"""

MARKED_CHATML = """{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}
{{- m.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}{% else %}{{ m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"""

MARKED_THINKING = """{% for m in messages %}{{ '<|' + m.role + '|>' }}{% if m.role == 'assistant' %}
{%- generation -%}{% if loop.last %}{{ m.content }}{% else %}{{ m.content.split('</think>')[-1].strip() }}{% endif %}
{{- eos_token }}{%- endgeneration -%}{% else %}{{ m.content }}{% endif %}{% endfor %}"""

MARKED_PLAIN = """{% for m in messages %}{% if m.role == 'assistant' %}Bot:{% generation %}{{ m.content }}{% endgeneration %};{% else %}
User:{{ m.content }};{% endif %}{% endfor %}"""


def with_close(close, before=""):
    return [before + ANSWER + close, before + LAST + close]


CALL_JSON = '{"name": "weather", %s": {"city": "K\u00f6ln"}}'
TEMPLATES = [
    ("chatml", CHATML, {"says": with_close("<|im_end|>\n")}),
    ("yi", CHATML.replace("{% for", "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% for", 1),
     {"says": with_close("<|im_end|>\n")}),
    ("llama2", LLAMA2, {"says": with_close(" </s>", " ")}),
    ("llama3", HEADED, {"says": with_close("<|eot_id|>")}),
    ("llama3_date", LLAMA3_TOOLS, {"says": with_close("<|eot_id|>")}),
    ("llama3_tools", LLAMA3_TOOLS, {"says": [CALL_JSON % "\"parameters" + "<|eot_id|>", LAST + "<|eot_id|>"],
                                    "chat": CALLS, "tools": TOOLS, "settings": {"date_string": "26 Jul 2024"}}),
    ("mistral", MISTRAL, {"says": with_close("</s>", " "), "chat": talk(system=False)}),
    ("gemma", GEMMA, {"says": with_close("<end_of_turn>\n"), "chat": talk(system=False)}),
    ("phi", PHI, {"says": [ANSWER + "<|end|>\n", LAST + "<|end|>\n</s>"]}),
    ("qwen3", QWEN3, {"says": [ANSWER + "<|im_end|>\n", "<think>\n\n</think>\n\n" + LAST + "<|im_end|>\n"]}),
    ("qwen3_thinking", QWEN3, {"says": [ANSWER + "<|im_end|>\n", "<think>\nhm 1\n</think>\n\n" + LAST + "<|im_end|>\n"],
                               "chat": talk(answers=THOUGHT)}),
    ("qwen3_tools", QWEN3, {"says": ["<tool_call>\n" + CALL_JSON % "\"arguments" + "\n</tool_call><|im_end|>\n",
                                     "<think>\n\n</think>\n\n" + LAST + "<|im_end|>\n"], "chat": CALLS, "tools": TOOLS}),
    ("qwen3_without", QWEN3, {"says": [ANSWER + "<|im_end|>\n", LAST + "<|im_end|>\n"], "settings": {"enable_thinking": False}}),
    ("deepseek", DEEPSEEK, {"says": with_close("<|end_of_sentence|>"), "chat": talk(answers=THOUGHT)}),
    ("olmo", OLMO, {"says": [ANSWER + "</s>", LAST + "</s>"]}),
    ("granite", GRANITE, {"says": with_close("<|end_of_text|>\n"), "chat": talk(system=False)}),
    ("harmony", HARMONY, {"says": ["<|channel|>final<|message|>" + ANSWER + "<|end|>",
                                   "<|channel|>final<|message|>" + LAST + "<|return|>"], "settings": {"reasoning_effort": "high"}}),
    ("command_r", COMMAND_R, {"says": with_close("<|END_OF_TURN_TOKEN|>")}),
    ("zephyr", ZEPHYR, {"says": with_close("</s>\n")}),
    ("vicuna", VICUNA, {"says": with_close("</s>", " ")}),
    ("falcon", FALCON, {"says": with_close("", " ")}),
    ("starchat", STARCHAT, {"says": with_close("<|end|>\n")}),
    ("parts", PARTS, {"says": ["Hi|[/]"], "chat": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]}]}),
    ("loops", LOOPS, {"says": with_close("</s>\n")}),
    ("marked_chatml", MARKED_CHATML, {"says": with_close("<|im_end|>"), "marked": True}),
    ("marked_thinking", MARKED_THINKING, {"says": [ANSWER + "</s>", THOUGHT[1] + "</s>"], "chat": talk(answers=THOUGHT), "marked": True}),
    ("marked_plain", MARKED_PLAIN, {"says": [ANSWER, LAST], "marked": True}),
]
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>",
           "<end_of_turn>", "<|User|>", "<|Assistant|>", "<|end_of_sentence|>", "<|start_of_role|>", "<|end_of_role|>",
           "<|end_of_text|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|START_OF_TURN_TOKEN|>",
           "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|user|>", "<|assistant|>", "<|system|>"]
