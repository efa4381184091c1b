"""Parallel text from folders and files of pairs, and what is wrong with a malformed one."""

import gzip
import io
import re
import zipfile

import pytest

from relpos_tasks import files, packed
from relpos_tasks.translation import Pair, TextError, read_texts
from tests.tasks.translation.sentences import pairs, write_folder, write_table

PAIRS = pairs(6)


@pytest.mark.parametrize("gzipped", [True, False])
def test_a_folder_of_multi30ks_names_is_read(tmp_path, gzipped):
    folder = write_folder(tmp_path / "m", {"train": PAIRS[:4], "val": PAIRS[4:]}, packed=gzipped)
    (folder / "README.md").write_text("about")
    texts = read_texts(folder)
    assert (texts.name, texts.languages) == ("m", ("en", "de"))
    assert (texts.train, texts.held_out, texts.valid) == (PAIRS[:4], PAIRS[4:], None)


def test_with_a_test_it_is_held_out_and_val_is_watched(tmp_path):
    parts = {"train": PAIRS[:3], "dev": PAIRS[3:4], "test_2016_flickr": PAIRS[4:5]}
    folder = write_folder(tmp_path / "m", parts | {"test_2017_flickr": PAIRS[5:]})
    texts = read_texts(folder)
    assert (texts.valid, texts.held_out) == (PAIRS[3:4], PAIRS[4:5])


@pytest.mark.parametrize(("given", "swapped"), [({}, False), ({"source": "de"}, True)])
def test_the_direction_can_be_given(tmp_path, given, swapped):
    folder = write_folder(tmp_path / "m", {"train": PAIRS, "val": PAIRS})
    texts = read_texts(folder, **given)
    expected = [pair[::-1] if swapped else tuple(pair) for pair in PAIRS]
    assert [tuple(pair) for pair in texts.train] == expected
    assert texts.languages == (("de", "en") if swapped else ("en", "de"))


def test_two_of_many_languages_are_chosen_by_name(tmp_path):
    folder = write_folder(tmp_path / "m", {"train": PAIRS, "val": PAIRS}, packed=False)
    for part in ("train", "val"):
        (folder / f"{part}.fr").write_text("".join(f"{pair.source} !\n" for pair in PAIRS))
    assert read_texts(folder, source="fr", target="de").languages == ("fr", "de")
    with pytest.raises(TextError, match=r"m: has en, de, fr: choose two of them by --source and"):
        read_texts(folder, source="fr")


@pytest.mark.parametrize("form", ["deu.txt", "pairs.tsv", "pairs.tsv.gz", "deu-eng.zip"])
def test_a_file_of_pairs_is_read_in_every_form(tmp_path, form):
    path = write_table(tmp_path / "plain", PAIRS)
    content = path.read_bytes()
    if form.endswith("zip"):
        with zipfile.ZipFile(tmp_path / form, "w") as archive:
            archive.writestr("_about.txt", "terms of use")
            archive.writestr("deu.txt", content)
    else:
        (tmp_path / form).write_bytes(gzip.compress(content) if form.endswith("gz") else content)
    texts = read_texts(tmp_path / form)
    assert (texts.train, texts.valid, texts.held_out) == (PAIRS, None, None)
    known = form == "deu-eng.zip"
    assert texts.languages == (("eng", "deu") if known else ("source", "target"))
    if known:
        assert read_texts(tmp_path / form, source="de", target="en").train[0] == PAIRS[0][::-1]
    else:
        assert read_texts(tmp_path / form, source="en", target="de").languages == ("en", "de")


