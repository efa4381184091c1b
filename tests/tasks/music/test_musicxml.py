"""MusicXML to sixteenths: ties, repeats, voices, tuplets, and what is refused."""

import re
import zipfile

import pytest

from relpos_tasks import packed
from relpos_tasks.music import ScoreError, read_piece
from relpos_tasks.music.musicxml import read_lines
from tests.tasks.music.scores import TIE_START, TIE_STOP, attributes, barline, note, score


@pytest.fixture
def read(tmp_path):
    def read(*parts: list[str]):
        path = tmp_path / "score.musicxml"
        path.write_text(score(*parts))
        return read_lines(path)

    return read


def line_of(lines):
    """Pitch of each step, with a star where it is struck."""
    return [
        f"{pitch}{'*' if onset else ''}"
        for pitch, onset in zip(lines.pitches[:, 0], lines.onsets[:, 0], strict=True)
    ]


def test_a_note_is_struck_once_and_then_held(read):
    lines = read([attributes(fifths=-3) + note("C4", 1) + note("C4", 1) + note("D4", 2)])
    assert line_of(lines) == ["60*", "60", "60", "60"] * 2 + ["62*", *["62"] * 7]
    assert (lines.pickup, lines.steps_per_bar, lines.fifths) == (0, 16, -3)


def test_a_short_first_bar_is_a_pickup(read):
    lines = read([attributes(beats=3) + note("C4", 1), note("D4", 3)])
    assert (lines.pickup, lines.steps_per_bar, len(lines.pitches)) == (8, 12, 16)


def test_silence_around_the_music_is_left_out(read):
    lines = read([attributes() + note("-", 1) + note("C4", 2) + note("-", 1)])
    assert lines.pickup == 4
    assert line_of(lines) == ["60*"] + ["60"] * 7


def test_a_tie_over_the_bar_line_is_held(read):
    lines = read(
        [
            attributes(divisions=4) + note("C#4", 16, inside=TIE_START),
            note("C#4", 2, inside=TIE_STOP) + note("C#4", 14),
        ]
    )
    assert lines.onsets[:, 0].nonzero()[0].tolist() == [0, 18]
    assert set(lines.pitches[:, 0]) == {61}


def test_a_tie_to_another_pitch_is_struck(read):
    lines = read([attributes() + note("C4", 2) + note("D4", 2, inside=TIE_STOP)])
    assert lines.onsets[:, 0].nonzero()[0].tolist() == [0, 8]


def test_repeats_are_not_played_and_only_the_last_ending_is(read):
    forward, backward = '<repeat direction="forward"/>', '<repeat direction="backward"/>'
    first, stop_first = '<ending number="1" type="start"/>', '<ending number="1" type="stop"/>'
    second, stop = '<ending number="2" type="start"/>', '<ending number="2" type="discontinue"/>'
    lines = read(
        [
            attributes() + barline(forward) + note("C4", 4),
            barline(first) + note("D4", 4),
            note("E4", 4) + barline(stop_first + backward),
            barline(second) + note("F4", 4) + barline(stop),
            note("G4", 4) + barline(backward),
        ]
    )
    assert lines.pitches[::16, 0].tolist() == [60, 65, 67]


def test_endings_marked_in_one_part_hold_for_all(read):
    first = '<ending number="1" type="start"/>', '<ending number="1" type="stop"/>'
    second = '<ending number="2" type="start"/>', '<ending number="2" type="stop"/>'
    marked = [
        attributes() + note("C4", 4),
        barline(first[0]) + note("D4", 4) + barline(first[1]),
        barline(second[0]) + note("E4", 4) + barline(second[1]),
    ]
    lines = read(marked, [attributes() + note("C3", 4), note("D3", 4), note("E3", 4)])
    assert lines.pitches[::16].tolist() == [[60, 48], [64, 52]]


def test_divisions_may_change_and_differ_between_parts(read):
    lines = read(
        [attributes(divisions=2) + note("C4", 8), attributes(divisions=480) + note("D4", 1920)],
        [attributes(divisions=1) + note("C3", 4), note("D3", 4)],
    )
    assert lines.pitches[::16].tolist() == [[60, 48], [62, 50]]
    assert len(lines.pitches) == 32


def test_backup_leads_to_another_voice_which_is_left_out(read):
    backup = "<backup><duration>4</duration></backup>"
    lines = read([attributes() + note("G4", 4) + backup + note("C4", 4, voice="2")])
    assert set(lines.pitches[:, 0]) == {67}


