"""Whatever is wrong with a file, a folder or a command ends in one sentence, and nothing is left behind.

Each row: what it is, the command, how the good study is spoilt, the exit code and the sentence.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from consilia.declare.read import LARGEST
from tests.cli.support import (
    consilia,
    federation_table,
    run_table,
    tree,
    write_csv,
    write_mask,
    write_study,
    write_toml,
)

FEDERATION = Path("federation.toml")
RUN = Path("run.toml")


@dataclass(frozen=True)
class Case:
    """One malformed input; `spoil` is called in the study's folder."""

    name: str
    words: str
    spoil: Callable[[], object]
    code: int
    sentence: str


# ------------------------------------------------------------------------ how a good study is spoilt


def nothing():
    """The command itself is what is wrong."""


def text(path, content):
    return lambda: Path(path).write_text(content)


def federation(**changes):
    return lambda: write_toml(FEDERATION, federation_table(**changes))


def site(task="segmentation", others=(), **changes):
    """Change the first site; a change to None removes a key."""
    form = "mask" if task == "segmentation" else "image"
    plain = {"name": "anna", "data": "anna", "supervision": form}
    own = {key: value for key, value in {**plain, **changes}.items() if value is not None}
    rest = others or [{"name": "bo", "data": "bo", "supervision": form}]
    return federation(task=task, site=[own, *rest])


def run(**changes):
    return lambda: write_toml(RUN, run_table(**changes))


def classify(**changes):
    def spoil():
        write_toml(FEDERATION, federation_table("classification"))
        write_toml(RUN, run_table("classification", **changes))

    return spoil


def several(*spoils):
    return lambda: [spoil() for spoil in spoils]


def replace_by_folder(path):
    return lambda: (Path(path).unlink(), Path(path).mkdir())


def remove(path):
    return lambda: shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()


def cut_short(path):
    return lambda: Path(path).write_bytes(Path(path).read_bytes()[:60])


def with_nan():
    Path("anna/images/train-00.png").unlink()
    pixels = np.zeros((16, 16), dtype=np.float32)
    pixels[3, 4] = np.nan
    np.save("anna/images/train-00.npy", pixels)


def link_out():
    Path("elsewhere").mkdir()
    shutil.move("anna/images/train-00.png", "elsewhere/secret.png")
    os.symlink(Path("elsewhere/secret.png").resolve(), "anna/images/train-00.png")


def without_column():
    write_csv(Path("anna/cases.csv"), ("image", "split"), [("train-00", "train")])


def plain_folder():
    Path("notes").mkdir()
    Path("notes/todo.txt").write_text("call the hospital")


def new_image():
    Path("new").mkdir()
    Image.fromarray(np.full((20, 24), 90, dtype=np.uint8)).save("new/x.png")


def metrics(**changes):
    path = Path("runs/toy/fedavg-0/metrics.json")
    return lambda: path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


FINISHED = "runs/toy/fedavg-0"
CHECKPOINT = f"{FINISHED}/checkpoints/round-000001/server.safetensors"

