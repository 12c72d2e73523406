"""The description for the package index: the README, with addresses of the site. The rest is in pyproject.toml."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
SITE = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Homepage"]
PAGES = {"CONTRIBUTING.md": "contributing.html", "LICENSE": "licence.html", "pyproject.toml": "install.html"}


def address(link: re.Match[str]) -> str:
    page = PAGES.get(link[1], link[1].removeprefix("docs/").replace(".md", ".html"))
    return f"]({SITE}/{page}{link[2]})"


readme = (HERE / "README.md").read_text(encoding="utf-8")
setup(
    long_description=re.sub(r"\]\((?!https:)([^)#\s]+)(#[^)\s]+|)\)", address, readme),
    long_description_content_type="text/markdown",
)
