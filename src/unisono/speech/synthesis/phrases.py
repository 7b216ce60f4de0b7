"""A grammar of digit strings and short commands, and its lexicon."""

from __future__ import annotations

import numpy as np

from unisono.speech.corpus.lexicon import Lexicon

Words = tuple[str, ...]

# A rule is a name and its ways to go on; where several begin alike, one is as likely as another.
# Capitals name a rule. Pairs such as "on the", which espeak-ng says as one word and without a
# time for the second, are left out.
_RULES = {
    "PHRASE": "DIGITS | DIGITS | DIGITS | ORDER | ORDER | ORDER | ORDER | ORDER | ORDER | ORDER",
    "DIGITS": "DIGIT DIGIT DIGIT | DIGIT DIGIT DIGIT DIGIT | DIGIT DIGIT DIGIT DIGIT DIGIT "
    "| DIGIT DIGIT DIGIT DIGIT DIGIT DIGIT | DIGIT DIGIT DIGIT DIGIT DIGIT DIGIT DIGIT",
    "DIGIT": "zero | oh | one | two | three | four | five | six | seven | eight | nine",
    "ORDER": "call DIGITS | dial DIGITS | call NAME | call NAME and NAME | text NAME DAY "
    "| turn the ROOM DEVICE STATE | turn STATE every DEVICE | set ROOM DEVICE to NUMBER "
    "| set timer NUMBER minutes | wake me DAY at TIME | meet NAME at TIME | channel NUMBER "
    "| add NUMBER ITEM | add ITEM and ITEM | buy ITEM DAY | NUMBER OPERATION NUMBER "
    "| HANDLE the ROOM OPENING | drive to CITY | weather CITY DAY | train to CITY at TIME "
    "| play KIND music | play NAME NUMBER | send NUMBER ITEM to NAME | next KIND song | stop "
    "| go back | what time",
    "NAME": "ann | dan | jan | john | don | dean | jean | ben | ken | jen | tim | tom | sam | pam "
    "| mary | harry | larry | jerry",
    "DAY": "monday | tuesday | wednesday | thursday | friday | saturday | sunday | today "
    "| tomorrow",
    "TIME": "UNIT thirty | ten fifteen | UNIT forty five | twelve fifty",
    "NUMBER": "UNIT | TEEN | TENS | TENS UNIT",
    "UNIT": "one | two | three | four | five | six | seven | eight | nine",
    "TEEN": "ten | eleven | twelve | thirteen | fourteen | fifteen | sixteen | seventeen "
    "| eighteen | nineteen",
    "TENS": "twenty | thirty | forty | fifty | sixty | seventy | eighty | ninety",
    "OPERATION": "plus | minus | times",
    "ROOM": "kitchen | bedroom | bathroom | hall | garden | office",
    "DEVICE": "light | lamp | heater | fan | radio | alarm",
    "OPENING": "window | door | blind | gate",
    "HANDLE": "open | close | lock",
    "STATE": "on | off | up | down",
    "ITEM": "bread | butter | milk | eggs | peas | beans | pears | pens | paper | soap",
    "CITY": "london | boston | berlin | dublin | madrid | moscow | paris | rome",
    "KIND": "rock | pop | jazz | folk | slow | loud",
}

# One way to say a word is the commonest American one; a second one stands where the neighbours
# or the stress decide. Accents differ from it as people differ from any dictionary.
_SAID = """
zero Z IH R OW, Z IY R OW | oh OW | one W AH N | two T UW | three TH R IY | four F AO R
five F AY V | six S IH K S | seven S EH V AH N | eight EY T | nine N AY N
call K AO L | dial D AY AH L | and AE N D, AH N D | text T EH K S T | turn T ER N
the DH AH, DH IY | set S EH T | to T UW, T AH | timer T AY M ER | minutes M IH N AH T S
wake W EY K | me M IY | at AE T, AH T | meet M IY T | channel CH AE N AH L | add AE D | buy B AY
drive D R AY V | weather W EH DH ER | train T R EY N | play P L EY | music M Y UW Z IH K
send S EH N D | next N EH K S T | song S AO NG | stop S T AA P | go G OW | back B AE K
what W AH T | time T AY M | every EH V R IY, EH V ER IY
ann AE N | dan D AE N | jan JH AE N | john JH AA N | don D AA N | dean D IY N | jean JH IY N
ben B EH N | ken K EH N | jen JH EH N | tim T IH M | tom T AA M | sam S AE M | pam P AE M
mary M EH R IY | harry HH AE R IY | larry L AE R IY | jerry JH EH R IY
monday M AH N D EY, M AH N D IY | tuesday T UW Z D EY, T UW Z D IY
wednesday W EH N Z D EY, W EH N Z D IY | thursday TH ER Z D EY, TH ER Z D IY
friday F R AY D EY, F R AY D IY | saturday S AE T ER D EY, S AE T ER D IY
sunday S AH N D EY, S AH N D IY | today T AH D EY | tomorrow T AH M AA R OW
ten T EH N | eleven IH L EH V AH N | twelve T W EH L V | thirteen TH ER T IY N
fourteen F AO R T IY N | fifteen F IH F T IY N | sixteen S IH K S T IY N
seventeen S EH V AH N T IY N | eighteen EY T IY N | nineteen N AY N T IY N
twenty T W EH N T IY | thirty TH ER T IY | forty F AO R T IY | fifty F IH F T IY
sixty S IH K S T IY | seventy S EH V AH N T IY | eighty EY T IY | ninety N AY N T IY
plus P L AH S | minus M AY N AH S | times T AY M Z
kitchen K IH CH AH N | bedroom B EH D R UW M | bathroom B AE TH R UW M | hall HH AO L
garden G AA R D AH N | office AO F IH S | light L AY T | lamp L AE M P | heater HH IY T ER
fan F AE N | radio R EY D IY OW | alarm AH L AA R M | window W IH N D OW | door D AO R
blind B L AY N D | gate G EY T | open OW P AH N | close K L OW Z, K L OW S | lock L AA K
on AA N | off AO F | up AH P | down D AW N | bread B R EH D | butter B AH T ER | milk M IH L K
eggs EH G Z | peas P IY Z | beans B IY N Z | pears P EH R Z | pens P EH N Z | paper P EY P ER
soap S OW P | london L AH N D AH N | boston B AO S T AH N | berlin B ER L IH N
dublin D AH B L IH N | madrid M AH D R IH D | moscow M AO S K OW | paris P AE R IH S
rome R OW M | rock R AA K | pop P AA P | jazz JH AE Z | folk F OW K | slow S L OW | loud L AW D
"""

_WAYS = {name: [way.split() for way in ways.split("|")] for name, ways in _RULES.items()}


def draw_phrase(random: np.random.Generator) -> Words:
    """Draws a phrase."""
    return tuple(_expand("PHRASE", random))


def _expand(symbol: str, random: np.random.Generator) -> list[str]:
    if symbol not in _WAYS:
        return [symbol]
    ways = _WAYS[symbol]
    way = ways[int(random.integers(len(ways)))]
    return [word for part in way for word in _expand(part, random)]


def phrase_lexicon() -> Lexicon:
    """The lexicon of the phrases, written by hand and so independent of the voice."""
    entries = {}
    for line in _SAID.strip().split("\n"):
        for entry in line.split("|"):
            word, said = entry.strip().split(" ", 1)
            entries[word] = [tuple(way.split()) for way in said.split(",")]
    return Lexicon(entries=entries)


def phrase_words() -> set[str]:
    """Every word of the grammar."""
    return {part for ways in _WAYS.values() for way in ways for part in way} - set(_WAYS)
