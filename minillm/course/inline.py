"""Text with `code` in backquotes, as HTML."""

import html
import re


def inline_html(text: str) -> str:
    """Escaped HTML, with what stands in backquotes as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
