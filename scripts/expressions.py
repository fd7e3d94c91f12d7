"""Two hundred regular expressions, one a line: identifiers, dates, codes, prose, corner cases.

What must be followed by something is bounded, as in a program that needs the answer: no constraint
makes a model end what it may repeat. Where nothing need follow, the text matches wherever it ends.
"""

EXPRESSIONS: str = r"""
yes|no
(yes|no|maybe)
[A-E]
\d
\d+
\d{4}
\d{3,5}
\d{2,}
-?\d+
-?\d{1,6}\.\d+
-?(0|[1-9]\d*)(\.\d+)?
[1-9]\d{0,2}(,\d{3}){0,4}
0x[0-9a-fA-F]+
0b[01]{1,8}
0o[0-7]{1,6}
[+-]?\d{1,3}%
\$\d+\.\d{2}
€\d+,\d{2}
\d{4}-\d{2}-\d{2}
(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])
\d{2}/\d{2}/\d{4}
([01]\d|2[0-3]):[0-5]\d
([01]\d|2[0-3]):[0-5]\d:[0-5]\d
\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z
(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day
(January|February|March|April|May|June|July)
Q[1-4] 20\d\d
[A-Z]{2}
[A-Z]{3}-\d{4}
[A-Z]\d[A-Z] ?\d[A-Z]\d
\d{5}(-\d{4})?
[A-Z]{1,2}\d[A-Z\d]? \d[A-Z]{2}
\+\d{1,3} \d{6,12}
\(\d{3}\) \d{3}-\d{4}
\d{3}-\d{2}-\d{4}
(\d{4} ){3}\d{4}
[A-Z]{2}\d{2}( [A-Z0-9]{4}){3,5}
97[89]-\d-\d{3}-\d{5}-\d
[0-9a-f]{8}
[0-9a-f]{40}
[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}
([0-9A-F]{2}:){5}[0-9A-F]{2}
(\d{1,3}\.){3}\d{1,3}
((25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(25[0-5]|2[0-4]\d|1?\d?\d)
[a-z0-9._-]{1,24}@[a-z0-9-]{1,24}\.[a-z]{2,4}
https?://[a-z0-9.-]+(/[a-z0-9/-]*)?
[a-z0-9-]{1,24}(\.[a-z0-9-]{1,24}){1,3}
#[0-9a-f]{6}
#([0-9a-f]{3}|[0-9a-f]{6})
rgb\(\d{1,3}, \d{1,3}, \d{1,3}\)
v?\d{1,3}\.\d{1,3}\.\d+
\d{1,3}\.\d{1,3}\.\d+(-[a-z]{1,12}\.\d+)?
[a-z]+
[a-z]{3,12}
[A-Z][a-z]+
[A-Z][a-z]{1,20} [A-Z][a-z]+
[A-Z][a-z]{1,20}( [A-Z]\.)? [A-Z][a-z]+
[a-z]+(-[a-z]+)*
[a-z]+(_[a-z]+)*
[a-z]+([A-Z][a-z]+)*
[A-Z]+(_[A-Z]+)*
[a-zA-Z_][a-zA-Z0-9_]*
\w+
\w{1,10}
\w{1,20}\s\w+
\w{1,20} \w{1,20} \w+
\W
\W{2,3}
\D
\D{3}
\S
\S{2,6}
\s
\s{1,3}
[\w-]+
[\d.]+
[\s\d]{2,4}
[^\d]
[^\w]
[^\s]{1,5}
[^\D]
[^\W]{2}
[^\S]
[^a-z]
[^a-zA-Z0-9]{1,4}
[^"]{1,10}
[^,\n]{1,10}
[^\x00-\x7f]{1,3}
.
.{3}
.{1,20}
.+
.*
(?s).{1,10}
(?s:.){2}
a.c
a.{0,80}z
a?
a*
a+
a{0}
a{0,2}
a{3}
(ab){0,20}
(ab){1,20}
(ab){2,3}
(a|b)*
(a|b)+c?
(a|b|)c
a|
|a
(|a)(|b)
(a*)*b?
(a+)+b?
(a*b*)*c?
(a|ab)(c|bcd)
a+?
a{0,20}?b
.{0,80}?x
.{1,80}?,.+?
a{2,4}?
(?:ab|cd){1,20}
(?P<year>\d{4})
(?<word>[a-z]+)
(?P<a>x)|(?P<b>y)
(?i)yes|no
(?i)[a-f]{2,4}
(?i:abc)def
(?i:[x-z]+)
(?i)straße
(?i)[^a-z]{1,3}
(?x) a b c # spaces do not count
^abc$
^a|b$
(^a|b$)
^(yes|no)$
^^a$$
\Aabc\Z
(?m)^line$
^$

\.
\\
\*\+\?
\[\]
\{\}
\(\)
\^\$
\|
/
//
a/b/c
"
"[a-z]{0,20}"
'[^']{0,9}'
`[a-z]{1,20}`
\t
\n
a\nb
\r\n
\x41
\u00e9
\u4e2d
é{1,20}
[à-ü]{2,4}
[α-ω]+
[а-я]+
日本|中国
[一-龥]{1,4}
😀|😃
[😀-😄]
[\u2600-\u26ff]
ñandú
[ab]{0,1}|x
[a\-z]
[a-]
[-a]
[]a]
[^]a]
[\]]
[\\]
[.]
[*+?]
[a-cx-z]
[A-Za-z0-9+/]{4}
([A-Za-z0-9+/]{4}){0,16}([A-Za-z0-9+/]{2}==)?
<b>[a-z]{0,20}</b>
<(h1|h2)>[^<]{1,9}
\{"a": \d{1,9}\}
\[(\d{1,9}(, \d{1,9}){0,9})?\]
[a-z]{1,12}=\d{1,9}(&[a-z]{1,12}=\d{1,9}){0,5}
--[a-z]+(=[a-z0-9]+)?
(GET|POST|PUT) /[a-z/]*
HTTP/1\.[01] [1-5]\d\d
[a-z]{1,12}\([a-z]{0,12}(, [a-z]{1,12}){0,5}\)
SELECT [a-z]{1,20} FROM [a-z]+
(\d{1,6} ){0,12}\d{1,6}
([a-z]{1,20},){2}[a-z]+
(- [a-z ]{1,80}\n){1,3}
\d{1,3}\. [A-Z][a-z]+
[A-Z][a-z ]{3,20}\.
([A-Z][a-z]{1,8} ){1,3}[A-Z][a-z]{0,20}[.!?]
(the|a) (cat|dog) (sat|ran)
[01]{8}
(0|1(01*0)*1)+
([ab]{2}){3}
a{10}b{10}
(a{3}){3}
(foo|bar|baz){1,4}
(1(2(3(4)?)?)?)?
[a-z]{20,30}
x{50}
(?:[a-z]\d){5}
"""


def expressions() -> list[str]:
    """The lines, without what is only the beginning and the end of the text."""
    return EXPRESSIONS.removeprefix("\n").removesuffix("\n").split("\n")
