import hashlib
import socket

import numpy as np
import pytest

from helpers.harness import CORPORA, without_backend
from zoo.datasets import download, text

pytestmark = without_backend
PTB = CORPORA / "ptb"
OFFLINE = "https://127.0.0.1:9/"  # refuses downloads
LINES = {"train": "the cat <unk>\nsat {on} the mat\n", "valid": "a cat\n", "test": "the mat sat"}
# By hand: `the cat | + sat on the mat +`, `a cat +`, `the mat sat +`.


def write_folder(folder, prefix="", **changes):
    folder.mkdir(parents=True, exist_ok=True)
    for split, content in (LINES | changes).items():
        content = content if isinstance(content, bytes) else content.encode()
        (folder / f"{prefix}{split}.txt").write_bytes(content)
    return folder


def spelling(vocabulary):
    rows = vocabulary.spell(vocabulary.words)
    return ["".join(vocabulary.characters[i] for i in row) for row in rows]


@pytest.fixture
def small():
    return text.Vocabulary.from_texts(*LINES.values())


def test_a_word_is_spelled_start_characters_end_pads_and_cut_where_there_is_no_room(small):
    assert small.word_length == 5  # `the`, the longest, plus two
    assert spelling(small)[:4] == ["{|}  ", "{the}", "{cat}", "{+}  "]
    cut = text.Vocabulary.from_texts("antidisestablishmentarianism is long\n", max_word_length=6)
    assert cut.word_length == 6  # `long` and its marks just fit
    assert spelling(cut) == ["{antid", "{is}  ", "{long}", "{+}   "]


def kims_loader(texts, max_word_length):
    """Reference implementation of `text_to_tensor` of BatchLoaderUnk.lua, word by word."""
    word2idx, char2idx = {"|": 1}, {" ": 1, "{": 2, "}": 3}
    ids, spellings, longest = [], [], 0
    for line in "".join(texts).removesuffix("\n").split("\n"):  # every text ends its last line
        line = line.replace("<unk>", "|").replace("{", "").replace("}", "")
        longest = max([longest, *(len(word) + 2 for word in line.split())])
        for word in [*line.split(), "+"]:
            ids.append(word2idx.setdefault(word, len(word2idx) + 1))
            spelling = [char2idx.setdefault(char, len(char2idx) + 1) for char in word]
            spellings.append([2, *spelling, 3])
    length = min(longest, max_word_length)
    spellings = [(s + [1] * length)[:length] for s in spellings]  # torch.ones: the pad is 1
    return tuple(word2idx), tuple(char2idx), np.array(ids), np.array(spellings)


@pytest.mark.parametrize("max_word_length", [4, 65])
def test_a_corpus_is_what_kims_loader_makes_of_it(max_word_length):
    rng = np.random.default_rng(0)
    pool = ["a", "bé", "{c}", "dddd", "+", "e+", "<unk>", "f|", "10", "}", "\n", "\n"]
    texts = [" ".join(rng.choice(pool, size)) + "\n" for size in (300, 40, 40)]
    words, characters, ids, spellings = kims_loader(texts, max_word_length)
    ours = text.Vocabulary.from_texts(*texts, max_word_length=max_word_length)
    encoded = np.concatenate([ours.encode(part) for part in texts])
    assert (ours.words, ours.characters) == (words, characters)
    np.testing.assert_array_equal(encoded, ids - 1)  # Lua counts from 1
    np.testing.assert_array_equal(ours.spell(words)[encoded], spellings - 1)


def test_every_line_ends_a_sentence_even_the_last_and_the_empty(small):
    assert small.encode("a\n\ncat").tolist() == [7, 3, 3, 2, 3]
    assert small.encode("a\r\ncat\r\n").tolist() == [7, 3, 2, 3]
    assert small.encode("").shape == (0,) and small.encode("").dtype == np.int32


def test_a_strange_word_is_unknown_or_an_error(small):
    assert small.encode("the dog").tolist() == [1, 0, 3]
    assert small.encode("| + {the} { <unk>-like").tolist() == [0, 3, 1, 0, 3]  # not strange
    closed = text.Vocabulary.from_texts("the cat\n")
    with pytest.raises(ValueError, match=r"Received: unknown_words=\['dog'\]"):
        closed.encode("the dog")


def test_a_vocabulary_needs_text_and_room():
    with pytest.raises(ValueError, match="at least one line"):
        text.Vocabulary.from_texts("", "")
    with pytest.raises(ValueError, match="an integer of 3 or more"):
        text.Vocabulary.from_texts("a\n", max_word_length=2)


def test_decoding_gives_the_text_back(small):
    assert small.decode(small.encode(LINES["train"])) == "the cat <unk>\nsat on the mat\n"
    ids = [*np.random.default_rng(0).integers(0, len(small), 200), small.words.index("+")]
    np.testing.assert_array_equal(small.encode(small.decode(ids)), ids)


