"""Chat templates drawn from a grammar: most of them parse, some of them are hostile.

`template(rng)` is a text of statements and expressions that use what templates of published models
use (loops, conditions, `set`, macros, namespaces, filters, tests, slices, methods of texts), and,
where `hostile`, what they must not: loops without end, huge texts, Python's internals, imports.
"""

import random

NAMES = ["messages", "m", "x", "ns.a", "loop.index0", "loop.last", "bos_token", "eos_token"]
NAMES += ["add_generation_prompt", "tools", "nope", "m.role", "m['content']", "messages[0]"]
LITERALS = ["0", "1", "2", "-1", "7", "0.5", "''", "' '", "'user'", "'a\\nb'", "true", "none"]
LITERALS += ["[]", "[1, 2, 3]", "('a', 'b')", "{'a': 1}", "'<|im_start|>'"]
FILTERS = ["trim", "upper", "length", "tojson", "string", "first", "last", "list", "join(', ')"]
FILTERS += ["default('d')", "replace('a', 'b')", "items", "int", "title", "capitalize", "reverse"]
FILTERS += ["map(attribute='role')", "selectattr('role', 'equalto', 'user')", "tojson(indent=2)"]
FILTERS += ["safe", "e", "indent(4)", "sort", "unique", "abs", "round", "dictsort", "batch(2)"]
TESTS = ["defined", "none", "string", "mapping", "iterable", "sequence", "true", "number", "odd"]
METHODS = ["strip()", "split(' ')", "startswith('a')", "endswith('b')", "upper()", "lstrip('\\n')"]
METHODS += ["replace('e', 'o')", "items()", "keys()", "get('role')", "rstrip()", "title()"]
OPERATORS = ["+", "~", "-", "*", "//", "%", "==", "!=", "<", "in", "not in", "and", "or"]

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
    """A template: a few statements, hostile in two of five."""
    hostile = 0.25 if rng.random() < 0.4 else 0.0
    parts = [statement(rng, 3, hostile) for _ in range(rng.randrange(1, 5))]
    if hostile and rng.random() < 0.6:
        wrong = rng.choices([LOOPS, BROKEN], [6, 1])[0]
        parts.insert(rng.randrange(len(parts) + 1), rng.choice(wrong))
    return "{% set ns = namespace(a=1) %}" + "".join(parts)


def statement(rng: random.Random, depth: int, hostile: float) -> str:
    """A statement or a piece of text; `depth` bounds how deep it is nested."""

    def body() -> str:
        return "".join(statement(rng, depth - 1, hostile) for _ in range(rng.randrange(1, 3)))

    def value() -> str:
        return expression(rng, depth, hostile)

    if depth == 0 or rng.random() < 0.4:
        return rng.choice(["text\n", "  ", "<|im_end|>\n", "{{ " + value() + " }}"])
    dash = rng.choice(["", "-"])
    return rng.choice(
        [
            lambda: f"{{%{dash} for m in messages {dash}%}}{body()}{{% endfor %}}",
            lambda: f"{{% for x in {value()} %}}{body()}{{% else %}}{body()}{{% endfor %}}",
            lambda: (
                f"{{% for x in range({rng.randrange(9)}) if {value()} %}}{body()}{{% endfor %}}"
            ),
            lambda: (
                f"{{%{dash} if {value()} %}}{body()}{{% elif {value()} %}}{body()}{{% endif %}}"
            ),
            lambda: f"{{% set x = {value()} %}}",
            lambda: f"{{% set ns.a = {value()} %}}",
            lambda: f"{{% set x %}}{body()}{{% endset %}}",
            lambda: f"{{% macro f(x, y=1) %}}{body()}{{% endmacro %}}{{{{ f({value()}) }}}}",
            lambda: f"{{% filter {rng.choice(FILTERS)} %}}{body()}{{% endfilter %}}",
            lambda: f"{{% if {value()} %}}{{{{ raise_exception({value()}) }}}}{{% endif %}}",
        ]
    )()


def expression(rng: random.Random, depth: int, hostile: float) -> str:
    """An expression; `hostile` is the chance that a part of it is one of HOSTILE."""
    if rng.random() < hostile:
        return f"({rng.choice(HOSTILE)})"
    if depth == 0 or rng.random() < 0.3:
        return rng.choice([*NAMES, *LITERALS])

    def part() -> str:
        return expression(rng, depth - 1, hostile)

    return rng.choice(
        [
            lambda: f"({part()} {rng.choice(OPERATORS)} {part()})",
            lambda: f"({part()} | {rng.choice(FILTERS)})",
            lambda: f"({part()} is {rng.choice(['', 'not '])}{rng.choice(TESTS)})",
            lambda: f"({part()}).{rng.choice(METHODS)}",
            lambda: f"({part()} if {part()} else {part()})",
            lambda: f"({part()})[{rng.choice(['0', '-1', '1:', '::-1', ':2'])}]",
            lambda: f"[{part()}, {part()}]",
            lambda: f"(not {part()})",
            lambda: "strftime_now('%d %B %Y')",
        ]
    )()
