#!/usr/bin/env python3
"""Writes tests/tokenizer/fixtures/jinja.json: small templates with what transformers' environment makes of them, or that it
refuses them; and chat_templates.json: templates as chat models have them (chat_templates.py), with conversations."""
import json
import pathlib

import chat_templates
from transformers.utils.chat_template_utils import _compile_jinja_template

FIXTURES = pathlib.Path(__file__).resolve().parents[3] / "tests/tokenizer/fixtures"
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi "}, {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Bye"}]
EXPRESSIONS = r"""
1 + 2 * 3 - 4 // 3 % 2
7 / 2
7 // 2 ~ '|' ~ -7 // 2
2 ** 3 ** 2
-2 ** 2
1.5 + 2
1e3
10 / 5
0.1 + 0.2
1e16 ~ ' ' ~ 1e15 ~ ' ' ~ 1e-5 ~ ' ' ~ 123456789.123
1_000
'a' ~ 1 + 2
1 + 2 ~ 'a'
'ab' * 3
'%s-%s' % ('a', 1)
'x' if 1 > 2
'x' if 1 > 2 else 'y' if 0 else 'z'
1 < 2 < 3
3 > 2 > 2
1 == 1.0
true == 1
[1, 2] == [1, 2]
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
[1, 'a', none, true, 1.5, {'k': [1]}]
(1, 2)[0]
{'a': "it's", 'b': 'q"', 'c': 'both\'"', 'd': 'tab\t\n\\'}
'a' in 'abc' and 'd' not in 'abc'
1 in [1, 2]
'k' in {'k': 1}
not 1 in [2]
not x is defined
x is not defined
nothing is defined
nothing
nothing.a is defined
messages[9] is defined
messages[0].nothing is none
none is none
none
messages is sequence
messages[0] is mapping
'a' is string
1 is number and 1.5 is number and true is number
1 is integer and 1.5 is float
true is boolean and 1 is not boolean
true is true and false is false
4 is even and 3 is odd
9 is divisibleby 3
9 is divisibleby(2)
1 is eq 1 and 1 is ne 2 and 1 is lt 2 and 2 is ge 2 and 2 is gt(1) and 1 is le 1
'a' is in ['a']
'a' is equalto 'a'
'a' is lower and 'A' is upper
'abc' is iterable and messages is iterable and 1 is not iterable
raise_exception is defined and strftime_now is defined and range is defined and namespace is defined
-1|abs
(-1)|abs
'a,b'|replace(',', ';')
'aaa'|replace('a', 'b', 2)
'  a '|trim ~ '|'
'xxaxx'|trim('x')
'hello world'|title
'hELLO wORLD'|capitalize
'ABC'|lower ~ 'abc'|upper
'abc'|length ~ [1, 2]|length ~ {'a': 1}|count
'abc'|first ~ 'abc'|last
[]|first is defined
[1, 2, 3]|join(', ')
[1, 2, 3]|join
messages|map(attribute='role')|join(',')
messages|map(attribute='x', default='-')|join(',')
['a', 'b']|map('upper')|list
['a ', ' b']|map('trim')|join('|')
[' a', 'b']|map('replace', 'a', 'c')|list
messages|selectattr('role', 'equalto', 'user')|list|length
messages|selectattr('role', 'in', ['user', 'system'])|map(attribute='content')|list
messages|rejectattr('role', 'equalto', 'user')|map(attribute='role')|list
messages|selectattr('tool_calls')|list
messages|selectattr('content', 'defined')|list|length
[0, 1, none, 2]|select|list
[1, 2, 3, 4]|select('even')|list
[1, 2, 3, 4]|reject('gt', 2)|list
[3, 1, 2]|sort
['b', 'A', 'c']|sort
['b', 'A', 'c']|sort(case_sensitive=true)
[3, 1, 2]|sort(reverse=true)
messages|sort(attribute='content')|map(attribute='content')|list
[1, 2, 2, 1]|unique|list
['a', 'A', 'b']|unique|list
[3, 1, 2]|min ~ [3, 1, 2]|max
[1, 2, 3]|sum
[{'a': 1}, {'a': 2}]|sum(attribute='a')
[1, 2, 3]|sum(start=10)
{'b': 1, 'a': 2}|dictsort|map('first')|list
{'b': 1, 'a': 2}|dictsort(by='value', reverse=true)|map('last')|list
{'b': 1, 'a': 2}|items|map('join', '=')|list
{'b': 1, 'a': 2}.items()|map('last')|list
{'b': 1, 'a': 2}|list
{'b': 1}.get('b') ~ {'b': 1}.get('c') ~ {'b': 1}.get('c', 'd')
{'b': 1, 'a': 2}.keys()|list ~ {'b': 1, 'a': 2}.values()|list
{'b': 1, 'a': [1, {'c': none}]}|tojson
{'b': 1, 'a': [1, {'c': none}], 'e': {}, 'f': []}|tojson(indent=2)
{'b': 1, 'a': 2}|tojson(sort_keys=true)
{'b': 1, 'a': 2}|tojson(separators=(',', ':'))
['é', '<a> & "b"', '\n\t\x01', 1.0, 1e100, true]|tojson
['é']|tojson(ensure_ascii=true)
messages|tojson
'3'|int + 1
'x'|int(7) ~ '2.7'|int ~ 2.9|int ~ true|int
'2.5'|float ~ 'x'|float(1.5) ~ 3|float
2.5|round ~ 3.5|round ~ 2.345|round(2) ~ 2.1|round(0, 'ceil') ~ 2.9|round(method='floor')
[1, 2, 3]|reverse|list ~ 'abc'|reverse
[1, 2, 3, 4, 5]|batch(2)|list
[1, 2, 3]|batch(2, 0)|list
'a\nb\n\nc'|indent
'a\nb\n\nc'|indent(2, true)
'a\nb\n\nc'|indent(2, first=true, blank=true)
'a\nb'|indent('>> ')
'ab'|center(6) ~ '|'
'a b  c'|wordcount
'foo bar baz qux'|truncate(9)
'foo bar baz qux'|truncate(9, true)
'foo bar baz qux'|truncate(11)
'%s, %s!'|format('a', 'b')
"<a href='x'>&</a>"|e
'a'|safe ~ 5|string ~ [1]|string
nothing|default('d') ~ ''|default('d') ~ ''|default('d', true) ~ none|default('d', boolean=true)
nothing|d('e')
'Hello'.lower() ~ 'Hello'.upper() ~ 'hello'.capitalize() ~ 'a b'.title() ~ 'aB'.swapcase()
' a '.strip() ~ '|' ~ ' a '.lstrip() ~ '|' ~ ' a '.rstrip() ~ '|'
'  a\u00a0'.strip() ~ '|'
'xyaxy'.strip('xy') ~ 'éaé'.strip('é')
'a,b,,c'.split(',')
'a,b,c'.split(',', 1)
' a  b c '.split()
' a  b c '.split(none, 1)
'a,b,c'.rsplit(',', 1)
' a b c '.rsplit(none, 1)
'a</think>b</think>c'.split('</think>')[-1].lstrip('\n')
'a\nb\r\nc\n'.splitlines()
'a-b-c'.partition('-')|join('/') ~ 'a-b-c'.rpartition('-')|join('/') ~ 'abc'.partition('-')|join('/')
'abc'.startswith('a') ~ 'abc'.endswith(('x', 'c')) ~ 'abc'.startswith(('x', 'y'))
'prefix-a'.removeprefix('prefix-') ~ 'a.txt'.removesuffix('.txt')
'abcab'.find('b') ~ 'abcab'.rfind('b') ~ 'abc'.find('x') ~ 'aéb'.find('b')
'abcab'.count('ab')
'-'.join(['a', 'b'])
'a'.replace('a', 'b') ~ 'aaa'.replace('a', 'b', 1)
'12'.isdigit() ~ 'a'.isalpha() ~ 'a1'.isalnum() ~ ' '.isspace() ~ ''.isdigit()
'AB'.isupper() ~ 'ab'.islower() ~ '12'.isupper()
'7'.zfill(3) ~ 'a'.ljust(3) ~ '|' ~ 'a'.rjust(3)
'{} {1} {x}'.format('a', 'b', x='c')
'{0} {1} {x} {{}}'.format('a', 'b', x='c')
[1, 2, 1].count(1) ~ [1, 2].index(2)
'abcdef'[1:4] ~ 'abcdef'[::-1] ~ 'abcdef'[::2] ~ 'abcdef'[-2:] ~ 'abcdef'[4:1:-1]
[1, 2, 3, 4][1:] ~ [1, 2, 3, 4][:-1] ~ [1, 2, 3, 4][::-2] ~ [1, 2, 3, 4][10:]
range(3)|list ~ range(1, 4)|list ~ range(4, 0, -2)|list
dict(a=1, b='x')
'a' 'b'
'\x41\u00e9'
messages.0.role
messages[0]['role'] ~ messages[-1].role
(messages|length) - 1
messages|length - 1
"a" ~ ("b" if true) ~ ("c" if false)
[1, 2,]
{'a': 1,}
1 if nothing
nothing == nothing2
nothing|length
nothing|list
'a' < 'b'
[1, 2] < [1, 3]
+1
1 + 'a'
nothing.a.b
'a'.nomethod()
'a'|nofilter
1 is notest
[1].append(2)
none + 1
{}['a'] is defined
5|join
""".strip().split("\n")
TEMPLATES = [
    "{% macro f(a, b=2) %}[{{ a }}{{ b }}]{% endmacro %}{{ f(1) }}{{ f(1, b=3) }}{{ f(b=1, a=0) }}",
    "{% macro f(x) -%} {{ x }} {%- endmacro %}{{ f('a') ~ f('b') | upper }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro f() %}{{ caller('x') }}{% endmacro %}{% call(y) f() %}<{{ y }}>{% endcall %}",
    "{% set x = 1 %}{% macro f() %}{{ x }}{% endmacro %}{% for i in [5] %}{% set x = i %}{{ f() }}{% endfor %}{{ x }}",
    "{% macro f(m) %}{{ m.role }}{% endmacro %}{% for m in messages %}{{ f(m) }};{% endfor %}",
    "{% set ns = namespace(a=0) %}{% macro f() %}{% set ns.a = ns.a + 1 %}{% endmacro %}{{ f() }}{{ f() }}{{ ns.a }}",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }}{{ ',' if not loop.last }}{% endfor %}",
    "{% for k in {'a': 1, 'b': 2} %}{{ k }}{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{{ m.content }}{% endfor %}",
    "{% for m in [] %}x{% else %}none{% endfor %}",
    "{% for x in nothing %}x{% else %}none{% endfor %}",
    "{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [1, 2] %}{% for y in [3, 4] %}{% if y == 4 %}{% break %}{% endif %}{{ x }}{{ y }}{% endfor %}|{% endfor %}",
    "{% for x in [1, 2, 3] %}{{ loop.cycle('a', 'b') }}{{ loop.revindex }}{{ loop.previtem is defined }}{{ loop.nextitem }}{% endfor %}",
    "{% for c in 'aé' %}{{ c }}.{% endfor %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set x %}block {{ 1 + 1 }}{% endset %}[{{ x }}]",
    "{% set x | upper | trim %} block {% endset %}[{{ x }}]",
    "{% filter upper %}abc {{ 'd' }}{% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}",
    "{% raw %}{{ not }} {% this %}{% endraw %} {{ 1 }}",
    "a\n  {%- raw -%}  {{ x }}  {%- endraw -%}  \nb",
    "{% if 0 %}a{% elif 1 %}b{% else %}c{% endif %}",
    "{% if messages[0].role == 'system' and not tools %}{{ messages[0].content }}{% endif %}",
    "a\n  {% if true %}\nb\n  {% endif %}\nc\n",
    "  {%- if true -%}  b  {%- endif -%}  c  {{- ' d' -}}  e",
    "{# comment {{ x }} #}a{#- b -#} c",
    "{% generation %}x{% endgeneration %}",
    "{% set ns = namespace(found=false, n=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.found = true %}"
    "{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}{{ ns.found }}{{ ns.n }}",
    "{% for m in messages %}{% set x = loop.index %}{% endfor %}{{ x is defined }}",
    "{% if true %}{% set x = 1 %}{% endif %}{{ x }}",
    "{{ raise_exception('no ' ~ 'way') }}",
    "{% set messages = messages[1:] %}{{ messages | length }}",
    "{{ '%s' % 'a' }}{{ \"it's\" }}{{ 'say \"hi\"' }}",
    "{{ {'name': 'f', 'arguments': {'x': 1, 'a': [true, null is defined]}} | tojson(indent=4) }}",
    "{%- set loop_messages = messages[1:] if messages[0]['role'] == 'system' else messages -%}{{ loop_messages | length }}",
    "{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}",
]


def rendered(template, **context):
    try:
        return {"text": _compile_jinja_template(template).render(bos_token="<s>", eos_token="</s>", tools=None, documents=None, **context)}
    except Exception as e:  # whatever it is, the template is refused
        return {"error": type(e).__name__}


def main():
    rows = [{"template": t, **rendered(t, messages=TALK, add_generation_prompt=False)}
            for t in ["{{ " + e + " }}" for e in EXPRESSIONS] + TEMPLATES]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (FIXTURES / "jinja.json").write_text('{"messages":' + json.dumps(TALK) + ',"rows":[\n' + lines + "\n]}\n")
    models = []
    for name, template in chat_templates.TEMPLATES.items():
        rows = [{"messages": messages, "prompt": prompt, **rendered(template, messages=messages, add_generation_prompt=prompt)}
                for messages in chat_templates.TALKS for prompt in (False, True)]
        models.append({"name": name, "template": template, "rows": rows})
    lines = ",\n".join(json.dumps(m, ensure_ascii=False) for m in models)
    (FIXTURES / "chat_templates.json").write_text("[\n" + lines + "\n]\n")


main()
