"""Every built-in study under every setting: valid, as the papers have it, and readable from its layout."""

import shutil
import tomllib

import numpy as np
import pytest
import torch

from consilia.datasets.phantoms import load_phantom
from consilia.datasets.registry import DATASETS, parse_reference
from consilia.declare import Supervision
from consilia.engines.inprocess import load_own, load_sites
from consilia.errors import DataError, UsageError
from consilia.methods import METHODS, make_method
from consilia.ops.pseudo import fills
from consilia.readers.site import load_common
from consilia.runs.spec import STUDIES, read_spec, studies
from consilia.training.learners import make_learner
from consilia.weaken import FEDPSL_A, FEDPSL_B, PRESETS, deal_labels, fedia_lung, fedia_ms
from tests.datasets.test_pack import write_pack
from tests.datasets.trees import (
    disc,
    pixels,
    save,
    save_metaimage,
    save_nifti,
    save_pairs,
    table,
    volume,
)

FORMS = {"l": "mask", "b": "box", "i": "image", "u": "none"}
#: Sites in the order of the papers' letters.
LETTERS = {
    "phantom-mixed": ("ashford", "bergen", "cusco"),
    "phantom-fluids": ("tartu", "utrecht", "vaasa"),
    "breast": ("busi", "busis", "udiat"),
    "retouch": ("cirrus", "topcon", "spectralis"),
    "skin": ("rosendahl", "vidir_modern", "vienna_dias", "vidir_molemax"),
    "skinseg": ("rosendahl", "vidir_modern", "vienna_dias", "vidir_molemax"),
}
BREAST = "lll uul uil iul iil ubl bul ibl bil bbl"
SKIN = "llll uulu uulb ublb bblb"
WORDS = {
    "phantom-mixed": BREAST,
    "breast": BREAST,
    "phantom-fluids": "lll uul iil bbl",
    "retouch": "lll uul iil bbl",
    "skin": SKIN,
    "skinseg": SKIN,
}
TABLE_6 = ("nv bkl vasc", "nv bcc df", "mel bcc df", "bcc akiec df", "bcc akiec bkl")
TABLE_5 = (
    *("consolidation edema pneumothorax", "pneumonia fibrosis hernia"),
    *("mass pleural-thickening infiltration", "effusion atelectasis cardiomegaly"),
    *("emphysema nodule pneumothorax", "nodule pleural-thickening fibrosis"),
    *("cardiomegaly hernia infiltration", "consolidation hernia infiltration"),
)


def run_file(study):
    return tomllib.loads((STUDIES / study / "run.toml").read_text())


def named(study):
    """Return a study as it is declared, and under each of its settings."""
    return [study, *(f"{study}@{setting}" for setting in run_file(study).get("settings", {}))]


EVERY = [name for study in studies() for name in named(study)]


def test_the_studies_that_the_issues_ask_for():
    assert set(studies()) == {
        *(f"phantom-{kind}" for kind in ["mixed", "disc", "lesions", "findings", "skin", "fluids"]),
        *("skinseg", "faz", "ham", "nih", "nuclei", "mslesion"),
        *("breast", "skin", "retouch", "ms", "lung"),
        *("nih-a", "nih-b", "nih-lsm", "isic", "odoc", "faz-full", "polyp", "prostate"),
    }


@pytest.mark.parametrize("name", EVERY)
def test_every_setting_is_valid_and_refers_to_data_that_exists(name):
    spec = read_spec(name)
    federation = spec.federation
    assert spec.study == name
    make_learner(spec.learner, federation)
    places = [site.data for site in federation.site]
    assert len(set(places)) == len(places)
    for place in (*places, federation.test):
        if place is None:
            continue
        dataset, site = parse_reference(place)
        assert dataset.card.task == federation.task
        if place != federation.test:
            known, parts = (*dataset.card.sites, *getattr(dataset, "variants", ())), site
            assert parts.partition("/fold-")[0] in known or dataset.card.parts
    marked = {label for site in federation.sites for label in federation.annotated_by(site)}
    assert marked == set(federation.labels)


@pytest.mark.parametrize("study", studies())
def test_presets_are_settings_of_their_methods(study):
    for method, values in run_file(study).get("methods", {}).items():
        if method in METHODS:  # a method may be yet to come
            make_method(method, values)


# --- what the papers say ---


