#!/usr/bin/env python3
"""Holds docs/api against the package's docstrings and the headers' comments: scripts/api-docs would change nothing."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    sys.exit(subprocess.run([sys.executable, ROOT / "scripts/api-docs", "--check"]).returncode)
