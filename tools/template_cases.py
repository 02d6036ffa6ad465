"""The templates and conversations that tools/template_reference.py renders: small cases of our own."""

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a \"city\" <now> & later, é.",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "Its name"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7}}, "required": ["city"]},
    "return": {"type": "object"}}}]


def conversations():
    user = {"role": "user", "content": "  Hello, what's up? 'quotes' \"double\" <b>&amp;</b> 你好 🙂 \n"}
    system = {"role": "system", "content": "You are helpful."}
    arguments = {"city": "Paris", "days": 3, "nested": {"a": [1, 2.5, None, True], "b": "x\"y"}}

    def call(args):
        return {"role": "assistant", "content": "", "tool_calls": [
            {"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": args}}]}

    answer = {"role": "tool", "tool_call_id": "call12345", "name": "get_weather", "content": "{\"temp\": 21}"}
    said = {"role": "assistant", "content": "I am fine."}
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    text = "text"
    parts = {"role": "user", "content": [{"type": text, "text": "What is "}, {"type": "image"},
                                         {"type": "image_url", "image_url": {"url": "x.png"}},
                                         {"type": text, "text": "this?"}]}
    base = {
        "plain": {"messages": [user], "add_generation_prompt": True},
        "plain_end": {"messages": [user, said], "add_generation_prompt": False},
        "system": {"messages": [system, user], "add_generation_prompt": True},
        "turns": {"messages": [system, user, said, {"role": "user", "content": "And now?"},
                               {"role": "assistant", "content": "Still.\n"}, user],
                  "add_generation_prompt": True},
        "tools": {"messages": [system, user], "tools": TOOLS, "add_generation_prompt": True},
        "calls": {"messages": [user, call(arguments), answer, said, user], "tools": TOOLS,
                  "add_generation_prompt": True},
        "calls_text": {"messages": [user, call("{\"city\": \"Paris\"}"), answer], "tools": TOOLS,
                       "add_generation_prompt": True},
        "calls_plain": {"messages": [user, call(arguments), answer, said], "add_generation_prompt": False},
        "reasoning": {"messages": [user, {"role": "assistant", "reasoning_content": "Let me think.",
                                          "content": "Done."}, {"role": "user", "content": "Why?"},
                                   {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSo."}],
                      "add_generation_prompt": False},
        "thinking_off": {"messages": [system, user], "enable_thinking": False, "thinking": False,
                         "reasoning_effort": "low", "add_generation_prompt": True},
        "parts": {"messages": [system, parts], "add_generation_prompt": True},
        "parts_text": {"messages": [{"role": "user", "content": [{"type": text, "text": "one"},
                                                                 {"type": text, "text": "two"}]}, said, user],
                       "add_generation_prompt": True},
        "developer": {"messages": [{"role": "developer", "content": "Be brief."}, user],
                      "add_generation_prompt": True},
        "null_content": {"messages": [user, dict(call(arguments), content=None), answer],
                         "add_generation_prompt": True},
    }
    given = dict(tokens, tools=None, documents=None)  # as apply_chat_template gives them
    return {k: dict(given, **v) for k, v in base.items()}


def expressions():
    """Each is printed by {{ }}."""
    return r"""
1 + 2 * 3 - 4
7 / 2
7 // 2
-7 // 2
-7 % 3
7 % -3
7.5 // -2
-7.5 % 2
5.0 % -5
-5.0 % 5
134.0 // 0.77
2 ** 10
2 ** -1
-2 ** 2
2 ** 3 ** 2
2 ** 0.5
10 / 5
0.1 + 0.2
1e16
1e15
123456789012345680.0
1e-5
0.0001
1.5e300 * 1e10
-0.0
1_000_000
0x1F + 0o17 + 0b11
9223372036854775807 + 1
10 ** 20
true + 1
true and 0 or 'x'
not none
1 == 1.0
1 == true
'1' == 1
none == false
1 < 2 < 3
3 > 2 > 2
1 < 2 > 1 != 4
'a' < 'b'
[1, 2] < [1, 3]
(1, 2) == (1, 2)
[1] == (1,)
{'a': 1} == {'a': 1.0}
'a' in 'abc'
'z' not in 'abc'
1 in [1, 2]
true in [1, 2]
'k' in {'k': 1}
2 in range(5)
none in [none]
'a' ~ 1 ~ true ~ none ~ [1, 'b'] ~ 2.0
[1, 'a', "it's", 'say "hi"', 'both \' and "', none, true, 1.0, (1,), (), (1, 2), {'k': 'v', 1: 2}]
'tab\tnewline\nbackslash\\ bell\x07 é ñ \u200b \U0001F600'
['tab\tnewline\nbackslash\\ bell\x07 é ñ \u200b \u00ad \U0001F600 \x7f']
{}
[]
()
(1)
(1,)
1, 2
{'a': {'b': [1, 2]}}
{'a': {'b': [1, 2]}}.a.b[1]
[1, 2, 3][-1]
[1, 2, 3][5]
[1, 2, 3][1:]
[1, 2, 3][::-1]
'hello'[1:3]
'hello'[::-1]
'hello'[::2]
'hello'[-3:]
'hello'[10:]
'hello'[3:1]
undefined_thing[1:]
'abc'[true:]
'abc'[-9:-1]
[1, 2, 3][-9:9:2]
[1, 2, 3][9:-9:-2]
'abc'[::0]
'hello'[1]
'héllo wörld'[1:5]
'héllo wörld'[::-2]
'你好🙂'[2]
'你好🙂'|length
(1, 2, 3)[:2]
range(10)[2:8:3]
range(5)
range(1, 5, 2)
range(3)|list
range(5, 0, -2)|list
range(0)|list
'x' if true
'x' if false
'x' if false else 'y'
'a' if 0 else 'b' if 0 else 'c'
undefined_thing
undefined_thing.attr
undefined_thing + 1
undefined_thing ~ 'x'
undefined_thing|default('d')
undefined_thing is defined
undefined_thing|length
undefined_thing == other_undefined
[undefined_thing]
{}.missing
{}.missing is undefined
{}.missing.deeper
{'items': 1}.items is callable
{'items': 1}['items']
{'a': 1}.get('a')
{'a': 1}.get('b')
{'a': 1}.get('b', 7)
{'a': 1, 'b': 2}.keys()
{'a': 1, 'b': 2}.values()
{'a': 1, 'b': 2}.items()
{'a': 1, 'b': 2}|items|list
{'a': 1, 'b': 2}|list
{'b': 1, 'a': 2}|dictsort
{'b': 1, 'A': 2}|dictsort
{'b': 1, 'A': 2}|dictsort(true)
{'b': 1, 'a': 2}|dictsort(by='value')
{'b': 1, 'a': 2}|dictsort(reverse=true)
'hello world'.title()
"they're bill's friends".title()
"they're bill's (big) friends-of x"|title
'hello WORLD'.capitalize()
'hello WORLD'|capitalize
'straße'.upper()
'ÀÉÎ ΑΣ ΣΑΣ Ж'.lower()
'ΑΣΑ ΑΣ1 Σ'.lower()
'àéî ß ﬁ ж'.upper()
'Hello'.swapcase()
'  x  '.strip()
'xxhixx'.strip('x')
'abcba'.strip('ab')
'abcba'.lstrip('ab')
'abcba'.rstrip('ab')
'　wide　'.strip()
'a,b,,c'.split(',')
'a,b,,c'.split(',', 1)
' a  b c '.split()
' a  b c '.split(none, 1)
'a,b,c'.rsplit(',', 1)
' a  b c '.rsplit(none, 1)
'a b c'.rsplit()
''.split()
''.split(',')
'a'.split('')
'one\ntwo\r\nthree\n'.splitlines()
'one\ntwo\n'.splitlines(true)
'a\x0bb\x0cc\x1cd\x1de\x1ef\x1fg\x85h\u2028i\u2029j'.splitlines()
'a-b-c'.partition('-')
'a-b-c'.rpartition('-')
'abc'.partition('x')
'abc'.rpartition('x')
'abc'.startswith('a')
'abc'.startswith(('x', 'a'))
'abc'.startswith('b', 1)
'abc'.startswith('', 5)
'abc'.endswith('c')
'abc'.endswith(('c', 'x'))
'abc'.endswith('b', 0, 2)
'abcabc'.find('c')
'abcabc'.find('c', 3)
'abcabc'.rfind('c')
'abcabc'.find('x')
'abcabc'.index('b')
'abcabc'.index('x')
'éaéa'.find('a', 2)
'aaaa'.count('aa')
'abc'.count('')
'abc'.replace('b', 'XX')
'aaa'.replace('a', 'b', 2)
'abc'.replace('', '-')
'é'.replace('', '-')
', '.join(['a', 'b'])
', '.join(['a', 1])
'x'.join('abc')
'abc'.removeprefix('a')
'abc'.removesuffix('c')
'abc'.removeprefix('x')
'7'.zfill(3)
'-7'.zfill(4)
'ab'.ljust(5, '.')
'ab'.rjust(5)
'ab'.center(5, '*')
'abc'.center(6, '*')
'abc'.isdigit()
'123'.isdigit()
'abc'.isalpha()
'äbc'.isalpha()
'ab1'.isalnum()
'  '.isspace()
''.isspace()
'ABC'.isupper()
'aBc'.islower()
'abc1'.islower()
'%s is %d' % ('x', 3)
'%s' % 'x'
'%s' % [1, 2]
'%05.1f|%-5s|%5s|%+d|%x' % (3.14159, 'ab', 'cd', 5, 255)
'%(a)s and %(b)d' % {'a': 'x', 'b': 2}
'100%%' % ()
'%s' % ()
'%s' % (1, 2)
'%r' % 'it'
'%d' % 3.7
'%e %g' % (12345.678, 0.0001)
'%#x|%#o|%X' % (255, 8, 255)
'%-05d|%- 5d|%05d|%+.2f' % (5, 5, -5, 1.005)
'%(a)s %s' % {'a': 1}
'%s %(a)s %(a)s' % {'a': 1}
'%(a)s %(b)s' % {'a': 1}
'%5.1f%%|%i' % (12.34, 5.9)
'{} {}'.format(1, 'a')
'{1} {0}'.format(1, 'a')
'{x}-{y}'.format(x=1, y=2)
'{:>5}|{:<5}|{:^5}|{:05d}|{:,}|{:.2f}|{!r}'.format('a', 'b', 'c', 42, 1234567, 3.14159, 'q')
'{:*^9}|{:+d}|{:x}|{:e}|{:%}'.format('mid', 3, 255, 12345.678, 0.25)
'{:^4}|{:^6}|{:!>3}|{:=+5}|{:<4}|'.format('a', 'abc', 7, 7, 7)
'{:05}|{:*<05}|{:>05}|{:<05}|{:*>05}'.format('ab', 'ab', 'ab', 7, 7)
'%05s|' % 'ab'
'{:#x}|{:#o}|{:X}|{: d}|{:,.1f}'.format(255, 8, 255, 5, 12345.67)
'{!s}|{!r:>5}|{:.2}'.format('a', 'b', 'cde')
'{:5}'.format(none)
'{:>9}'.format([1])
'{:}|{!r:>5}|{!s:>9}'.format([1], [1], {})
'{:+}'.format('a')
'{:,}'.format('a')
'{:=5}'.format('a')
'{:#}'.format('a')
'{: }'.format('a')
'{:5}|{:+}'.format(true, true)
'{:5}'.format(undefined_thing)
'{}|'.format(undefined_thing)
'{{}} {}'.format(1)
'{}'.format(1.0)
'{}'.format(none)
'{}'.format(true)
'{}'
'a%sb'|format('x')
'%s %s'|format('a', 1)
'abc'|upper
'aBC'|lower
42|string
42|string|length
none|string
true|string
1.0|string
'3'|int
'3.7'|int
' 12 '|int
'x'|int
'x'|int(5)
'ff'|int(0, 16)
'0x1f'|int(base=16)
3.9|int
-3.9|int
none|int
[]|int
'1_000'|int
'1__0'|int
'_1'|int
'1_'|int
'1_0.2_5e0_1'|float
'1_.5'|float
'1._5'|float
'1e_5'|float
'-12'|int
'+7'|int
'-'|int(3)
'12'|int(base=2)
'0b11'|int(0, 2)
'0o17'|int(0, 8)
'3.5'|float
'x'|float
'1e3'|float
3|float
none|float(2.5)
2.5|round
3.5|round
2.675|round(2)
2.345|round(1, 'ceil')
2.345|round(1, 'floor')
-0.3|round(0, 'ceil')
-0.3|round(0, 'floor')
7|round
-2.5|round
1234.5|round(-2)
-5|abs
-5.5|abs
'x'|abs
[1, 2, 3]|sum
[1.5, 2]|sum
[{'a': 1}, {'a': 2}]|sum(attribute='a')
[1, 2]|sum(start=10)
[3, 1, 2]|sort
['b', 'A', 'c']|sort
['b', 'A', 'c']|sort(case_sensitive=true)
['b', 'A', 'c', 'a']|sort(reverse=true)
[3, 1, 2]|sort(true)
[1, 'a']|sort
[{'n': 2}, {'n': 1}]|sort(attribute='n')
[{'n': 1, 'm': 1}, {'n': 1, 'm': 2}, {'n': 2}]|sort(reverse=true, attribute='n')
[3, 1, 2]|max
[3, 1, 2]|min
[]|max
['b', 'A']|max
['a', 'A']|max
['A', 'a']|min
['b', 'A']|max(true)
[{'a': 1, 'b': 2}, {'a': 2, 'b': 1}]|max(attribute='b')
[{'a': 1, 'b': 2}, {'a': 2, 'b': 1}]|min(attribute='b')
[1, 2, 1, 3]|unique|list
['a', 'A', 'b']|unique|list
['a', 'A', 'b']|unique(true)|list
[{'a': 1, 'b': 1}, {'a': 1, 'b': 2}]|unique(attribute='a')|list
[1, {'a': 1}, 2]|unique(attribute='a')|list
{undefined_thing: 1}
{undefined_thing: 1}[other_undefined]
{undefined_thing: 1}|tojson
{}[undefined_thing] is defined
[1, 2, 3]|first
[]|first
[1, 2, 3]|last
'abc'|first
'abc'|last
'abc'|list
'abc'|reverse
[1, 2, 3]|reverse|list
[1, 2, 3]|join
[1, 2, 3]|join(', ')
['a', none, true, 1.5]|join('-')
[{'a': 1}, {'a': 2}]|join(',', attribute='a')
[{'a': {'b': 1}}, {'a': {'b': 2}}]|map(attribute='a.b')|list
[{'a': 1}, {}]|map(attribute='a', default='z')|list
[[1, 2], [3, 4]]|map(attribute=0)|list
['a', 'b']|map('upper')|list
['a', 'b']|map('upper')|join
['axa']|map('replace', 'a', 'b')|list
[1, 2, 3, 4]|select('odd')|list
[1, 2, 3, 4]|reject('odd')|list
[0, 1, '', 'a']|select|list
[1, 2, 3]|select('gt', 1)|list
[1, 2, 3]|select('>', 1)|list
[{'a': 1}, {'a': 0}, {}]|selectattr('a')|list
[{'a': 1}, {'a': 2}]|selectattr('a', 'eq', 2)|list
[{'a': 1}, {'a': 2}, {}]|rejectattr('a', 'defined')|list
[{'a': 1}]|selectattr('a', 'nosuch')|list
[1, 2]|map('upper')|length
[1, 2]|select|length
[1, 2, 3, 4, 5]|batch(2)|list
[1, 2, 3, 4, 5]|batch(2, 'x')|list
[1, 2, 3, 4, 5]|slice(2)|list
[1, 2, 3, 4, 5]|slice(3, 'x')|list
[1, 2]|slice(-1)|list
[1, 2]|slice(0)|list
[1, 2]|batch(-1, 'x')|list
[{'k': 'a', 'v': 1}, {'k': 'b', 'v': 2}, {'k': 'a', 'v': 3}]|groupby('k')|list
[{'k': 'b'}, {'v': 2}, {'k': 'A'}, {'k': 'a'}]|groupby('k', default='a')|list
[{'k': 'b'}, {'v': 2}, {'k': 'A'}, {'k': 'a'}]|groupby('k', default='a', case_sensitive=true)|list
[{'k': {'j': 2}}, {'k': {}}, {}]|groupby('k.j', default=1)|list
[{'k': {'j': 2}}, {'k': {}}, {}]|groupby('k.j', default={'j': 7})|length
[{'k': 1}, {}]|groupby('k', none)|list
[{'k': {'j': 2}}, {'k': {}}, {}]|map(attribute='k.j', default={'j': 7})|list
[{'k': {'j': 2}}, {}]|map(attribute='k.j', default='x')|list
[[1, 2], [3]]|groupby(1, default=0)|list
'a\nb\n\nc'|indent
'a\nb\n\nc'|indent(2, true)
'a\nb\n\nc'|indent(2, blank=true)
'a\nb\n'|indent('> ')
'  hi  '|trim
'xxhixx'|trim('x')
'a b  c'|wordcount
'a_b 1c, d-e é'|wordcount
'foo bar baz qux'|truncate(9)
'foo bar baz qux'|truncate(9, true)
'foo bar baz qux'|truncate(11)
'foo bar baz qux'|truncate(10)
5|truncate(9)
[1, 2]|truncate(9)
[1, 2, 3, 4]|truncate(3, true, '', 0)
'foo bar baz qux'|truncate(2)
'foo bar baz qux'|truncate(9, end='…')
'foo bar baz qux'|truncate(11, false, '...', 0)
'abc'|center(9)
'abc'|center(8) ~ '|'
'ab'|center(5) ~ '|'
'abc'|center(2)
'abab'|replace('a', 'x')
'abab'|replace('a', 'x', 1)
5|replace(5, 6)
'<a href="x">'|escape
'<a>'|e ~ '<b>'
'<a>'|safe
'<a>'|safe + '<b>'
'<b>' + '<a>'|e
('<a>'|e)|e
'<a>'|forceescape
none|default('x')
none|default('x', true)
''|default('x')
''|d('x', boolean=true)
0|default(5)
{'b': [1, 2.0, none, true, 'é"\n\x01\x7f'], 'a': {}}|tojson
{'b': 1, 'a': 2}|tojson(sort_keys=true)
{'b': [1, {'c': []}], 'a': {}}|tojson(indent=2)
{'b': [1, 2]}|tojson(indent='--')
{'b': [1, 2]}|tojson(separators=(',', ':'))
'é🙂\x7f'|tojson(ensure_ascii=true)
'</script>&\''|tojson
{1: 2, none: 3, true: 4, 1.5: 5}|tojson
(1, 2)|tojson
undefined_thing|tojson
[1]|map('string')|tojson
1e100|tojson
{'a': 1}|attr('a')
[1, 2]|attr('append')
'abc'|nosuch
1 is nosuch
1 is odd
2 is even
2.0 is even
0.5 is odd
3.0 is odd
-3 is odd
'a' is odd
'%s' is even
none is odd
9 is divisibleby 3
9 is divisibleby(4)
'a' is string
1 is string
1 is number
true is number
true is integer
1.0 is float
1 is integer
none is none
1 is not none
[] is iterable
1 is iterable
'a' is sequence
{} is sequence
[] is sequence
1 is sequence
{} is mapping
[] is mapping
true is true
1 is true
false is false
true is boolean
1 is boolean
range is callable
1 is callable
'abc' is lower
'ABC' is upper
1 is eq 1
1 is ne 2
1 is lt 2
2 is lt 2
2 is gt 2
2 is le 1
3 is gt 2
2 is ge 3
2 is le(2)
'a' is escaped
('a'|e) is escaped
2 is ge(2)
1 is in [1, 2]
1 is sameas 1
none is sameas none
'upper' is filter
'nosuch' is filter
'odd' is test
[1, 2].append(3)
[1, 2].pop()
{'a': 1}.update({'b': 2})
{'a': 1}.pop('a')
[1, 2].append is defined
[1, 2, 1].count(1)
[1, 2].index(2)
[1, 2].index(3)
'abc'.__class__
{'__class__': 1}['__class__']
''.__class__.__mro__
[1, 2] + [3]
[1, 2] + (3,)
(1,) + (2,)
'ab' * 3
3 * 'ab'
[1] * 2
'a' + 1
1 + 'a'
1 / 0
1 % 0
1 // 0.0
none + 1
-'a'
'a' - 'b'
+true
-true
not 1 in [1]
namespace(a=1).a
namespace({'a': 1}, b=2).b
namespace(a=1)['a']
dict(a=1, b='x')
dict([('a', 1)])
dict({'a': 1}, b=2)
strftime_now('%Y-%m-%d')
strftime_now('%d %B %Y')
strftime_now('%-m/%-d/%Y')
strftime_now('%-')
strftime_now('100%')
strftime_now('%H:%M %j %A %b %% %p')
raise_exception('no')
range('x')
range(1000000)|length
cycler('a', 'b').next()
'a' 'b' 'c'
"double 'single'"
'oct \101 hex \x41 uni \u0041 \q'
'line \
joined'
[1, 2, 3,]
{'a': 1,}
{1: 'x'}[1]
{1: 'x'}['1']
{(1, 2): 'x'}[(1, 2)]
{[]: 1}
[[1, 2], [3]]|map('length')|list
[3, 4]|map('pow')|list
'x'.y
'x'.y.z
(none).x
none.x.y
none[0]
5[0]
5.x
5()
'a'()
[1, 2, 3]|length + 1
-1|abs
(1, 2)|first
'ab'|list|tojson
['a', 'b']|last|upper
1 if 1 is odd else 2
[x for x in y]
1 +
'unclosed
{{ 1 }}
a b
1 is
(1
[1
x|
[3, 1]|sort(attribute='x')
[{'a': 1, 'b': 2}, {'a': 1, 'b': 1}, {'a': 0, 'b': 3}]|sort(attribute='a,b')
range(10)[::-1]
range(2, 20, 3)[1:4]
'a'.upper is callable
['a', 'b'][1:]|join
'abc'[true]
[1, 2][true]
{true: 'x'}[1]
'%s|%s' % ('a', none)
'%5s|%-5s|%.2s' % ('é', 'é', 'éèê')
"\ttab\r\n" | trim
'a\x00b'|length
['a\x00b']
'😀'|upper
'i̇İ'.lower()
'ŉ'.upper()
1e308 * 10
-1e308 * 10
[1e308 * 10]
1e22
1e21
123456789.123456789
5e-324
1.7976931348623157e308
100000000000000000000
0.1 + 0.7
1/3
2/3
1e0
3.0
3.10
'{:.3}'.format(3.14159)
'{:10.3f}|{:<10}|{:^10}'.format(3.14159, 7, true)
'{:d}'.format('x')
'{:5}|{:5}'.format('a', 1)
none|select|list
none|map('upper')|list
none|list
'a' if [] else 'b'
'a' if {} else 'b'
'a' if 0.0 else 'b'
'a' if () else 'b'
'a' if namespace() else 'b'
'a' if range(0) else 'b'
'a' if ''|list else 'b'
[1, 2, 3]|map('string')|join(', ')
[[3, 'c'], [1, 'a']]|sort
[['b', 1], ['a', 2]]|map('first')|list
['b', 'a']|map('list')|list
{'a': 1}|length
{'a': 1}|first
{'a': 1}|map('upper')|list
{'a': [1]}|tojson|safe
'x'|tojson|length
"a\nb"|tojson
[1, [2, [3]]]|tojson(indent=1)
{}|tojson(indent=2)
[]|tojson(indent=2)
{'a': {}}|tojson(indent=2)
{'a': []}|tojson(indent=0)
2 is divisibleby 0
'a' is in 'abc'
'k' is in {'k': 1}
[] is sameas []
''|length == 0
not ''
not 'a' == 'b'
(not true) == false
1 + 2 ~ 3 + 4
'a' ~ 'b' * 2
-1 ** 2
- 3 | abs
1 - -1
2 * -3
[-1, +1, -1.5]
true or undefined_thing.x.y
false and undefined_thing.x.y
1 or 2 and 3
not 1 and 0
1 not in [1] or 2 in [2]
1 < 2 == true
[1, 2] == [1, 2] == true
'ab' < 'abc'
'é' > 'z'
none < 1
[1] < ['a']
{} < {}
1 < 'a'
[1, 2, 3]|truncate(9)
{'a': 1}|truncate
none|truncate
7|truncate(5)
"ß½² Ⅷ_x ٣"|wordcount
"½"|wordcount
"½".isalnum() ~ "a²".isalnum() ~ "٣".isalnum() ~ "٣".isdecimal() ~ "٣".isdigit() ~ "٣".isnumeric() ~ "½".isnumeric() ~ "½".isdecimal() ~ "½".isdigit()
"a<b"|e|list
"ab"|safe|sort
"ab"|safe|map('upper')|list
2.5 is even
4.0 is even
"a" is even
dict(nothing)
dict(nothing, a=1)
""".strip("\n").split("\n")


def statements():
    """(template, context)"""
    users = {"users": [{"name": "Ann", "age": 3, "tags": ["x", "y"]}, {"name": "Bob", "age": 1, "tags": []}],
             "d": {"b": 1, "a": [1, 2]}, "n": None, "s": "text", "f": 1.0, "big": 18446744073709551615}
    rows = [
        "{% for u in users %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}"
        "{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.cycle('a','b') }}"
        "{{ loop.changed(u.age > 0) }}{{ loop.previtem.name }}{{ loop.nextitem.name if not loop.last }};{% endfor %}",
        "{% for u in users if u.age > 1 %}{{ u.name }}{{ loop.length }}{% else %}none{% endfor %}",
        "{% for u in users if u.age > 9 %}{{ u.name }}{% else %}none{% endfor %}",
        "{% for u in nothing %}x{% else %}empty{% endfor %}",
        "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
        "{% for k in d %}{{ k }};{% endfor %}",
        "{% for (a, (b, c)) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
        "{% for a, b in [[1]] %}{% endfor %}",
        "{% for c in 'héy' %}[{{ c }}]{% endfor %}",
        "{% for x in 5 %}{% endfor %}",
        "{% for x in none %}{% endfor %}",
        "{% for i in range(3) %}{% for j in range(2) %}{{ loop.depth }}{{ i }}{{ j }} {% endfor %}{% endfor %}",
        "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}"
        "{% endfor %}",
        "{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}"
        "{% endfor %}",
        "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = i + 10 %}{{ x }} {% endfor %}{{ x }}",
        "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}",
        "{% set ns = namespace(x=0) %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace() %}{{ ns.y is defined }}{% set ns.y = [1] %}{{ ns.y }}",
        "{% set d.x = 1 %}",
        "{% set nope.x = 1 %}",
        "{% set a, b = 1, 2 %}{{ b }}{{ a }}",
        "{% set a, b = [1, 2, 3] %}",
        "{% set x %}a{{ 1 }}b{% endset %}[{{ x }}]",
        "{% set x | upper | replace('A', 'Q') %}a{{ 'b' }}{% endset %}[{{ x }}]",
        "{% filter upper %}a{{ 'b' }}{% endfilter %}",
        "{% filter replace('a', 'b') | upper %}a{{ 'c' }}{% endfilter %}",
        "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}",
        "{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}",
        "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}",
        "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=3) }} {{ m(b=1, a=2) }} {{ m() }}",
        "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}",
        "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
        "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}",
        "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(*[1]) }}{{ m(**{'a': 2}) }}",
        "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}x{{ s }}{% endcall %}",
        "{% macro m() %}[{{ caller(1, 2) }}]{% endmacro %}{% call(a, b=5) m() %}{{ a }}{{ b }}{% endcall %}",
        "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}",
        "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}",
        "{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(3) }}",
        "{% set x = 1 %}{% macro m() %}{{ x }}{% set x = 7 %}{{ x }}{% endmacro %}{{ m() }}{% set x = 2 %}{{ m() }}",
        "{% macro m(x) %}{{ x|upper }}{% endmacro %}{{ m('a') ~ 'b' }}{{ m('c')|length }}{{ m.name }}",
        "{% for i in [1, 2] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
        "{% macro m() %}{{ loop is defined }}{% endmacro %}{% for i in [1] %}{{ m() }}{% endfor %}",
        "{% if n %}a{% elif s %}b{% else %}c{% endif %}",
        "{% if n is none and not f == 2 %}yes{% endif %}",
        "{% generation %}x{% set q = 3 %}{{ q }}{% endgeneration %}{{ q }}",
        "{% for i in [1, 2] %}{% generation %}{{ i }}{{ loop.index }}{% endgeneration %}{% endfor %}",
        "{% raw %}{{ not }} {% this %}{% endraw %} after",
        "a{% raw -%}  x  {%- endraw %}  b",
        "{{ users }}", "{{ d }}", "{{ f }}", "{{ big }}", "{{ big + 1 }}", "{{ users|tojson }}", "{{ d|tojson(indent=4) }}",
        "{{ users|map(attribute='name')|join(', ') }}", "{{ users|selectattr('age', 'gt', 2)|map(attribute='name')|list }}",
        "{{ (users|first).name }}", "{{ users[0]['tags'][-1] }}", "{{ users[0].tags|join }}", "{{ users|length }}",
        "{{ users|sort(attribute='age')|map(attribute='name')|list }}", "{{ users|sort(attribute='name,age') is defined }}",
        "{% set g = [1, 2]|map('string') %}{{ g|join }}{{ g|join }}",
        "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}",
        "{% set j = joiner('; ') %}{% for i in [1, 2, 3] %}{{ j() }}{{ i }}{% endfor %}",
        "{# comment #}a{#- x -#} b", "a\n{# comment #}\nb", "  {# comment #}\nb",
        "a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a  {% if true %}  b  {% endif %}  c",
        "a\n\n  {%- if true -%}\n\n  b\n  {%- endif %}\n\nc", "  {%+ if true %}\n x {%+ endif %}\ny",
        "{% if true +%}\nx{% endif +%}\ny", "{{ 'a' }}\n{{ 'b' -}}\n {{- 'c' }}\n\n", "x\n\n", "x\n", "x\r\ny\rz\r\n",
        "  {{ 'a' }}  \n  {% set x = 1 %}  \n  {{ x }}", "\n{% set x = 1 %}\n\ny", "{%- set x = 1 -%}\n  {% set y = 2 %}\nz",
        "{% if true %}{% endif %}\n  {% if true %}a{% endif %}\n", "   {% for i in [1,2] %}\n   {{ i }}\n   {% endfor %}\nend",
        "{% for i in [1] -%}\n   x\n{%- endfor %}\n", "{{ '\n' }}x", "{{- '  a' -}}  ", "a {%- if true %} b {%- endif %} c",
        "{% autoescape false %}{% set x = '<' %}{{ x }}{% endautoescape %}{{ x is defined }}", "{% autoescape 0 %}{{ '<'|safe }}{% endautoescape %}",
        "{% for i in [1, 2] %}{% autoescape none %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endautoescape %}{% endfor %}", "{% autoescape %}{% endautoescape %}",
        "{% autoescape false %}", "{% print 'a' %}", "{% print 1, 'b' if false else 'c' %}|{% print %}|{% print x %}", "{% print 1 2 %}", "{% print (1, 2) %}",
        "{% if a %}", "{% endif %}", "{% for %}", "{% nosuch %}", "{{ }}", "{{ 1", "{% if 1", "{# x", "{% raw %}", "}} %} #}",
        "{ { {a", "{% break %}", "{% for x in [1] %}{% set y %}{% break %}{% endset %}{% endfor %}{{ y }}",
        "{% if true: %}x{% endif %}", "{% for x in [1]: %}x{% endfor %}", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{{'a': 1}.a}}",
        "{% set x = {'a': 1} %}{{ x.a }}{{ x['a'] }}{{ x.b is defined }}", "{% set loop = 1 %}", "{% set true = 1 %}",
        "{% set x = 1 if n else 2 %}{{ x }}", "{% set x = (1, 2) %}{{ x }}", "{% set x = 1, 2 %}{{ x }}",
        "{% if if in in %}a{% endif %}{% set if = 'a' %}{% set in = 'abc' %}{% if if in in %}b{% endif %}",
        "{% for x in [1, 2, 3] %}{{ x }}{{ ',' if not loop.last }}{% endfor %}",
        "{% for m in users %}{% if loop.first and m.age > 1 %}{% set y = 1 %}{% endif %}{{ y }}{% endfor %}",
        "{% for x in users|map(attribute='age')|select('odd') %}{{ loop.length }}{{ x }}{% endfor %}",
        "{{ loop }}", "{% for x in [1] %}{{ loop.nosuch }}{% endfor %}", "{{ range(3)|sum }}", "{{ [1, 2]|map('float')|list }}",
        "{{ dict(users[0], age=9).age }}", "{{ users|map('attr', 'name')|list }}", "{{ 'a'|indent(width=2, first=True) }}",
        "{% set x = namespace(a=[]) %}{% set x.a = x.a + [1] %}{{ x.a }}", "{{ [users[0].name, f]|tojson }}",
        "{{ users is sequence and users is not mapping }}", "{{ s.split('x')|last }}", "{{ s[:-1] ~ s[-1] }}",
        "{{ f[1:] }}", "{{ n[:3] }}", "{{ d[1:] }}", "{{ s[n:][f:] }}", "{{ s['a':] }}", "{{ (users|map('string'))[:1] }}",
        "{{ undefined.x }}", "{% if undefined.x %}a{% endif %}", "{% if not undefined %}a{% endif %}",
        "{{ 'x' if undefined else 'y' }}", "{{ undefined() }}", "{% for x in undefined.y %}a{% endfor %}",
        "{% if s is defined and s %}{{ s }}{% endif %}", "{{ s ~ undefined ~ n }}", "{{ [s, undefined, n]|join('|') }}",
        "{% call nothing() %}x{% endcall %}", "{% set x = s|upper if s else '' %}{{ x }}", "{{ d.a|length > 1 }}",
        "{% if d.a is iterable and d.a is not string %}list{% endif %}", "{{ d['a'][0] if 'a' in d else 0 }}",
        "{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}", "{% do x %}",
    ]
    return [(row, users) for row in rows]


def cases():
    out = [("{{ " + e + " }}", {}) for e in expressions()]
    return out + statements()
