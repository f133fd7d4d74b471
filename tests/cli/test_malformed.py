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

from consilia.datasets.registry import DATASETS
from consilia.declare.read import LARGEST
from consilia.methods import METHODS
from consilia.networks.unet import UNETS
from consilia.runs.spec import studies
from consilia.training.learner import NETWORKS
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


def remove(path):
    return lambda: shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()


def cut_short(path):
    return lambda: Path(path).write_bytes(Path(path).read_bytes()[:60])


def with_nan():
    Path("anna/images/train-00.png").unlink()
    pixels = np.zeros((16, 16), dtype=np.float32)
    pixels[3, 4:6] = np.nan
    np.save("anna/images/train-00.npy", pixels)


def link_out():
    Path("elsewhere").mkdir()
    shutil.move("anna/images/train-00.png", "elsewhere/secret.png")
    Path("anna/images/train-00.png").symlink_to(Path("elsewhere/secret.png").resolve())


def without_column():
    write_csv(Path("anna/cases.csv"), ("image", "split"), [("train-00", "train")])


def plain_folder():
    Path("notes").mkdir()
    Path("notes/todo.txt").write_text("call the hospital")


def new_image():
    Path("new").mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (20, 24), dtype=np.uint8)
    Image.fromarray(noise).save("new/x.png")


def no_image():
    shutil.rmtree("anna/images")
    Path("anna/images").mkdir()


def other_mask(values):
    return lambda: write_mask(Path("anna/masks/train-00.png"), values)


def own_file(more):
    """Write a site's own file with something more in it."""
    return text("site.toml", f'[site]\nname = "anna"\ndata = "anna"\n{more}')


def other_protocol():
    """Add a second run whose numbers are of nine rounds."""
    run_folder = Path("runs/toy/fedavg-1")
    shutil.copytree(FINISHED, run_folder)
    spec, metrics = run_folder / "spec.toml", run_folder / "metrics.json"
    spec.write_text(spec.read_text().replace("seed = 0", "seed = 1", 1))
    found = json.loads(metrics.read_text())
    metrics.write_text(json.dumps({**found, "seed": 1, "rounds": 9}))


def unfinished(spoil):
    """Spoil a run that has its last checkpoint, but not yet its numbers."""
    return several(remove(f"{FINISHED}/metrics.json"), spoil)


def by_hand(path, old, new):
    return lambda: Path(path).write_text(Path(path).read_text().replace(old, new, 1))


def link(path, target):
    return lambda: (Path(path).unlink(), Path(path).symlink_to(Path(target).resolve()))


def pipe(path):
    return lambda: (Path(path).unlink(), os.mkfifo(path))


def one_patient():
    rows = [(f"train-{i:02d}", "p", "train") for i in range(6)]
    rows += [(f"test-{i:02d}", f"q{i}", "test") for i in range(3)]
    write_csv(Path("anna/cases.csv"), ("image", "patient", "split"), rows)


def all_train():
    for name in ("anna", "bo"):
        images = sorted(path.stem for path in Path(name, "images").iterdir())
        rows = [(image, image, "train") for image in images]
        write_csv(Path(name, "cases.csv"), ("image", "patient", "split"), rows)


LONG = "x" * 300
FINISHED = "runs/toy/fedavg-0"
LATEST = f"{FINISHED}/checkpoints/round-000001"
CHECKPOINT = f"{LATEST}/server.safetensors"
FROM_ONE = (
    "remove that folder and resume the run from round 1, or begin the run again with another --out"
)


def declared(name, spoil, sentence):
    """What federation.toml says is refused."""
    return Case(name, "check federation.toml", spoil, 3, f"federation.toml: {sentence}")


def asked(name, spoil, sentence):
    """What run.toml says is refused."""
    return Case(name, "run .", spoil, 2, f"study/run.toml: {sentence}")


def command(name, words, sentence, code=2):
    """The files are good, the command is refused."""
    return Case(name, words, nothing, code, sentence)


def data(name, spoil, sentence):
    """A site's files are refused, before the run that would need them."""
    return Case(name, "run . --seed 1", spoil, 3, sentence)


