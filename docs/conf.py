"""Settings of the documentation site. ``bash scripts/docs.sh`` builds it into ``docs/_build/html``."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
sys.path.insert(0, str(HERE.parent / "src"))

from kernelfield import __version__  # noqa: E402

project = "kernelfield"
author = "The kernelfield developers"
copyright = "the kernelfield developers"  # noqa: A001
release = version = __version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "api_pages",
]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb", ".ipynb": "myst-nb"}

# Markdown and notebooks.
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # the slow tests execute the notebooks
nb_merge_streams = True

# Docstrings.
autodoc_default_options = {"members": True, "member-order": "bysource", "show-inheritance": True}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_inherit_docstrings = False
maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
add_module_names = False
toc_object_entries_show_parents = "hide"
default_role = None

# Mathematics without a network: one file of MathJax, taken from a package and served with the pages.
MATHJAX = "tex-svg.js"
_static = HERE / "_build" / "static"


def copy_mathjax() -> None:
    package = importlib.util.find_spec("sphinx-mathjax-offline")
    assert package is not None
    assert package.origin is not None
    source = Path(package.origin).parent / "static" / "mathjax" / MATHJAX
    _static.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, _static / MATHJAX)


copy_mathjax()
mathjax_path = MATHJAX

# Looks.
html_theme = "furo"
html_title = f"kernelfield {release}"
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_static_path = ["_static", str(_static)]
html_css_files = ["site.css"]
smartquotes_action = "qe"  # quotes and ellipses; two dashes begin an option
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
