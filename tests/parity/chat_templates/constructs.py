"""Templates of single constructs."""

CONSTRUCTS = [
    r"""{{ [1,2,3][::-1] }}|{{ 'hello'[1:3] }}|{{ 'héllo'[-3:] }}|{{ [1,2,3][5] is defined }}|{{ (1,) }}|{{ {} }}|{{ {'a':1,'b':[None,true]} }}""",
    r"""{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 1.5 + 1 }} {{ 'a' * 3 }} {{ [1] * 2 + [3] }} {{ 10.0 }} {{ 1e100 }} {{ 0.1 + 0.2 }} {{ -7.5 // 2 }} {{ -7.5 % 2 }}""",
    r"""{{ 'a' ~ 1 ~ none ~ true ~ 1.0 }} {{ not true }} {{ 1 < 2 < 3 }} {{ 1 in [1] }} {{ 'a' not in 'abc' }} {{ 'x' if false }}|{{ 1 == 1.0 }} {{ true == 1 }} {{ '1' == 1 }}""",
    r"""{{ "it's" | list }} {{ ["it's", 'q"', 'a\nb', 'é', '\u2028', '\x00'] }}""",
    r"""{{ 'hello world-foo (bar)' | title }} {{ 'HELLO' | capitalize }} {{ 'aXb' | lower }} {{ 'axb' | upper }} {{ "they're bill's" .title() }} {{ 'abc'.capitalize() }}""",
    r"""{{ '  x '|trim }}|{{ 'xxaxx'.strip('x') }}|{{ ' a b  c '.split() }}|{{ 'a,b,,c'.split(',') }}|{{ 'a,b,c'.split(',', 1) }}|{{ 'a,b,c'.rsplit(',', 1) }}|{{ 'a\nb\r\nc'.splitlines() }}""",
    r"""{{ 'a-b'.partition('-') }} {{ 'ab'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'abc'.find('c') }} {{ 'abc'.find('z') }} {{ 'aXbX'.count('X') }} {{ 'x'.join(['a','b']) }}""",
    r"""{{ '%s and %d and %.2f %5s|%-5s|%05d %x %%' % ('a', 3, 2.5, 'r', 'l', 42, 255) }} {{ '{} {1} {x}'.format('a') if false else '{} {}'.format('a', 1) }} {{ '%s' | format('z') }}""",
    r"""{% for i in range(3) %}{{ loop.index }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.cycle('a','b') }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.changed(i // 2) }} {% endfor %}""",
    r"""{% for a, b in {'x': 1, 'y': 2}.items() %}{{ a }}={{ b }};{% endfor %}{% for k in {'x': 1} %}{{ k }}{% endfor %}{% for c in 'abc' %}{{ c }},{% endfor %}""",
    r"""{% for i in [1,2,3,4] if i % 2 == 0 %}{{ i }}{{ loop.length }}{% else %}none{% endfor %}{% for i in [] %}x{% else %}empty{% endfor %}""",
    r"""{% for i in range(10) %}{% if i == 3 %}{% continue %}{% endif %}{% if i == 6 %}{% break %}{% endif %}{{ i }}{% endfor %}""",
    r"""{% set x = 1 %}{% for i in [1,2] %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}""",
    r"""{% set ns = namespace(a=1, b='x') %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns['b'] }}{{ ns.c is defined }}{% for i in [1] %}{% set ns.d = i %}{% endfor %}{{ ns.d }}""",
    r"""{% macro f(a, b=2, c='x' ~ a) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ f() }}{{ f(1,2,3) }}""",
    r"""{% macro outer(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) outer('q') %}in {{ y }}{% endcall %}""",
    r"""{% macro r(n) %}{{ n }}{% if n > 0 %}{{ r(n - 1) }}{% endif %}{% endmacro %}{{ r(5) }}""",
    r"""{% for i in [[1,[2]],[3,[]]] recursive %}{{ i[0] if i is sequence and i is not string and i is not number else i }}{% if i is sequence and i|length > 1 and i[1] %}({{ loop([[i[1][0], []]]) }}){% endif %}{{ loop.depth }}{% endfor %}""",
    r"""{% set x %}a {{ 1 }} b{% endset %}{{ x|upper }}{% set y | upper %}abc{% endset %}{{ y }}{% filter upper %}f {{ x }}{% endfilter %}{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}""",
    r"""{{ [3,1,2]|sort }} {{ ['b','A','c']|sort }} {{ ['b','A']|sort(case_sensitive=true) }} {{ [1,2,3]|sort(reverse=true) }} {{ {'b':1,'a':2}|dictsort }} {{ [1,2,2,'a','A']|unique|list }} {{ [1,5,3]|max }} {{ ['b','A']|min }} {{ [1,2]|sum }}""",
    r"""{{ [{'a':1},{'a':2}]|map(attribute='a')|list }} {{ ['a','b']|map('upper')|join('-') }} {{ [1,2,3]|select('odd')|list }} {{ [1,2,3]|reject('gt', 1)|list }} {{ [{'r':'x'},{'r':'y'}]|selectattr('r','equalto','x')|list }} {{ [{'r':'x'},{}]|rejectattr('r')|list }} {{ [{'r':'x'},{}]|selectattr('r','defined')|list|length }}""",
    r"""{{ [1,2,3]|first }} {{ [1,2,3]|last }} {{ 'abc'|first }} {{ []|first is defined }} {{ [1,2,3]|reverse|list }} {{ 'abc'|reverse }} {{ [1,2,3,4,5]|batch(2)|list }} {{ [1,2,3]|batch(2,'x')|list }} {{ 'abc'|length }} {{ 'a b c'|wordcount }}""",
    r"""{{ 3.7|int }} {{ '12'|int }} {{ 'x'|int }} {{ 'x'|int(7) }} {{ '3.5'|float }} {{ 42.55|round(1) }} {{ 42.5|round }} {{ 2.5|round }} {{ 42.1|round(0,'ceil') }} {{ -3|abs }} {{ 42|round }} {{ '0x1A'|int(0,16) }}""",
    r"""{{ undefined_thing|default('d') }} {{ ''|default('e', true) }} {{ none|default('x') }} {{ x|d('y') }} {{ false|d('z', true) }}""",
    r"""{{ 'a\nb\n\nc'|indent }} {{ 'a\nb'|indent(2, true) }} {{ 'a\n\nb'|indent(2, blank=true) }} {{ 'a\nb'|indent('> ') }}""",
    r"""{{ {'a': [1, {'b': 'é"\n'}], 'c': {}}|tojson }} {{ {'a': [1, {'b': 'é'}], 'c': [], 'd': {}}|tojson(indent=2) }} {{ {'b':1,'a':2}|tojson(sort_keys=true, separators=(',',':')) }} {{ 'é🙂'|tojson(ensure_ascii=true) }} {{ [1.0, 1e20, none, true, 1e16, 1e-5]|tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 'x'}|tojson }} {{ (1,2)|tojson }}""",
    r"""{{ 'the quick brown fox jumps'|truncate(12) }} {{ 'the quick brown fox'|truncate(11, true, '..') }} {{ 'abc'|center(9) }}| {{ 'ab'.ljust(4,'.') }} {{ 'ab'.rjust(4) }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }}""",
    r"""{{ 1 is number }} {{ 'a' is string }} {{ {} is mapping }} {{ [] is iterable }} {{ 'a' is sequence }} {{ none is none }} {{ 1 is odd }} {{ 4 is divisibleby 2 }} {{ 1 is sameas 1 }} {{ true is boolean }} {{ 1.0 is float }} {{ 1 is integer }} {{ true is integer }} {{ 'abc' is lower }} {{ 'ABC' is upper }} {{ range is callable }} {{ 1 is eq 1 }} {{ 2 is gt 1 }} {{ 1 is in [1] }} {{ 'upper' is filter }} {{ x is not defined }} {{ false is false }} {{ 0 is false }}""",
    r"""{{ 'a' 'b' "c" }} {{ "\x41\u00e9\U0001F600\101\q" }} {{ 'it\'s' }} {{ 1_000 }} {{ 1.5e3 }} {{ [1,2,] }} {{ (1,2,) }} {{ {'a':1,} }} {{ () }}""",
    r"""a  {%- if true -%}  b  {%- endif -%}  c""",
    r"""  {% if true %}
  x
    {% endif %}  y""",
    r"""{% raw %}{{ x }} {% if %}{% endraw %} {# comment #} z {#- c -#} w""",
    r"""line
   {#- x #}
 next {{ 1 -}}   
  end {{- 2 }}""",
    r""" {%+ if true %}a{% endif +%}
b""",
    r"""{% if true %}{% endif %}

x""",
    r"""{{ messages|length }}{{ messages[0].role }}{{ messages[0]['content'] }}{{ messages[-1].nothing is defined }}{{ messages[0].get('x', 'dflt') }}{{ messages[0].items()|list }}{{ messages[0].keys()|list }}{{ 'role' in messages[0] }}""",
    r"""{{ {'items': 5}.items is callable }} {{ {'items': 5}['items'] }} {{ 'abc'.upper is defined }} {{ [1,2].index(2) }} {{ [1,1].count(1) }} {{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }}""",
    r"""{{ [{'g':'a','v':1},{'g':'b','v':2},{'g':'a','v':3}]|groupby('g')|map('first')|list }} {% for g, l in [{'g':'B','v':1},{'g':'a','v':2}]|groupby('g') %}{{ g }}:{{ l|length }}{% endfor %}""",
    r"""{{ [[1,2],[3]]|map('length')|list }} {{ [[2,1],[1,5]]|sort }} {{ 'a<b>&"\''|e }} {{ 'a b/é?'|urlencode }} {{ {'a':1}|items|list }} {{ [1,2]|join(', ') }} {{ [{'n':'x'}]|join(',', attribute='n') }}""",
    r"""{{ 'a'.startswith(('x','a')) }} {{ 'abc'.endswith('bc') }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ 'aaa'.replace('a','b',2) }} {{ 'ab'.replace('','-') }} {{ ''.isspace() }} {{ ' '.isspace() }} {{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ 'aé'.isalpha() }}""",
    r"""{{ loop is defined }}{% for a in [1] %}{% for b in [1,2] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}""",
    r"""{{ nothing }}{{ nothing|length }}{{ nothing|list }}{% for x in nothing %}x{% endfor %}{{ nothing == other }}{{ 'a' in nothing }}{{ nothing or 'z' }}""",
    r"""{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = [3, 4] %}{{ c }}{{ d }}{% for (i, (j, k)) in [(1,(2,3))] %}{{ i }}{{ j }}{{ k }}{% endfor %}""",
    r"""{{ ({'a':1} | items | list)[0][0] }} {{ (messages | map(attribute='role') | list) }} {{ messages | map(attribute='zz', default='q') | list }} {{ messages | selectattr('role', 'in', ['user']) | list | length }}""",
    r"""{{ -1 ** 2 }} {{ 2 ** 3 ** 2 }} {{ -2|abs }} {{ not 1 == 2 }} {{ 'a' if 1 else 'b' if 0 else 'c' }} {{ (1 if false) is defined }} {{ 1 if 1 > 0 and not 0 else 2 }} {{ 1 ~ 2 + '3' if false else 4 }}""",
    r"""{{ strftime_now('%Y-%m-%d') }}{{ strftime_now("%d %b %Y") }}""",
    r"""{{ ''.__class__ }}|{{ messages.__class__ is defined }}""",
    r"""{% macro f(a, b=2, c=3) %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ f(*[4]) }}{{ f(*[4, 5, 6]) }}{{ f(1, *'ab') }}{{ f(1, **{'c': 7}) }}{{ f(b=8, *[9]) }}{{ f(*[], **{'a': 0}) }}{{ 'a b'|replace(*['a', 'c']) }}{{ dict(**{'x': 1}) }}""",
    r"""{{ none|select|list }}{{ none|map('upper')|join }}{{ 0|selectattr('x')|list }}{{ false|rejectattr('x', 'defined')|list }}{{ none|reject('odd')|list }}{{ nothing|map(attribute='a')|list }}""",
]
