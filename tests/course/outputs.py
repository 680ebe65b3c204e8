"""What the notebooks have printed, for tests of what their texts say about it."""

import json

from tests.checkout import ROOT


def printed(number: str, start: str) -> str:
    """What the code cell of notebook `number` that begins so has printed."""
    [path] = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    [cell] = [cell for cell in cells if "".join(cell["source"]).startswith(start)]
    return "".join("".join(output.get("text", "")) for output in cell["outputs"])
