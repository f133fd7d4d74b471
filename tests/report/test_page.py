from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from consilia.errors import UsageError
from consilia.report import page as page_module
from consilia.report.page import cases_table, write_report

SECTIONS = ("results", "sites", "learning", "exchange", "examples", "left", "plan", "cite")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


class Page(HTMLParser):
    """What a test asks of a page: its tags in order, its text, and that every tag closes."""

    VOID = frozenset({"meta", "link", "img", "br"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def read(run: Path) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))


def change(run: Path, name: str, edit) -> None:
    lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
    (run / name).write_text("".join(json.dumps(line) + "\n" for line in edit(lines)))


@pytest.mark.parametrize("task", ["segmentation", "classification"])
def test_every_section_is_there(make_run, task):
    page = read(make_run(task=task))
    assert [s["id"] for s in page.all("section")] == list(SECTIONS)
    assert "0.512" in page.text
    assert page.text.count("Consilia") >= 2
    assert len(page.all("img")) == 3 * 3 * (4 if task == "segmentation" else 1)
    assert len([s for s in page.all("svg") if s.get("class") == "plot"]) >= 4


def test_headings_are_in_order_and_pictures_have_words(make_run):
    page = read(make_run())
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(img["alt"] for img in page.all("img"))
    assert all(s["aria-label"] for s in page.all("svg") if s.get("class") == "plot")
    assert page.all("html")[0]["lang"] == "en"


@pytest.mark.parametrize("task", ["segmentation", "classification"])
def test_nothing_is_fetched(make_run, task):
    run = make_run(task=task)
    page = read(run)
    for tag, attrs in page.tags:
        for name in ("src", "href", "xlink:href", "action", "srcset", "data"):
            value = attrs.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, value)
    html = (run / "report.html").read_text(encoding="utf-8")
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))
    assert "@import" not in html
    assert "<script" not in html
    assert "default-src 'none'" in html


def test_what_users_write_is_escaped(make_run):
    evil = '<b onclick="x">&amp;'
    sites = ("bergen", "cusco")
    run = make_run(
        sites, study=evil, labels=(evil, "srf"), method={"name": evil, "settings": {"k": evil}}
    )
    change(run, "rounds.jsonl", lambda lines: [
        {**line, "events": [{"site": "cusco", "event": f"failed: {evil}"}]} for line in lines
    ])  # fmt: skip
    page = read(run)
    assert not any("onclick" in attrs for _, attrs in page.tags)
    assert page.text.count(evil) >= 5


def test_an_unfinished_run_shows_what_there_is(make_run):
    run = make_run()
    (run / "metrics.json").unlink()
    (run / "cases.json").unlink()
    shutil.rmtree(run / "predictions")
    change(run, "rounds.jsonl", lambda lines: lines[:3])
    page = read(run)
    assert "not finished" in page.text
    assert "3 of 4 rounds" in page.text
    assert "scores are those of the run so far" in page.text
    assert "holds no pictures" in page.text


def test_a_run_that_has_only_begun(make_run):
    run = make_run()
    for path in run.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "spec.toml":
            path.unlink()
    page = read(run)
    assert "0 of 4 rounds" in page.text
    assert "No round is finished yet" in page.text
    assert "ledger is empty or missing" in page.text
    assert cases_table(run) == []


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no spec\.toml"):
        write_report(tmp_path)


def test_an_unknown_method_is_said_to_be_unknown(make_run):
    page = read(make_run(method={"name": "fednew", "settings": {"mu": 0.25}}))
    assert "fednew is not known to this installation" in page.text
    assert "0.25" in page.text


def test_hyper_parameters_say_where_they_come_from(make_run):
    text = read(make_run(method={"name": "fedprox", "settings": {"mu": 0.25}})).text
    assert re.search(r"mu\s+0\.25\s+run file\s+weight μ of the proximal term", text)
    assert re.search(r"rows\s+all\s+default", text)
    assert "li2020federated" in text


def test_events_are_listed_with_their_rounds(make_run):
    run = make_run(participation={"absent": {"cusco": [1, 2, 3]}})
    failed = [{"site": "bergen", "event": "failed: no space left"}]
    change(run, "rounds.jsonl", lambda lines: [
        {**line, "events": failed if line["round"] in (2, 3) else []} for line in lines
    ])  # fmt: skip
    text = read(run).text
    assert re.search(r"bergen failed: no space left \(rounds 2, 3\)", text)
    assert re.search(r"cusco absent, as planned in the run file \(rounds 1 to 3\)", text)


