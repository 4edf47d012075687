#!/usr/bin/env python3
"""Makes small tokenizers and what the reference library makes of a text with them.

Needs `tokenizers` and `sentencepiece` (expected.json names the versions that were used). Writes beside itself one
tokenizer.json for each way to cut text, two models of SentencePiece, the text in text.txt, and its ids in expected.json; with a
folder as argument also there 1.5 MB of other text, and NAME.ids for each tokenizer: ids of 32 bits.
"""

import io
import json
import pathlib
import random
import re
import sys

import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE

HERE = pathlib.Path(__file__).parent
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = """The quick brown foxes don't jump over lazy dogs; we'll see WE'LL, it's I'm they've you'd IT'S
Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Voix ambiguë d'un cœur qui préfère
les jattes de kiwis. El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia. Příliš žluťoučký
kůň úpěl ďábelské ódy. Съешь же ещё этих мягких французских булок. Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.
דג סקרן שט בים מאוכזב. صِف خَلقَ خَودِ كَمِثلِ الشَمسِ. ऋषियों को सताने वाले दुष्ट राक्षसों के राजा। আমার সোনার বাংলা
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า いろはにほへと ちりぬるを カタカナ 漢字仮名交じり文 天地玄黃 宇宙洪荒 日月盈昃
다람쥐 헌 쳇바퀴에 타고파 სპარსეთი გადმოგვცა Արև ծագեց ዘመናዊ ᏣᎳᎩ தமிழ் மொழி తెలుగు ಕನ್ನಡ മലയാളം සිංහල ལྷ་ས ខ្មែរ
ỗ é é ñ naïve ſ'ſ ǅ 🎉🎊👩‍👩‍👧 ¼ ² ³ Ⅷ ٣٤٥ १२३ ½kg 12345678 3.14159 0x7fff 1e-05 1,234,567 $100 50% #7
int main(int argc, char** argv) { return (x << 3) >= 0x1F ? -1 : a[i++]; } // no? def f(self, *a): pass
<html><body class="x">&nbsp;</body> https://example.org/a?b=c&d=1 {"key": [null, true, 1e9]} ``` --- ===
""".split(" ")
SPACES = [" "] * 40 + ["\n", "\n\n", "  ", "    ", "\t", "\r\n", " \n", "\n  ", "\u00a0", "\u3000",
                       "\u2028", "\u180e", "\x85", "\u200b", "", "", "\ufffd", "\x00", "\v", "   \n\n\n  "]
SPECIAL = ["<|endoftext|>", "<|end|>", "<|endof", "<tool>"]


def text(random_, size):
    """Words of many scripts in any order, with every kind of space and some rare characters."""
    out = []
    while size > 0:
        word = random_.choice(WORDS)
        kind = random_.random()
        if kind < 0.03:
            word = random_.choice(SPECIAL)
        elif kind < 0.06:
            word = "".join(chr(random_.choice([random_.randrange(32, 127), random_.randrange(160, 0x250),
                                               random_.randrange(0x370, 0x530), random_.randrange(0x4E00, 0x9FA0),
                                               random_.randrange(0x1F300, 0x1F5FF)])) for _ in range(5))
        elif kind < 0.1:
            word = word.upper()
        elif kind < 0.12:
            word = str(random_.randrange(10 ** random_.randrange(1, 12)))
        elif kind < 0.13:
            word = random_.choice("-=ab 7.\n") * random_.randrange(1, 200)
        # Broken UTF-8, read as everybody does: a mark stands for what is broken.
        elif kind < 0.14:
            word = word.encode()[1:-1].decode(errors="replace")
        piece = word + random_.choice(SPACES)
        out.append(piece)
        size -= len(piece.encode())
    return "".join(out)


def byte_level(**keys):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, **keys)


KINDS = {
    "gpt2": (None, byte_level()),
    "llama3": (None, pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                              byte_level(use_regex=False)])),
    "qwen": (normalizers.NFC(),
             pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3.replace("{1,3}", "")), "isolated"),
                                      byte_level(use_regex=False)])),
    "smollm": (None, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()])),
    "falcon": (None, pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), byte_level(),
                                              pre_tokenizers.Digits(individual_digits=False),
                                              pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")])),
}


