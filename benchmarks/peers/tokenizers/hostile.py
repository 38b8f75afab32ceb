"""Texts that are hard to tokenize: all scripts, marks in wrong orders, every kind of white space, long runs, contractions in
odd letters, and what looks like special tokens."""
import random
import unicodedata

WORDS = ("the whale Ahab's can't WON'T I'LL they'ſ 'S 'K don’t naïve café Ωmega 東京 日本語 한국어 ไทย हिन्दी العربية עברית 🙂 "
         "👨‍👩‍👧‍👦 🇩🇪 x86_64 3.14159 1234567 １２３ ٣٤ Ⅷ ½ <|endoftext|> <s> </s> ▁ ▁a <0x41> [INST] ﬁ ǅ ß ẞ İ ı").split(" ")
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u2003", "\u3000", "\u180e", "\u200b", "\u2028", "\x85", "\x0b",
          "\x1c", "\ufeff", "      ", "\r"]
MARKS = [chr(c) for c in range(0x300, 0x370)]
ASSIGNED = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) not in ("Cn", "Co")]
JOINING = [*range(0xAC00, 0xAC40), *range(0x1100, 0x1200), *range(0x0900, 0x0980), *range(0x1F300, 0x1F600),
           *range(0x1F1E6, 0x1F200), 0x200D, 0xFE0F]


def text(rng, parts):
    made = []
    for _ in range(parts):
        kind = rng.random()
        if kind < .30: made.append(rng.choice(WORDS))
        elif kind < .50: made.append(rng.choice(SPACES))
        elif kind < .62: made.append(rng.choice(ASSIGNED))
        elif kind < .70: made.append(chr(rng.randrange(0x250)))
        elif kind < .76: made.append(chr(rng.randrange(0x21, 0x7F)) * rng.randrange(1, 5))
        elif kind < .80: made.append(rng.choice("aeonsAEO") + rng.choice(MARKS) * rng.randrange(1, 3))
        elif kind < .84: made.append(rng.choice("'’") + rng.choice(["s", "S", "ll", "LL", "re", "ve", "d", "M", "ſ", "t"]))
        elif kind < .88: made.append(str(rng.randrange(10 ** rng.randrange(1, 12))))
        elif kind < .91: made.append(rng.choice(WORDS) * rng.randrange(2, 60))
        elif kind < .94: made.append(rng.choice(SPACES) * rng.randrange(2, 40))
        elif kind < .96: made.append(chr(rng.choice(JOINING)))
        elif kind < .98: made.append("".join(rng.choice(ASSIGNED) for _ in range(5)))
        else: made.append("<|" + rng.choice(["im_start", "end_of_text", "begin_of_text", "fim_prefix"]) + "|>")
    return "".join(made)


def texts(count, seed=1, parts=(1, 2, 3, 5, 8, 20, 40)):
    rng = random.Random(seed)
    return [text(rng, rng.choice(parts)) or " " for _ in range(count)]
