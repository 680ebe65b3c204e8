"""Chat templates drawn from a grammar: most of them parse, some of them are hostile.

`template(rng)` is a text of statements and expressions that use what templates of published models
use (loops, conditions, `set`, macros, namespaces, filters, tests, slices, methods of texts), and,
where `hostile`, what they must not: loops without end, huge texts, Python's internals, imports.
"""

import random

TEXTS = ["''", "' '", "'user'", "'a\\nb'", "'<|im_start|>'", "x", "ns.a", "m.role", "m['content']"]
TEXTS += ["bos_token", "messages[0].content", "nope"]
NUMBERS = ["0", "1", "2", "-1", "7", "0.5", "messages | length"]
TRUTHS = ["true", "false", "none", "add_generation_prompt", "tools", "nope is defined"]
LISTS = ["messages", "[]", "['a', 'b', 'a']", "('a', 'b')", "range(4)", "x.split(' ')", "m | items"]
FILTERS = ["trim", "upper", "lower", "title", "capitalize", "string", "replace('a', 'b')", "safe"]
FILTERS += ["default('d')", "tojson", "tojson(indent=2)", "reverse", "indent(4)", "e", "first"]
METHODS = ["strip()", "lstrip('\\n')", "rstrip()", "upper()", "title()", "replace('e', 'o')"]
METHODS += ["split('a')[0]", "split('e')[-1]", "strip('a')"]
TESTS = ["defined", "none", "string", "mapping", "iterable", "sequence", "true", "number"]

