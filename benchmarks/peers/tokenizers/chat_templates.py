"""Chat templates, one for each of twenty families of chat models, written for this test from what their documentation says of
the text that a conversation becomes. They are not the files of the models. Together they use what such templates use."""

TALKS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " How are you?\n"}],
    [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": " 4 "}, {"role": "user", "content": "And 3 + 3?"}],
    [{"role": "system", "content": " Count. "}, {"role": "user", "content": "a"},
     {"role": "assistant", "content": "<think>\none letter\n</think>\n\n1"}, {"role": "user", "content": "été 東京"},
     {"role": "assistant", "content": "<think>\nmore\n</think>\n\n4 and 2"}],
    [{"role": "assistant", "content": "I begin."}, {"role": "user", "content": "No."}],
    [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}],
    [],
]

CHATML = """{%- for m in messages -%}
    {{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""

TEMPLATES = {
    "ChatML (Hermes, Yi, Dolphin)": CHATML,
    "Qwen 2.5": """{%- set given = messages and messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + (messages[0].content if given else 'You are Qwen, made by Alibaba Cloud.') + '<|im_end|>\\n' }}
{%- for m in messages %}
    {%- if loop.first and given %}{% continue %}{% endif %}
    {%- if m.role in ['user', 'assistant', 'system'] and not m.tool_calls %}
        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}
    {%- elif m.role == 'tool' %}
        {{- '<tool_response>\\n' ~ m.content ~ '\\n</tool_response>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}""",
    "Qwen 3": """{%- set ns = namespace(last=messages|length - 1, found=false) %}
{%- for m in messages[::-1] %}
    {%- set i = (messages|length - 1) - loop.index0 %}
    {%- if not ns.found and m.role == 'user' and m.content is string and not (m.content.startswith('<tool_response>') and
          m.content.endswith('</tool_response>')) %}
        {%- set ns.last = i %}{%- set ns.found = true %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {%- set content = m.content if m.content is string else '' %}
    {%- if m.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if m.reasoning_content is string %}
            {%- set thought = m.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}""",
    "Llama 2": """{% if messages and messages[0]['role'] == 'system' %}
{% set talk = messages[1:] %}{% set system = '<<SYS>>\\n' + messages[0]['content'] | trim + '\\n<</SYS>>\\n\\n' %}
{% else %}
{% set talk = messages %}{% set system = '' %}
{% endif %}
{% for m in talk %}
{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must take turns') }}{% endif %}
{% set content = (system if loop.index0 == 0 else '') + m['content'] %}
{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}
{% endfor %}""",
    "Llama 3.1": """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now('%Y') | int > 2000 %}{%- else %}{%- set date_string = '26 Jul 2024' %}{%- endif %}
{%- endif %}
{%- set system = messages[0]['content']|trim if messages and messages[0]['role'] == 'system' else '' %}
{%- set messages = messages[1:] if messages and messages[0]['role'] == 'system' else messages %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' ~ 'Today: ' ~ date_string ~ '\\n\\n' ~ system ~ '<|eot_id|>' }}
{%- for m in messages %}
    {%- if not (m.role == 'ipython' or m.role == 'tool' or 'tool_calls' in m) %}
        {{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in m %}
        {%- if not m.tool_calls|length == 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
        {{- m.tool_calls[0].function | tojson }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}""",
    "Mistral 7B": """{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}{% elif m.role ==
 'assistant' %}{{ m.content|trim + eos_token }}{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}""",
    "Mistral Nemo": """{%- if messages and messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for m in loop_messages | rejectattr('role', 'in', ['tool', 'tool_results']) %}
    {%- if (m["role"] == "user") != (ns.index % 2 == 0) %}{{- raise_exception("roles must take turns") }}{%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for m in loop_messages %}
    {%- if m["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + system_message + "\\n\\n" + m["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + m["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- m["content"] + eos_token }}
    {%- endif %}
{%- endfor %}
{{- user_messages | length if user_messages | length > 8 }}""",
    "Gemma 2": """{{ bos_token }}{% if messages and messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}{% for m in messages
 %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must take turns') }}{% endif %}{% set role = 'model' if m['role'] ==
 'assistant' else m['role'] %}{{ '<start_of_turn>' + role + '\\n' + m['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt
 %}{{ '<start_of_turn>model\\n' }}{% endif %}""",
    "Gemma 3": """{{ bos_token }}
{%- set first_user_prefix = (messages[0].content + '\\n\\n') if messages and messages[0].role == 'system' else '' -%}
{%- set loop_messages = messages[1:] if first_user_prefix else messages -%}
{%- for m in loop_messages -%}
    {{ '<start_of_turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\\n' ~ (first_user_prefix if loop.first else '') }}
    {%- if m['content'] is string -%}
        {{ m['content'] | trim }}
    {%- elif m['content'] is iterable -%}
        {%- for item in m['content'] -%}{%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}{%- else -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}
    {%- else -%}
        {{ raise_exception('no such content') }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}""",
    "Phi 3": """{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] + '<|end|>\\n' }}{% endfor %}{{ '<|assistant|>\\n' if
 add_generation_prompt else eos_token }}""",
    "Phi 4": """{% for m in messages %}{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}{% endfor %}{% if add_generation_prompt
 %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}""",
    "DeepSeek V3 and R1": """{%- set ns = namespace(system='', first=true) -%}
{%- for m in messages if m['role'] == 'system' -%}
    {%- set ns.system = ns.system + ('' if ns.first else '\\n\\n') + m['content'] -%}{%- set ns.first = false -%}
{%- endfor -%}
{{ bos_token }}{{ ns.system }}
{%- for m in messages -%}
    {%- if m['role'] == 'user' -%}
        {{ '<\uff5cUser\uff5c>' + m['content'] }}
    {%- elif m['role'] == 'assistant' and m['content'] is not none -%}
        {%- set content = m['content'] -%}
        {%- if '</think>' in content -%}{%- set content = content.split('</think>')[-1] -%}{%- endif -%}
        {{ '<\uff5cAssistant\uff5c>' + content + '<\uff5cend\u2581of\u2581sentence\uff5c>' }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<\uff5cAssistant\uff5c><think>\\n' }}{%- endif -%}""",
    "SmolLM 3": """{%- set reasoning_mode = enable_thinking | default(true) -%}
{%- macro turn(role, content, ends=true) -%}
    {{ '<|im_start|>' ~ role ~ '\\n' ~ content ~ ('<|im_end|>\\n' if ends) }}
{%- endmacro -%}
{%- if not (messages and messages[0].role == 'system') -%}
    {{ turn('system', '## Metadata\\n\\nReasoning Mode: ' ~ ('/think' if reasoning_mode else '/no_think')) }}
{%- endif -%}
{%- for m in messages -%}
    {%- if m.role == 'assistant' -%}
        {%- generation -%}{{ turn(m.role, m.content.lstrip('\\n')) }}{%- endgeneration -%}
    {%- else -%}
        {{ turn(role=m.role, content=m.content) }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ turn('assistant', '', ends=false) }}{%- endif -%}""",
    "gpt-oss": """{%- macro head(role, channel=none) -%}
    <|start|>{{ role }}{% if channel %}<|channel|>{{ channel }}{% endif %}<|message|>
{%- endmacro -%}
{{- head('system') ~ 'You are ChatGPT.\\nCurrent date known: ' ~ (strftime_now('%Y-%m-%d') | length) ~ '\\n# Valid channels: ' ~ ['analysis', 'final'] | join(', ') ~ '.<|end|>' }}
{%- set developer = messages | selectattr('role', 'in', ['system', 'developer']) | map(attribute='content') | list %}
{%- if developer %}{{- head('developer') ~ '# Instructions\\n\\n' ~ developer | join('\\n') ~ '<|end|>' }}{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {{- head('assistant', channel='final') ~ m.content ~ ('<|return|>' if loop.last and not add_generation_prompt else '<|end|>') }}
    {%- elif m.role == 'user' %}
        {{- head(m.role) ~ m.content ~ '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}""",
    "Command R": """{{ bos_token }}{% set names = {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'} %}{% for m in messages %}{% if m.role not in
 names %}{{ raise_exception('role ' ~ m.role) }}{% endif %}{{ '<|START_OF_TURN_TOKEN|><|' ~ names[m.role] ~ '_TOKEN|>' ~ m.content.strip() ~
 '<|END_OF_TURN_TOKEN|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}""",
    "Falcon": """{% for m in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}{{ m.role | capitalize }}: {{ m.content.strip().replace('\\r\\n', '\\n').replace('\\n\\n',
 '\\n') }}{% endfor %}{% if add_generation_prompt %}{{ '\\n' + 'Assistant:' }}{% endif %}""",
    "Zephyr and TinyLlama": """{% for m in messages %}
{% if m.role in ('user', 'system', 'assistant') %}
{{ '<|' ~ m.role ~ '|>\\n' ~ m.content ~ eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    "Granite": """{%- set system = messages | selectattr('role', 'eq', 'system') | map(attribute='content') | map('trim') | first | default('You are Granite.', true) -%}
{%- set flags = {'documents': documents is defined, 'tools': tools is defined and tools is not none} -%}
<|start_of_role|>system<|end_of_role|>{{ system }}{{ ' ' ~ flags | dictsort | map('first') | join(',') if flags.values() | select | list }}<|end_of_text|>
{% for m in messages | rejectattr('role', 'eq', 'system') -%}
<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|end_of_text|>
{% endfor -%}
{%- if add_generation_prompt -%}<|start_of_role|>assistant<|end_of_role|>{%- endif -%}""",
    "GLM 4": """[gMASK]<sop>
{%- macro visible_text(content) -%}
    {%- if content is string -%}
        {{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}{%- if item is mapping and item.type == 'text' -%}{{- item.text }}{%- endif -%}{%- endfor -%}
    {%- else -%}
        {{- content }}
    {%- endif -%}
{%- endmacro -%}
{%- for m in messages -%}
<|{{ m.role }}|>{{ '\\n' ~ visible_text(m.content) | trim }}
{%- endfor -%}
{{ '<|assistant|>' if add_generation_prompt else '' }}""",
    "OLMo 2": """{{ bos_token }}{% for m in messages %}{% set ends = '\\n' if not loop.last or m.role != 'assistant' else '' %}{{ '<|' + m.role + '|>\\n' + m.content +
 (eos_token if m.role == 'assistant' else '') + ends }}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}""",
    "Vicuna": """{% set system = 'A chat.' %}{% for m in messages %}{% if loop.first %}{% if m.role == 'system' %}{% set system = m.content %}{% endif %}{{ system ~
 ' ' }}{% endif %}{% if m.role == 'user' %}{{ 'USER: ' ~ m.content|trim ~ ' ' }}{% elif m.role == 'assistant' %}{{ 'ASSISTANT: ' ~ m.content|trim ~ eos_token
 }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}""",
    "Kimi K2": """{%- for m in messages -%}
  {%- if loop.first and m['role'] != 'system' -%}<|im_system|>system<|im_middle|>You are Kimi.<|im_end|>{%- endif -%}
  {%- set role_name = m.get('name') or m['role'] -%}
  {%- set marks = {'user': '<|im_user|>', 'assistant': '<|im_assistant|>'} -%}
  {{ marks.get(m['role'], '<|im_system|>') }}{{ role_name }}<|im_middle|>{{ m['content'] }}<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}""",
}