def test_words_outside_the_vocabulary_are_spelled_with_the_characters_it_has(small):
    rows = small.spell(["hat", "cätä", "世界", "chat+mat"])
    words = ["".join(small.characters[i] for i in row) for row in rows]
    assert words == ["{hat}", "{ct} ", "{|}  ", "{chat"]  # nothing known: the unknown word
    closed = text.Vocabulary.from_texts("the cat\n")
    with pytest.raises(ValueError, match="must have a character .*: theca.*'世界'"):
        closed.spell(["the", "世界"])


@pytest.mark.parametrize(
    "prompt, words",
    [("the {hat} ", "the hat"), ("a\n", "a +"), ("", "+"), ("\n\n", "+ +"), ("<unk>-x a", "| a")],
)
def test_a_prompt_is_read_as_the_text_is_but_ends_no_sentence(small, prompt, words):
    np.testing.assert_array_equal(small.prompt(prompt), small.spell(words.split()))


def test_word_ids_outside_the_vocabulary_are_refused_where_they_come_in(small):
    for ids in ([0, 8], [-1], [0.5], [float("nan")]):
        with pytest.raises(ValueError, match=rf"from 0 to 7.*Received: word_ids=\[{ids[-1]}"):
            small.decode(ids)
    with pytest.raises(ValueError, match="`word_ids` must be integers"):
        text.streams([0, 1, -1], 1, 1)


def test_rare_words_become_unknown_as_if_the_text_had_unk_for_them():
    corpus = text.Corpus.from_texts("ours", ["b a a b cc c c\n", "cc d c\n", "b e\n"], 4)
    expected = ["b a a b <unk> c c\n", "<unk> <unk> c\n", "b <unk>\n"]
    assert corpus.unigram_perplexity == pytest.approx((15 / 3 * 15 / 1 * 15 / 2) ** (1 / 3))
    corpus = corpus.most_frequent(3)
    parts = (corpus.train, corpus.valid, corpus.test)
    assert [corpus.vocabulary.decode(part) for part in parts] == expected
    same = text.Vocabulary.from_texts(*expected, max_word_length=4)
    assert (corpus.vocabulary.words, corpus.vocabulary.word_length) == (same.words, 3)
    assert {*corpus.vocabulary.characters} == {*same.characters}
    with pytest.raises(ValueError, match="must be a positive integer"):
        corpus.most_frequent(0)