def test_forward_is_silence(read):
    forward = "<forward><duration>1</duration></forward>"
    lines = read([attributes() + note("G4", 1) + forward + note("C4", 2)])
    assert lines.pitches[:, 0].tolist() == [67] * 4 + [-1] * 4 + [60] * 8


def test_the_highest_note_of_a_chord_counts(read):
    chord = "<chord/>"
    low = note("C4", 4) + note("E4", 4, inside=chord) + note("D4", 4, inside=chord)
    assert set(read([attributes() + low]).pitches[:, 0]) == {64}


def test_the_notes_of_a_chord_begin_together_whatever_each_lasts(read):
    chord = "<chord/>"
    longer = note("C4", 1) + note("E4", 3, inside=chord) + note("G4", 3)
    lines = read([attributes() + note("A4", 4), longer])
    assert lines.pitches[::4, 0].tolist() == [69, 69, 69, 69, 64, 67, 67, 67]


def test_grace_notes_are_left_out(read):
    lines = read([attributes() + note("B4", 0, inside="<grace/>") + note("C4", 4)])
    assert line_of(lines) == ["60*"] + ["60"] * 15


def test_a_step_holds_what_sounds_when_it_begins(read):
    # Thirty-seconds: C on the step, D between two steps, E on the next; then a dotted one.
    notes = note("C4", 1) + note("D4", 1) + note("E4", 3) + note("F4", 3)
    lines = read([attributes(divisions=8) + notes])
    assert line_of(lines) == ["60*", "64*", "64", "65*"]


def test_triplets_land_on_the_following_steps(read):
    lines = read([attributes(divisions=3) + note("C4", 1) + note("D4", 1) + note("E4", 1)])
    assert line_of(lines) == ["60*", "60", "62*", "64*"]


def test_shorter_parts_are_silent_to_the_end_of_the_bar(read):
    lines = read(
        [attributes() + note("C4", 4), note("D4", 4)], [attributes() + note("C3", 2), note("D3", 4)]
    )
    assert lines.pitches[::4, 1].tolist() == [48, 48, -1, -1, 50, 50, 50, 50]


@pytest.mark.parametrize(("beats", "beat_type", "steps"), [(3, 2, 24), (6, 8, 12), (3, 8, 6)])
def test_a_bar_is_as_long_as_its_metre(read, beats, beat_type, steps):
    whole = attributes(divisions=4, beats=beats, beat_type=beat_type) + note("C4", steps)
    assert read([whole]).steps_per_bar == steps


def test_an_additive_metre_is_its_sum(read):
    whole = attributes().replace("<beats>4<", "<beats>3+2<") + note("C4", 5)
    assert read([whole]).steps_per_bar == 20


def test_compressed_and_plain_files_read_alike(tmp_path):
    text = score(*[[attributes() + note(name, 4)] for name in ("C5", "G4", "E4", "C3")])
    (tmp_path / "plain.xml").write_text(text)
    container = '<container><rootfiles><rootfile full-path="s.xml"/></rootfiles></container>'
    for name, with_container in (("with.mxl", True), ("without.mxl", False)):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            if with_container:
                archive.writestr("META-INF/container.xml", container)
            archive.writestr("s.xml", text)
    for name in ("plain.xml", "with.mxl", "without.mxl"):
        piece = read_piece(tmp_path / name)
        assert piece.name == name.split(".")[0]
        assert piece.pitches[0].tolist() == [72, 67, 64, 48]


def metre(beats: str, beat_type: str) -> str:
    time = f"<time><beats>{beats}</beats><beat-type>{beat_type}</beat-type></time>"
    return score([f"<attributes>{time}</attributes>" + note("C4", 4)])


