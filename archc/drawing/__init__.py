"""Diagrams of architectures as SVG: what is drawn (picture), where it stands (layout), and the file (svg)."""
