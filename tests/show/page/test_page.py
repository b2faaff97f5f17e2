"""The page in a real browser, opened from disk: what it says, what it draws, what it never does."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs

from blockout.runs import Run
from blockout.runs.folder import RunError
from blockout.show.page import summary
from blockout.show.page.page import SECTIONS, as_html, as_json, write_page
from blockout.show.page.section import bdi, html, part

from .conftest import NAMES, tinted_images

PATIENCE = 120_000
"""Milliseconds; drawing takes one or two seconds, more where the machine has other work."""
FIRST = ("summary", "mistakes", "accuracy", "confusion", "taxonomy")
"""What everybody asks, before what was learned and how."""
ALL = (*FIRST, "hierarchy", "flow", "compaction", "convergence", "nodes", "distributions", "masks")
"""Of a run whose classes have one branch each: there is nothing to say about how many."""


def test_a_network_that_the_guide_left_whole_shows_nothing_of_branches(run):
    trained = Run.open(run)
    ones = {name: np.ones_like(p) for name, p in trained.memberships.items()}
    whole = replace(trained, memberships=ones)
    shown = [found.id for module in SECTIONS if (found := module.section([whole])) is not None]
    assert set(shown) <= {*FIRST, "checks", "convergence"}
    told = summary.section([whole]).body
    assert "the guide left the network whole" in told and "towards few branches" not in told
    assert "every node is in all 3 branches" in told
    assert "Once compact" not in told and "blockout compact" not in told
    assert "of the connections left" not in told


class Opened:
    """A page in a tab, with all that went wrong in it."""

    def __init__(self, browser, path: Path, renews: bool = False, **options) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.tab = browser.new_page(**options)
        self.tab.set_default_timeout(PATIENCE)
        if not renews:  # a slow machine may look at a page for longer than it stays
            self.tab.add_init_script("sessionStorage.setItem('renew', 'no')")
        self.tab.on("console", self._hear)
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("dialog", lambda dialog: (self.complaints.append("dialog"), dialog.dismiss()))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.goto(path.as_uri())

    def _hear(self, message) -> None:
        """Whatever the console says, but for the driver of a machine without graphics."""
        if "GL Driver Message" not in message.text:
            self.complaints.append(f"{message.type}: {message.text}")

    def draw_all(self) -> None:
        """Scrolls to every figure, as a reader would, and waits for each."""
        for plot in self.tab.query_selector_all(".plot"):
            plot.scroll_into_view_if_needed()
            self.tab.wait_for_function("plot => plot.dataset.drawn", arg=plot)

    def sections(self) -> list[str]:
        return self.tab.eval_on_selector_all("main section", "parts => parts.map(p => p.id)")

    def search(self, name: str) -> None:
        self.tab.fill("#query", name)
        self.tab.press("#query", "Enter")
        self.tab.wait_for_selector("#found h2")


@pytest.fixture
def opened(browser, tmp_path):
    """Writes the page of runs and opens it; in the end nothing may have gone wrong in any."""
    pages: list[Opened] = []

    def open_page(*runs: Path, **options) -> Opened:
        path = tmp_path / f"page {len(pages)}.html"
        write_page([Run.open(run) for run in runs], path)
        pages.append(Opened(browser, path, **options))
        return pages[-1]

    yield open_page
    for page in pages:
        page.tab.close()
        assert page.complaints == []
        assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []


def require_content(page: Opened) -> None:
    """Every section has a title, an explanation, and something drawn or written below them."""
    page.draw_all()
    for section in page.tab.query_selector_all("main section"):
        id = section.get_attribute("id")
        assert section.query_selector("h2").inner_text().strip(), id
        assert len(section.query_selector(".lead").inner_text()) > 40, id
        plots = section.query_selector_all(".plot")
        assert plots or len(section.inner_text()) > 150, id
        for plot in plots:
            shapes = "svg .trace, svg .sankey, svg .slice, .gl-canvas, svg image, svg .point"
            assert plot.query_selector(shapes), f"{id}: an empty figure"


def test_a_finished_run_has_every_section(opened, run):
    page = opened(run)
    assert page.sections() == list(ALL)
    require_content(page)
    links = page.tab.eval_on_selector_all("nav a", "links => links.map(l => l.hash.slice(1))")
    assert links == list(ALL)


def test_runs_are_compared(opened, run, baseline):
    page = opened(run, baseline)
    assert page.sections() == ["summary", "comparison", *ALL[1:]]
    require_content(page)
    cells = page.tab.inner_text("#summary table")
    assert "baseline" in cells and "blockout" in cells


CUT = """() => [...document.querySelectorAll(".plot")].flatMap((plot) => {
  const room = plot.getBoundingClientRect();
  return [...plot.querySelectorAll(".legend")].map((legend) => legend.getBoundingClientRect())
    .filter((r) => r.width === 0 || r.top < room.top - 1 || r.bottom > room.bottom + 1)
    .map(() => plot.id);
})"""
"""Figures whose legend is empty, or cut at its upper or lower edge."""


@pytest.mark.parametrize("width", [1400, 390])
def test_figures_of_several_runs_say_which_is_which(opened, run, tmp_path, width):
    again = [shutil.copytree(run, tmp_path / name) for name in ("another seed", "yet another")]
    page = opened(run, *again, viewport={"width": width, "height": 900})
    page.draw_all()
    assert page.tab.evaluate(CUT) == []
    ranking = page.tab.text_content("#figure-accuracy-classes .legend")
    assert all(name in ranking for name in ("run", "another seed", "yet another"))


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("baseline", {"summary", "convergence", "confusion", "mistakes", "accuracy"}),
        ("fixed", {"summary", "convergence", "confusion", "mistakes", "accuracy", "taxonomy"}),
        ("unfinished", {"summary", "convergence", "distributions"}),
        ("begun", {"summary"}),
        ("pair", {"summary", "convergence", "distributions", "nodes", "accuracy", "confusion"}),
    ],
)
def test_what_a_run_does_not_have_is_left_out(opened, request, kind, least):
    page = opened(request.getfixturevalue(kind))
    assert least <= set(page.sections()) <= set(ALL)
    require_content(page)


def test_pointing_at_a_figure_shows_a_label(opened, run):
    page = opened(run)
    page.draw_all()
    point = page.tab.locator("#nodes .plot").last.locator(".point").first
    point.scroll_into_view_if_needed()
    point.hover(force=True)
    label = page.tab.wait_for_selector("#nodes .hoverlayer .hovertext")
    assert any(
        name in label.text_content() for name in ("red", "green", "blue", "bright", "dark", "grey")
    )


def test_a_class_that_is_searched_for_is_marked_in_all_figures_that_show_classes(opened, run):
    page = opened(run)
    page.draw_all()
    showing = page.tab.evaluate(
        "[...document.querySelectorAll('.plot')].filter(p => p._fullData.some("
        "t => t.meta && t.meta.classes && t.visible === true)).map(p => p.id)"
    )
    assert len(showing) >= 2
    page.search("gree")
    assert page.tab.inner_text("#found h2") == "green"
    marked = "id => Number(document.getElementById(id).dataset.marks) > 0"
    for id in showing:
        page.tab.wait_for_function(marked, arg=id)
    page.tab.press("#query", "Escape")
    assert not page.tab.is_visible("#found")
    page.tab.wait_for_function(
        "[...document.querySelectorAll('.plot[data-marks]')].every(p => p.dataset.marks === '0')"
    )


def test_a_class_is_not_marked_in_runs_on_other_classes(opened, run, pair):
    page = opened(run, pair)
    page.draw_all()
    page.search("green")
    wait = "id => Number(document.getElementById(id).dataset.marks) > 0"
    page.tab.wait_for_function(wait, arg="figure-flow-0")
    marks = "document.getElementById('figure-flow-1').dataset.marks || '0'"
    assert page.tab.evaluate(marks) == "0"


def test_the_facts_about_a_class_are_the_runs(opened, run):
    view = Run.open(run)
    page = opened(run)
    page.search("blue")
    said = page.tab.inner_text("#found")
    assert f"{view.class_accuracy[2]:.1f}".removesuffix(".0") + " % of its test images" in said
    near = [row for row in view.structure.nearest("blue", 5) if row.similarity > 0]
    assert {round(row.similarity, 4) for row in near} == {1}  # so no number is worth showing
    branches = page.tab.locator("#found p", has_text="In the same branches")
    assert branches.locator("button").all_inner_texts() == [row.name for row in near]
    branches.locator("button").first.click()
    assert page.tab.inner_text("#found h2") == near[0].name


IN_VIEW = """(id) => {
  const mark = document.querySelector(`#${id} .shapelayer path`) || document.getElementById(id);
  const {top, bottom} = mark.getBoundingClientRect();
  return top > 0 && bottom < innerHeight;
}"""
"""Whether the mark in a figure, or else all of it, is in view."""


def test_enter_goes_to_the_class_in_each_figure_in_turn(opened, run):
    page = opened(run)
    assert page.tab.evaluate("scrollY") == 0
    page.search("green")
    places = page.tab.locator("#found .place").all_inner_texts()
    assert places[0] in ("What it gets wrong", "How well each class does") and len(places) > 3
    pressed = "text => document.querySelector('#found [aria-pressed=true]').textContent === text"
    page.tab.wait_for_function(pressed, arg=places[0])
    while page.tab.inner_text("#found [aria-pressed=true]") != "What is taken for what":
        before = page.tab.inner_text("#found [aria-pressed=true]")
        page.tab.press("#query", "Enter")
        page.tab.wait_for_function(
            "text => document.querySelector('#found [aria-pressed=true]').textContent !== text",
            arg=before,
        )
    page.tab.wait_for_function(IN_VIEW, arg="figure-confusion-0")
    assert page.tab.evaluate("document.activeElement.id") == "query"  # Enter again goes on


def test_names_on_axes_choose_their_class_and_hold_up_no_keyboard(opened, run):
    page = opened(run)
    page.draw_all()
    for figure in ("accuracy-classes", "confusion-0"):
        names = page.tab.locator(f"#figure-{figure} .ytick a")
        assert names.count() == 6
        assert {names.nth(i).get_attribute("href") for i in range(6)} == {None}  # no stops for Tab
        name = names.nth(2).text_content()
        names.nth(2).scroll_into_view_if_needed()
        box = names.nth(2).bounding_box()
        page.tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.tab.wait_for_function(
            "name => document.querySelector('#found h2').textContent === name", arg=name
        )
        page.tab.press("body", "Escape")
    assert page.tab.evaluate("location.hash") == ""


def test_what_misled_the_network_can_be_uncovered(opened, run, monkeypatch):
    monkeypatch.setattr(Run, "images", lambda self: tinted_images(NAMES, (0, 0, 1, 1, 2, 2)))
    page = opened(run)
    veils = page.tab.locator("#mistakes .veil")
    assert veils.count() > 0 and veils.first.is_visible()
    page.tab.uncheck("#mistakes .veils")
    assert not veils.first.is_visible()


def test_a_class_that_is_not_there_is_said(opened, run):
    page = opened(run)
    page.tab.fill("#query", "violet")
    page.tab.press("#query", "Enter")
    assert "There is no class violet" in page.tab.inner_text("#found")


def test_clicking_a_class_in_a_figure_chooses_it(opened, run):
    page = opened(run)
    page.draw_all()
    point = page.tab.locator("#nodes .plot").last.locator(".point").first
    point.scroll_into_view_if_needed()
    point.click(force=True)
    assert page.tab.wait_for_selector("#found h2").inner_text() in Run.open(run).classes


def test_names_are_text_whatever_they_hold(opened, nasty):
    view = Run.open(nasty)
    page = opened(nasty)
    require_content(page)
    for name in view.classes:
        page.search(name)
        assert page.tab.text_content("#found h2") == name
        page.tab.wait_for_timeout(200)
    drawn = page.tab.evaluate(
        "[...document.querySelectorAll('svg text')].map(t => t.textContent).join('\\n')"
    )
    assert "<b>bold</b>" in drawn and "😀 emoji" in drawn and "שלום عالم" in drawn
    assert page.tab.title().startswith("run <i>&'\"")
    assert page.tab.query_selector("img[onerror], main b:has-text('bold')") is None
    assert page.tab.evaluate("document.querySelectorAll('script').length") == 3 + len(
        page.tab.query_selector_all(".plot")
    )


def test_even_markup_that_slipped_through_runs_nothing(browser, run, tmp_path):
    text = as_html([Run.open(run)])
    path = tmp_path / "page.html"
    markup = "<img src=x onerror=\"document.title='ran'\"><script>document.title='ran'</script>"
    path.write_text(text.replace("<main>", f"<main>{markup}", 1), encoding="utf-8")
    page = Opened(browser, path)
    page.tab.locator(".plot").first.scroll_into_view_if_needed()
    page.tab.wait_for_selector(".plot[data-drawn]")
    assert page.tab.title().startswith("run ") and page.complaints
    page.tab.close()


def test_a_run_of_1000_classes_and_8192_nodes_stays_small_and_is_drawn(opened, large, tmp_path):
    page = opened(large)
    size = (tmp_path / "page 0.html").stat().st_size - len(get_plotlyjs().encode())
    assert size < 6e6
    assert set(page.sections()) == {*ALL, "classes"}
    require_content(page)
    page.search("class number 999")
    assert page.tab.inner_text("#found h2") == "class number 999"
    buttons = page.tab.locator("#found p", has_text="Nearest by branches").locator("button")
    near = Run.open(large).structure.nearest("class number 999", 8)
    assert buttons.all_inner_texts() == [f"{row.name} · {row.similarity:.2f}" for row in near]


def test_the_page_can_be_used_by_keyboard(opened, run):
    page = opened(run)
    page.tab.keyboard.press("Tab")
    assert page.tab.evaluate("document.activeElement.className") == "skip"
    page.tab.keyboard.press("Tab")
    assert page.tab.evaluate("document.activeElement.id") == "query"
    assert page.tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_mistyped_class_gets_a_suggestion(opened, run):
    page = opened(run)
    page.tab.fill("#query", "brigth")
    page.tab.press("#query", "Enter")
    page.tab.wait_for_selector("#found .class")
    assert "There is no class brigth" in page.tab.inner_text("#found")
    page.tab.click("#found .class")
    assert page.tab.inner_text("#found h2") == "bright"
    page.tab.fill("#query", "qqq")
    page.tab.press("#query", "Enter")
    page.tab.wait_for_function("document.querySelector('#found').textContent.includes('qqq')")
    assert not page.tab.query_selector("#found .class")


def test_the_buttons_of_a_figure_upload_nothing_and_hold_nobody_up(opened, run):
    page = opened(run)
    page.draw_all()
    seen = page.tab.eval_on_selector_all(
        ".modebar-btn", "all => all.map(b => [b.dataset.title || '', b.tabIndex])"
    )
    assert len(seen) > 20 and {index for _, index in seen} == {-1}
    assert not [title for title, _ in seen if re.search("cloud|share|edit", title, re.IGNORECASE)]


def test_figures_have_headings(opened, run):
    page = opened(run)
    heading = "document.querySelector('#figure-distributions-P_0').parentElement.firstChild"
    assert page.tab.evaluate(f"{heading}.tagName") == "H3"
    assert page.tab.evaluate(f"{heading}.textContent") == "P_0: outputs of FC1"


def test_time_and_order_are_set_by_keyboard(opened, run):
    page = opened(run)
    page.draw_all()
    shown = "plot => JSON.stringify(Array.from(plot.data[plot.data.length - 1].x))"
    page.tab.focus("#distributions [type=range]")
    last = page.tab.eval_on_selector("#distributions .plot", shown)
    page.tab.keyboard.press("Home")
    said = page.tab.eval_on_selector("#distributions .controls span", "part => part.textContent")
    assert re.fullmatch(r"The histogram on the right shows step \d+", said)
    assert page.tab.eval_on_selector("#distributions .plot", shown) != last

    rows, orders = "plot => JSON.stringify(Array.from(plot.data[0].y))", set()
    for number in (1, 2):
        page.tab.focus(f"#accuracy .controls button:nth-child({number})")
        page.tab.keyboard.press("Enter")
        orders.add(page.tab.eval_on_selector("#accuracy .plot", rows))
    assert len(orders) > 1
    pressed = "#accuracy .controls [aria-pressed=true]"
    assert page.tab.eval_on_selector_all(pressed, "all => all.map(b => b.textContent)") == [
        "by name"
    ]


def test_light_and_dark_follow_the_reader(opened, run):
    page = opened(run, color_scheme="dark")
    page.draw_all()

    def lightness(what: str, colour: str) -> float:
        found = page.tab.eval_on_selector(what, f"part => getComputedStyle(part).{colour}")
        return float(np.mean([float(n) for n in re.findall(r"[\d.]+", found)[:3]]))

    ground, ink = ("body", "backgroundColor"), (".plot[data-drawn] svg .xtick text", "fill")
    assert lightness(*ground) < 50 < 180 < lightness(*ink)
    page.tab.click("#theme")
    page.tab.wait_for_timeout(500)
    assert lightness(*ink) < 80 < 200 < lightness(*ground)


def test_nothing_sticks_out_of_a_phone(opened, run, baseline):
    page = opened(run, baseline, viewport={"width": 390, "height": 800})
    page.draw_all()
    assert page.tab.evaluate("document.documentElement.scrollWidth") == 390


def test_printing_draws_what_was_never_scrolled_to(opened, run):
    page = opened(run)
    assert page.tab.query_selector(".plot:not([data-drawn])")
    page.tab.pdf()
    page.tab.wait_for_function("!document.querySelector('.plot:not([data-drawn])')")


def test_only_the_page_of_a_training_loads_itself_anew(opened, unfinished, run):
    page = opened(unfinished)
    assert "Reload every 30 seconds" in page.tab.inner_text("#training")
    assert '"renewal":30' in page.tab.text_content("#said")
    done = opened(run)
    assert not done.tab.is_visible("#training") and '"renewal":0' in done.tab.text_content("#said")


def test_an_open_page_shows_what_was_written_since(browser, unfinished, tmp_path):
    path = tmp_path / "page.html"
    text = as_html([Run.open(unfinished)]).replace('"renewal":30', '"renewal":1', 1)
    path.write_text(text, encoding="utf-8")
    page = Opened(browser, path, renews=True, viewport={"width": 800, "height": 300})
    page.tab.evaluate("scrollTo({top: 200, behavior: 'instant'})")
    path.write_text(text.replace("In short", "Renewed", 1).replace("In short", "Renewed"))
    page.tab.wait_for_selector("h2:has-text('Renewed')")
    page.tab.wait_for_function("scrollY === 200")
    page.tab.uncheck("#renew")
    page.tab.close()


def test_json_inside_a_script_cannot_end_it():
    text = as_json({"a": "</script><!--\u2028\u2029"})
    assert text == '{"a":"\\u003c\\u002fscript\\u003e\\u003c!--\\u2028\\u2029"}'


def test_arrays_become_binary_data_of_their_values():
    chart = go.Figure(go.Heatmap(x=np.array([1.5, -2.0], np.float32), z=np.array([[1, 2]])))
    found = json.loads(as_json(chart))
    assert found["layout"] == {}  # the page has a template of its own
    assert found["data"] == [
        {
            "type": "heatmap",
            "x": {"dtype": "f4", "bdata": "AADAPwAAAMA="},
            "z": {"dtype": "i1", "bdata": "AQI=", "shape": "1, 2"},
        }
    ]


def test_everything_that_is_not_html_is_escaped():
    name = "<img src=x>"
    assert "<img" not in part("table", name, (name,), [(name, name)])
    weak = (name, [(0, name, name, name, name)])
    story = part("story", [(name, name)], [name], weak, [name], [(name, name)], name, [name])
    assert "<img" not in story and story.count("&lt;img") == 13
    assert "<img" not in html("<p>{} {}</p>", name, bdi(name))


def test_a_page_that_cannot_be_written_leaves_the_old_one(run, tmp_path):
    (tmp_path / "report.html").mkdir()
    with pytest.raises(RunError, match="cannot write"):
        write_page([Run.open(run)], tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