HOSTILE = [
    "''.__class__",
    "messages.__class__.__mro__",
    "m.__init__.__globals__",
    "''|attr('__class__')",
    "messages|map(attribute='__class__')|list",
    "('{0.__class__}').format(messages)",
    "('%s' % messages.__class__)",
    "cycler.__init__.__globals__.os",
    "lipsum.__globals__['os']",
    "joiner.__init__.__builtins__",
    "self.__init__",
    "self._TemplateReference__context",
    "raise_exception.__globals__",
    "strftime_now.__globals__",
    "strftime_now('%Y' * 9999999)",
    "messages.append(1)",
    "m.update({'a': 1})",
    "'x' * 999999999",
    "999999999 * 'x'",
    "[0] * 999999999",
    "9 ** 9 ** 9",
    "(9 ** 999) ** 999",
    "'a'.center(999999999)",
    "'a'|center(999999999)",
    "'a'.ljust(999999999)",
    "'a'.zfill(999999999)",
    "'a'|indent(999999999, true)",
    "('a\\nb' * 999)|indent(99999)",
    "'%999999999d' % 1",
    "'%.999999999f' % 1",
    "'%*d' % (999999999, 1)",
    "'{:999999999}'.format(1)",
    "'{:>999999999}'.format('a')",
    "'{0:{1}}'.format(1, 999999999)",
    "'a'|format(1)",
    "'%999999999s'|format('a')",
    "'a'.replace('', 'x' * 999999)",
    "('a' * 999999).replace('a', 'b' * 999999)",
    "('x' * 999999)|replace('x', 'y' * 999999)",
    "'x'.join(['y' * 99999] * 99999)",
    "(['y' * 99999] * 99999)|join",
    "'\\t'.expandtabs(999999999)",
    "('\\t' * 99999).expandtabs(99999)",
    "range(999999999)|list",
    "range(999999999)|sum",
    "range(99999)|batch(2, 'x')|list",
    "range(99999999)|map('string')|join",
    "[1, 2]|batch(999999999, 'x')|list",
    "[1, 2]|slice(999999999)|list",
    "range(99999)|sum",
    "(range(99999)|list) * 99999",
    "lipsum(n=99999999)",
    "lipsum(n=9, max=999999999)",
    "'a'|wordwrap(1)",
    "('a ' * 999999)|wordwrap(1)",
    "('a' * 999999)|urlize",
    "(9 ** 999)|string",
    "1|filesizeformat",
    "messages|tojson(indent=999999999)",
    "messages|tojson(default=raise_exception)",
    "messages|pprint",
    "'a'.encode('utf-7')",
    "'a'.translate({97: 'x' * 999999})",
    "dict(a=1)|xmlattr",
    "namespace(a=messages).a.clear()",
    "caller()",
    "varargs",
    "range(0, 10, 0)",
    "1 % 0",
    "1e400|int",
    "'9' * 5000|int",
    "('9' * 99999)|int",
    "'1e9999'|float|int",
    "10 ** 1000 * 10 ** 1000",
    "messages[::0]",
    "[messages, messages]|tojson|tojson|tojson|tojson|tojson",
]
LOOPS = [
    "{% for i in range(999999999) %}x{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "{% set x = range(99999) | list %}{% for i in x %}{% for j in x if j < 0 %}{% endfor %}"
    "{% endfor %}",
    "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% set ns = namespace(a='xx') %}{% for i in range(99) %}{% set ns.a = ns.a ~ ns.a %}"
    "{% endfor %}{{ ns.a }}",
    "{% set ns = namespace(a='xx') %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}"
    "{% endfor %}{{ ns.a }}",
    "{% set ns = namespace(a=[1]) %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}"
    "{% endfor %}{{ ns.a }}",
    "{% set ns = namespace(a=7) %}{% for i in range(99) %}{% set ns.a = ns.a * ns.a %}"
    "{% endfor %}{{ ns.a }}",
    "{% set ns = namespace(a=[1]) %}{% for i in range(99) %}{% set ns.a = [ns.a, ns.a] %}"
    "{% endfor %}{{ ns.a }}",
    "{% set ns = namespace(a='x') %}{% for i in range(99999) %}{% set ns.a = ns.a ~ 'xxxxxxxx' * "
    "9999 %}{% endfor %}",
    "{% for i in range(9999) %}{{ 'x' * 99999 }}{% endfor %}",
    "{% for i in range(9999) %}{% set x %}{{ 'x' * 99999 }}{% endset %}{{ x }}{% endfor %}",
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "{% for i in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "{% for a in range(999) %}{% for b in range(999) %}{{ a|tojson }}{% endfor %}{% endfor %}",
    "{% call(x) lipsum() %}{% endcall %}",
    "{% filter center(99999999) %}x{% endfilter %}",
    "{% include 'config.json' %}",
    "{% import '/etc/hostname' as x %}",
    "{% extends 'a' %}",
    "{% from 'os' import system %}",
    "{% block a %}{{ self.a() }}{% endblock %}",
    "{% autoescape true %}{{ '<' }}{% endautoescape %}",
    "{% do messages.append(1) %}",
    "{% debug %}",
    "{% generation %}x{% endgeneration %}",
    "{% raw %}{{ nope }}{% endraw %}",
    "{% for i in range(3) %}{% if i %}{% continue %}{% endif %}{% break %}{% endfor %}",
    "{% with a = 1 %}{{ a }}{% endwith %}",
]
BROKEN = ["{% for %}", "{{", "{% if x %}", "{% endfor %}", "{{ a b }}", "{% set %}", "{# ", "%}"]
BROKEN += ["{% if " + "(" * 5_000 + "1" + ")" * 5_000 + " %}{% endif %}", "{{ " + "-" * 20_000]
BROKEN += ["{{ " + "-" * 20_000 + "1 }}", "{{ " + "[" * 900 + "]" * 900 + " }}", "\ud800", "\x00"]
BROKEN += ["{{ x" + ".a" * 9_000 + " }}", "{{ 'a" + "' ~ 'a" * 3_000 + "' }}", "<|im_start|>" * 50]
BROKEN += ["{% if x %}" * 300 + "{% endif %}" * 300, "{% for i in x %}" * 60 + "{% endfor %}" * 60]


def template(rng: random.Random) -> str:
    """A template: a few statements, hostile in one of three, and mostly all messages at the end."""
    hostile = 0.2 if rng.random() < 0.35 else 0.0
    parts = [statement(rng, 3, hostile) for _ in range(rng.randrange(1, 5))]
    if hostile and rng.random() < 0.6:
        wrong = rng.choices([LOOPS, BROKEN], [6, 1])[0]
        parts.insert(rng.randrange(len(parts) + 1), rng.choice(wrong))
    start = "{% set m = messages[0] %}{% set x = 'a b' %}{% set ns = namespace(a='b') %}"
    end = "{% for m in messages %}{{ m.role ~ m.content }}{% endfor %}"
    return start + "".join(parts) + end * (rng.random() < 0.9)


