"""A diagram inside a page: it takes the page's colours and shares no name with another one."""

from __future__ import annotations

from xml.etree import ElementTree

from archc.drawing.svg import NAMESPACE


def inlined(svg: str, name: str) -> tuple[str, float]:
    """The SVG as part of an HTML page, and its width in pixels; ``name`` begins the ids of its title and description."""
    ElementTree.register_namespace("", NAMESPACE)
    root = ElementTree.fromstring(svg)
    for element in root.findall(f"{{{NAMESPACE}}}style"):
        root.remove(element)
    for element in root.iter():
        if identity := element.get("id"):
            element.set("id", f"{name}-{identity}")
        element.text = element.text and (element.text.strip() or None)
        element.tail = None
    if labels := root.get("aria-labelledby"):
        root.set("aria-labelledby", " ".join(f"{name}-{label}" for label in labels.split()))
    return ElementTree.tostring(root, encoding="unicode"), float(root.get("width", "0"))