@pytest.mark.parametrize("study", WORDS)
def test_letters_stand_for_forms(study):
    names = run_file(study)["settings"]
    settings = [name for name in names if name != "long" and not name.startswith("fold")]
    assert settings == WORDS[study].split()
    for word in settings:
        federation = read_spec(f"{study}@{word}").federation
        forms = [federation[site].supervision for site in LETTERS[study]]
        assert forms == [FORMS[letter] for letter in word]


@pytest.mark.parametrize(
    ("study", "grid", "count"),
    [
        ("phantom-lesions", fedia_ms, 4),
        ("nuclei", fedia_ms, 4),
        ("mslesion", fedia_ms, 4),
        ("ms", fedia_ms, 4),
        ("lung", fedia_lung, 3),
    ],
)
def test_completeness_is_the_papers_grid(study, grid, count):
    grades = [name for name in run_file(study)["settings"] if name != "long"]
    assert grades == [f"m{m}" for m in range(count)]
    for m in range(count):
        spec = read_spec(f"{study}@m{m}")
        assert [spec.simulate.completeness[site] for site in spec.federation.sites] == [
            pytest.approx(share) for share in grid(m)
        ]
        assert not any(site.complete for site in spec.federation.site)


@pytest.mark.parametrize(
    ("study", "paper"), [("phantom-mixed@uul", "breast@uul"), ("phantom-fluids@uul", "retouch@uul")]
)
def test_long_is_the_schedule_of_fedmix(study, paper):
    long, theirs = read_spec(f"{study}+long"), read_spec(paper)
    assert long.rounds == theirs.rounds
    assert long.training.schedule == theirs.training.schedule == "constant"
    assert long.training.epochs == theirs.training.epochs
    assert long.federation == read_spec(study).federation


@pytest.mark.parametrize("study", ["retouch", "phantom-fluids"])
def test_warm_up_is_the_paper_s_100_of_150_rounds(study):
    presets = run_file(study)["methods"]
    assert [round(150 * presets[name]["warmup"]) for name in ("fedst", "fedrgd")] == [100, 100]


def test_long_is_the_schedule_of_fedia():
    paper, short, long = (
        read_spec(s) for s in ("ms", "phantom-lesions@m2", "phantom-lesions@m2+long")
    )
    assert (long.rounds, long.training.batch) == (paper.rounds, paper.training.batch)
    assert long.training == short.training.model_copy(update={"batch": 4, "schedule": "constant"})
    assert long.simulate == short.simulate
    assert long.training.epochs == paper.training.epochs
    slices = [len(load_phantom("phantom-lesions", site)[0].image) for site in long.federation.sites]
    theirs = sum([626, 591, 570, 646]) / 4  # METHODS 4.5
    far = long.training.learning_rate * sum(slices) / 4 / (paper.training.learning_rate * theirs)
    assert 0.9 < far < 1.1  # rate times steps


@pytest.mark.parametrize(
    ("study", "preset"),
    [
        ("faz", "fedlppa-octa"),
        ("faz-full", "fedlppa-octa"),
        ("faz-full@drawn", "fedlppa-octa"),
        ("odoc", "fedlppa-fundus"),
        ("polyp", "fedlppa-endoscopy"),
        ("prostate", "fedlppa-prostate"),
    ],
)
def test_forms_are_those_of_fedlppa(study, preset):
    spec = read_spec(study)
    for site, recipe in zip(spec.federation.site, PRESETS[preset], strict=True):
        assert (site.supervision, site.style) == (recipe.form, recipe.style)
        if recipe.form.constrains:
            assert site.density == ("medium" if recipe.convert == "scribble" else "dense")
    if study != "faz":  # whose boxes the authors drew
        assert spec.simulate.margin == (0, 0)
    full = read_spec(f"{study.partition('@')[0]}@full").federation
    assert {(site.supervision, site.style) for site in full.site} == {("mask", "plain")}


@pytest.mark.parametrize("study", ["faz", "phantom-disc@weak"])
@pytest.mark.parametrize("steps", [20, 50, 100])
def test_sites_that_meet_less_often_take_as_many_steps(study, steps):
    usual = read_spec(study)
    rare = read_spec(f"{study}{'+' if '@' in study else '@'}steps{steps}")
    assert rare.training == usual.training.model_copy(update={"steps": steps})
    assert rare.rounds * steps == usual.rounds * usual.training.steps
    assert rare.federation == usual.federation


