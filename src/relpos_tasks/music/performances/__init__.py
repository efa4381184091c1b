"""Performances: MIDI files of any kind as event tokens, as the Music Transformer reads them."""
