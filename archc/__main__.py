"""``python -m archc``."""

from archc.cli.main import run

if __name__ == "__main__":
    run()
