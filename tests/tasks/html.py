"""A page of HTML as tests ask about it."""

from __future__ import annotations

import base64
from html.parser import HTMLParser


class Page(HTMLParser):
    """Tags, ids, texts and addresses of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.text, self.addresses, self.style = [], set(), [], [], ""
        self.feed(text)

    @property
    def said(self) -> str:
        """All the text, in one line."""
        return " ".join(" ".join(self.text).split())

    def decoded(self, tag, media_type):
        """The files of a media type that a tag's addresses hold."""
        return [
            base64.b64decode(address.partition("base64,")[2])
            for found, address in self.addresses
            if found == tag and address.startswith(f"data:{media_type}")
        ]

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        self.ids.add(found.get("id"))
        self.addresses += [
            (tag, found[name]) for name in ("src", "href", "srcset") if name in found
        ]

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "style":
            self.style += data
        else:
            self.text.append(data)