def test_five_forms_over_five_drawn_sites_one_of_them_a_rotated_box():
    federation = read_spec("phantom-disc@weak").federation
    forms = {(site.supervision.value, site.style) for site in federation.site}
    assert len(forms) == 5
    assert ("rotated-box", "plain") in forms


def sets_of(study):
    federation = read_spec(study).federation
    return [set(federation[site.name].annotates) for site in federation.site]


@pytest.mark.parametrize(
    ("study", "sets"),
    [
        ("ham", TABLE_6),
        ("isic", TABLE_6),
        ("phantom-skin@lsm", TABLE_6),
        ("nih-lsm", TABLE_5),
        ("nih-a", FEDPSL_A),
        ("nih-b", FEDPSL_B),
        ("phantom-findings@a", FEDPSL_A),
        ("phantom-findings@b", FEDPSL_B),
    ],
)
def test_label_sets_are_the_papers(study, sets):
    assert sets_of(study) == [set(s.split() if isinstance(s, str) else s) for s in sets]


def test_the_label_sets_of_nih_are_dealt_as_in_fedlsm():
    federation = read_spec("nih").federation
    dealt = deal_labels(federation.labels, ("a", "b", "c", "d"), 3, np.random.default_rng(1))
    assert {site.name: site.annotates for site in federation.site} == dealt


# --- made-up data in every layout ---


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Write a tiny copy of everything the studies read, but for FedPSL's 112,120 radiographs."""
    root = tmp_path_factory.mktemp("data")
    write_packs(root)
    write_pictures(root)
    write_volumes(root)
    write_h5(root)
    return root


