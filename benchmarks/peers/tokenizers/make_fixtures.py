#!/usr/bin/env python3
"""Trains the small vocabularies of tests/tokenizer/fixtures on data/moby-dick.txt with tokenizers and sentencepiece, and writes
the ids that these libraries give to hostile texts. Run in .venv (./setup makes it); the result depends on their versions."""
import base64, json, pathlib
import hostile
import sentencepiece as spm
import sentencepiece.sentencepiece_model_pb2 as spm_model
import tiktoken
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parents[3]
OUT = ROOT / "tests/tokenizer/fixtures"
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LINES = [line for line in (ROOT / "data/moby-dick.txt").read_text().split("\n") if line.strip()][:4000]
LINES += ["naïve café Ωmega 東京 日本語 한국어 🙂 ﬁ ½"] * 20


def save(tokenizer, name):
    file = json.loads(tokenizer.to_str())
    (OUT / name).write_text(json.dumps(file, ensure_ascii=False, separators=(",", ":")) + "\n")
    return tokenizers.Tokenizer.from_file(str(OUT / name))


def byte_level():
    """As Llama 3: a pattern, whole pieces first, a token in front."""
    t = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERN), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(LINES, trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<|begin_of_text|>", "<|end_of_text|>"], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B", special_tokens=[("<|begin_of_text|>", 0)])])
    return save(t, "byte_level.json")


def prefix_space():
    """A normal form, digits, a space in front, tokens that take white space along, bytes that the vocabulary lacks."""
    t = tokenizers.Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=True)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=400, special_tokens=["<s>", "</s>"], show_progress=False))
    t.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True, normalized=False)])
    t.add_tokens([AddedToken("Ahab", rstrip=True, normalized=True), AddedToken("  ", normalized=False)])
    t.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return save(t, "prefix_space.json")


def byte_fallback():
    """As Llama 2: BPE over characters, where unknown ones become bytes."""
    t = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # for training only
    t.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"],
                                                     limit_alphabet=60, show_progress=False))
    t.pre_tokenizer = None
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    file = json.loads(t.to_str())
    vocab = file["model"]["vocab"]
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    return save(tokenizers.Tokenizer.from_str(json.dumps(file)), "byte_fallback.json")


def sentence_piece(name, **options):
    text = OUT / "text.tmp"
    text.write_text("\n".join(LINES))
    spm.SentencePieceTrainer.train(input=str(text), model_prefix=str(OUT / name), minloglevel=2, **options)
    text.unlink()
    (OUT / f"{name}.vocab").unlink()
    return spm.SentencePieceProcessor(model_file=str(OUT / f"{name}.model"))


def unigram():
    """As T5: a map of characters, words, marks for spaces, and the token of the end behind."""
    rules = [("ﬁ", "fi"), ("½", "1/2"), ("　", " "), ("\u2003", " "), ("e\u0301", "é"), ("a\u0301", "á"), ("a\u0301\u0316", "Å"),
             ("A", "a"), ("\u200b", " "), ("①", "1"), ("\u0301", "")]
    tsv = OUT / "rules.tmp"
    tsv.write_text("".join("{}\t{}\n".format(*(" ".join(f"{ord(c):X}" for c in side) for side in rule)) for rule in rules))
    sentence_piece("unigram", vocab_size=500, model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
                   character_coverage=.999, normalization_rule_tsv=str(tsv))
    tsv.unlink()
    model = spm_model.ModelProto()
    model.ParseFromString((OUT / "unigram.model").read_bytes())
    (OUT / "unigram.model").unlink()
    t = tokenizers.Tokenizer(models.Unigram([(p.piece, p.score) for p in model.pieces], 2, False))
    t.normalizer = normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", "always")])
    t.decoder = decoders.Metaspace("▁", "always")
    t.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", 1)])
    t.add_special_tokens(["<pad>", "</s>", "<unk>"])
    return save(t, "unigram.json")


def word_piece():
    """As BERT: small letters without accents, words, and tokens that go on within them."""
    t = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    t.normalizer = normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.train_from_iterator(LINES, trainers.WordPieceTrainer(
        vocab_size=500, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]",
                                                     special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return save(t, "word_piece.json")


def ranks(byte_level_file):
    """The merges of byte_level.json as a tiktoken file and as a tekken.json."""
    file = json.loads((OUT / byte_level_file).read_text())
    visible = {}
    other = 256
    for b in range(256):
        printable = 33 <= b <= 126 or 161 <= b <= 172 or b >= 174
        visible[chr(b if printable else other)] = b
        other += not printable
    tokens = [bytes([b]) for b in range(256)]
    for left, right in file["model"]["merges"]:
        joined = bytes(visible[c] for c in left + right)
        if joined not in tokens:
            tokens.append(joined)
    tokens = {token: rank for rank, token in enumerate(tokens)}
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in tokens.items()]
    (OUT / "ranks.tiktoken").write_text("".join(lines))
    some = dict(list(tokens.items())[:400])
    (OUT / "tekken.json").write_text(json.dumps({
        "config": {"pattern": PATTERN, "num_vocab_tokens": len(tokens), "default_vocab_size": len(some) + 20,
                   "default_num_special_tokens": 20, "version": "v3"},
        "vocab": [{"rank": rank, "token_bytes": base64.b64encode(token).decode()}
                  for token, rank in tokens.items()]}) + "\n")
    return (tiktoken.Encoding("all", pat_str=PATTERN, mergeable_ranks=tokens, special_tokens={"<|end|>": len(tokens)}),
            tiktoken.Encoding("some", pat_str=PATTERN, mergeable_ranks=some, special_tokens={}))


OUT.mkdir(parents=True, exist_ok=True)
texts = [text[:28] for text in hostile.texts(150, seed=7)] + ["", "Call me Ishmael. Some years ago—never mind how long",
         " <mask> Ahab  <s>x</s>", "x" * 300, " " * 200 + "y", "a\u0301\u0316 e\u0301 ﬁ½①", "\x00\x06", "<|end|>"]
files = {}
for name, t in (("byte_level.json", byte_level()), ("prefix_space.json", prefix_space()),
                ("byte_fallback.json", byte_fallback()), ("unigram.json", unigram()), ("word_piece.json", word_piece())):
    files[name] = [t.encode(text, add_special_tokens=False).ids for text in texts]
    t.encode_special_tokens = True
    files[name + " plain"] = {i: ids for i, text in enumerate(texts)
                              if (ids := t.encode(text, add_special_tokens=False).ids) != files[name][i]}
whole, some = ranks("byte_level.json")
files["ranks.tiktoken"] = [whole.encode(text, allowed_special="all") for text in texts]
files["tekken.json"] = [[20 + id for id in some.encode_ordinary(text)] for text in texts]
piece = sentence_piece("sentencepiece", vocab_size=500, model_type="bpe", byte_fallback=True, character_coverage=.99,
                       normalization_rule_name="identity", remove_extra_whitespaces=False)
files["sentencepiece.model"] = [piece.encode(text) for text in texts]
(OUT / "ids.json").write_text(json.dumps({"texts": texts, "ids": files}, separators=(",", ":")) + "\n")
print(sum(f.stat().st_size for f in OUT.iterdir()), "bytes in", OUT)
