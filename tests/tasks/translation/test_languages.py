"""Languages by their codes of two letters and of three."""

import pytest

from relpos_tasks.translation.languages import choose_languages


@pytest.mark.parametrize(
    ("found", "source", "expected"),
    [
        (["eng", "deu"], "de", ("deu", "eng")),
        (["en", "de"], "deu", ("de", "en")),
        (["eng", "spa"], "es", ("spa", "eng")),
        (["eng", "spa"], None, ("eng", "spa")),
        # A code that begins like another one is not that one.
        (["eng", "est"], "et", ("est", "eng")),
        (["xx", "yy"], "yy", ("yy", "xx")),
        # Three letters of the language, or of the form that is written.
        (["eng", "cmn"], "zh", ("cmn", "eng")),
        (["eng", "zho"], "zh", ("zho", "eng")),
        (["eng", "nob"], "no", ("nob", "eng")),
        (["eng", "nob"], "nb", ("nob", "eng")),
        (["en", "no"], "nob", ("no", "en")),
        (["eng", "hrv"], "hr", ("hrv", "eng")),
        # The older of two codes of three letters.
        (["en", "deu"], "ger", ("deu", "en")),
        # Of two files of one language, the one that is named.
        (["nob", "no"], "no", ("no", "nob")),
    ],
)
def test_a_language_is_found_by_either_code(found, source, expected):
    assert choose_languages(found, source, None) == expected


@pytest.mark.parametrize(
    ("source", "target"), [("nor", "en"), ("en", "nor"), ("nor", "nob"), ("nob", "nor")]
)
def test_the_nearest_of_two_is_taken(source, target):
    names = {"nor": "no", "nob": "nb", "en": "en"}
    found = choose_languages(["en", "nb", "no"], source, target)
    assert found == (names[source], names[target])


@pytest.mark.parametrize(("found", "source"), [("en es", "est"), ("en sl", "slk"), ("en de", "")])
def test_no_other_language_is_taken_for_it(found, source):
    listed = found.replace(" ", ", ")
    with pytest.raises(ValueError, match=f"--source must be one of {listed}, got '{source}'"):
        choose_languages(found.split(), source, None)