# Characters, and bytes for those that are no token: a normalizer, a pre-tokenizer, a decoder.
SPACE = "▁"
AS_SPACE = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
FALLBACK_KINDS = {
    "llama2": (normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]), None,
               decoders.Sequence(AS_SPACE + [decoders.Strip(" ", 1, 0)])),
    "mistral": (None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
                decoders.Sequence(AS_SPACE + [decoders.Strip(" ", 1, 0)])),
    "metaspace": (None, pre_tokenizers.Metaspace(prepend_scheme="always", split=True),
                  decoders.Metaspace(prepend_scheme="always")),
    "gemma": (normalizers.Replace(" ", SPACE), pre_tokenizers.Split(" ", "merged_with_previous"),
              decoders.Sequence(AS_SPACE)),
}


def make_with_fallback(name, corpus):
    normalizer, pre_tokenizer, decoder = FALLBACK_KINDS[name]
    made = Tokenizer(BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    # Learned from words and from runs of spaces, as sentencepiece does.
    made.normalizer = normalizers.Replace(" ", SPACE)
    made.pre_tokenizer = pre_tokenizers.Split(Regex(f"{SPACE}*[^{SPACE}\n]*|\n+"), "isolated")
    made.train_from_iterator([corpus], trainers.BpeTrainer(
        vocab_size=900, limit_alphabet=150, show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]))
    made.normalizer, made.pre_tokenizer, made.decoder = normalizers.Sequence([]), None, decoder
    # A normalizer cannot be taken away, nor can bytes, which are no added tokens, be learned otherwise.
    file = json.loads(made.to_str())
    file["added_tokens"] = file["added_tokens"][:3]
    file["normalizer"] = normalizer and json.loads(normalizer.__getstate__())
    file["pre_tokenizer"] = pre_tokenizer and json.loads(pre_tokenizer.__getstate__())
    made = Tokenizer.from_str(json.dumps(file))
    made.add_special_tokens(["<|end|>"])
    made.add_tokens([AddedToken("<tool>", single_word=True, normalized=name == "gemma")])
    made.save(str(HERE / f"{name}.json"), pretty=False)
    return made


def make_sentence_piece(name, corpus):
    """A model named as its kind, with bytes for characters that are no piece, or without."""
    made = io.BytesIO()
    lines = [line for line in corpus.split("\n") if 0 < len(line.encode()) < 4000 and "\0" not in line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=made, model_type=name, vocab_size=800, byte_fallback=name == "bpe",
        character_coverage=0.98, normalization_rule_name="identity", num_threads=1, user_defined_symbols=["<tool>"],
        minloglevel=1)
    (HERE / f"{name}.model").write_bytes(made.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())


def make(name, corpus):
    if name in FALLBACK_KINDS:
        return make_with_fallback(name, corpus)
    normalizer, pre_tokenizer = KINDS[name]
    made = Tokenizer(BPE(ignore_merges=name == "llama3"))
    if normalizer:
        made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizer
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator([corpus], trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    made.add_special_tokens(["<|end|>"])
    made.add_tokens([AddedToken("<tool>", normalized=False)])
    made.save(str(HERE / f"{name}.json"), pretty=False)
    return made


def main():
    corpus = text(random.Random(1), 200_000)
    short = text(random.Random(2), 16_000)
    (HERE / "text.txt").write_bytes(short.encode())
    expected = {"tokenizers": tokenizers.__version__, "sentencepiece": sentencepiece.__version__}
    for name in ["bpe", "unigram"]:
        # Versions cut a run of one character in different, equally likely ways.
        once = re.sub(r"([!-~])\1+", r"\1", short.replace("\ufffd", ""))
        expected[name] = make_sentence_piece(name, corpus).encode(once)
    for name in [*KINDS, *FALLBACK_KINDS]:
        made = make(name, corpus)
        expected[name] = made.encode(short, add_special_tokens=False).ids
        if len(sys.argv) > 1:
            folder = pathlib.Path(sys.argv[1])
            long = text(random.Random(3), 1_500_000)
            (folder / "long.txt").write_bytes(long.encode())
            ids = made.encode(long, add_special_tokens=False).ids
            (folder / f"{name}.ids").write_bytes(b"".join(i.to_bytes(4, "little") for i in ids))
    (HERE / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")


main()
