"""Performances: MIDI files of any kind as the Music Transformer reads them, note by note in time."""
