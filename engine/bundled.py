"""Where the checkpoint that ships with the package lies."""

from __future__ import annotations

from pathlib import Path


def bundled_model_dir() -> Path:
    """Folder of the bundled checkpoint ``mini``."""
    return Path(__file__).resolve().parent.parent / "models" / "mini"
