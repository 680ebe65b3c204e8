"""What can be read off the open page: faults in outputs, headings, descriptions, labels, contrast.

Every function returns one line per fault, and none for a sound notebook.
"""

from __future__ import annotations

from typing import Any

from tests.browser.page import Page

# What Tab can stop at in an output.
FOCUSABLE = ", ".join(
    f".jp-Notebook .jp-OutputArea-output {part}"
    for part in (
        "input",
        "textarea",
        "select",
        "button",
        "summary",
        "a[href]",
        "[role=slider]",
        "[contenteditable=true]",
    )
)

SLIDER_LABEL = """
return arguments[0].closest('.widget-slider, .widget-hslider')
  ?.querySelector('.widget-label')?.innerText.trim()"""


def outputs(page: Page, notebook: dict[str, Any]) -> list[str]:
    """Faults in a notebook that was run and saved, and in how the page shows it."""
    faults = []
    count = 0
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] != "code" or not "".join(cell["source"]).strip():
            continue
        count += 1
        if cell["execution_count"] != count:
            faults.append(f"cell {number}: run as {cell['execution_count']}, expected {count}")
        for output in cell["outputs"]:
            if output["output_type"] == "error":
                faults.append(f"cell {number}: {output['ename']}: {output['evalue']}")
            elif output.get("name") == "stderr":
                faults.append(f"cell {number}: stderr: {''.join(output['text'])[:300]}")
    text = page.text()
    faults += [
        f"the page says {words!r}"
        for words in ("Error displaying widget", "Loading widget", "Javascript Error")
        if words in text
    ]
    return faults


def headings(page: Page) -> list[str]:
    """One first-level heading, first, and no level skipped after it."""
    found: list[list[Any]] = page.script(
        "return [...document.querySelectorAll('.jp-Notebook :is(h1, h2, h3, h4, h5, h6)')]"
        ".map(h => [Number(h.tagName[1]), h.textContent])"
    )
    faults = []
    levels = [int(level) for level, _ in found]
    if levels.count(1) != 1 or levels[0] != 1:
        faults.append(f"{levels.count(1)} first-level headings; the first is {found[:1]}")
    for before, (level, text) in zip(levels, found[1:], strict=False):
        if level > before + 1:
            faults.append(f"heading {text!r} of level {level} follows one of level {before}")
        if not str(text).strip("¶ "):
            faults.append(f"an empty heading of level {level}")
    return faults


def pictures(page: Page) -> list[str]:
    """Pictures without a description.

    JupyterLab gives a PNG output no `alt`, so there the description stands right below it, to fold
    out ("The figure in words").
    """
    found: list[list[Any]] = page.script("""
return [...document.querySelectorAll('.jp-Notebook .jp-Cell img')].map(image => {
  const cells = [...document.querySelectorAll('.jp-Notebook .jp-Cell')];
  const below = image.closest('.jp-OutputArea-child')?.nextElementSibling;
  const words = below?.querySelector('details summary') ? below.querySelector('p') : null;
  return [cells.indexOf(image.closest('.jp-Cell')) + 1, image.alt, words?.textContent,
          image.complete && image.naturalWidth > 0];
})""")
    faults = []
    for cell, alt, words, shown in found:
        if len(str(alt or words or "").strip()) < 20:
            faults.append(f"cell {cell}: a picture without alt text or words below it")
        if not shown:
            faults.append(f"cell {cell}: a picture that does not show")
    return faults


def labels(page: Page) -> list[str]:
    """Controls that a screen reader would announce without a name, by the browser's own count.

    ipywidgets ties a slider's label to neither its handle nor its number; there a label that can
    be seen has to do.
    """
    return [
        f"a {element.tag_name} without a name: {element.get_attribute('outerHTML')[:200]}"
        for element in page.elements(FOCUSABLE)
        if not (element.accessible_name.strip() or page.script(SLIDER_LABEL, element))
    ]


def contrast(page: Page) -> list[str]:
    """Text in HTML outputs and widgets that is too faint on what lies behind it.

    WCAG 2.1, success criterion 1.4.3: 4.5 to 1, or 3 to 1 for large text.
    """
    found: list[str] = page.script(CONTRAST)
    return found


# Backgrounds may be half transparent: they are laid over one another up to an opaque one.
CONTRAST = r"""
const parse = text => {
  const c = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  c.clearRect(0, 0, 1, 1); c.fillStyle = text; c.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = c.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
};
const cache = new Map();
const colour = text => cache.get(text) ?? (cache.set(text, parse(text)), cache.get(text));
const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3]));
const luminance = rgb => {
  const [r, g, b] = rgb.map(v => v / 255).map(
    v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = element => {
  const layers = [];
  for (let e = element; e; e = e.parentElement) {
    const layer = colour(getComputedStyle(e).backgroundColor);
    if (layer[3] > 0) layers.push(layer);
    if (layer[3] === 1) break;
  }
  return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
};
const cells = [...document.querySelectorAll('.jp-Notebook .jp-Cell')];
const faults = new Set();
const roots = document.querySelectorAll(
  '.jp-OutputArea-output.jp-RenderedHTMLCommon, .jp-OutputArea-output .widget-html-content');
for (const root of roots) {
  for (const element of [root, ...root.querySelectorAll('*')]) {
    const own = [...element.childNodes].filter(n => n.nodeType === 3 && n.textContent.trim());
    if (!own.length || !element.getClientRects().length || element.closest('svg, a')) continue;
    const style = getComputedStyle(element);
    const under = behind(element);
    const ink = over(colour(style.color), under);
    const [low, high] = [luminance(ink), luminance(under)].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) {
      const where = cells.indexOf(element.closest('.jp-Cell')) + 1;
      const text = own[0].textContent.trim().slice(0, 40);
      faults.add(`cell ${where}: ${ratio.toFixed(1)} to 1: ${text}`);
    }
  }
}
return [...faults];
"""