def write_packs(root):
    rng, count = np.random.default_rng(0), 60
    masks = np.stack([disc(n, 1) for n in range(count)])
    weak = np.where(masks == 1, 1, 2).astype(np.uint8)
    weak[:, :2] = 0
    image, number = pixels(0, count, 16, 16), np.arange(count)
    names = np.array([f"i{n:03d}.png" for n in range(count)])
    drawn = ("scribble", "scribble_noisy", "keypoint", "block", "box")
    write_pack(
        root,
        "faz128",
        image=image,
        mask=masks,
        site=(number % 5).astype(np.uint8),
        split=(number >= 40).astype(np.uint8),
        group=number,
        filename=names,
        **{f"weak_{form}": weak for form in drawn},
    )
    sites = (number % 4).astype(np.uint8)
    three = {"image": pixels(1, count, 16, 16, 3), "site": sites, "filename": names}
    write_pack(root, "skinseg128", mask=masks, group=number, **three)
    write_pack(root, "ham64", label=(number % 7).astype(np.uint8), group=number, **three)
    write_pack(root, "nuclei256", image=image, mask=masks, site=sites, filename=names)
    patient = np.repeat([f"A_P{n}_T1" for n in range(6)], 10)
    write_pack(
        root,
        "mslesion224",
        image=image,
        mask=masks,
        site=(number >= 50).astype(np.uint8),
        slice_index=number % 10,
        patient=patient,
    )
    label = rng.integers(0, 2, (2100, 14)).astype(np.uint8)
    names = np.array([f"i{n:04d}.png" for n in range(2100)])
    radiographs = {"image": pixels(2, 2100, 4, 4), "label": label, "filename": names}
    write_pack(root, "nih64", patient=np.arange(2100) // 2, **radiographs)


def write_pictures(root):
    busi = root / "breast/BUSI"
    for n in range(10):
        save(busi / "benign" / f"b{n}.png", pixels(n, 16, 16))
        save(busi / "benign" / f"b{n}_mask.png", disc(n))
        save(busi / "malignant" / f"m{n}.png", pixels(n, 16, 16))
        save(busi / "malignant" / f"m{n}_mask.png", disc(n))
    for n in range(6):
        save(busi / "normal" / f"n{n}.png", pixels(n, 16, 16))
    for name in ("BUSIS", "UDIAT"):
        save_pairs(root / "breast" / name / "original", root / "breast" / name / "GT", 10)
    for name in ("CVC-ClinicDB", "CVC-ColonDB", "ETIS-LaribPolypDB", "Kvasir-SEG"):
        save_pairs(root / "polyp" / name / "images", root / "polyp" / name / "masks", 10)
    rows = ["lesion_id,image_id,dx,dataset"]
    for n in range(56):
        site = ("rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias")[n % 4]
        kind = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")[n % 7]
        rows.append(f"HAM_{n},ISIC_{n:07d},{kind},{site}")
        save(root / "ham10000/images" / f"ISIC_{n:07d}.jpg", pixels(n, 16, 16, 3))
        save(root / "ham10000/masks" / f"ISIC_{n:07d}_segmentation.png", disc(n))
    table(root / "ham10000/HAM10000_metadata.csv", *rows)
    rows = ["Image Index,Finding Labels,Follow-up #,Patient ID"]
    for n in range(40):
        rows.append(f"{n:08d}_000.png,{('No Finding', 'Hernia|Edema')[n % 2]},0,{n}")
        save(root / "chestxray14/images" / f"{n:08d}_000.png", pixels(n, 16, 16))
    table(root / "chestxray14/Data_Entry_2017.csv", *rows)
    table(root / "chestxray14/test_list.txt", *(f"{n:08d}_000.png" for n in range(6)))


def write_volumes(root):
    for n in range(6):
        image, mask = volume(n)
        for site in ("RUNMC", "BMC", "I2CVB", "UCL", "BIDMC", "HK"):
            save_nifti(root / f"prostate/{site}/Case{n:02d}.nii.gz", image)
            save_nifti(root / f"prostate/{site}/Case{n:02d}_Segmentation.nii.gz", mask)
        save_nifti(root / f"lung/Train/v{n}_ct.nii.gz", image)
        save_nifti(root / f"lung/Train/v{n}_seg.nii.gz", mask)
        home = root / f"ms/MSSEG-1/Center_01/Patient_{n:02d}"
        save_nifti(home / "Preprocessed_Data/FLAIR_preprocessed.nii.gz", image)
        save_nifti(home / "Masks/Consensus.nii.gz", mask)
        home = root / f"ms/3D-MR-MS/patient{n:02d}"
        save_nifti(home / f"patient{n:02d}_FLAIR.nii.gz", image)
        save_nifti(home / f"patient{n:02d}_consensus_gt.nii.gz", mask)
        for vendor in ("Cirrus", "Topcon", "Spectralis"):
            home = root / f"retouch/RETOUCH-TrainingSet-{vendor}/TRAIN{n:03d}"
            drawn = np.zeros((3, 16, 16), dtype=np.uint8)
            drawn[1, 2:6], drawn[1, 8:11], drawn[2, 3:7] = 1, 3, 2
            save_metaimage(home / "oct.mhd", pixels(n, 3, 16, 16), "MET_UCHAR")
            save_metaimage(home / "reference.mhd", drawn, "MET_UCHAR")


def write_h5(root):
    h5py = pytest.importorskip("h5py")
    for name, labels, shape in (("octa-faz", 1, (16, 16)), ("odoc", 2, (3, 16, 16))):
        for site, split, n in np.ndindex(5, 2, 3):
            home = root / name / f"Domain{site + 1}" / ("train", "test")[split]
            home.mkdir(parents=True, exist_ok=True)
            mask = disc(n, labels)
            mask[4:6, 7:9] = 1
            with h5py.File(home / f"{n}.h5", "w") as file:
                file["image"] = pixels(100 * site + 10 * split + n, *shape)
                file["mask"] = mask
                for form in ("scribble", "scribble_noisy", "keypoint", "block", "box"):
                    file[form] = np.where(mask > 0, mask, np.where(disc(3) > 0, 0, labels + 1))


def small_spec(name, side=16, **image):
    """Return a study on images so small that they are quick to read, and whole."""
    return read_spec(
        name, {"federation.image": {"size": [side, side], **image}, "training.crop": 0}
    )


READ = [name for name in EVERY if not name.startswith(("phantom-", "nih-a", "nih-b"))]


@pytest.mark.parametrize("name", READ)
def test_every_setting_can_be_read_from_its_layout(name, data):
    channels = read_spec(name).federation.image.channels
    spec = small_spec(name, channels=channels)
    sites = load_sites(spec, spec.federation, data)
    common = load_common(spec.federation, data, seed=spec.simulate.seed)
    assert (common is not None) == (spec.federation.test is not None)
    tested = set() if common is None else set(common.group)
    for site, held in sites.items():
        assert len(held.train) == len(held.view) > 0
        assert len(held.test)
        assert not set(held.train.group) & (set(held.test.group) | tested)
        form = spec.federation[site].supervision
        assert (held.view.constraint is not None) == (
            form.constrains and spec.federation.task == "segmentation"
        )
        if form == "none":
            assert not held.view.known_labels.any()
    trained = [set(held.train.group) for held in sites.values()]
    if any("-of-" in site.data and "/fold-" not in site.data for site in spec.federation.site):
        assert sum(map(len, trained)) == len(set.union(*trained))


@pytest.mark.parametrize("study", [study for study in studies() if "phantom" not in study])
def test_absent_data_is_one_short_sentence_that_names_the_card(study, tmp_path):
    spec = read_spec(study)
    with pytest.raises(DataError) as refused:
        load_sites(spec, spec.federation, tmp_path)
    sentence = str(refused.value)
    card = DATASETS[sentence.partition("consilia datasets --card ")[2].partition("`")[0]].card
    assert sentence.startswith(f"dataset '{card.name}' has no '")
    assert "\n" not in sentence
    assert len(sentence.replace(str(tmp_path), "")) < 240  # three lines; the layout is on the card


# --- folds, halves and few images ---


def test_folds_test_on_each_patient_once(data):
    for study, count in (("breast", 5), ("skin", 5), ("retouch", 3)):
        seen = []
        for fold in range(1, count + 1):
            spec = small_spec(f"{study}@fold{fold}")
            held = load_sites(spec, spec.federation, data)
            seen += [(site, group) for site in held for group in set(held[site].test.group)]
            for cases in held.values():
                assert not set(cases.train.group) & set(cases.test.group)
        assert len(set(seen)) == len(seen)
        spec = small_spec(f"{study}@fold1")
        held = load_sites(spec, spec.federation, data)
        everyone = {
            (site, group)
            for site, cases in held.items()
            for group in (*cases.train.group, *cases.test.group)
        }
        assert set(seen) == everyone


def test_healthy_images_are_halved_between_sites_without_labels(data):
    spec = small_spec("breast@uul")
    held = load_sites(spec, spec.federation, data)
    healthy = [{c for c in held[s].train.case if c.startswith("n")} for s in ("busi", "busis")]
    assert [len(names) for names in healthy] == [3, 3]
    assert not healthy[0] & healthy[1]
    spec = small_spec("breast@bil")
    held = load_sites(spec, spec.federation, data)
    assert not any(c.startswith("n") for s in held.values() for c in s.train.case)


def test_fewer_images_of_a_part_are_among_its_own_and_of_as_many_patients_as_possible(data):
    def load(study):
        spec = small_spec(study, 8)
        return load_sites(spec, spec.federation, data)

    few, more, whole = load("nih@psl+n100"), load("nih@psl+x250"), load("nih")
    for site in "abcd":
        assert len(few[site].train) == 100
        assert len(more[site].train) == (250 if site in "bc" else 100)
        assert set(few[site].train.case) <= set(more[site].train.case)
        held = whole[site].validation
        assert set(more[site].train.case) <= {*whole[site].train.case, *held.case}
        assert len(set(few[site].train.group)) == 100


def test_a_fold_of_a_published_split_is_refused(data, tmp_path):
    shutil.copytree(data / "octa-faz", tmp_path / "octa-faz")
    dataset = DATASETS["octa-faz"]
    with pytest.raises(UsageError, match="has a split of its authors; leave out the fold"):
        dataset.load("fazid/fold-1-of-5", tmp_path, dataset.shape)
    with pytest.raises(UsageError, match="'breast' has no fold 6 of 5"):
        DATASETS["breast"].load("busi/fold-6-of-5", data, DATASETS["breast"].shape)


@pytest.mark.parametrize(("study", "least"), [("phantom-mixed", 1.0), ("phantom-fluids", 0.4)])
def test_true_masks_pass_fedmix_s_test_of_boxes(study, least, tmp_path):
    """A box so wide that the truth does not fill a third of it selects what marks too much."""
    spec = read_spec(f"{study}@bbl", {})
    for name in spec.federation.sites:
        if spec.federation[name].supervision is Supervision.BOX:
            site = load_own(spec, spec.federation, name, tmp_path)
            truth = torch.tensor(site.train.truth)
            labels = range(1, 1 + len(spec.federation.labels))
            masks = torch.stack([truth == label for label in labels], 1)
            boxes = torch.tensor(site.view.constraint).bool()
            assert fills(masks, boxes).float().mean() >= least
