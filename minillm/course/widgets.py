"""Thin widgets over pure functions: a state goes in, HTML comes out, a static form stands beside.

ipywidgets is imported when a widget is made, so that everything else works without it.
"""

from __future__ import annotations

import asyncio
import html
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

State = TypeVar("State")
VIEW = "application/vnd.jupyter.widget-view+json"


def bundle(widget: Any, static: str, text: str) -> dict[str, Any]:
    """One output in three forms: live widget, HTML where no kernel runs, plain text."""
    forms: dict[str, Any] = {"text/plain": text, "text/html": static}
    view = widget._repr_mimebundle_() if widget is not None else None
    if view and VIEW in view:
        forms[VIEW] = view[VIEW]
    return forms


def text_lines(content: str) -> str:
    """HTML for an `ipywidgets.HTML`, whose own lines are as far apart as its controls."""
    return f'<div style="line-height:1.5">{content}</div>'


def debounced(call: Callable[[Any], None], seconds: float = 0.3) -> Callable[[Any], None]:
    """A callback that waits until its events pause, so that typing stays quick.

    Without a running event loop, as in a test, it calls at once.
    """
    waiting: list[asyncio.TimerHandle] = []

    def later(event: Any) -> None:
        while waiting:
            waiting.pop().cancel()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            call(event)
            return
        waiting.append(loop.call_later(seconds, call, event))

    return later


def text_box(label: str, value: str, *, rows: int = 1) -> Any:
    """A labelled text field as wide as the page; more than one row gives a text area."""
    import ipywidgets

    kind = ipywidgets.Text if rows == 1 else ipywidgets.Textarea
    field = kind(
        value=value,
        description=label,
        continuous_update=True,
        layout=ipywidgets.Layout(width="100%", max_width="46em"),
        style={"description_width": "initial"},
    )
    if rows > 1:
        field.rows = rows
    return field


def slider(label: str, low: float, high: float, value: float, step: float = 1) -> Any:
    """A labelled slider, of integers when all its numbers are; arrow keys move it."""
    import ipywidgets

    whole = all(isinstance(number, int) for number in (low, high, value, step))
    kind = ipywidgets.IntSlider if whole else ipywidgets.FloatSlider
    return kind(
        value=value,
        min=low,
        max=high,
        step=step,
        description=label,
        layout=ipywidgets.Layout(width="100%", max_width="32em"),
        style={"description_width": "initial"},
    )


def choice(label: str, options: list[str], value: str | None = None) -> Any:
    """A labelled list to choose one text from."""
    import ipywidgets

    return ipywidgets.Dropdown(
        options=options,
        value=options[0] if value is None else value,
        description=label,
        style={"description_width": "initial"},
    )


def tick(label: str, value: bool = False) -> Any:
    """A labelled tick box."""
    import ipywidgets

    return ipywidgets.Checkbox(value=value, description=label, indent=False)


class Panel(Generic[State]):
    """Inputs and buttons that change a state, and a view of it; a notebook displays the panel.

    All that happens is in pure functions: `view` makes HTML of a state, an action or an input makes
    a new state of the old one. So tests need no browser, and the stored output is `view(state)`.

    Args:
        state: the first state.
        view: state to HTML, also the static form.
        inputs: pairs of a widget and `(state, value) -> state`, called when its value changes.
        actions: button labels and `state -> state`; buttons work by keyboard (Tab, then Space).
        describe: state to plain text for the output's `text/plain`; a short title.
    """

    def __init__(
        self,
        state: State,
        view: Callable[[State], str],
        *,
        inputs: list[tuple[Any, Callable[[State, Any], State]]] | None = None,
        actions: Mapping[str, Callable[[State], State]] | None = None,
        describe: str = "A widget; run the notebook to use it.",
    ) -> None:
        self.state = state
        self.view = view
        self.inputs = inputs or []
        self.actions = dict(actions or {})
        self.describe = describe
        self._output: Any = None

    def click(self, label: str) -> None:
        """Does what the button with this label does."""
        self._change(self.actions[label])

    def widget(self) -> Any:
        """The live form."""
        import ipywidgets

        self._output = ipywidgets.HTML(value=text_lines(self.view(self.state)))
        for field, update in self.inputs:

            def changed(event: Any, update: Callable[[State, Any], State] = update) -> None:
                self._change(lambda state: update(state, event["new"]))

            field.observe(debounced(changed), names="value")
        buttons = []
        for label in self.actions:
            button = ipywidgets.Button(
                description=label, layout=ipywidgets.Layout(width="auto", min_width="3em")
            )
            button.on_click(lambda _, label=label: self.click(label))
            buttons.append(button)
        row = ipywidgets.HBox(buttons, layout=ipywidgets.Layout(flex_flow="row wrap"))
        fields = [field for field, _ in self.inputs]
        return ipywidgets.VBox([*fields, *([row] if buttons else []), self._output])

    def _change(self, update: Callable[[State], State]) -> None:
        # An exception in a widget's callback would vanish in a log; the reader sees it instead.
        try:
            self.state = update(self.state)
            shown = self.view(self.state)
        except Exception as error:
            shown = f"<p role='alert'>✗ {html.escape(f'{type(error).__name__}: {error}')}</p>"
        if self._output is not None:
            self._output.value = text_lines(shown)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return bundle(self.widget(), self.view(self.state), self.describe)


def explorer(
    view: Callable[..., str], *, describe: str = "", **inputs: Any
) -> Panel[dict[str, Any]]:
    """A panel whose view is a function of its inputs' values.

    ```python
    explorer(show_tokens, text=text_box("Text", "strawberry"), trailing=tick("a space at the end"))
    ```

    Args:
        view: called with each input's value under its name; returns HTML.
        describe: a short title as plain text.
        inputs: widgets by the names of the view's arguments.
    """

    def setter(name: str) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
        return lambda state, value: {**state, name: value}

    return Panel(
        {name: field.value for name, field in inputs.items()},
        lambda state: view(**state),
        inputs=[(field, setter(name)) for name, field in inputs.items()],
        describe=describe or "A widget; run the notebook to use it.",
    )