def test_a_saved_vocabulary_loads_as_it_was_even_after_a_failed_save(small, tmp_path, monkeypatch):
    path = tmp_path / "made" / "vocabulary.json"
    small.save(path)
    small.save(path)  # over itself
    monkeypatch.setattr("os.replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        text.Vocabulary.from_texts("other\n").save(path)
    assert text.Vocabulary.load(path) == small
    assert list(path.parent.iterdir()) == [path]  # nothing temporary is left


@pytest.mark.parametrize("prefix", ["", "ptb."])
def test_a_folder_is_read_as_three_parts(tmp_path, small, prefix):
    folder = write_folder(tmp_path / "custom", prefix, train="\ufeff" + LINES["train"])
    corpus = text.load(folder)
    assert (corpus.name, corpus.vocabulary) == ("custom", small)
    assert corpus.train.tolist() == [1, 2, 0, 3, 4, 5, 1, 6, 3]
    assert corpus.valid.tolist() == [7, 2, 3]
    assert corpus.test.tolist() == [1, 6, 4, 3]
    assert ("differ" in corpus.notice) == (prefix == "ptb.")  # it may not pass for Penn Treebank


def test_a_folder_that_cannot_be_read_is_an_error_that_says_what_is_there(tmp_path):
    def fails(message):
        with pytest.raises(ValueError, match=message):
            text.load(tmp_path / "custom")

    fails("custom', which is not a folder")
    write_folder(tmp_path / "custom", valid=" \n\n")
    fails("valid.txt must have words")
    write_folder(tmp_path / "custom", test="un café\n".encode("latin1"))
    fails("test.txt must be UTF-8.* 0xe9 in position 6")
    (tmp_path / "custom" / "test.txt").unlink()
    fails(r"which has \['train.txt', 'valid.txt'\]")


def test_the_embedded_corpus_is_always_there_and_can_be_learned_from():
    corpus, again = text.embedded(), text.embedded()
    assert corpus.name == "pydoc" and "NOT Penn Treebank" in corpus.notice
    assert corpus.vocabulary == again.vocabulary and all(corpus.train == again.train)
    parts = (corpus.train, corpus.valid, corpus.test)
    lines = np.array([np.sum(ids == corpus.vocabulary.words.index("+")) for ids in parts])
    np.testing.assert_allclose(lines / lines.sum(), [0.9, 0.05, 0.05], atol=1e-3)
    assert set(corpus.valid) | set(corpus.test) <= set(corpus.train)  # no untrained word
    assert all(np.mean(ids == corpus.vocabulary.unknown) < 0.05 for ids in parts)
    assert len(corpus.train) > 20 * 35 * 50  # batches enough for Kim's regime


@pytest.mark.parametrize(("batch_size", "num_steps"), [(3, 4), (1, 4), (3, 1)])
def test_row_b_of_the_next_batch_continues_row_b(batch_size, num_steps):
    ids = np.arange(67, dtype="int32")
    x, y = text.streams(ids, batch_size, num_steps)
    num_tokens = 67 // (batch_size * num_steps) * batch_size * num_steps
    assert x.shape == y.shape == (num_tokens // batch_size // num_steps, batch_size, num_steps)
    np.testing.assert_array_equal(x.swapaxes(0, 1).reshape(-1), np.arange(num_tokens))
    np.testing.assert_array_equal(y.swapaxes(0, 1).reshape(-1), [*range(1, num_tokens), 0])
    x[:] = -1
    np.testing.assert_array_equal(ids, np.arange(67))  # the batches are copies


def test_too_few_tokens_for_one_batch_are_an_error():
    with pytest.raises(ValueError, match=r"of 700 tokens or more .*Received: shape=\(699,\)"):
        text.streams(np.zeros(699), 20, 35)
    with pytest.raises(ValueError, match="`num_steps` must be a positive integer"):
        text.streams(np.zeros(699), 20, 0)
    with pytest.raises(ValueError, match=r"shape=\(3, 20, 35\)"):
        text.streams(np.zeros((3, 20, 35)), 20, 35)


@pytest.mark.skipif(not PTB.is_dir(), reason=f"needs ptb.{{train,valid,test}}.txt in {PTB}")
def test_penn_treebank_is_what_kim_et_al_report():
    corpus = text.load(PTB)
    v = corpus.vocabulary
    assert (corpus.name, corpus.notice) == ("PTB", "")
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (929_589, 73_760, 82_430)
    assert (len(v), len(v.characters), v.word_length) == (10_000, 51, 21)
    assert len(set(corpus.train.tolist())) == 10_000  # valid and test add no word
    counts = [np.sum(corpus.train == i) for i in (v.words.index("+"), v.unknown)]
    assert counts == [42_068, 45_020]  # lines; `grep -o '<unk>' ptb.train.txt | wc -l`
    for ids, batches, dropped in ((corpus.train, 1327, 689), (corpus.valid, 105, 260)):
        x, _ = text.streams(ids, 20, 35)
        assert (x.shape, x.dtype, len(ids) - x.size) == ((batches, 20, 35), np.int32, dropped)
    assert text.streams(corpus.test, 1, 10)[0].size == len(corpus.test)  # as Kim et al. test


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """Replace the network by files, with `LINES` for Penn Treebank, and an empty cache."""
    folder = write_folder(tmp_path / "mirror", "ptb.")
    sha256 = {split: hashlib.sha256(line.encode()).hexdigest() for split, line in LINES.items()}
    monkeypatch.setattr(text, "PTB_URL", folder.as_uri() + "/")
    monkeypatch.setattr(text, "PTB_SHA256", sha256)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    return folder


def test_downloaded_files_are_cached(mirror, monkeypatch):
    assert text.load().name == "PTB"
    monkeypatch.setattr(text, "PTB_URL", OFFLINE)
    assert text.load().name == "PTB"


def test_a_download_that_is_not_penn_treebank_is_refused(mirror, tmp_path):
    write_folder(mirror, "ptb.", test="<html>not found</html>")
    with pytest.raises(download.DownloadError, match="SHA-256"):
        text.load()
    assert not (tmp_path / "cache" / "ptb" / "ptb.test.txt").exists()
    write_folder(mirror, "ptb.")
    assert text.load().name == "PTB"  # the next attempt finishes it


@pytest.mark.parametrize("network", ["refuses", "is silent", "works"])
def test_without_a_network_the_error_comes_at_once_with_alternatives(
    mirror, tmp_path, monkeypatch, network
):
    monkeypatch.setattr(download, "SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:  # lets one in, and says nothing
        silent = f"https://127.0.0.1:{server.getsockname()[1]}/"
        if network == "works":
            (tmp_path / "cache").write_text("a file, so no folder can be made")
        else:
            monkeypatch.setattr(text, "PTB_URL", OFFLINE if network == "refuses" else silent)
        with pytest.raises(download.DownloadError) as error:
            text.load()
    for way in ("--data_dir", str(tmp_path / "cache" / "ptb"), "embedded"):
        assert way in str(error.value)