def test_tatoebas_own_export_has_numbers_before_the_sentences(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("1276\tLet's try.\t2481\tProbieren wir's!\n1277\tGo.\t7\tGeh.\n")
    assert read_texts(path).train[0] == Pair("Let's try.", "Probieren wir's!")


def test_text_is_normalised_and_trimmed_and_lines_end_at_line_feeds_alone(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes("\ufeff A u\u0308 \u2028 b\t C\u0085d\xa0\r\n\r\nE\tF".encode())
    assert read_texts(path).train == (Pair("A ü \u2028 b", "C\u0085d"), Pair("E", "F"))


def test_pairs_with_an_empty_sentence_are_left_out_and_counted(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("A\tB\n\tC\nD\t \n\n \nE\tF\n")
    texts = read_texts(path)
    assert (texts.train, texts.empty) == ((Pair("A", "B"), Pair("E", "F")), 2)
    folder = tmp_path / "m"
    folder.mkdir()
    for name, text in (
        ("train.en", "A\n\nB\n"),
        ("train.de", "C\nD\nE"),
        ("val.en", "F"),
        ("val.de", "G"),
    ):
        (folder / name).write_text(text)
    texts = read_texts(folder)
    assert (texts.train, texts.empty) == ((Pair("A", "C"), Pair("B", "E")), 1)


GOOD = {"train.en": "A\nB\n", "train.de": "C\nD\n", "val.en": "E\n", "val.de": "F\n"}
FOLDERS = {
    "unequal lines": (
        {"train.de": "C\nD\nE\n"},
        "train.en and train.de must have equally many lines, got 2 and 3",
    ),
    "an empty file": ({"val.de": " \n"}, "val.de: must hold sentences, got an empty file"),
    "nothing in common": ({"val.en": "\nE", "val.de": "F\n\n"}, "val.en and val.de must share a"),
    "not UTF-8": (
        {"train.de": b"C\n\xc3\xa4\xe4\n"},
        "train.de: line 2 must be UTF-8, got the byte 0xe4",
    ),
    "one language": (
        {"train.de": None, "val.de": None},
        "must have two languages, got en alone",
    ),
    "a part in one language": ({"val.de": None}, "must have val.de beside val.en, plain or .gz"),
    "no training in one": ({"train.de": None}, "must have train.de beside train.en, plain or .gz"),
    "no training": ({"train.en": None, "train.de": None}, "must have files named as train.en.gz"),
    "twice": ({"dev.en": "E"}, "must have each text once, got dev.en and val.en"),
    "cut gzip": ({"train.en": gzip.compress(b"A\nB\n" * 99)[:-9]}, "cannot be read: broken gzip"),
}


@pytest.mark.parametrize(("changes", "message"), FOLDERS.values(), ids=FOLDERS)
def test_what_is_wrong_with_a_folder_is_said_in_one_line(tmp_path, changes, message):
    for name, content in (GOOD | changes).items():
        if content is not None:
            raw = content if isinstance(content, bytes) else content.encode()
            (tmp_path / name).write_bytes(raw)
    refused(tmp_path, message)


def zipped(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_txt", ".txt"), content)
    return file.getvalue()


TABLES = {
    "no tab": (
        b"A\tB\nA man sleeps.\n",
        "line 2 must be two sentences with a tab between, got 'A man sleeps.'",
    ),
    "fewer fields": (b"1\tA\t2\tB\n3\tC\n", "line 2 must have 4 fields like the first"),
    "empty": (b"\n \n", "must hold sentences, got an empty file"),
    "no whole pair": (b"A\t\n\tB\n", "must have a pair of two sentences, got none"),
    "not UTF-8": ("A\tä\n".encode("latin-1"), "line 1 must be UTF-8, got the byte 0xe4"),
    "a zip of nothing": (
        zipped(_about_txt="x"),
        "the archive must hold one file of pairs (.txt or .tsv), got none",
    ),
    "a zip of two": (zipped(a_txt="x", b_txt="y"), "got a.txt, b.txt"),
    "a broken zip": (zipped(a_txt="A\tB" * 99)[:-30], "broken zip file"),
    "no tab in a zip": (zipped(a_txt="x"), "a.zip: a.txt: line 1 must be two sentences"),
}


@pytest.mark.parametrize(("content", "message"), TABLES.values(), ids=TABLES)
def test_what_is_wrong_with_a_file_of_pairs_is_said_in_one_line(tmp_path, content, message):
    path = tmp_path / "a.zip"
    path.write_bytes(content)
    refused(path, message)


def refused(path, message):
    with pytest.raises(TextError, match=re.escape(message)) as caught:
        read_texts(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_file_whose_languages_are_one_is_refused(tmp_path):
    table = write_table(tmp_path / "pairs.tsv", PAIRS)
    with pytest.raises(TextError, match="must be two languages, got 'de' and 'deu'"):
        read_texts(table, source="de", target="deu")


LANGUAGES = {
    "alike": ({"source": "enm"}, "--source must be one of en, de, got 'enm'"),
    "unknown": ({"source": "fr"}, "--source must be one of en, de, got 'fr'"),
    "twice": (
        {"source": "en", "target": "en"},
        "--source and --target must be two of en, de, got 'en' for both",
    ),
    "empty": ({"target": ""}, "--target must be one of en, de, got ''"),
}


@pytest.mark.parametrize(("given", "message"), LANGUAGES.values(), ids=LANGUAGES)
def test_languages_that_are_not_there_are_named(tmp_path, given, message):
    folder = write_folder(tmp_path / "m", {"train": PAIRS, "val": PAIRS})
    with pytest.raises(TextError, match=re.escape(f"{folder}: {message}")):
        read_texts(folder, **given)


def test_both_sides_of_a_table_are_not_one_language(tmp_path):
    table = write_table(tmp_path / "a.tsv", PAIRS)
    with pytest.raises(
        TextError, match=r"a\.tsv: --source and --target must be two languages, got"
    ):
        read_texts(table, source="en", target="en")


def test_without_text_it_is_said_what_is_needed_and_where_it_is(tmp_path):
    for path, begin in (
        (None, "--data: must name"),
        (tmp_path / "gone", f"{tmp_path}/gone: no such"),
    ):
        with pytest.raises(
            TextError, match=r"train\.en\.gz.*multi30k.*deu-eng\.zip.*manythings"
        ) as it:
            read_texts(path)
        assert str(it.value).startswith(begin)


def test_files_that_would_fill_the_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST", 999)
    monkeypatch.setattr(packed, "LARGEST", 999)
    large = b"A\tB\n" * 500
    for name, content, message in (
        ("a.tsv", large, "larger than 999 bytes"),
        ("a.tsv.gz", gzip.compress(large), "larger than 999 bytes when unpacked"),
        ("a.zip", packed_as_zip(large), "a.txt in the archive is larger than 999 bytes"),
    ):
        (tmp_path / name).write_bytes(content)
        refused(tmp_path / name, f"cannot be read: {message}")


def packed_as_zip(content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", content)
    return file.getvalue()