CASES = [
    # --- federation.toml: the file
    Case("federation missing", "check gone.toml", nothing, 3, ""),
    Case("federation is a folder", "check a.toml", lambda: Path("a.toml").mkdir(), 2, ""),
    Case("federation is a folder, for methods", "methods --for anna", nothing, 3, ""),
    Case("federation empty", "check federation.toml", text(FEDERATION, ""), 3, ""),
    Case("federation not UTF-8", "check federation.toml", lambda: FEDERATION.write_bytes(b"name = '\xff'"), 3, ""),
    Case("federation bad TOML", "check federation.toml", text(FEDERATION, 'name = "a"\ntask = \n'), 3, ""),
    Case("federation same key twice", "check federation.toml", text(FEDERATION, "name = 1\nname = 2\n"), 3, ""),
    Case("federation too large", "check federation.toml", text(FEDERATION, "#" * (LARGEST + 1)), 3, ""),
    Case("federation nested deeply", "check federation.toml", text(FEDERATION, "a = " + "[" * 9000), 3, ""),
    # --- federation.toml: its keys
    Case("federation unknown key", "check federation.toml", federation(label=["x"]), 3, ""),
    Case("federation unknown key in a table", "check federation.toml", federation(image={"sise": [16, 16]}), 3, ""),
    Case("federation missing key", "check federation.toml", federation(task="segmentation", labels=None), 3, ""),
    Case("federation text for a list", "check federation.toml", federation(labels="tumour"), 3, ""),
    Case("federation number for text", "check federation.toml", federation(name=7), 3, ""),
    Case("federation number among labels", "check federation.toml", federation(labels=["a", 3]), 3, ""),
    Case("federation text for a switch", "check federation.toml", federation(exclusive="yes"), 3, ""),
    Case("federation number for a table", "check federation.toml", federation(image=16), 3, ""),
    Case("federation list for a table", "check federation.toml", federation(regions=["a"]), 3, ""),
    Case("federation one table for a list", "check federation.toml", federation(site={"a": {"name": "a"}}), 3, ""),
    Case("federation bad task", "check federation.toml", federation(task="segmentaton"), 3, ""),
    Case("federation size too small", "check federation.toml", federation(image={"size": [16, 4]}), 3, ""),
    Case("federation size too large", "check federation.toml", federation(image={"size": [5000, 16]}), 3, ""),
    Case("federation size of three", "check federation.toml", federation(image={"size": [16, 16, 16]}), 3, ""),
    Case("federation size of one", "check federation.toml", federation(image={"size": [16]}), 3, ""),
    Case("federation size not whole", "check federation.toml", federation(image={"size": [16.5, 16]}), 3, ""),
    Case("federation no channels", "check federation.toml", federation(image={"channels": 0}), 3, ""),
    # --- federation.toml: what contradicts itself
    Case("no sites", "check federation.toml", federation(site=[]), 3, ""),
    Case("no labels", "check federation.toml", federation(labels=[]), 3, ""),
    Case("label twice", "check federation.toml", federation(labels=["a", "a"]), 3, ""),
    Case("label background", "check federation.toml", federation(labels=["background", "a"]), 3, ""),
    Case("label with a slash", "check federation.toml", federation(labels=["a/b"]), 3, ""),
    Case("label of two lines", "check federation.toml", federation(labels=["a\nb"]), 3, ""),
    Case("overlapping segmentation", "check federation.toml", federation(exclusive=False), 3, ""),
    Case("one exclusive class", "check federation.toml", federation(task="classification", labels=["a"]), 3, ""),
    Case("region of unknown label", "check federation.toml", federation(regions={"all": ["rond"]}), 3, ""),
    Case("region of nothing", "check federation.toml", federation(regions={"all": []}), 3, ""),
    Case("common test above", "check federation.toml", federation(test="../test"), 3, ""),
    # --- federation.toml: its sites
    Case("two sites of one name", "check federation.toml", site(name="bo"), 3, ""),
    Case("site named pooled", "check federation.toml", site(name="pooled"), 3, ""),
    Case("site named common", "check federation.toml", site(name="common"), 3, ""),
    Case("site name with a space", "check federation.toml", site(name="St Anna"), 3, ""),
    Case("site name with an escape", "check federation.toml", site(name="a\x1b[31m"), 3, ""),
    Case("site without a name", "check federation.toml", site(name=None), 3, ""),
    Case("site without data", "check federation.toml", site(data=None), 3, ""),
    Case("site with a typing error", "check federation.toml", site(supervison="box"), 3, ""),
    Case("site with a bad form", "check federation.toml", site(supervision="boxes"), 3, ""),
    Case("site with text for a switch", "check federation.toml", site(complete="no"), 3, ""),
    Case("site data above", "check federation.toml", site(data="../anna"), 3, ""),
    Case("site data empty", "check federation.toml", site(data=" "), 3, ""),
    Case("unknown label", "check federation.toml", site(annotates=["rund"]), 3, ""),
    Case("label of nobody", "check federation.toml", site(annotates=["kidney"]), 3, ""),
    Case("annotates nothing", "check federation.toml", site(annotates=[]), 3, ""),
    Case("annotates twice", "check federation.toml", site(annotates=["round", "round"]), 3, ""),
    Case("incomplete boxes", "check federation.toml", site(supervision="box", complete=False), 3, ""),
    Case("incomplete classes", "check federation.toml", site("classification", complete=False), 3, ""),
    Case("noisy mask", "check federation.toml", site(style="noisy"), 3, ""),
    Case("bad style", "check federation.toml", site(style="noisey"), 3, ""),
    Case("masks for classification", "check federation.toml", site("classification", supervision="mask"), 3, ""),
    # --- site.toml
    Case("site file alone", "check site.toml", text("site.toml", '[site]\nname = "anna"\ndata = "anna"\n'), 2, ""),
    Case("site file unknown key", "check site.toml --federation federation.toml", text("site.toml", '[site]\nname = "anna"\ndata = "anna"\nanotates = []\n'), 3, ""),
    Case("site file with more", "check site.toml --federation federation.toml", text("site.toml", '[site]\nname = "anna"\ndata = "anna"\n[image]\n'), 3, ""),
    Case("site file against federation", "check site.toml --federation federation.toml", text("site.toml", '[site]\nname = "anna"\ndata = "anna"\nannotates = ["kidney"]\n'), 3, ""),
    Case("check unknown site", "check federation.toml --site ana", nothing, 2, ""),
    Case("check a folder of which site", "check anna --federation federation.toml", nothing, 2, ""),
    # --- run.toml: the file
    Case("run file missing", "run gone/run.toml", nothing, 2, ""),
    Case("run file bad TOML", "run .", text(RUN, "rounds == 3"), 2, ""),
    Case("federation of a run missing", "run .", remove(FEDERATION), 3, ""),
    Case("unknown study", "run phantom-mixd", nothing, 2, ""),
    # --- run.toml: its keys
    Case("unknown key", "run .", run(round=3), 2, ""),
    Case("unknown key of learner", "run .", run(learner={"net": "unet-tiny"}), 2, ""),
    Case("unknown key of training", "run .", run(training={"lerning_rate": 0.1}), 2, ""),
    Case("unknown key of evaluate", "run .", run(evaluate={"ever": 2}), 2, ""),
    Case("unknown key of engine", "run .", run(engine={"thread": 2}), 2, ""),
    Case("unknown key of participation", "run .", run(participation={"min_site": 2}), 2, ""),
    Case("unknown key of simulate", "run .", run(simulate={"sead": 2}), 2, ""),
    Case("no rounds", "run .", run(rounds=0), 2, ""),
    Case("rounds as text", "run .", run(rounds="5"), 2, ""),
    Case("rounds not whole", "run . --set rounds=2.5", nothing, 2, ""),
    Case("negative seed", "run . --seed -1", nothing, 2, ""),
    Case("huge seed", "run . --seed 4294967296", nothing, 2, ""),
    Case("negative learning rate", "run .", run(training={"learning_rate": -1}), 2, ""),
    Case("learning rate nan", "run .", run(training={"learning_rate": float("nan")}), 2, ""),
    Case("learning rate inf", "run . --set training.learning_rate=inf", nothing, 2, ""),
    Case("batch of nothing", "run .", run(training={"batch": 0}), 2, ""),
    Case("three betas", "run .", run(training={"betas": [0.9, 0.99, 0.999]}), 2, ""),
    Case("poly without steps", "run .", run(training={"schedule": "poly"}), 2, ""),
    Case("bad schedule", "run .", run(training={"schedule": "ploy"}), 2, ""),
    Case("best without validation", "run .", run(evaluate={"selection": "best_validation"}), 2, ""),
    Case("fraction nan", "run . --set participation.fraction=nan", nothing, 2, ""),
    Case("too many sites needed", "run .", run(participation={"min_sites": 3}), 2, ""),
    Case("unknown site absent", "run .", run(participation={"absent": {"ana": [1]}}), 2, ""),
    Case("unknown site joins", "run .", run(participation={"joins": {"cleo": 2}}), 2, ""),
    Case("unknown site completeness", "run .", run(simulate={"completeness": {"boo": 0.5}}), 2, ""),
    Case("study above", "run .", run(study="../elsewhere"), 2, ""),
    Case("bad tracker", "run .", run(engine={"track": ["tensorbord"]}), 2, ""),
    Case("method as text", "run .", run(method="fedprox"), 2, ""),
    # --- what a run cannot do
    Case("unknown method", "run . --method fedprx", nothing, 2, ""),
    Case("unknown setting", "run . --method fedprox --set method.mue=1", nothing, 2, ""),
    Case("setting of the wrong type", "run . --method fedprox --set method.mu=big", nothing, 2, ""),
    Case("setting out of its choices", "run . --set method.rows=som", nothing, 2, ""),
    Case("unknown network", "run . --set learner.network=unet-tinny", nothing, 2, ""),
    Case("network for another task", "run . --set learner.network=cnn-small", nothing, 2, ""),
    Case("objective for another task", "run . --set learner.objective=bce", nothing, 2, ""),
    Case("one-label objective", "run . --set learner.objective=dice-foreground", nothing, 2, ""),
    Case("cuda without a GPU", "run . --set engine.device=cuda", nothing, 2, ""),
    Case("change without a value", "run . --set rounds", nothing, 2, ""),
    Case("change into a value", "run . --set rounds.first=3", nothing, 2, ""),
    Case("unknown option", "run . --ronds 3", nothing, 2, ""),
    Case("option of the wrong type", "run . --rounds three", nothing, 2, ""),
    Case("unknown command", "rn .", nothing, 2, ""),
    Case("no usable labels", "run .", federation(site=[{"name": "anna", "data": "anna", "supervision": "none"}]), 3, ""),
    Case("no usable labels, planned", "plan .", federation(site=[{"name": "anna", "data": "anna", "supervision": "image"}]), 3, ""),
    Case("unknown dataset", "run .", site(data="dataset:phantom-mix/ashford"), 2, ""),
    Case("unknown site of a dataset", "run .", site(data="dataset:phantom-mixed/ashfort"), 2, ""),
    Case("unknown preview", "datasets --preview phantom-mixt", nothing, 2, ""),
    Case("preview of no type", "datasets --preview phantom-mixed --out sheet", nothing, 2, ""),
    Case("init missing", "run . --set learner.init=gone.safetensors", nothing, 2, ""),
    Case("init not safetensors", "run . --set learner.init=run.toml", nothing, 2, ""),
    Case("init of another network", "run . --set learner.init=a.safetensors", lambda: save_file({"x": torch.zeros(2)}, "a.safetensors"), 2, ""),
    # --- run folders
    Case("resume no run", "resume notes", plain_folder, 2, ""),
    Case("resume nothing", "resume runs/gone", nothing, 2, ""),
    Case("report no run", "report notes", plain_folder, 2, ""),
    Case("cite no run", "cite notes", plain_folder, 2, ""),
    Case("cite unknown method", "cite fedavgg", nothing, 2, ""),
    Case("out holds another run", "run . --seed 5 --out runs/toy/fedavg-0", nothing, 2, ""),
    Case("out is not empty", "run . --out notes", plain_folder, 2, ""),
    Case("out is a file", "run . --out run.toml", nothing, 2, ""),
    Case("spec of a run damaged", f"resume {FINISHED}", text(f"{FINISHED}/spec.toml", "study = 3"), 2, ""),
    Case("predict no run", "predict notes anna", plain_folder, 2, ""),
    Case("predict unknown site", f"predict {FINISHED} new --site ana", new_image, 2, ""),
    Case("predict into a full folder", f"predict {FINISHED} new --out notes", several(new_image, plain_folder), 2, ""),
    Case("predict into a file", f"predict {FINISHED} new --out run.toml", new_image, 2, ""),
    Case("predict no folder", f"predict {FINISHED} gone", nothing, 3, ""),
    Case("predict no images", f"predict {FINISHED} new", lambda: Path("new").mkdir(), 3, ""),
    Case("predict a damaged image", f"predict {FINISHED} new", several(new_image, cut_short("new/x.png")), 3, ""),
    Case("predict without a checkpoint", f"predict {FINISHED} new", several(new_image, remove(f"{FINISHED}/checkpoints")), 2, ""),
    Case("predict a damaged checkpoint", f"predict {FINISHED} new", several(new_image, cut_short(CHECKPOINT)), 4, ""),
    # --- compare
    Case("compare bad seeds", "compare . --seeds a,b", nothing, 2, ""),
    Case("compare no seeds", "compare . --seeds ,", nothing, 2, ""),
    Case("compare unknown metric", "compare . --metric dise", nothing, 2, ""),
    Case("compare metric of another task", "compare . --metric auroc", nothing, 2, ""),
    Case("compare unknown baseline", "compare . --methods fedavg,local --baseline fedavgg", nothing, 2, ""),
    Case("compare unknown method", "compare . --methods fedavg,fedprx", nothing, 2, ""),
    Case("compare half a setting", "compare . --methods fedprox:mu", nothing, 2, ""),
    Case("compare no methods", "compare . --methods ,", nothing, 2, ""),
    Case("compare another protocol", "compare . --methods fedavg --seeds 0,1 --collect", several(lambda: shutil.copytree(FINISHED, "runs/toy/fedavg-1"), lambda: Path("runs/toy/fedavg-1/spec.toml").write_text(Path(f"{FINISHED}/spec.toml").read_text().replace("seed = 0", "seed = 1", 1)), lambda: Path("runs/toy/fedavg-1/metrics.json").write_text(Path(f"{FINISHED}/metrics.json").read_text().replace('"seed": 0', '"seed": 1').replace('"rounds": 1', '"rounds": 9'))), 2, ""),
    Case("compare another run in its place", "compare . --methods fedavg --seeds 0 --rounds 2", nothing, 2, ""),
    Case("compare damaged numbers", "compare . --methods fedavg --seeds 0", text(f"{FINISHED}/metrics.json", "{"), 2, ""),
    # --- images and tables
    Case("site folder missing", "run . --seed 1", remove("anna"), 3, ""),
    Case("site without images", "run . --seed 1", remove("anna/images"), 3, ""),
    Case("site with no image", "run . --seed 1", lambda: (shutil.rmtree("anna/images"), Path("anna/images").mkdir()), 3, ""),
    Case("mask missing", "run . --seed 1", remove("anna/masks/train-00.png"), 3, ""),
    Case("mask of another size", "run . --seed 1", lambda: write_mask(Path("anna/masks/train-00.png"), np.zeros((8, 10))), 3, ""),
    Case("mask of another class", "run . --seed 1", lambda: write_mask(Path("anna/masks/train-00.png"), np.full((16, 16), 7)), 3, ""),
    Case("image with NaN", "run . --seed 1", with_nan, 3, ""),
    Case("image cut short", "run . --seed 1", cut_short("anna/images/train-00.png"), 3, ""),
    Case("image empty", "run . --seed 1", lambda: Path("anna/images/train-00.png").write_bytes(b""), 3, ""),
    Case("image outside", "run . --seed 1", link_out, 3, ""),
    Case("table without a column", "run . --seed 1", without_column, 3, ""),
    Case("table for classes missing", "run . --seed 1", classify(), 3, ""),
    Case("boxes missing", "run . --seed 1", site(supervision="box"), 3, ""),
]


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A study whose files are all good, with one finished run."""
    from consilia.cli.options import spec_of
    from consilia.engines.inprocess import run_in_process

    folder = tmp_path_factory.mktemp("good") / "study"
    spec = spec_of(str(write_study(folder)))
    run_in_process(spec, folder / FINISHED, data=folder)
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_sentence_and_nothing_left_behind(case, good, tmp_path, capfd, monkeypatch):
    shutil.copytree(good, tmp_path / "study")
    monkeypatch.chdir(tmp_path / "study")
    monkeypatch.delenv("CONSILIA_DATA", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    case.spoil()
    before = tree(tmp_path)
    ended = consilia(capfd, monkeypatch, *case.words.split())
    assert ended.err == f"consilia: {case.sentence}\n"
    assert (ended.code, ended.out) == (case.code, "")
    assert tree(tmp_path) == before
