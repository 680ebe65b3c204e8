"""The fields, buttons and places of a chat, as ipywidgets, without what they do."""

from __future__ import annotations

import html
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minillm.sampling import SamplingParams

_DATA = Path(__file__).parent / "data"


def page_html() -> str:
    """The style of a chat, which runs its script when it has come into the page.

    ipywidgets has no keys to send with and no roles for screen readers; without the script the
    buttons work all the same.
    """
    script, style = ((_DATA / name).read_text("utf-8") for name in ("chat.js", "chat.css"))
    return f'<style onload="{html.escape(f"({script})(this)")}">{style}</style>'


def chosen(
    params: SamplingParams,
    *,
    temperature: float,
    top_p: float,
    top_k: int,
    max_new_tokens: int,
    seed: str,
) -> SamplingParams:
    """The parameters with what the fields say. Raises ValueError for a seed that is no number."""
    try:
        number = int(seed) if seed.strip() else None
    except ValueError:
        raise ValueError(f"seed is {seed!r}; a whole number or nothing is needed") from None
    return replace(
        params,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        max_new_tokens=max_new_tokens,
        seed=number,
    )


@dataclass(frozen=True, slots=True)
class Controls:
    """All widgets of one chat. `root` is what a notebook displays."""

    root: Any
    ended: Any  # exchanges that have ended
    live: Any  # the one that is being written
    figures: Any
    note: Any
    message: Any
    cost: Any  # tokens of the message
    system: Any
    settings: dict[str, Any]  # by the names of `chosen`
    instant: Any
    choice: Any  # the settings in words
    spoken: Any  # for screen readers
    buttons: dict[str, Any]

    def leave_routes_open(self) -> None:
        """Let JupyterLab choose the thread of the kernel that hears the controls.

        It asks ipykernel 7 for a thread ("subshell") that serves all widgets, so that they work
        while a cell runs. ipykernel remembers for each widget which thread wrote to it last, and
        would rather have that one hear it: mostly the cells' own, which may be busy for minutes.
        Elsewhere (ipykernel 6, other front ends) a widget waits until the cell has ended.
        """
        fields = (self.message, self.system, self.instant, *self.settings.values())
        for widget in (*fields, *self.buttons.values()):
            vars(widget.comm).pop("_reply_subshell_id", None)


def make_controls(params: SamplingParams, system: str, instant: bool) -> Controls:
    """The widgets with these first values. Raises ImportError without ipywidgets."""
    try:
        import ipywidgets as w
    except ImportError as error:
        message = "chat() needs ipywidgets: pip install ipywidgets; in a terminal run: minillm chat"
        raise ImportError(message) from error

    ended, live, figures, note, cost, choice, spoken = (w.HTML() for _ in range(7))
    message = _area("Message", "", 3, "Enter sends, Shift+Enter starts a new line, Esc stops")
    system_field = _area("System", system, 1, "who the model is to be; blank: nothing")
    settings = _settings(params)
    instant_field = w.Checkbox(value=instant, description="show when finished", indent=False)
    instant_field.layout = w.Layout(width="auto")
    buttons = {label: _button(label) for label in ("Send", "Stop", "Retry", "New conversation")}
    buttons["Send"].button_style = "primary"
    log = w.VBox([ended, live])
    row = w.Layout(flex_flow="row wrap", align_items="center", overflow="visible")
    page = w.HTML(page_html(), layout=w.Layout(display="none"))
    root = w.VBox(
        [
            page,
            log,
            figures,
            note,
            message,
            w.HBox([*buttons.values(), cost], layout=row),
            w.HBox([*settings.values(), instant_field], layout=row),
            system_field,
            choice,
            spoken,
        ]
    )
    root.add_class("minillm-chat")
    root._view_count = 0  # asks the page to count how often it shows this
    for name, widget in {
        "log": log,
        "live": live,
        "figures": figures,
        "note": note,
        "message": message,
        "instant": instant_field,
        "spoken": spoken,
        "send": buttons["Send"],
        "stop": buttons["Stop"],
    }.items():
        widget.add_class(f"minillm-chat-{name}")
    return Controls(
        root,
        ended,
        live,
        figures,
        note,
        message,
        cost,
        system_field,
        settings,
        instant_field,
        choice,
        spoken,
        buttons,
    )


def _area(label: str, value: str, rows: int, placeholder: str) -> Any:
    import ipywidgets

    return ipywidgets.Textarea(
        value=value,
        rows=rows,
        description=label,
        placeholder=placeholder,
        layout=ipywidgets.Layout(width="calc(100% - 4px)"),
        style={"description_width": "5em"},
    )


def _button(label: str) -> Any:
    import ipywidgets

    layout = ipywidgets.Layout(width="auto", min_width="4em")
    return ipywidgets.Button(description=label, layout=layout)


def _settings(params: SamplingParams) -> dict[str, Any]:
    import ipywidgets as w

    def field(kind: Any, label: str, width: str, **values: Any) -> Any:
        layout = w.Layout(width=width, margin="2px 1em 2px 0")
        style = {"description_width": "initial"}
        return kind(description=label, layout=layout, style=style, **values)

    whole, part = w.BoundedIntText, w.BoundedFloatText
    high = max(5.0, params.temperature)
    seed = "" if params.seed is None else str(params.seed)
    return {
        "temperature": field(
            part, "Temperature", "11em", value=params.temperature, min=0, max=high, step=0.1
        ),
        "top_p": field(part, "Top-p", "8em", value=params.top_p, min=0, max=1, step=0.05),
        "top_k": field(whole, "Top-k", "7.5em", value=max(params.top_k, 0), min=0, max=1_000_000),
        "max_new_tokens": field(
            whole, "Max new tokens", "13em", value=params.max_new_tokens, min=1, max=1_000_000
        ),
        "seed": field(w.Text, "Seed", "7em", value=seed, placeholder="fresh"),
    }