WHOLE = [attributes() + note("C4", 4)]
BROKEN = {
    "not XML": ("<score-partwise><part>", "not well-formed XML"),
    "empty": ("", "not well-formed XML"),
    "another root": ("<html/>", "must be MusicXML with root <score-partwise>, got <html>"),
    "timewise": ("<score-timewise/>", "got <score-timewise>"),
    "broken zip": ("PK\3\4 and nothing more", "broken compressed MusicXML"),
    "no part": (score(), "lists 0 parts and holds 0"),
    "missing part": (score(WHOLE, listed=2), "lists 2 parts and holds 1"),
    "uneven": (score(WHOLE, WHOLE * 2), "equally many bars, got [1, 2]"),
    "silent": (score([attributes() + note("-", 4)]), "holds no note"),
    "no bar": (score([]), "holds no note"),
    "no pitch": (score(["<note><duration>1</duration></note>"]), "neither a rest nor a pitch"),
    "no duration": (
        score(["<note><rest/></note>"]),
        "part 1, bar 1: <duration> of <note> must be a number, got ''",
    ),
    "negative note": (
        score([note("C4", 4) + note("D4", -2)]),
        "part 1, bar 1: <duration> of <note> must be at least 0, got -2",
    ),
    "negative rest": (score([note("-", -4)]), "<duration> of <note> must be at least 0, got -4"),
    "negative backup": (
        score([note("C4", 4) + "<backup><duration>-4</duration></backup>"]),
        "<duration> of <backup> must be at least 0, got -4",
    ),
    "not a number": (score([note("C4", "nan")]), "must be a number, got 'nan'"),
    "infinite": (score([note("C4", "inf")]), "must be a number, got 'inf'"),
    "negative divisions": (score([attributes(divisions=-1)]), "divisions must be positive, got -1"),
    "tiny divisions": (
        score([attributes(divisions="0.0000000000000001") + note("C4", 4)]),
        "sixteenths long in four parts, got ",
    ),
    "many long parts": (score(*[[note("C4", 40000)]] * 9), "long in four parts, got 160000 in 9"),
    "divisions": (score([attributes(divisions=0)]), "divisions must be positive, got 0"),
    "too high": (score([note("C4", 1).replace(">4<", ">12<")]), "MIDI pitch 0..127, got 156"),
    "short metre": (
        metre("1", "64"),
        "a bar must be 1..64 whole sixteenths long, got a metre of 1/",
    ),
    "odd metre": (metre("5", "32"), "whole sixteenths long, got a metre of 5/32"),
    "long metre": (metre("255", "1"), "whole sixteenths long, got a metre of 255/1"),
    "longer metre": (metre("1000", "4"), "whole sixteenths long, got a metre of 1000/4"),
    "no unit": (metre("4", "0"), "whole sixteenths long, got a metre of 4/0"),
    "two signs": (metre("-4", "-4"), "whole sixteenths long, got a metre of -4/-4"),
    "endless metre": (metre("1e99999999", "4"), "<beats> of <time> must be a number, got '1e9999"),
    "divided metre": (metre("1/0", "4"), "<beats> of <time> must be a number, got '1/0'"),
    "metre in words": (metre("a", "4"), "<beats> of <time> must be a number, got 'a'"),
    "unit in words": (metre("4", "b"), "<beat-type> of <time> must be a number, got 'b'"),
    "sharps": (score([attributes(fifths=30) + note("C4", 4)]), "must have -7..7 fifths, got 30"),
    "half a flat": (
        score([attributes().replace(">0</f", ">-0.5</f") + note("C4", 4)]),
        "a key must have -7..7 fifths, got -1/2",
    ),
    "exponent": (score([note("C4", 1).replace(">1</d", ">1e9</d")]), "must be a number, got '1e9'"),
    "endless": (score([note("C4", 10**12)]), "must be at most 345600 sixteenths long in"),
    "two parts": (score(WHOLE, WHOLE), "a four-part piece must have 4 parts, got 2"),
}


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_named_with_what_is_wrong(tmp_path, text, message):
    path = tmp_path / "broken.mxl"
    path.write_text(text)
    with pytest.raises(ScoreError, match=re.escape(message)) as caught:
        read_piece(path)
    assert str(caught.value).startswith(str(path))


def test_an_archive_without_a_score_is_refused(tmp_path):
    path = tmp_path / "empty.mxl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", "x")
    with pytest.raises(ScoreError, match="the archive holds no score"):
        read_piece(path)


def test_an_archive_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(packed, "LARGEST", 1000)
    for name in ("s.xml", "META-INF/container.xml"):
        with zipfile.ZipFile(tmp_path / "large.mxl", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, " " * 2000)
        with pytest.raises(ScoreError, match=f"{name} in the archive is larger than 1000 bytes"):
            read_piece(tmp_path / "large.mxl")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ScoreError, match=r"gone\.xml: cannot be read: No such file"):
        read_piece(tmp_path / "gone.xml")
