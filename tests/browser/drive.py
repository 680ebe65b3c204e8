"""Moves the controls of widgets by keyboard, and says what that changed in the page."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.browser.page import Control, Page

if TYPE_CHECKING:
    from selenium.webdriver.remote.webelement import WebElement

# In the order in which ipywidgets' own elements are told apart.
KINDS = {
    "slider": ".widget-slider [role=slider], .widget-hslider [role=slider]",
    "text area": "textarea",
    "number": "input[type=number]",
    "text": ".widget-text input[type=text], .widget-combobox input",
    "tick box": "input[type=checkbox]",
    "radio buttons": ".widget-radio-box",
    "list": "select",
    "button": "button.jupyter-button",
}
CHANGE_SECONDS = 10.0
QUIET_SECONDS = 0.7  # longer than a widget waits for typing to pause

# What a widget shows, apart from the state of its controls.
SHOWN = """
return [...arguments[0].querySelectorAll('.widget-html, .widget-html-content, .widget-output, img')]
  .map(part => part.outerHTML).join('\\n')"""


def controls(page: Page) -> list[Control]:
    """All controls in the notebook's widgets, in the page's order within each kind."""
    found = []
    for kind, selector in KINDS.items():
        for element in page.elements(f".jp-Notebook {_inside(selector)}"):
            output, cell = page.script(
                "const cells = [...document.querySelectorAll('.jp-Notebook .jp-Cell')];"
                "return [arguments[0].closest('.jp-OutputArea-output'),"
                "        cells.indexOf(arguments[0].closest('.jp-Cell')) + 1]",
                element,
            )
            found.append(Control(kind, element, output, int(cell)))
    return found


def _inside(selector: str) -> str:
    """Every part of the selector, within the widgets of an output."""
    prefix = ".jp-OutputArea-output .jupyter-widgets"
    return ", .jp-Notebook ".join(f"{prefix} {part.strip()}" for part in selector.split(","))


def moved(page: Page, control: Control) -> bool:
    """Whether some key of the control's kind changes what its widget shows.

    A slider that one step has moved goes back: it may have left the other controls nothing to do.
    """
    from selenium.webdriver.common.keys import Keys

    back = {Keys.ARROW_RIGHT: Keys.ARROW_LEFT, Keys.ARROW_LEFT: Keys.ARROW_RIGHT}
    for keys in _keys(control.kind):
        if _press(page, control, keys):
            if control.kind == "slider" and keys in back:
                _press(page, control, back[keys])
            return True
    return False


def _keys(kind: str) -> list[str]:
    from selenium.webdriver.common.keys import Keys

    if kind == "slider":  # one step, or all the way where a step changes nothing to see
        return [Keys.ARROW_RIGHT, Keys.ARROW_LEFT, Keys.END, Keys.HOME]
    if kind in ("text", "text area"):
        return [Keys.END + " more"]
    if kind == "list":  # JupyterLab takes the arrows for itself until the list is open
        return [Keys.SPACE + arrow + Keys.ENTER for arrow in (Keys.ARROW_DOWN, Keys.ARROW_UP)]
    if kind == "number":
        return [Keys.ARROW_DOWN, Keys.ARROW_UP]
    # Space ticks a box, chooses the radio button that has the focus and presses a button.
    return [Keys.SPACE, Keys.ARROW_RIGHT] if kind == "radio buttons" else [Keys.SPACE]


def _press(page: Page, control: Control, keys: str) -> bool:
    """Focuses the control as Tab would, types, and waits for the output to become another one."""
    before = _settled(page, control.output)
    target = _target(page, control)
    assert page.script("return arguments[0].tabIndex", target) >= 0, "Tab does not reach it"
    page.script("arguments[0].scrollIntoView({block: 'center'}); arguments[0].focus()", target)
    assert page.script("return document.activeElement === arguments[0]", target), "takes no focus"
    page.driver.switch_to.active_element.send_keys(keys)
    end = time.monotonic() + CHANGE_SECONDS
    while time.monotonic() < end:
        if page.script(SHOWN, control.output) != before:
            return True
        time.sleep(0.05)
    return False


def _target(page: Page, control: Control) -> WebElement:
    """The element that Tab stops at: of a group of radio buttons the chosen or the first one."""
    if control.kind != "radio buttons":
        return control.element
    found: WebElement = page.script(
        "return arguments[0].querySelector('input:checked') ?? arguments[0].querySelector('input')",
        control.element,
    )
    return found


def _settled(page: Page, output: WebElement) -> str:
    """What the widget shows, once that has stayed the same for a while and the kernel is idle."""
    last, since = "", 0.0
    end = time.monotonic() + 60
    while time.monotonic() < end:
        now = str(page.script(SHOWN, output))
        if now != last or page.progress()["status"] != "idle":
            last, since = now, time.monotonic()
        elif time.monotonic() - since > QUIET_SECONDS:
            return now
        time.sleep(0.05)
    raise AssertionError("the widget does not come to rest")