def statement(rng: random.Random, depth: int, hostile: float) -> str:
    """A statement or a piece of text; `depth` bounds how deep it is nested."""

    def body() -> str:
        return "".join(statement(rng, depth - 1, hostile) for _ in range(rng.randrange(1, 3)))

    def value(kind: str) -> str:
        return expression(rng, depth, hostile, kind)

    if depth == 0 or rng.random() < 0.4:
        return rng.choice(["text\n", "  ", "<|im_end|>\n", "{{ " + value("text") + " }}"])
    dash = rng.choice(["", "-"])
    return rng.choice(
        [
            lambda: f"{{%{dash} for m in messages %}}{body()}{{{{ loop.last }}}}{{% endfor %}}",
            lambda: f"{{% for x in {value('list')} %}}{body()}{{% else %}}{body()}{{% endfor %}}",
            lambda: f"{{% for y in range(5) if {value('truth')} %}}{body()}{{% endfor %}}",
            lambda: f"{{% if {value('truth')} {dash}%}}{body()}{{% else %}}{body()}{{% endif %}}",
            lambda: f"{{% set x = {value('text')} %}}",
            lambda: f"{{% set ns.a = {value('text')} %}}",
            lambda: f"{{% set x %}}{body()}{{% endset %}}",
            lambda: f"{{% macro f(x, y=1) %}}{body()}{{% endmacro %}}{{{{ f({value('text')}) }}}}",
            lambda: f"{{% filter {rng.choice(FILTERS[:8])} %}}{body()}{{% endfilter %}}",
            lambda: f"{{% if false %}}{{{{ raise_exception({value('text')}) }}}}{{% endif %}}",
        ]
    )()


def expression(rng: random.Random, depth: int, hostile: float, kind: str) -> str:
    """An expression of a kind (text, number, truth, list), now and then of another.

    hostile: the chance that a part of it is one of HOSTILE.
    """
    if rng.random() < hostile:
        return f"({rng.choice(HOSTILE)})"
    if rng.random() < 0.03:
        kind = rng.choice(["text", "number", "truth", "list"])
    if depth == 0 or rng.random() < 0.3:
        plain = {"text": TEXTS, "number": NUMBERS, "truth": TRUTHS, "list": LISTS}
        return f"({rng.choice(plain[kind])})"

    def part(wanted: str) -> str:
        return expression(rng, depth - 1, hostile, wanted)

    made = {
        "text": [
            lambda: f"({part('text')} {rng.choice('~+')} {part('text')})",
            lambda: f"({part('text')} ~ {part('number')})",
            lambda: f"({part('text')} | {rng.choice(FILTERS)})",
            lambda: f"{part('text')}.{rng.choice(METHODS)}",
            lambda: f"({part('text')} if {part('truth')} else {part('text')})",
            lambda: f"{part('text')}[{rng.choice(['1:', '::-1', ':2', '-3:'])}]",
            lambda: f"({part('list')} | {rng.choice(['tojson', 'string', 'list | tojson'])})",
            lambda: f"({part('list')} | map('string') | join(', '))",
            lambda: "strftime_now('%d %B %Y')",
        ],
        "number": [
            lambda: f"({part('number')} {rng.choice('+-*')} {part('number')})",
            lambda: f"({part('list')} | list | length)",
            lambda: f"({part('text')} | length)",
        ],
        "truth": [
            lambda: f"({part('text')} {rng.choice(['==', '!=', 'in', 'not in'])} {part('text')})",
            lambda: f"({part('number')} {rng.choice(['<', '>=', '=='])} {part('number')})",
            lambda: f"({part('text')} is {rng.choice(['', 'not '])}{rng.choice(TESTS)})",
            lambda: f"({part('truth')} {rng.choice(['and', 'or'])} {part('truth')})",
            lambda: f"(not {part('truth')})",
            lambda: f"{part('text')}.{rng.choice(['starts', 'ends'])}with('a')",
        ],
        "list": [
            lambda: f"[{part('text')}, {part('text')}]",
            lambda: f"({part('list')} | list)[{rng.choice(['1:', '::-1', ':2'])}]",
            lambda: "(messages | map(attribute='role') | list)",
            lambda: "(messages | selectattr('role', 'equalto', 'user') | list)",
            lambda: f"({part('list')} | list + {part('list')} | list)",
        ],
    }
    return rng.choice(made[kind])()
