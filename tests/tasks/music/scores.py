"""Small MusicXML texts for tests, written by hand."""

from __future__ import annotations


def note(name: str, duration: int, *, inside: str = "", voice: str = "1") -> str:
    """A note such as `"C#4"`, or a rest for `"-"`; `inside` goes in front of the pitch."""
    if name == "-":
        sound = "<rest/>"
    else:
        alter = "<alter>1</alter>" if "#" in name else ""
        sound = f"<pitch><step>{name[0]}</step>{alter}<octave>{name[-1]}</octave></pitch>"
    time = "" if "<grace" in inside else f"<duration>{duration}</duration>"
    return f"<note>{inside}{sound}{time}<voice>{voice}</voice></note>"


def attributes(*, divisions: int = 1, beats: int = 4, beat_type: int = 4, fifths: int = 0) -> str:
    return (
        f"<attributes><divisions>{divisions}</divisions><key><fifths>{fifths}</fifths></key>"
        f"<time><beats>{beats}</beats><beat-type>{beat_type}</beat-type></time></attributes>"
    )


def score(*parts: list[str], listed: int | None = None) -> str:
    """A score whose parts are lists of the insides of their bars."""
    names = "".join(
        f'<score-part id="P{n}"><part-name>{n}</part-name></score-part>'
        for n in range(listed if listed is not None else len(parts))
    )
    body = "".join(
        f'<part id="P{n}">'
        + "".join(f'<measure number="{m}">{bar}</measure>' for m, bar in enumerate(bars, 1))
        + "</part>"
        for n, bars in enumerate(parts)
    )
    return (
        '<?xml version="1.0"?><score-partwise version="3.1">'
        f"<part-list>{names}</part-list>{body}</score-partwise>"
    )


def barline(inside: str) -> str:
    return f"<barline>{inside}</barline>"


TIE_STOP = '<tie type="stop"/>'
TIE_START = '<tie type="start"/>'
