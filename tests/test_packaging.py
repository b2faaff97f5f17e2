"""What a package index would show of the project."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def metadata():
    command = [sys.executable, "-m", "hatchling", "metadata"]
    return json.loads(
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    )


def test_the_readme_of_the_package_leads_nowhere_that_an_index_does_not_have():
    readme = metadata()["readme"]
    assert readme["content-type"] == "text/markdown"
    targets = re.findall(r"\]\(([^)]*)\)", readme["text"])
    assert all(target.startswith("https://") for target in targets), targets
    assert "| a folder of images, one folder per class |" in readme["text"]
    assert "the library |" in readme["text"], "the words of a link stay"
    source = (ROOT / "README.md").read_text()
    assert re.search(r"\]\(docs/", source), "there is something to replace"


def test_projects_have_addresses():
    assert metadata()["urls"]["Paper"].startswith("https://arxiv.org/abs/")
