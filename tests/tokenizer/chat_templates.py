"""Small chat templates, which use together what those of the families do, each in its own way."""

# Llama 2: the system message goes into the first user message; roles alternate.
FOLDED = """
{%- if messages[0]['role'] == 'system' %}
    {%- set rest = messages[1:] %}
    {%- set first = '<<SYS>>\n' ~ messages[0]['content'].strip() ~ '\n<</SYS>>\n\n' %}
{%- else %}
    {%- set rest = messages %}
    {%- set first = false %}
{%- endif %}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('user and assistant must take turns') }}
    {%- endif %}
    {%- if loop.index0 == 0 and first != false %}
        {%- set content = first + message['content'] %}
    {%- else %}
        {%- set content = message['content'] %}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- bos_token + '[INST] ' + content | trim + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + content | trim + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}
"""

# Llama 3.1: defaults for variables, dates, built-in tools, tools as indented JSON, ipython.
DATED = """
{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now('%Y') %}
    {%- else %}{%- set date_string = '1 Jan 2024' %}{%- endif %}
{%- endif %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}{%- set system = '' %}{%- endif %}
{{- '<|im_start|>system\n' }}
{%- if builtin_tools is defined or tools is not none %}{{- 'Environment: ipython\n' }}{%- endif %}
{%- if builtin_tools is defined %}
    {{- 'Tools: ' + builtin_tools | reject('equalto', 'code') | join(', ') + '\n' }}
{%- endif %}
{{- 'Today: ' + date_string + '\n' }}
{%- if tools is not none %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- '\n\n' }}{%- endfor %}
{%- endif %}
{{- system + '<|im_end|>' }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception('one tool call at a time') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|im_start|>assistant\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}{{- '}<|im_end|>' }}
    {%- else %}
        {{- '<|im_start|>ipython\n' }}
        {%- if message.content is mapping or message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
        {{- '<|im_end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""

# SmolLM3: a switch for thinking, tools as Python prints them, marks for training.
THINKING = """
{%- if enable_thinking is not defined -%}{%- set enable_thinking = true -%}{%- endif -%}
{%- set mode = '/think' if enable_thinking else '/no_think' -%}
{%- set instructions = '' -%}
{%- if messages[0].role == 'system' -%}
    {%- set system = messages[0].content -%}
    {%- if '/no_think' in system -%}{%- set mode = '/no_think' -%}{%- endif -%}
    {%- set instructions = system.replace('/no_think', '').replace('/think', '').rstrip() -%}
{%- endif -%}
{{- '<|im_start|>system\nMode: ' ~ mode ~ '\n' ~ instructions ~ '\n' -}}
{%- if xml_tools or python_tools -%}
    {%- set ns = namespace(text='<tools>\n') -%}
    {%- for tool in (xml_tools or python_tools)[:] -%}
        {%- set ns.text = ns.text ~ (tool | string) ~ '\n' -%}
    {%- endfor -%}
    {{- ns.text + '</tools>' -}}
{%- endif -%}
{{- '<|im_end|>\n' -}}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else '' -%}
    {%- if message.role == 'user' -%}
        {{ '<|im_start|>user\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' -%}
        {%- generation -%}
        {%- if mode == '/think' -%}
            {{ '<|im_start|>assistant\n' + content.lstrip('\n') + '<|im_end|>\n' }}
        {%- else -%}
            {{ '<|im_start|>assistant\n<think>\n\n</think>\n' + content + '<|im_end|>\n' }}
        {%- endif -%}
        {%- endgeneration -%}
    {%- elif message.role == 'tool' -%}
        {{ '<|im_start|>user\n' + content + '<|im_end|>\n' }}
    {%- endif -%}
{%- endfor -%}
"""

# Mistral v3: tools before the last question, calls with ids of nine characters.
NINE = """
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}{%- set turns = messages[1:] %}
{%- else %}{%- set turns = messages %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set questions = turns | selectattr('role', 'equalto', 'user') | list %}
{%- set ns = namespace(index=0) %}
{%- for message in turns %}
    {%- if not (message.role == 'tool' or (message.tool_calls is defined)) %}
        {%- if (message['role'] == 'user') != (ns.index % 2 == 0) %}
            {{- raise_exception('roles must alternate') }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in turns %}
    {%- if message['role'] == 'user' %}
        {%- if tools is not none and (message == questions[-1]) %}
            {{- '[TOOLS] [' }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != 'return' %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
                    {%- else %}{{- '"' + key + '": ' + val | tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ', ' }}{%- endif %}
                {%- endfor %}
                {{- '}}' }}{{- ', ' if not loop.last else ']' }}
            {%- endfor %}
            {{- '[/TOOLS]' }}
        {%- endif %}
        {%- if loop.last and system is defined %}
            {{- '[INST] ' + system + '\n\n' + message['content'] + '[/INST]' }}
        {%- else %}{{- '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- '[CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- set out = call.function | tojson %}{{- out[:-1] }}
            {%- if not call.id is defined or call.id | length != 9 %}
                {{- raise_exception('ids of calls have nine characters') }}
            {%- endif %}
            {{- ', "id": "' + call.id + '"}' }}{{- ', ' if not loop.last else ']' + eos_token }}
        {%- endfor %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] | trim + eos_token }}
    {%- elif message['role'] == 'tool_results' or message['role'] == 'tool' %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}{%- set content = message.content %}{%- endif %}
        {{- '[RESULTS] {"content": ' + content | string + ', ' }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/RESULTS]' }}
    {%- else %}{{- raise_exception('user, assistant and tool are supported') }}{%- endif %}
{%- endfor %}
"""

# Qwen3: what was thought is cut from earlier turns; results of tools stand together.
REASONED = """
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- '<tools>' }}
    {%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\n</tools><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == 'user' and message.content is string and not
            (message.content.startswith('<result>') and message.content.endswith('</result>')) %}
        {%- set ns.searching = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}
    {%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\n' }}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}{{- content }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\n' }}{%- endif %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '<call>{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}
            {%- if call.arguments is string %}{{- call.arguments }}
            {%- else %}{{- call.arguments | tojson }}{%- endif %}
            {{- '}</call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<result>\n' }}{{- content }}{{- '\n</result>' }}
        {%- if not loop.last and loop.nextitem.role != 'tool' %}{{- '<|im_end|>\n' }}
        {%- elif loop.last %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""

# Gemma 3: content in parts, the assistant under another name.
PARTS = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set prefix = '' -%}{%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('roles must alternate') }}
    {%- endif -%}
    {%- if message['role'] == 'assistant' -%}{%- set role = 'model' -%}
    {%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ '<|im_start|>' + role + '\n' + (prefix if loop.first else '') }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception('no such content') }}{%- endif -%}
    {{ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>model\n' }}{%- endif -%}
"""

# OLMo 2, Phi-3, Zephyr: roles by name, blocks that trim, the end of text after the answer.
PLAIN = """{{ bos_token }}{% for message in messages %}
{% if message['role'] == 'system' and message['content'] %}
{{ '<|system|>\n' + message['content'] + '<|im_end|>' }}
{% elif message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + '<|im_end|>' }}
{% elif message['role'] == 'assistant' %}
    {% if not loop.last %}
{{ '<|assistant|>\n' + message['content'] + eos_token + '\n' }}
    {% else %}
{{ '<|assistant|>\n' + message['content'] + eos_token }}
    {% endif %}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

# What others use: macros that call themselves, blocks, grouping, sorting, breaks.
MACROS = """
{%- macro kind(spec, required=true) -%}
    {%- if spec is mapping and spec.type == 'object' -%}
        {{- '{' -}}
        {%- for name, inner in (spec.properties or {}) | dictsort -%}
            {{- name ~ ': ' ~ kind(inner, name in (spec.required or [])) -}}
            {{- ', ' if not loop.last -}}
        {%- endfor -%}
        {{- '}' -}}
    {%- elif spec.type == 'array' -%}{{- '[' ~ kind(spec['items'] or {}) ~ ']' -}}
    {%- elif spec.enum is defined -%}{{- spec.enum | map('tojson') | join(' | ') -}}
    {%- else -%}{{- (spec.type or 'any') | upper -}}{%- endif -%}
    {%- if not required -%}?{%- endif -%}
{%- endmacro -%}
{%- macro boxed(title) -%}<{{ title }}>{{ caller() }}</{{ title }}>{%- endmacro -%}
{%- set comma = joiner(', ') -%}{%- set mark = cycler('a', 'b') -%}
{%- for tool in tools or [] -%}
    {{- comma() ~ tool.function.name | title ~ kind(tool.function.parameters) -}}
{%- endfor -%}
{%- for role, group in messages | groupby('role') -%}{{- role ~ group | length -}}{%- endfor -%}
{%- set roles = messages | map(attribute='role') | unique | sort | list -%}
{%- with first = roles | first, last = roles[-1] -%}{{- first ~ '/' ~ last -}}{%- endwith -%}
{%- filter indent(2) -%}{{ 'x\ny' }}{%- endfilter -%}
{%- set text -%}{%- for m in messages -%}{{ mark.next() }}{%- endfor -%}{%- endset -%}
{{- text | length == messages | count -}}
{%- for message in messages -%}
    {%- if message.role == 'system' and not loop.first -%}{%- continue -%}{%- endif -%}
    {%- if loop.index > 40 -%}{%- break -%}{%- endif -%}
    {%- if loop.changed(message.role) -%}{{- loop.cycle('odd', 'even') -}}{%- endif -%}
    {%- call boxed(message.role) -%}{{- message.content | default('none') -}}{%- endcall -%}
    {{- loop.revindex ~ '|' ~ loop.length -}}
    {%- for call in message.get('tool_calls', []) | rejectattr('id', 'undefined') -%}
        {%- set sep = '' if loop.first else ';' -%}
        {{- sep ~ call.function.arguments | tojson(separators=(',', ':'), sort_keys=true) -}}
    {%- else -%}-{%- endfor -%}
{%- endfor -%}
{{- [3, 1, 2] | sort(reverse=true) | list ~ (7 // 2) ~ (7 / 2) ~ (2 ** 3) ~ '%' ~ (-5) | abs -}}
{{- {'b': 1, 'a': (2, 3.5)} | items | list ~ [1, none, true] | select | list -}}
{{- 'a,b'.split(',') | reverse | join('+') ~ ' x '.strip() ~ ('3' | int + 4) -}}
{{- dict(a=1).a ~ range(3) | max ~ (not false) ~ ('a' in ['a']) ~ (1 < 2 < 3) -}}
{{- 'q' | replace('q', 'r') -}}
"""

ALL = {
    "folded": FOLDED,
    "dated": DATED,
    "thinking": THINKING,
    "nine": NINE,
    "reasoned": REASONED,
    "parts": PARTS,
    "plain": PLAIN,
    "macros": MACROS,
}