def test_values_that_are_not_defined_are_dashes(make_run):
    run = make_run()
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["sites"]["bergen"]["dice"] = None
    metrics["mean"]["dice"] = None
    (run / "metrics.json").write_text(json.dumps(metrics))
    change(run, "rounds.jsonl", lambda lines: [
        {**line, "sites": {"bergen": {"loss": None}, "cusco": {}}, "shares": {"cusco": None}}
        for line in lines
    ])  # fmt: skip
    page = read(run)
    assert "nan" not in page.text.lower().split()
    assert "– mean test Dice" in page.text


def test_256_sites_stay_readable(make_run):
    sites = tuple(f"site-{i:03d}" for i in range(256))
    run = make_run(sites)
    page = read(run)
    assert "244 others" in page.text
    assert "site-255" in page.text
    assert (run / "report.html").stat().st_size < 2_000_000


def test_four_sites_with_large_color_pictures_stay_small(make_run, pictures):
    sites = ("bergen", "cusco", "delft", "evora")
    run = make_run(sites)
    for site in sites:
        pictures(run / "predictions" / f"{site}.npz", "segmentation", 2, channels=3, side=224)
    assert write_report(run).stat().st_size < 2_000_000


def test_pictures_that_cannot_be_read_are_named(make_run):
    run = make_run()
    (run / "predictions" / "cusco.npz").write_bytes(b"PK not a pack")
    np.savez(run / "predictions" / "delft.npz", image=np.zeros(3))
    text = read(run).text
    assert "cusco.npz cannot be read" in text
    assert "delft.npz cannot be read" in text
    assert "case-a" in text


def test_a_long_run_is_thinned(make_run):
    run = make_run(rounds=3000)
    assert write_report(run).stat().st_size < 1_000_000


def test_the_page_appears_whole_or_not_at_all(make_run, monkeypatch):
    run = make_run()
    before = write_report(run).read_text()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    monkeypatch.setattr(page_module.words, "number", lambda *_: "changed")
    with pytest.raises(UsageError, match="cannot be written: disk full; copy the run folder"):
        write_report(run)
    assert (run / "report.html").read_text() == before
    assert not list(run.glob(".*.part"))


def test_the_same_run_gives_the_same_page(make_run):
    run = make_run()
    assert write_report(run).read_bytes() == write_report(run).read_bytes()


# In a browser


def chromium(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    if BROWSER is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on this machine")
    quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync")
    offline = ("--disable-background-networking", "--disable-component-update")
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [BROWSER, *quiet, *offline, profile, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)


@pytest.mark.browser
def test_a_phone_never_scrolls_sideways(make_run, tmp_path):
    frames = []
    for task in ("segmentation", "classification"):
        sites = ("bergen", "cusco", "d" * 63)
        run = make_run(sites, task=task, name=task, study="a-study-with-a-long-name-" * 5)
        measure = (
            "const d = this.contentDocument.documentElement;"
            "document.title += ' ' + (d.scrollWidth - d.clientWidth);"
        )
        frames.append(
            f'<iframe src="{write_report(run).as_uri()}" style="width:390px;height:800px;border:0" '
            f'onload="{measure}"></iframe>'
        )
    outer = tmp_path / "outer.html"
    outer.write_text("<title>over</title>" + "".join(frames))
    shown = chromium(tmp_path, "--allow-file-access-from-files", "--dump-dom", outer.as_uri())
    assert "<title>over 0 0</title>" in shown.stdout


@pytest.mark.browser
def test_the_browser_has_nothing_to_complain_about_and_prints(make_run, tmp_path):
    page = write_report(make_run())
    pdf = tmp_path / "report.pdf"
    shown = chromium(
        tmp_path, "--enable-logging=stderr", "--v=0", f"--print-to-pdf={pdf}", page.as_uri()
    )
    assert "CONSOLE" not in shown.stderr
    assert pdf.read_bytes().startswith(b"%PDF")
    assert pdf.stat().st_size > 20_000
