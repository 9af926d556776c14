"""The diagram of a spec as an SVG file's text."""

from __future__ import annotations

from archc.drawing.layout import drawn
from archc.drawing.picture import picture
from archc.spec.schema import Spec


def diagram(spec: Spec) -> str:
    """Stacks with their repeated patterns folded, kinds, widths, parameters and caches of a layer of each kind.

    Raises:
        GraphError: a kind builds something illegal.
    """
    return drawn(picture(spec))
