"""Scripts and styles inside a page, and the hashes by which its content security policy allows them."""

from __future__ import annotations

import base64
import hashlib


def inline(text: str) -> str:
    """Text that can stand inside a script or style element: the parser would end it at a closing tag."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def content_policy(*scripts: str) -> str:
    """A policy that allows exactly these scripts, inline styles, and no network."""
    hashes = " ".join(f"'{_sha256(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )


def _sha256(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