CASES = [
    # --- federation.toml: the file
    command(
        "federation missing",
        "check gone.toml",
        "file 'gone.toml' does not exist; check the path",
        code=3,
    ),
    Case(
        "federation is a folder",
        "check a.toml",
        lambda: Path("a.toml").mkdir(),
        3,
        "folder 'a.toml' has no folder 'images'; put its images there",
    ),
    command(
        "federation is a folder, for methods",
        "methods --for anna",
        "folder 'anna' holds no run.toml; write one there, or name another file",
    ),
    declared(
        "federation empty",
        text(FEDERATION, ""),
        "key 'name' is missing; add it (needed here: name, task, labels, image, site)",
    ),
    Case(
        "federation not UTF-8",
        "check federation.toml",
        lambda: FEDERATION.write_bytes(b"name = '\xff'"),
        3,
        "file 'federation.toml' is not UTF-8 text; save it as UTF-8",
    ),
    Case(
        "federation bad TOML",
        "check federation.toml",
        text(FEDERATION, 'name = "a"\ntask = \n'),
        3,
        "file 'federation.toml' is not valid TOML: invalid value (at line 2, column 8)",
    ),
    Case(
        "federation same key twice",
        "check federation.toml",
        text(FEDERATION, "name = 1\nname = 2\n"),
        3,
        "file 'federation.toml' is not valid TOML: cannot overwrite a value (at line 2, column 9)",
    ),
    Case(
        "federation too large",
        "check federation.toml",
        text(FEDERATION, "#" * (LARGEST + 1)),
        3,
        "file 'federation.toml' has 1048577 bytes; expected at most 1048576: name a .toml file",
    ),
    Case(
        "federation nested deeply",
        "check federation.toml",
        text(FEDERATION, "a = " + "[" * 9000),
        3,
        "file 'federation.toml' is nested too deeply; a declaration has tables and plain lists",
    ),
    # --- federation.toml: its keys
    declared(
        "federation unknown key",
        federation(label=["x"]),
        "unknown key 'label'; did you mean 'labels'? (known here: name, task, labels, "
        "exclusive, image, site, regions, test)",
    ),
    declared(
        "federation unknown key in a table",
        federation(image={"sise": [16, 16]}),
        "unknown key 'image.sise'; did you mean 'size'? (known here: size, channels)",
    ),
    declared(
        "federation missing key",
        federation(task="segmentation", labels=None),
        "key 'labels' is missing; add it (needed here: name, task, labels, image, site)",
    ),
    declared(
        "federation text for a list",
        federation(labels="tumour"),
        "'labels' is 'tumour'; expected a list",
    ),
    declared("federation number for text", federation(name=7), "'name' is 7; expected text"),
    declared(
        "federation number among labels",
        federation(labels=["a", 3]),
        "entry 2 of 'labels' is 3; expected text",
    ),
    declared(
        "federation text for a switch",
        federation(exclusive="yes"),
        "'exclusive' is 'yes'; expected true or false",
    ),
    declared(
        "federation number for a table", federation(image=16), "'image' is 16; expected a table"
    ),
    declared(
        "federation list for a table",
        federation(regions=["a"]),
        "'regions' is ['a']; expected a table",
    ),
    declared(
        "federation one table for a list",
        federation(site={"a": {"name": "a"}}),
        "'site' is one table; expected a list of tables: write [[site]]",
    ),
    declared(
        "federation bad task",
        federation(task="segmentaton"),
        "'task' is 'segmentaton'; expected one of 'segmentation', 'classification'; did you "
        "mean 'segmentation'?",
    ),
    declared(
        "federation size too small",
        federation(image={"size": [16, 4]}),
        "entry 2 of 'image.size' is 4; expected at least 8",
    ),
    declared(
        "federation size too large",
        federation(image={"size": [5000, 16]}),
        "entry 1 of 'image.size' is 5000; expected at most 4096",
    ),
    declared(
        "federation size of three",
        federation(image={"size": [16, 16, 16]}),
        "'image.size' has 3 entries; expected 2",
    ),
    declared(
        "federation size of one",
        federation(image={"size": [16]}),
        "'image.size' has 1 entry; expected 2",
    ),
    declared(
        "federation size not whole",
        federation(image={"size": [16.5, 16]}),
        "entry 1 of 'image.size' is 16.5; expected a whole number",
    ),
    declared(
        "federation no channels",
        federation(image={"channels": 0}),
        "'image.channels' is 0; expected at least 1",
    ),
    # --- federation.toml: what contradicts itself
    declared(
        "no sites",
        federation(site=[]),
        "federation 'toy' has no sites; add at least one [[site]] table",
    ),
    declared(
        "no labels",
        federation(labels=[]),
        "federation 'toy' has no labels; list at least one in `labels`",
    ),
    declared(
        "label twice",
        federation(labels=["a", "a"]),
        "federation 'toy' lists the label 'a' more than once; list each once",
    ),
    declared(
        "label background",
        federation(labels=["background", "a"]),
        "label 'background' is implied where nothing else is marked; remove or rename it",
    ),
    declared(
        "label with a slash",
        federation(labels=["a/b"]),
        "label 'a/b' must be 1 to 63 characters without '/' and ',' and without space at its "
        "ends; rename it",
    ),
    declared(
        "label of two lines",
        federation(labels=["a\nb"]),
        "label 'a\\nb' must be 1 to 63 characters without '/' and ',' and without space at its "
        "ends; rename it",
    ),
    declared(
        "overlapping segmentation",
        federation(exclusive=False),
        "federation 'toy' segments labels that may overlap (`exclusive = false`); segmentation "
        "needs exclusive labels: name the overlap as a label of its own and unite it again "
        "under [regions]",
    ),
    declared(
        "one exclusive class",
        federation(task="classification", labels=["a"]),
        "federation 'toy' has the single exclusive label 'a'; add the other labels or set "
        "`exclusive = false`",
    ),
    declared(
        "region of unknown label",
        federation(regions={"all": ["rond"]}),
        "region 'all' unites 'rond', but the federation's labels are 'round' and 'square'; did "
        "you mean 'round'?",
    ),
    declared(
        "region of nothing",
        federation(regions={"all": []}),
        "region 'all' unites nothing, but the federation's labels are 'round' and 'square'; "
        "correct [regions]",
    ),
    declared(
        "common test above",
        federation(test="../test"),
        "the common `test` set is '../test', which leaves its folder; give a path without '..'",
    ),
    # --- federation.toml: its sites
    declared(
        "two sites of one name",
        site(name="bo"),
        "two sites are named 'bo'; give each site its own name",
    ),
    declared(
        "site named pooled",
        site(name="pooled"),
        "site name 'pooled' is reserved; choose another name",
    ),
    declared(
        "site named common",
        site(name="common"),
        "site name 'common' is reserved; choose another name",
    ),
    declared(
        "site name with a space",
        site(name="St Anna"),
        "site name 'St Anna' must be 1 to 63 lower-case letters, digits, '-' or '_' and begin "
        "with a letter or digit",
    ),
    declared(
        "site name with an escape",
        site(name="a\x1b[31m"),
        "site name 'a\\x1b[31m' must be 1 to 63 lower-case letters, digits, '-' or '_' and begin"
        " with a letter or digit",
    ),
    declared(
        "site without a name",
        site(name=None),
        "site 1: key 'name' is missing; add it (needed here: name, data)",
    ),
    declared(
        "site without data",
        site(data=None),
        "site 'anna': key 'data' is missing; add it (needed here: name, data)",
    ),
    declared(
        "site with a typing error",
        site(supervison="box"),
        "site 'anna': unknown key 'supervison'; did you mean 'supervision'? (known here: name, "
        "data, supervision, annotates, complete, style, sparsity, empty_slices)",
    ),
    declared(
        "site with a bad form",
        site(supervision="boxes"),
        "site 'anna': 'supervision' is 'boxes'; expected one of 'mask', 'block', 'rotated-box',"
        " 'box', 'scribble', 'point', 'image', 'none'; did you mean 'box'?",
    ),
    declared(
        "site with text for a switch",
        site(complete="no"),
        "site 'anna': 'complete' is 'no'; expected true or false",
    ),
    declared(
        "site data above",
        site(data="../anna"),
        "`data` of site 'anna' is '../anna', which leaves its folder; give a path without '..'",
    ),
    declared(
        "site data empty",
        site(data=" "),
        "`data` of site 'anna' is empty; name a folder, or a dataset as 'dataset:NAME/SITE'",
    ),
    declared(
        "unknown label",
        site(annotates=["rund"]),
        "site 'anna' annotates 'rund', but the federation's labels are 'round' and 'square'; "
        "did you mean 'round'?",
    ),
    declared(
        "label of nobody",
        site(annotates=["kidney"]),
        "site 'anna' annotates 'kidney', but the federation's labels are 'round' and 'square'; "
        "add what is missing to `labels`",
    ),
    declared(
        "annotates nothing",
        site(annotates=[]),
        "site 'anna' has supervision 'mask' but annotates no label; list its labels or declare "
        "supervision 'none'",
    ),
    declared(
        "annotates twice",
        site(annotates=["round", "round"]),
        "site 'anna' lists a label twice in `annotates`; list each once",
    ),
    declared(
        "incomplete boxes",
        site(supervision="box", complete=False),
        "site 'anna' declares `complete = false` with supervision 'box'; only masks of a "
        "segmentation task can miss objects: set `complete = true`, or leave labels out of "
        "`annotates`",
    ),
    declared(
        "incomplete classes",
        site("classification", complete=False),
        "site 'anna' declares `complete = false` with supervision 'image'; only masks of a "
        "segmentation task can miss objects: set `complete = true`, or leave labels out of "
        "`annotates`",
    ),
    declared(
        "noisy mask",
        site(style="noisy"),
        "site 'anna' declares style 'noisy' with supervision 'mask'; only scribbles have a "
        'noisy style: set `style = "plain"`',
    ),
    declared(
        "bad style",
        site(style="noisey"),
        "site 'anna': 'style' is 'noisey'; expected one of 'plain', 'noisy'; did you mean 'noisy'?",
    ),
    declared(
        "masks for classification",
        site("classification", supervision="mask"),
        "site 'anna' declares supervision 'mask' for a classification task; classification uses"
        " 'image' or 'none'",
    ),
    # --- site.toml
    Case(
        "site file alone",
        "check site.toml",
        own_file(""),
        2,
        "'site.toml' says nothing about labels and image size; name its federation with "
        "--federation",
    ),
    Case(
        "site file unknown key",
        "check site.toml --federation federation.toml",
        own_file("anotates = []\n"),
        3,
        "site.toml: unknown key 'anotates'; did you mean 'annotates'? (known here: name, data, "
        "supervision, annotates, complete, style, sparsity, empty_slices)",
    ),
    Case(
        "site file with more",
        "check site.toml --federation federation.toml",
        own_file("[image]\n"),
        3,
        "site.toml: expected one [site] table and nothing else, but found 'site' and 'image'",
    ),
    Case(
        "site file against federation",
        "check site.toml --federation federation.toml",
        own_file('annotates = ["kidney"]\n'),
        3,
        "site.toml: site 'anna' annotates 'kidney', but the federation's labels are 'round' and"
        " 'square'; add what is missing to `labels`",
    ),
    command(
        "check unknown site",
        "check federation.toml --site ana",
        "federation 'toy' has no site 'ana'; did you mean 'anna'? (its sites: 'anna' and 'bo')",
    ),
    command(
        "check a federation against a federation",
        "check federation.toml --federation federation.toml",
        "'federation.toml' is a federation itself, so that --federation says nothing; leave it out",
    ),
    command(
        "check a folder of a site that nobody declares",
        "check anna --site anna",
        "--site says nothing about folder 'anna', which no federation declares; add --federation "
        "or leave --site out",
    ),
    Case(
        "check a site file of another site",
        "check site.toml --federation federation.toml --site bo",
        own_file(""),
        2,
        "'site.toml' is the file of site 'anna', not of 'bo'; leave --site out",
    ),
    Case(
        "check arrays alone",
        "check x.npz",
        lambda: np.savez("x.npz", image=np.zeros((2, 16, 16))),
        2,
        "'x.npz' says nothing about labels and image size; name its federation with --federation",
    ),
    command(
        "check with sheets in a file",
        "check federation.toml --sheet run.toml",
        "--sheet run.toml cannot be written (file exists); choose another --sheet",
    ),
    Case(
        "check with a sheet that is a folder",
        "check federation.toml --sheet notes",
        lambda: Path("notes/anna.png").mkdir(parents=True),
        2,
        "file 'notes/anna.png' is there already; name another folder with --sheet, or remove it",
    ),
    command(
        "check a folder of which site",
        "check anna --federation federation.toml",
        "federation 'toy' has 2 sites; say which with --site",
    ),
    # --- run.toml: the file
    command(
        "run file missing",
        "run gone/run.toml",
        "file 'gone/run.toml' does not exist; check the path",
    ),
    command(
        "run a folder without a run file",
        "run anna",
        "folder 'anna' holds no run.toml; write one there, or name another file",
    ),
    command(
        "run a federation",
        "run federation.toml",
        "study/federation.toml declares a federation; expected a run file: write run.toml beside it, "
        'with `federation = "federation.toml"`, and name that',
    ),
    Case(
        "run file bad TOML",
        "run .",
        text(RUN, "rounds == 3"),
        2,
        "file 'run.toml' is not valid TOML: invalid value (at line 1, column 9)",
    ),
    Case(
        "federation of a run missing",
        "run .",
        remove(FEDERATION),
        3,
        "file 'federation.toml' does not exist; check the path",
    ),
    command(
        "unknown study",
        "run phantom-mixd",
        "no study or run file named 'phantom-mixd'; did you mean 'phantom-mixed'? (`consilia studies` "
        f"lists all {len(studies())})",
    ),
    # --- run.toml: its keys
    asked(
        "unknown key",
        run(round=3),
        "unknown key 'round'; did you mean 'rounds'? (known here: study, federation, method, "
        "rounds, seed, learner, training, evaluate, engine, participation, simulate)",
    ),
    asked(
        "unknown key of learner",
        run(learner={"net": "unet-tiny"}),
        "unknown key 'learner.net'; did you mean 'network'? (known here: name, network, objective, "
        "normalise, mean, deviation, class_weight, init)",
    ),
    asked(
        "unknown key of training",
        run(training={"lerning_rate": 0.1}),
        "unknown key 'training.lerning_rate'; did you mean 'learning_rate'? (known here: batch,"
        " epochs, steps, optimizer, learning_rate, weight_decay, betas, momentum, "
        "keep_optimizer, schedule, power, augment, crop, intensity)",
    ),
    asked(
        "unknown key of evaluate",
        run(evaluate={"ever": 2}),
        "unknown key 'evaluate.ever'; did you mean 'every'? (known here: every, selection, "
        "validation, unit, per_case, portraits, pictures)",
    ),
    asked(
        "unknown key of engine",
        run(engine={"thread": 2}),
        "unknown key 'engine.thread'; did you mean 'threads'? (known here: device, capture, "
        "compile, kernels, precision, lanes, threads, memory_mib, checkpoint_every, ledger, track)",
    ),
    asked(
        "unknown key of participation",
        run(participation={"min_site": 2}),
        "unknown key 'participation.min_site'; did you mean 'min_sites'? (known here: "
        "min_sites, fraction, absent, joins)",
    ),
    asked(
        "unknown key of simulate",
        run(simulate={"sead": 2}),
        "unknown key 'simulate.sead'; did you mean 'seed'? (known here: seed, completeness, margin)",
    ),
    asked("no rounds", run(rounds=0), "'rounds' is 0; expected at least 1"),
    asked("rounds as text", run(rounds="5"), "'rounds' is '5'; expected a whole number"),
    command(
        "rounds not whole",
        "run . --set rounds=2.5",
        "study/run.toml: 'rounds' is 2.5; expected a whole number",
    ),
    command(
        "negative seed",
        "run . --seed -1",
        "study/run.toml: 'seed' is -1; expected at least 0",
    ),
    command(
        "huge seed",
        "run . --seed 4294967296",
        "study/run.toml: 'seed' is 4294967296; expected less than 2147483648",
    ),
    asked(
        "negative learning rate",
        run(training={"learning_rate": -1}),
        "'training.learning_rate' is -1; expected more than 0",
    ),
    asked(
        "learning rate nan",
        run(training={"learning_rate": float("nan")}),
        "'training.learning_rate' is nan; expected a finite number",
    ),
    command(
        "learning rate inf",
        "run . --set training.learning_rate=inf",
        "study/run.toml: 'training.learning_rate' is inf; expected a finite number",
    ),
    asked(
        "batch of nothing", run(training={"batch": 0}), "'training.batch' is 0; expected at least 1"
    ),
    asked(
        "three betas",
        run(training={"betas": [0.9, 0.99, 0.999]}),
        "'training.betas' has 3 entries; expected 2",
    ),
    asked(
        "beta too large",
        run(training={"betas": [0.9, 1.0]}),
        "entry 2 of 'training.betas' is 1.0; expected less than 1",
    ),
    asked(
        "bad schedule",
        run(training={"schedule": "ploy"}),
        "'training.schedule' is 'ploy'; expected one of 'constant', 'poly'; did you mean 'poly'?",
    ),
    asked(
        "best without validation",
        run(evaluate={"selection": "best_validation"}),
        "evaluate.selection 'best_validation' needs images to select on; set "
        "`evaluate.validation` to the part of each site's training patients to hold out",
    ),
    command(
        "fraction nan",
        "run . --set participation.fraction=nan",
        "study/run.toml: 'participation.fraction' is nan; expected a finite number",
    ),
    asked(
        "too many sites needed",
        run(participation={"min_sites": 3}),
        "participation.min_sites is 3, but the federation has 2 sites; use at most 2",
    ),
    asked(
        "unknown site absent",
        run(participation={"absent": {"ana": [1]}}),
        "participation.absent names the site 'ana', but the federation's sites are 'anna' and "
        "'bo'; did you mean 'anna'?",
    ),
    asked(
        "unknown site joins",
        run(participation={"joins": {"cleo": 2}}),
        "participation.joins names the site 'cleo', but the federation's sites are 'anna' and "
        "'bo'; correct the name",
    ),
    asked(
        "unknown site completeness",
        run(simulate={"completeness": {"boo": 0.5}}),
        "simulate.completeness names the site 'boo', but the federation's sites are 'anna' and "
        "'bo'; did you mean 'bo'?",
    ),
    asked(
        "study above",
        run(study="../elsewhere"),
        "study '../elsewhere' must be a plain name that does not begin with '.', '@' or a space and "
        "has no '/'; run folders are named after it",
    ),
    asked(
        "bad tracker",
        run(engine={"track": ["tensorbord"]}),
        "entry 1 of 'engine.track' is 'tensorbord'; expected one of 'tensorboard', 'mlflow'; "
        "did you mean 'tensorboard'?",
    ),
    asked(
        "method as text",
        run(method="fedprox"),
        "'method' is a single value; expected a table: write [method]",
    ),
    # --- what a run cannot do
    command(
        "unknown method",
        "run . --method fedprx",
        f"no method named 'fedprx'; did you mean 'fedprox'? (`consilia methods` lists all {len(METHODS)})",
    ),
    command(
        "unknown setting",
        "run . --method fedprox --set method.mue=1",
        "method 'fedprox' has no setting 'mue'; did you mean 'mu'? (it has: counted, mu, rows, unknown)",
    ),
    command(
        "setting of the wrong type",
        "run . --method fedprox --set method.mu=big",
        "method.mu of 'fedprox' is 'big'; expected a number",
    ),
    command(
        "setting out of its choices",
        "run . --set method.rows=som",
        "method.rows of 'fedavg' is 'som'; expected one of 'all', 'labelled'",
    ),
    command(
        "unknown network",
        "run . --set learner.network=unet-tinny",
        f"no network named 'unet-tinny'; did you mean 'unet-tiny'? (known: {', '.join(NETWORKS)})",
    ),
    command(
        "network for another task",
        "run . --set learner.network=cnn-small",
        f"network 'cnn-small' does not fit a segmentation task; choose one of {', '.join(UNETS)}",
    ),
    command(
        "objective for another task",
        "run . --set learner.objective=bce",
        "objective 'bce' does not fit a segmentation task with exclusive labels; choose one of "
        "dice, dice-foreground, partial-ce",
    ),
    command(
        "one-label objective",
        "run . --set learner.objective=dice-foreground",
        "objective 'dice-foreground' is for one label, the federation has 2; use 'dice'",
    ),
    command(
        "cuda without a GPU",
        "run . --set engine.device=cuda",
        "engine.device is 'cuda', but PyTorch sees no GPU here; use 'cpu' or 'auto'",
    ),
    command(
        "change without a value",
        "run . --set rounds",
        "--set rounds: expected key=value, for example training.batch=4",
    ),
    command(
        "change into a value",
        "run . --set rounds.first=3",
        "--set rounds.first: 'rounds' is a single value, not a table; change 'rounds' itself",
    ),
    command(
        "method said twice",
        "run . --method fedavg --set method.name=fedprox",
        "--set method.name and --method fedavg both say what 'method.name' is; leave out one of them",
    ),
    command(
        "method said twice, as a table",
        'run . --method fedavg --set method={name="fedprox"}',
        "--set method and --method fedavg both say what 'method.name' is; leave out one of them",
    ),
    command(
        "rounds said twice",
        "run . --rounds 1 --set rounds=2",
        "--set rounds and --rounds 1 both say what 'rounds' is; leave out one of them",
    ),
    command(
        "seed said twice",
        "plan . --seed 0 --set seed=1",
        "--set seed and --seed 0 both say what 'seed' is; leave out one of them",
    ),
    command(
        "too many threads",
        "run . --set engine.threads=100000",
        "study/run.toml: 'engine.threads' is 100000; expected at most 1024",
    ),
    command(
        "setting left out",
        "run phantom-mixed@",
        "phantom-mixed/run.toml: '@' lacks the name of a setting; it has 'lll', 'uul', 'uil', "
        "'iul', 'iil', 'ubl', 'bul', 'ibl', 'bil', 'bbl' and 'long'; add it, or leave out the sign",
    ),
    command(
        "study with too long a name",
        f"run {LONG}",
        f"study '{LONG}' cannot be looked up: file name too long; name another one",
    ),
    command(
        "unknown option",
        "run . --ronds 3",
        "no option '--ronds'; did you mean '--rounds'? (`consilia run --help` lists what there is)",
    ),
    command(
        "option of the wrong type",
        "run . --rounds three",
        "invalid value for '--rounds': 'three' is not a valid integer (`consilia run --help` "
        "lists what there is)",
    ),
    command(
        "unknown command",
        "rn .",
        "no such command 'rn'; did you mean 'run'? (`consilia --help` lists what there is)",
    ),
    Case(
        "no usable labels",
        "run .",
        federation(site=[{"name": "anna", "data": "anna", "supervision": "none"}]),
        3,
        "method 'fedavg' does not fit federation 'toy': it needs at least one site whose "
        "annotations mark pixels or images; none does; add annotations",
    ),
    Case(
        "no usable labels, planned",
        "plan .",
        federation(site=[{"name": "anna", "data": "anna", "supervision": "none"}]),
        3,
        "method 'fedavg' does not fit federation 'toy': it needs at least one site whose "
        "annotations mark pixels or images; none does; add annotations",
    ),
    command(
        "images too small for a network",
        "run . --set learner.network=unet-small --set federation.image.size=[8,8]",
        "network 'unet-small' takes images from 16 pixels a side, but "
        "`image.size` is 8 x 8; choose a larger size or a smaller network",
    ),
    Case(
        "common test set missing",
        "run . --seed 1",
        federation(test="gone"),
        3,
        "folder 'gone' of the common test set does not exist; check `data` and where relative "
        "paths begin",
    ),
    Case(
        "unknown dataset",
        "run .",
        site(data="dataset:phantom-mix/ashford"),
        2,
        "no dataset named 'phantom-mix'; did you mean 'phantom-mixed'? "
        f"(`consilia datasets` lists all {len(DATASETS)})",
    ),
    Case(
        "unknown site of a dataset",
        "run .",
        federation(
            labels=["lesion"], site=[{"name": "a", "data": "dataset:phantom-mixed/ashfort"}]
        ),
        2,
        "phantom 'phantom-mixed' has no site 'ashfort'; its sites are 'ashford', 'bergen' and "
        "'cusco'; did you mean 'ashford'?",
    ),
    command(
        "unknown preview",
        "datasets --preview phantom-mixt",
        "no dataset named 'phantom-mixt'; did you mean 'phantom-mixed'? "
        f"(`consilia datasets` lists all {len(DATASETS)})",
    ),
    command(
        "preview of no type",
        "datasets --preview phantom-mixed --out sheet",
        "--out sheet: expected a .png file in a folder that exists",
    ),
    Case(
        "preview over a file",
        "datasets --preview phantom-mixed --out sheet.png",
        text("sheet.png", "mine"),
        2,
        "--out sheet.png is there already, and nothing is written over; choose another --out",
    ),
    command(
        "init missing",
        "run . --set learner.init=gone.safetensors",
        "learner.init is 'gone.safetensors', but there is no such file; paths begin where you "
        "run this",
    ),
    command(
        "init not safetensors",
        "run . --set learner.init=run.toml",
        "learner.init 'run.toml' is not a .safetensors file of weights; name another one",
    ),
    Case(
        "init of another network",
        "run . --set learner.init=a.safetensors",
        lambda: save_file({"x": torch.zeros(2)}, "a.safetensors"),
        2,
        "learner.init 'a.safetensors' does not fit the network: of 'decoder.ups.0.block.0.bias'"
        " it has none and the network shape (6,); start from a run with the same network "
        "and channels",
    ),
    # --- run folders
    Case(
        "resume no run",
        "resume notes",
        plain_folder,
        2,
        "'notes' is not a run folder: it has no spec.toml; name the folder that `consilia run` "
        "wrote",
    ),
    command(
        "resume nothing",
        "resume runs/gone",
        "'runs/gone' is not a run folder: there is no such folder; name the folder that "
        "`consilia run` wrote",
    ),
    Case(
        "report no run",
        "report notes",
        plain_folder,
        2,
        "'notes' is not a run folder: it has no spec.toml; name the folder that `consilia run` "
        "wrote",
    ),
    Case(
        "cite no run",
        "cite notes",
        plain_folder,
        2,
        "'notes' is not a run folder: it has no spec.toml; name the folder that `consilia run` "
        "wrote",
    ),
    command(
        "cite unknown method",
        "cite fedavgg",
        f"no method named 'fedavgg'; did you mean 'fedavg'? (`consilia methods` lists all {len(METHODS)})",
    ),
    command(
        "out holds another run",
        "run . --seed 5 --out runs/toy/fedavg-0",
        "run folder 'runs/toy/fedavg-0' holds another run (fedavg-0 of 'toy', with other "
        "settings); choose another --out, or `consilia resume` the one that is there",
    ),
    Case(
        "out is not empty",
        "run . --out notes",
        plain_folder,
        2,
        "folder 'notes' is not empty and holds no run; choose another --out",
    ),
    command(
        "out is a file",
        "run . --out run.toml",
        "'run.toml' is a file, not a folder; choose another --out",
    ),
    command(
        "out too long",
        f"run . --out {LONG}",
        f"folder '{LONG}' cannot be used: file name too long; choose another --out",
    ),
    command(
        "compare with out too long",
        f"compare . --methods fedavg --seeds 0 --out {LONG}",
        f"folder '{LONG}/toy/fedavg-0' cannot be used: file name too long; choose another --out",
    ),
    command(
        "resume too long",
        f"resume {LONG}",
        f"folder '{LONG}' cannot be used: file name too long; name the folder that `consilia run` "
        "wrote",
    ),
    command(
        "weaken too complete",
        "weaken federation.toml --completeness 1.5",
        "--completeness 1.5: expected a share of objects above 0 and at most 1",
    ),
    command(
        "weaken boxes that miss objects",
        "weaken federation.toml --form box --completeness 0.5",
        "--completeness 0.5: only masks can miss objects, but --form is box; leave out --completeness, "
        "or use --form mask",
    ),
    Case(
        "resume with progress damaged",
        f"resume {FINISHED}",
        unfinished(text(f"{LATEST}/progress.json", "{")),
        4,
        f"checkpoint '{LATEST}' cannot be used: file 'progress.json' is missing, damaged or not ours; "
        f"{FROM_ONE}",
    ),
    Case(
        "resume with progress of another shape",
        f"resume {FINISHED}",
        unfinished(text(f"{LATEST}/progress.json", '{"round": 1, "admitted": 3}')),
        4,
        f"checkpoint '{LATEST}' cannot be used: file 'progress.json' is missing, damaged or not ours; "
        f"{FROM_ONE}",
    ),
    Case(
        "resume with state damaged",
        f"resume {FINISHED}",
        unfinished(cut_short(CHECKPOINT)),
        4,
        f"checkpoint '{LATEST}' cannot be used: file 'server.safetensors' cannot be read as a saved "
        f"state; it is damaged, cut short or not ours; {FROM_ONE}",
    ),
    Case(
        "resume with a site's memory damaged",
        f"resume {FINISHED}",
        unfinished(cut_short(f"{LATEST}/memories/anna/memory.safetensors")),
        4,
        f"checkpoint '{LATEST}' cannot be used: what site 'anna' remembers ('anna/memory.safetensors') "
        f"is damaged, cut short or not ours; {FROM_ONE}",
    ),
    Case(
        "resume with numbers of another shape",
        f"resume {FINISHED}",
        text(f"{FINISHED}/metrics.json", "{}"),
        2,
        f"metrics.json of run '{FINISHED}' does not hold what a run writes there; remove it and "
        "`consilia resume` the run",
    ),
    Case(
        "report numbers of another shape",
        f"report {FINISHED}",
        text(f"{FINISHED}/metrics.json", "[]"),
        2,
        f"metrics.json of run '{FINISHED}' does not hold what a run writes there; remove it and "
        "`consilia resume` the run",
    ),
    Case(
        "report where no page can be",
        f"report {FINISHED}",
        lambda: Path(FINISHED, "report.html").mkdir(),
        2,
        f"page '{FINISHED}/report.html' cannot be written: is a directory; copy the run folder "
        "elsewhere",
    ),
    Case(
        "report damaged cases",
        f"report {FINISHED}",
        text(f"{FINISHED}/cases.json", "{"),
        2,
        f"cases.json of run '{FINISHED}' is damaged; remove it and metrics.json and `consilia resume` "
        "the run",
    ),
    Case(
        "report damaged findings",
        f"report {FINISHED}",
        text(f"{FINISHED}/findings.json", "{"),
        2,
        f"findings.json of run '{FINISHED}' is damaged; remove it and metrics.json and "
        "`consilia resume` the run",
    ),
    Case(
        "report findings of another shape",
        f"report {FINISHED}",
        text(f"{FINISHED}/findings.json", '{"affinity": {"anna": 1}, "maps": {}}'),
        2,
        f"findings.json of run '{FINISHED}' does not hold what a run writes there; remove it and "
        "metrics.json and `consilia resume` the run",
    ),
    Case(
        "report findings with a ragged map",
        f"report {FINISHED}",
        text(f"{FINISHED}/findings.json", '{"affinity": {}, "maps": {"anna": [[1, 2], [3]]}}'),
        2,
        f"findings.json of run '{FINISHED}' does not hold what a run writes there; remove it and "
        "metrics.json and `consilia resume` the run",
    ),
    Case(
        "report damaged portraits",
        f"report {FINISHED}",
        lambda: Path(f"{FINISHED}/portraits.json").write_bytes(b"\xff\x00"),
        2,
        f"portraits.json of run '{FINISHED}' is damaged; remove it, and the report goes without "
        "what it shows",
    ),
    Case(
        "report portraits of another shape",
        f"report {FINISHED}",
        text(f"{FINISHED}/portraits.json", '["anna", "bo"]'),
        2,
        f"portraits.json of run '{FINISHED}' does not hold what a run writes there; remove it, and "
        "the report goes without what it shows",
    ),
    Case(
        "report portraits of points that do not fit",
        f"report {FINISHED}",
        text(
            f"{FINISHED}/portraits.json",
            '{"anna": {"points": [[1, 2]], "follow": {}}, "bo": {"points": [[1]], "follow": {}}}',
        ),
        2,
        f"portraits.json of run '{FINISHED}' does not hold what a run writes there; remove it, and "
        "the report goes without what it shows",
    ),
    Case(
        "report rounds of another shape",
        f"report {FINISHED}",
        text(f"{FINISHED}/rounds.jsonl", '{"round": 1}\n{"round": "two"}\n'),
        2,
        f"line 2 of rounds.jsonl of run '{FINISHED}' does not hold what a run writes there; put the "
        "file back as it was, or begin the run again with another --out",
    ),
    Case(
        "report a ledger of another shape",
        f"report {FINISHED}",
        text(f"{FINISHED}/ledger.jsonl", "[]\n"),
        2,
        f"line 1 of ledger.jsonl of run '{FINISHED}' does not hold what a run writes there; put the "
        "file back as it was, or begin the run again with another --out",
    ),
    Case(
        "report a ledger damaged in the middle",
        f"report {FINISHED}",
        lambda: Path(f"{FINISHED}/ledger.jsonl").write_bytes(b"\x00\xff\n{}\n"),
        2,
        f"line 1 of ledger.jsonl of run '{FINISHED}' does not hold what a run writes there; put the "
        "file back as it was, or begin the run again with another --out",
    ),
    Case(
        "spec of a run damaged",
        f"resume {FINISHED}",
        text(f"{FINISHED}/spec.toml", "study = 3"),
        2,
        "spec.toml of run 'runs/toy/fedavg-0': 'study' is 3; expected text",
    ),
    Case(
        "spec of a run changed by hand",
        f"resume {FINISHED}",
        unfinished(by_hand(f"{FINISHED}/spec.toml", "seed = 0", "seed = 7")),
        1,
        f"spec.toml of run '{FINISHED}' is not the one that its rounds were made with; put it back as "
        "it was, or begin a new run with another --out",
    ),
    Case(
        "progress of another round",
        f"resume {FINISHED}",
        unfinished(by_hand(f"{LATEST}/progress.json", '"round": 1', '"round": 99')),
        4,
        f"checkpoint '{LATEST}' cannot be used: file 'progress.json' is of round 99; expected 1; "
        f"{FROM_ONE}",
    ),
    Case(
        "data of a run is not ours",
        f"resume {FINISHED}",
        unfinished(text(f"{FINISHED}/data.json", "[1]")),
        2,
        f"data.json of run '{FINISHED}' does not hold what a run writes there; if images and labels "
        "are the same as before, remove it and `consilia resume` the run",
    ),
    Case(
        "lock of a run leads elsewhere",
        f"resume {FINISHED}",
        unfinished(link(f"{FINISHED}/.lock", "run.toml")),
        1,
        f"lock '{FINISHED}/.lock' is a link or no plain file; remove it, and give the command again",
    ),
    Case(
        "rounds of a run are a pipe",
        f"resume {FINISHED}",
        unfinished(pipe(f"{FINISHED}/rounds.jsonl")),
        2,
        f"rounds.jsonl of run '{FINISHED}' cannot be read: it is not a plain file; let this user "
        "read it, or put back what was there",
    ),
    Case(
        "checkpoint is a pipe",
        f"predict {FINISHED} new",
        several(new_image, pipe(CHECKPOINT)),
        2,
        f"checkpoint '{LATEST}' cannot be used: 'server.safetensors' cannot be read: it is not a plain "
        "file; let this user read it, or put back what was there",
    ),
    Case(
        "predict no run",
        "predict notes anna",
        plain_folder,
        2,
        "'notes' is not a run folder: it has no spec.toml; name the folder that `consilia run` "
        "wrote",
    ),
    Case(
        "predict unknown site",
        f"predict {FINISHED} new --site ana",
        new_image,
        2,
        "run 'runs/toy/fedavg-0' has no site 'ana'; did you mean 'anna'? (its sites: 'anna' and"
        " 'bo')",
    ),
    Case(
        "predict into a full folder",
        f"predict {FINISHED} new --out notes",
        several(new_image, plain_folder),
        2,
        "folder 'notes' is not empty, and nothing is written over; choose another --out",
    ),
    Case(
        "predict into a file",
        f"predict {FINISHED} new --out run.toml",
        new_image,
        2,
        "'run.toml' is a file, not a folder; choose another --out",
    ),
    command(
        "predict no folder",
        f"predict {FINISHED} gone",
        "folder 'gone' does not exist; check the path",
        code=3,
    ),
    command(
        "predict a file that is no image",
        f"predict {FINISHED} run.toml",
        "file 'run.toml' is no image; expected a folder, or a file of type '.png', '.jpg', '.jpeg', "
        "'.tif', '.tiff', '.bmp', '.npy', '.nii', '.nii.gz' or '.dcm'",
        code=3,
    ),
    Case(
        "predict no images",
        f"predict {FINISHED} new",
        lambda: Path("new").mkdir(),
        3,
        "folder 'new' holds no images; expected files of type '.png', '.jpg', '.jpeg', '.tif', "
        "'.tiff', '.bmp', '.npy', '.nii', '.nii.gz' and '.dcm'",
    ),
    Case(
        "predict a damaged image",
        f"predict {FINISHED} new",
        several(new_image, cut_short("new/x.png")),
        3,
        "image 'x.png' of folder 'new' cannot be read; it is damaged, cut short or of another "
        "type: export it again",
    ),
    Case(
        "predict a damaged image among others",
        f"predict {FINISHED} bo/images --out masks",
        cut_short("bo/images/train-05.png"),
        3,
        "image 'train-05.png' of folder 'images' cannot be read; it is damaged, cut short or of "
        "another type: export it again",
    ),
    command(
        "predict where no folder can be",
        f"predict {FINISHED} bo/images --out run.toml/masks",
        "folder 'run.toml/masks' cannot be written: file exists; choose another --out",
    ),
    Case(
        "predict without a checkpoint",
        f"predict {FINISHED} new",
        several(new_image, remove(f"{FINISHED}/checkpoints")),
        2,
        "run 'runs/toy/fedavg-0' has no checkpoint yet; `consilia resume` goes on with it",
    ),
    Case(
        "predict a damaged checkpoint",
        f"predict {FINISHED} new",
        several(new_image, cut_short(CHECKPOINT)),
        4,
        f"checkpoint '{LATEST}' cannot be used: file 'server.safetensors' cannot be read as a saved "
        "state; it is damaged, cut short or not ours; begin the run again with another --out",
    ),
    # --- compare
    command(
        "compare bad seeds",
        "compare . --seeds a,b",
        "--seeds a,b: expected whole numbers, comma-separated, for example 0,1,2",
    ),
    command(
        "compare no seeds",
        "compare . --seeds ,",
        "--seeds ,: expected whole numbers, comma-separated, for example 0,1,2",
    ),
    command(
        "compare unknown metric",
        "compare . --metric dise",
        "no metric named 'dise'; did you mean 'dice'? (known: dice, iou, hd95, sensitivity, "
        "precision, auroc, average_precision, accuracy, macro_f1, recall)",
    ),
    command(
        "compare metric of another task",
        "compare . --metric auroc",
        "metric 'auroc' does not fit a segmentation task; choose one of dice, iou, hd95, "
        "sensitivity, precision",
    ),
    command(
        "compare unknown baseline",
        "compare . --methods fedavg,local --baseline fedavgg",
        "baseline 'fedavgg' is not among the compared methods 'fedavg' and 'local'; did you "
        "mean 'fedavg'?",
    ),
    command(
        "compare unknown method",
        "compare . --methods fedavg,fedprx",
        f"no method named 'fedprx'; did you mean 'fedprox'? (`consilia methods` lists all {len(METHODS)})",
    ),
    command(
        "compare half a setting",
        "compare . --methods fedprox:mu",
        "--methods fedprox:mu: expected NAME or NAME:SETTING=VALUE, for example fedprox:mu=0.1",
    ),
    command(
        "compare no methods",
        "compare . --methods ,",
        "--methods is empty; name at least one, for example --methods local,fedavg",
    ),
    command(
        "compare a method by another name",
        "compare . --methods fedavg --set method.name=fedprox",
        "--set method.name: a comparison takes 'method.name' from --methods; name it there",
    ),
    command(
        "compare a method by another name, as its setting",
        "compare . --methods fedavg:name=fedprox",
        "--methods fedavg:name=fedprox: expected NAME or NAME:SETTING=VALUE, for example "
        "fedprox:mu=0.1",
    ),
    command(
        "compare with another seed",
        "compare . --set seed=4",
        "--set seed: a comparison takes 'seed' from --seeds; name it there",
    ),
    command(
        "compare with rounds said twice",
        "compare . --rounds 1 --set rounds=2",
        "--set rounds and --rounds 1 both say what 'rounds' is; leave out one of them",
    ),
    Case(
        "compare numbers of another shape",
        "compare . --methods fedavg --seeds 0",
        text(f"{FINISHED}/metrics.json", "{}"),
        2,
        f"metrics.json of run '{FINISHED}' does not hold what a run writes there; remove it and "
        "`consilia resume` the run",
    ),
    Case(
        "compare cases of another shape",
        "compare . --methods fedavg --seeds 0",
        text(f"{FINISHED}/cases.json", '{"a": 3}'),
        2,
        f"cases.json of run '{FINISHED}' does not hold what a run writes there; remove it and "
        "metrics.json and `consilia resume` the run",
    ),
    Case(
        "compare another protocol",
        "compare . --methods fedavg --seeds 0,1 --collect",
        other_protocol,
        2,
        "run 'fedavg-1' has rounds '9', others have '1'; only runs of one protocol can be compared",
    ),
    command(
        "compare another run in its place",
        "compare . --methods fedavg --seeds 0 --rounds 2",
        "run folder 'runs/toy/fedavg-0' holds another run (fedavg-0 of 'toy', with other "
        "settings); choose another --out, or `consilia resume` the one that is there",
    ),
    Case(
        "compare damaged numbers",
        "compare . --methods fedavg --seeds 0",
        text(f"{FINISHED}/metrics.json", "{"),
        2,
        "metrics.json of run 'runs/toy/fedavg-0' is damaged; remove it and `consilia resume` "
        "the run",
    ),
    # --- images and tables
    data(
        "site folder missing",
        remove("anna"),
        "folder 'anna' of site 'anna' does not exist; check `data` and where relative paths begin",
    ),
    data(
        "site without images",
        remove("anna/images"),
        "folder 'anna' of site 'anna' has no folder 'images'; put its images there",
    ),
    data(
        "site with no image",
        no_image,
        "site 'anna' has no images that can be read in 'images'; expected .png, .jpg, .jpeg, "
        ".tif, .tiff, .bmp, .npy, .nii, .nii.gz, .dcm",
    ),
    data(
        "mask missing",
        remove("anna/masks/train-00.png"),
        "image 'train-00.png' of site 'anna' has no mask; add 'masks/train-00.png' or remove "
        "the image",
    ),
    data(
        "mask of another size",
        other_mask(np.zeros((8, 10))),
        "mask 'train-00.png' of site 'anna' is 10 x 8 pixels (width x height), but its image is"
        " 16 x 16; export both in the same size",
    ),
    data(
        "mask of another class",
        other_mask(np.full((16, 16), 7)),
        "mask 'train-00.png' of site 'anna' holds class 7, but the federation has 2 labels "
        "('round', 'square'); map its values to 0 to 2",
    ),
    data(
        "image with NaN",
        with_nan,
        "image 'train-00.npy' of site 'anna' holds 2 values that are NaN or infinite; expected "
        "finite numbers: replace them before you save it",
    ),
    data(
        "image cut short",
        cut_short("anna/images/train-00.png"),
        "image 'train-00.png' of site 'anna' cannot be read; it is damaged, cut short or of "
        "another type: export it again",
    ),
    data(
        "image empty",
        lambda: Path("anna/images/train-00.png").write_bytes(b""),
        "image 'train-00.png' of site 'anna' is an empty file (0 bytes); copy or export it again",
    ),
    data(
        "image outside",
        link_out,
        "image 'train-00.png' of site 'anna' leads outside its folder by a link; copy the file "
        "itself into the folder",
    ),
    data(
        "no test images",
        all_train,
        "no site has test images, so nothing could be judged; mark some as 'test' in cases.csv",
    ),
    data(
        "all patients held out",
        run(evaluate={"validation": 0.99}),
        "site 'anna' has 6 training patients, and evaluate.validation = 0.99 would hold out all of "
        "them; set a smaller part, or list validation cases in its cases.csv",
    ),
    data(
        "one patient held out",
        several(one_patient, run(evaluate={"validation": 0.5})),
        "site 'anna' has 1 training patient and cannot hold one out; set evaluate.validation = 0, or "
        "list validation cases in its cases.csv",
    ),
    data(
        "table without a column",
        without_column,
        "cases.csv of site 'anna' has no column 'patient'; expected image, patient, split",
    ),
    data(
        "table for classes missing",
        classify(),
        "site 'anna' has no table labels.csv, which says what its images show; add one with the"
        " columns image, round, square",
    ),
    data(
        "boxes missing",
        site(supervision="box"),
        "site 'anna' has no table boxes.csv, but its supervision is 'box'; add one with the "
        "columns image, label, left, top, right, bottom",
    ),
    # --- names, dates and numbers that no file should hold
    declared(
        "federation named by a date",
        several(
            federation(name=None),
            lambda: FEDERATION.write_text(f"name = 2020-01-01\n{FEDERATION.read_text()}"),
        ),
        "'name' is 2020-01-01; expected no date or time: put text in quotes",
    ),
    declared(
        "federation without a name",
        federation(name=""),
        "federation name '' must be 1 to 63 characters without '/' and ',' and without space at its "
        "ends; rename it",
    ),
    declared(
        "federation name with an escape",
        federation(name="a\x1b[31mred"),
        "federation name 'a\\x1b[31mred' must be 1 to 63 characters without '/' and ',' and without "
        "space at its ends; rename it",
    ),
    declared(
        "region with a slash",
        federation(regions={"a/b": ["round"]}),
        "region 'a/b' must be 1 to 63 characters without '/' and ',' and without space at its ends; "
        "rename it",
    ),
    declared(
        "region named as another label",
        federation(regions={"round": ["square"]}),
        "region 'round' has the name of a label that it does not unite; rename it, or add 'round' to it",
    ),
    asked(
        "study of a space",
        run(study=" "),
        "study ' ' must be a plain name that does not begin with '.', '@' or a space and has no '/'; "
        "run folders are named after it",
    ),
    Case(
        "endless number of rounds",
        "run .",
        text(RUN, f"rounds = {'9' * 5000}"),
        2,
        "file 'run.toml' cannot be read: a whole number has thousands of digits; write a smaller one",
    ),
    command(
        "endless number in a change",
        f"run . --set rounds={'9' * 5000}",
        "--set rounds: a whole number has thousands of digits; write a smaller one",
    ),
    # --- what a command line would drop in silence
    command(
        "no lanes",
        "run . --set engine.lanes=0",
        "study/run.toml: 'engine.lanes' is 0; expected at least 1 or 'auto'",
    ),
    command(
        "a change said twice",
        "run . --set rounds=1 --set rounds=2",
        "--set rounds=1 and --set rounds=2 both say what 'rounds' is; leave out one of them",
    ),
    command(
        "a part of a list changed",
        "run . --set federation.site.0.name=x",
        "--set federation.site.0.name: 'federation.site' is a list, of which no part can be changed "
        "alone; give all of it (--set federation.site=[...]), or change the file",
    ),
    command(
        "compare a setting said by both options",
        "compare . --methods fedavg,fedprox:mu=1 --set method.mu=2",
        "--set method.mu and --methods fedprox:mu=1 both say what 'mu' is; leave out one of them",
    ),
    command(
        "compare a setting said twice",
        "compare . --methods fedprox:mu=1:mu=2",
        "--methods fedprox:mu=1:mu=2 says more than once what 'mu' is; say it once",
    ),
    command(
        "contact sheet of nothing",
        "datasets --out x.png",
        "--out x.png is for a contact sheet, but none is asked for; add --preview NAME, or leave "
        "--out out",
    ),
    command(
        "card and contact sheet at once",
        "datasets --card breast --preview phantom-mixed",
        "--card breast and --preview phantom-mixed are two commands; give one of them at a time",
    ),
    asked(
        "nobody in a round",
        run(rounds=3, participation={"absent": {"anna": [2, 3], "bo": [2]}}),
        "participation leaves nobody in round 2: each site is absent then, or joins later; let at "
        "least one site take part in it",
    ),
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
