"""The split that a set of performances came with is taken as it is."""

import pytest

from relpos_tasks.music.performances.published import published_split
from relpos_tasks.music.performances.source import read_performances
from relpos_tasks.music.score_lines import ScoreError
from tests.tasks.music.performances.played import write_performances

HEAD = "canonical_composer,split,year,midi_filename,duration\n"
PARTS = ["train"] * 6 + ["validation"] * 2 + ["test"] * 4


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    """Twelve performances in a folder of a year, as MAESTRO's are."""
    write_performances(tmp_path / "music" / "2018", 12)
    return tmp_path / "music"


def files_of(folder):
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.mid"))]


def write_table(folder, parts, files=None, name="maestro-v3.0.0.csv"):
    rows = zip(files or files_of(folder), parts, strict=True)
    lines = [f'"Bach, J. S.",{part},2018,{file},61.5\n' for file, part in rows]
    (folder / name).write_text(HEAD + "".join(lines), encoding="utf-8")


def test_a_table_beside_the_files_says_the_part_of_each(folder):
    files = files_of(folder)
    before = read_performances(folder)
    write_table(folder, PARTS)
    source = read_performances(folder)
    names = [[one.name for one in part] for part in source.split.parts.values()]
    assert names == [files[:6], files[6:8], files[8:]]
    assert str(source.split).endswith("; as maestro-v3.0.0.csv has it")
    assert source.digest != before.digest
    # The same files in the same order, but one of them in another part.
    write_table(folder, [*PARTS[:6], "train", *PARTS[7:]])
    assert read_performances(folder).digest != source.digest


def test_what_the_table_does_not_name_is_left_out_and_what_is_not_there_is_no_error(folder):
    files = files_of(folder)
    write_table(folder, PARTS, [*files[:11], "2018/lost.mid"])
    with pytest.warns(UserWarning, match=r"1 of 12 performances, which maestro-v3.0.0.csv does no"):
        source = read_performances(folder)
    assert len(source.split.held_out) == 3
    assert str(source.split).endswith(
        "; as maestro-v3.0.0.csv has it, 1 of its 12 missing, 1 that it does not name left out"
    )


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["train"] * 12, "must name performances of train, validation and test that are there, "
                         "got none of validation and test"),
        ([*PARTS[:11], "valid"], r"line 13: split must be train, validation or test, got 'valid'"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_followed_is_refused(folder, parts, message):
    write_table(folder, parts)
    with pytest.raises(ScoreError, match=message):
        read_performances(folder)


def test_a_file_in_two_parts_and_two_tables_are_refused(folder):
    files = files_of(folder)
    write_table(folder, ["train", "test"], [files[0]] * 2)
    with pytest.raises(ScoreError, match=r"must be in one part, got train and test"):
        published_split(folder)
    write_table(folder, PARTS)
    write_table(folder, PARTS, name="again.csv")
    with pytest.raises(ScoreError, match=r"got again.csv and maestro-v3.0.0.csv"):
        published_split(folder)
    write_table(folder, [""], [""], name="again.csv")
    with pytest.raises(ScoreError, match=r"again.csv, line 2: must have a midi_filename, got none"):
        published_split(folder)


def test_tables_of_something_else_are_left_alone(folder):
    (folder / "notes.csv").write_text("name,split\nx,train\n")
    (folder / "latin.csv").write_bytes("split,Stück\nträin,x\n".encode("latin-1"))
    (folder / "quotes.csv").write_text('title,"a "quoted" word"\n')
    (folder / "empty.csv").write_text("")
    (folder / "folder.csv").mkdir()
    assert published_split(folder) is None
    assert read_performances(folder).split.as_published is None


def test_a_table_that_a_spreadsheet_has_saved_is_the_same(folder):
    write_table(folder, PARTS)
    table = folder / "maestro-v3.0.0.csv"
    before = published_split(folder)
    lines = table.read_text().replace('"Bach, J. S."', "Bach").replace(",", ";").splitlines()
    lines[0] = lines[0].replace("midi_filename", "midi_filename ")
    table.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*lines, ""]).encode())
    assert published_split(folder) == before


def test_a_table_that_is_none_is_said(folder):
    (folder / "m.csv").write_text('split,midi_filename\n"train,x\n')
    with pytest.raises(ScoreError, match=r"m.csv: must be comma-separated values"):
        published_split(folder)
    (folder / "m.csv").write_bytes("split,midi_filename\nträin,x\n".encode("latin-1"))
    with pytest.raises(ScoreError, match=r"m.csv: must be UTF-8, got the byte 0xe4 at 22"):
        published_split(folder)
