"""The spec language: YAML text to validated kinds. The entrance is ``archc.spec.load``."""
