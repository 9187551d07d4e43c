"""The page as a browser shows it: nothing is wider than the window, of a phone or a desk. Screenshots go to
the folder ``SCREENSHOTS``, if that is set.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from distgnn.report import svg
from distgnn.report.page import write

from .runs import log, traced

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = (400, 1400)

#: Windows have a least width, frames have not: media queries go by the frame's.
FRAMES = """<style>body { margin: 0; display: flex; align-items: start }
iframe { border: 0; height: 900px; flex: none }</style>
<iframe src="page.html" style="width: 400px"></iframe><iframe src="page.html" style="width: 1400px"></iframe>
<pre id="found"></pre><script>
onload = () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const shown = frame.contentDocument, root = shown.documentElement
    shown.querySelectorAll("details").forEach(one => one.open = true)
    const all = [...shown.querySelectorAll("body *")], box = one => one.getBoundingClientRect()
    const beyond = one => box(one).right > root.clientWidth + 0.5
    const wide = all.filter(beyond).map(one => one.outerHTML.slice(0, 60))
    const letters = Math.min(...all.filter(one => one.tagName == "text").map(one => box(one).height))
    const height = root.scrollHeight
    frame.style.height = height + "px"
    return {width: root.scrollWidth, height, letters, wide}
  })
  document.getElementById("found").textContent = JSON.stringify(found)
}
</script>"""


def chromium(*words: str) -> str:
    options = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files"]
    command = [str(CHROMIUM), "--headless", *options, "--virtual-time-budget=5000", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout


@pytest.mark.slow  # starts a browser
@pytest.mark.timeout(240)
@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")
def test_a_dark_screen_has_a_dark_page(tmp_path):
    """Light letters on dark paper, in texts and drawings, and data in the same colours."""
    write([log(tmp_path / "run.jsonl")], [traced(tmp_path / "trace.json")], tmp_path / "page.html")
    dark = "--blink-settings=preferredColorScheme=0"
    shot = Path(os.environ.get("SCREENSHOTS", tmp_path), "dark.png")
    chromium(dark, "--window-size=1400,2600", f"--screenshot={shot}", f"file://{tmp_path}/page.html")
    shown = pytest.importorskip("PIL.Image").open(shot).convert("RGB")
    most = sorted(shown.getcolors(shown.width * shown.height), reverse=True)
    colours = {"#{:02x}{:02x}{:02x}".format(*colour) for _, colour in most}
    assert "#{:02x}{:02x}{:02x}".format(*most[0][1]) == svg.DARK[svg.PAPER]
    assert {svg.DARK[svg.INK], svg.DARK[svg.GRID], svg.DARK[svg.CELL], "#4269d0"} <= colours
    assert not {svg.PAPER, svg.CELL} & colours


@pytest.mark.slow  # starts a browser twice
@pytest.mark.timeout(240)
@pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")
def test_nothing_is_wider_than_the_window(tmp_path):
    """The runs have long names, many ranks, and a timeline."""
    long = "a-run-with-a-name-that-goes-on-and-on-without-a-single-space-in-it"
    logs = [log(tmp_path / f"{long}.jsonl", hosts="login.cluster.site.example" * 4, order="volume" * 30)]
    logs += [
        log(tmp_path / f"{n}.jsonl", ranks=n, grid={"rows": n}, algorithm="1d", words=n) for n in (1, 2, 40)
    ]
    write(logs, [traced(tmp_path / "trace.json")], tmp_path / "page.html")
    (tmp_path / "frames.html").write_text(FRAMES)
    told = re.search(r'<pre id="found">(.+?)</pre>', chromium("--dump-dom", f"file://{tmp_path}/frames.html"))
    assert told, "the page did not load"
    found = json.loads(told[1])
    for one, width in zip(found, WIDTHS, strict=True):
        assert one["width"] == width and not one["wide"]
        assert one["letters"] >= 9  # pixels, of drawings
    size = f"--window-size={sum(WIDTHS)},{min(max(one['height'] for one in found), 12_000)}"
    chromium(size, f"--screenshot={tmp_path}/both.png", f"file://{tmp_path}/frames.html")
    both, left = pytest.importorskip("PIL.Image").open(tmp_path / "both.png").convert("RGB"), 0
    for one, width in zip(found, WIDTHS, strict=True):
        shown = both.crop((left, 0, left + width, min(one["height"], both.height)))
        shown.save(Path(os.environ.get("SCREENSHOTS", tmp_path)) / f"report-{width}.png")
        left, colours = left + width, {colour for _, colour in shown.getcolors(shown.width * shown.height)}
        assert {
            (0x42, 0x69, 0xD0),
            (0xFF, 0xFF, 0xFF),
            (0x1B, 0x1E, 0x23),
        } <= colours  # bars of 1d, paper, ink
