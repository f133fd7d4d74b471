from __future__ import annotations

import json
import sys

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet
from pycocotools import mask as coco_mask

from consilia.readers.folder import read_folder
from consilia.readers.inspect import inspect_folder

SIZE = (8, 10)
HEIGHT, WIDTH = SIZE
#: Columns 2 to 4 and rows 1 to 3, as a polygon of continuous x and y.
SQUARE = [2, 1, 5, 1, 5, 4, 2, 4]
PIXELS = np.zeros(SIZE, dtype=bool)
PIXELS[1:4, 2:5] = True


def coco_table(**changes):
    images = [
        {"id": at, "file_name": f"{name}.png", "height": HEIGHT, "width": WIDTH}
        for at, name in enumerate("abcd", start=1)
    ]
    row = {"id": 7, "image_id": 1, "category_id": 5, "bbox": [2, 1, 3, 3], "segmentation": [SQUARE]}
    categories = [{"id": 5, "name": "liver"}, {"id": 6, "name": "spleen"}]
    return {"images": images, "annotations": [row], "categories": categories} | changes


def with_row(**changes):
    return coco_table(annotations=[coco_table()["annotations"][0] | changes])


def save_json(site, name, table):
    path = site.root / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(table if isinstance(table, str) else json.dumps(table), encoding="utf-8")


def labelme(*shapes, **changes):
    size = {"imageHeight": HEIGHT, "imageWidth": WIDTH}
    return {"version": "5.0.1", "shapes": list(shapes), **size} | changes


def shape(kind, points, label="liver", **more):
    return {"label": label, "shape_type": kind, "points": points, **more}


POLYGON = shape("polygon", [[2, 1], [5, 1], [5, 4], [2, 4]])


def save_labelme(site, *shapes, name="a", **changes):
    for each in "abcd":
        save_json(site, f"images/{each}.json", labelme())
    save_json(site, f"images/{name}.json", labelme(*shapes, **changes))


def cvat(inner="", name="a.png", others="bcd"):
    sizes = f'width="{WIDTH}" height="{HEIGHT}"'
    rest = "".join(f'<image id="9" name="{o}.png" {sizes}/>' for o in others)
    first = f'<image id="0" name="{name}" {sizes}>{inner}</image>'
    return f"<?xml version='1.0'?><annotations><version>1.1</version>{first}{rest}</annotations>"


def voc(name="liver", box=(3, 2, 5, 4), width=WIDTH):
    edges = "".join(
        f"<{e}>{v}</{e}>" for e, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    )
    thing = f"<object><name>{name}</name><bndbox>{edges}</bndbox></object>"
    sizes = f"<size><width>{width}</width><height>{HEIGHT}</height></size>"
    return f"<annotation>{sizes}{thing}</annotation>"


def save_voc(site, text=None):
    for each in "abcd":
        save_json(site, f"annotations/{each}.xml", "<annotation></annotation>")
    save_json(site, "annotations/a.xml", voc() if text is None else text)


def save_yolo(site, *lines, classes="liver\nspleen\n"):
    save_json(site, "labels/a.txt", "\n".join(lines) + "\n")
    if classes is not None:
        save_json(site, "classes.txt", classes)


# ----------------------------------------------------------------------------------- what is read


def mask_at_a(site, declared):
    assert inspect_folder(site.root, declared, "x").errors == ()
    data = read_folder(site.root, declared, "x")
    assert not data.view.target[1:].any()
    return data.view.target[0]


@pytest.mark.parametrize("kind", ["polygon", "compressed", "uncompressed", "two rings"])
def test_coco_masks(site, federation, kind):
    packed = coco_mask.encode(np.asfortranarray(PIXELS.astype(np.uint8)))
    stored = {
        "polygon": [SQUARE],
        "compressed": {"size": list(SIZE), "counts": packed["counts"].decode()},
        "uncompressed": {"size": list(SIZE), "counts": [17, 3, 5, 3, 5, 3, 44]},
        "two rings": [[2, 1, 5, 1, 5, 2, 2, 2], [2, 2, 5, 2, 5, 4, 2, 4]],
    }
    save_json(site, "annotations.json", with_row(segmentation=stored[kind]))
    assert np.array_equal(mask_at_a(site, federation()) == 1, PIXELS)


def test_coco_judges_test_images_by_polygons(site, federation):
    save_json(site, "annotations.json", with_row(image_id=4))
    data = read_folder(site.root, federation(), "x")
    assert np.array_equal(data.test.truth[0] == 1, PIXELS)
    boxes = read_folder(site.root, federation(supervision="box"), "x")
    assert np.array_equal(boxes.test.truth[0] == 1, PIXELS)
    assert not boxes.view.constraint.any()


def test_coco_boxes_and_several_files(site, federation):
    save_json(site, "train.json", coco_table(images=coco_table()["images"][:2]))
    rest = coco_table(images=coco_table()["images"][2:], annotations=[])
    save_json(site, "annotations/rest.json", rest)
    data = read_folder(site.root, federation(supervision="box"), "x")
    assert np.array_equal(data.view.constraint[0, 0], PIXELS)
    assert not data.view.constraint[0, 1].any()


def test_labels_that_a_site_does_not_annotate_are_not_used(site, federation):
    save_json(site, "annotations.json", coco_table())
    data = read_folder(site.root, federation(annotates=["spleen"]), "x")
    assert not data.view.target.any()


def test_yolo_boxes_and_polygons(site, federation):
    site.masks("d")
    save_yolo(site, "0 0.35 0.3125 0.3 0.375", "", "1 0.75 0.75 0.1 0.125")
    data = read_folder(site.root, federation(supervision="box"), "x")
    assert np.array_equal(data.view.constraint[0, 0], PIXELS)
    assert data.view.constraint[0, 1].any()
    corners = [value / (WIDTH, HEIGHT)[at % 2] for at, value in enumerate(SQUARE)]
    save_yolo(site, " ".join(["0", *map(str, corners)]))
    assert np.array_equal(mask_at_a(site, federation()) == 1, PIXELS)


def test_voc_counts_from_one(site, federation):
    site.masks("d")
    save_voc(site)
    data = read_folder(site.root, federation(supervision="box"), "x")
    assert np.array_equal(data.view.constraint[0, 0], PIXELS)
    save_voc(site, voc(box=(0, 0, 5, 4)))  # a tool that counts from 0
    data = read_folder(site.root, federation(supervision="box"), "x")
    assert data.view.constraint[0, 0].sum() == 20


def test_labelme_polygons_rectangles_lines_and_points(site, federation):
    save_labelme(site, POLYGON)
    assert np.array_equal(mask_at_a(site, federation()) == 1, PIXELS)
    site.masks("d")
    save_labelme(site, shape("rectangle", [[5, 4], [2, 1]]))
    data = read_folder(site.root, federation(supervision="box"), "x")
    assert np.array_equal(data.view.constraint[0, 0], PIXELS)
    line = shape("linestrip", [[2.5, 4.5], [7.5, 4.5]])
    back = shape("linestrip", [[0.5, 0.5], [9.5, 0.5]], "background")
    save_labelme(site, line, back)
    view = read_folder(site.root, federation(supervision="scribble"), "x").view
    assert (view.target[0, 4, 2:8] == 1).all()
    assert view.known_pixels[0, 0].all()
    assert not view.target[0, 0].any()
    assert not view.known_pixels[0, 7].any()
    assert not view.known_pixels[1].any()
    save_labelme(site, shape("point", [[2.5, 4.5]]), shape("circle", [[7.5, 2.5], [7.5, 3.5]]))
    view = read_folder(site.root, federation(supervision="point"), "x").view
    assert view.known_pixels[0].sum() == 1 + 5
    assert view.target[0, 4, 2] == 1


def test_cvat_shapes(site, federation):
    save_json(
        site,
        "annotations.xml",
        cvat('<polygon label="liver" points="2,1;5,1;5,4;2,4"/><tag label="whatever"/>'),
    )
    assert np.array_equal(mask_at_a(site, federation()) == 1, PIXELS)
    site.masks("d")
    save_json(site, "annotations.xml", cvat('<box label="liver" xtl="2" ytl="1" xbr="5" ybr="4"/>'))
    for form in ("box", "rotated-box"):
        data = read_folder(site.root, federation(supervision=form), "x")
        assert np.array_equal(data.view.constraint[0, 0], PIXELS)
    lines = '<polyline label="liver" points="2.5,4.5;7.5,4.5"/>'
    save_json(site, "annotations.xml", cvat(lines))
    assert (
        read_folder(site.root, federation(supervision="scribble"), "x").view.target[0, 4, 2:8] == 1
    ).all()
    save_json(site, "annotations.xml", cvat('<points label="liver" points="2.5,4.5;7.5,1.5"/>'))
    view = read_folder(site.root, federation(supervision="point"), "x").view
    assert np.argwhere(view.target[0]).tolist() == [[1, 7], [4, 2]]
    turned = '<box label="liver" xtl="2" ytl="3" xbr="8" ybr="5" rotation="90"/>'
    save_json(site, "annotations.xml", cvat(turned))
    view = read_folder(site.root, federation(supervision="rotated-box"), "x").view
    assert np.array_equal(np.argwhere(view.constraint[0, 0]).max(axis=0), [6, 5])
    assert view.constraint[0, 0].sum() == 12


def test_boxes_with_an_angle(site, federation):
    site.masks("d")
    site.table("boxes.csv", "image,label,left,top,right,bottom,angle", "a,liver,2,3,7,4,90")
    view = read_folder(site.root, federation(supervision="rotated-box"), "x").view
    expected = np.zeros(SIZE, dtype=bool)
    expected[1:7, 4:6] = True
    assert np.array_equal(view.constraint[0, 0], expected)
    site.table("boxes.csv", "image,label,left,top,right,bottom,angle", "a,liver,2,1,4,3,")
    for form in ("box", "rotated-box"):
        view = read_folder(site.root, federation(supervision=form), "x").view
        assert np.array_equal(view.constraint[0, 0], PIXELS)


def test_points_are_pixels_or_dots(site, federation):
    site.masks("d")
    rows = ["a,liver,1,2,", "a.png,spleen,5,7,1", "a,background,0,0,"]
    site.table("points.csv", "image,label,row,column,radius", *rows)
    view = read_folder(site.root, federation(supervision="point"), "x").view
    assert np.argwhere(view.target[0] == 1).tolist() == [[1, 2]]
    assert (view.target[0] == 2).sum() == 5
    assert view.known_pixels[0].sum() == 7
    assert not view.known_pixels[1].any()


@pytest.mark.parametrize("kind", [pyarrow.int64(), pyarrow.float32(), pyarrow.string()])
def test_parquet_labels(site, federation, kind):
    values = {"liver": [1, 0, None, 1], "spleen": [None, 1, 0, 0]}
    columns = {
        name: pyarrow.array(
            [None if v is None else str(v) if kind == pyarrow.string() else v for v in column], kind
        )
        for name, column in values.items()
    }
    parquet.write_table(
        pyarrow.table({"image": ["a", "b.png", "c", "d"], **columns}), site.root / "labels.parquet"
    )
    declared = federation(task="classification", exclusive=False, supervision="image")
    data = read_folder(site.root, declared, "x")
    assert data.view.known_labels.tolist() == [[True, False], [True, True], [False, True]]
    assert data.view.target.tolist() == [[1, 0], [0, 1], [0, 0]]
    assert inspect_folder(site.root, declared, "x").errors == ()


def test_shapes_are_scaled_with_their_images(site, federation):
    large = site.rng.integers(0, 256, (16, 20)).astype(np.uint8)
    site.save("images/a.png", large)
    save_labelme(
        site, shape("polygon", [[4, 2], [10, 2], [10, 8], [4, 8]]), imageHeight=16, imageWidth=20
    )
    assert np.array_equal(mask_at_a(site, federation()) == 1, PIXELS)


def test_masks_in_files_may_judge_what_shapes_train(site, federation):
    save_labelme(site, POLYGON)
    masks = site.masks("d")
    data = read_folder(site.root, federation(), "x")
    assert np.array_equal(data.view.target[0] == 1, PIXELS)
    assert np.array_equal(data.test.truth[0], masks["d"])


# ------------------------------------------------------------------------------ what cannot be read

X = "of site 'x'"
COCO, A7 = f"annotations.json {X}", f"annotations.json {X}, annotation 7,"
CUT = "it is damaged or cut short: export it again"
KNOWN = "but the federation's labels are 'liver' and 'spleen'"
BOMB = "<!DOCTYPE a [<!ENTITY b 'ha'><!ENTITY c '&b;&b;&b;'>]>"
SHAPE = f"annotations.xml {X}, image 'a.png', shape 1,"
CSV = f"boxes.csv {X}, line 2,"


def coco(table):
    return lambda s: save_json(s, "annotations.json", table)


def cvat_of(inner):
    return lambda s: save_json(s, "annotations.xml", cvat(inner))


def me(*shapes, **changes):
    return lambda s: save_labelme(s, *shapes, **changes)


def boxes(*rows, columns="image,label,left,top,right,bottom,angle"):
    return lambda s: s.table("boxes.csv", columns, *rows)


BAD = [
    (
        "mask",
        "COCO cut short",
        coco(json.dumps(coco_table())[:-9]),
        f"{COCO} is not valid JSON; {CUT}",
    ),
    ("mask", "COCO empty", coco(""), f"{COCO} is an empty file (0 bytes); copy or export it again"),
    ("mask", "COCO nested", coco("[" * 100000), f"{COCO} is not valid JSON; {CUT}"),
    ("mask", "COCO list", coco("[1]"), f"{COCO} holds no table at its top; export it again"),
    (
        "mask",
        "COCO without categories",
        coco(coco_table(categories=None)),
        f"{COCO} has no list 'categories'; expected a COCO file with images, annotations, categories",
    ),
    (
        "mask",
        "COCO with numbers for rows",
        coco(coco_table(images=[1])),
        f"{COCO} has an entry of 'images' that is no table; export it again",
    ),
    (
        "mask",
        "COCO unknown category",
        coco(coco_table(categories=[{"id": 5, "name": "livr"}])),
        f"{A7} has the label 'livr', {KNOWN}; did you mean 'liver'?",
    ),
    (
        "mask",
        "COCO category id",
        coco(with_row(category_id=9)),
        f"{A7} has the category id '9', which is not listed under 'categories'; list it or remove the "
        "annotation",
    ),
    (
        "mask",
        "COCO image id",
        coco(with_row(image_id=9)),
        f"{A7} is about the image id '9', which is not listed under 'images'; list it or remove the "
        "annotation",
    ),
    (
        "mask",
        "COCO image not in the folder",
        coco(coco_table(images=[{"id": 1, "file_name": "scan.png"}])),
        f"{COCO}, image 1, names the image 'scan.png', which is not in 'images'; correct or remove the "
        "entry",
    ),
    (
        "mask",
        "COCO image not listed",
        coco(coco_table(images=coco_table()["images"][:3])),
        "image 'd.png' of site 'x' is not listed in annotations.json; add it under 'images' or "
        "remove it",
    ),
    (
        "box",
        "COCO boxes of an image not listed",
        coco(coco_table(images=coco_table()["images"][::3])),
        "image 'b.png' of site 'x' is not listed in annotations.json; add it under 'images' or "
        "remove it",
    ),
    (
        "box",
        "VOC file missing",
        lambda s: (save_voc(s), s.remove("annotations/b.xml")),
        "image 'b.png' of site 'x' has no VOC file; save one, even without an object",
    ),
    (
        "mask",
        "COCO of another size",
        coco(coco_table(images=[r | {"width": 11} for r in coco_table()["images"]])),
        f"{COCO} says that image 'a.png' is 11 x 8 pixels (width x height), but it is 10 x 8; export "
        "both in the same size",
    ),
    (
        "mask",
        "COCO mask of another size",
        coco(with_row(segmentation={"size": [10, 8], "counts": [80]})),
        f"{A7} has a mask of 8 x 10 pixels (width x height), but its image is 10 x 8; export both in "
        "the same size",
    ),
    (
        "mask",
        "COCO bomb",
        coco(coco_table(images=[{"id": 1, "file_name": "a.png", "height": 10**6, "width": 10**6}])),
        f"{COCO}, image 1, claims to hold 1000000 x 1000000 values; expected 1 to 268435456: crop or "
        "split it",
    ),
    (
        "mask",
        "COCO damaged runs",
        coco(with_row(segmentation={"size": [8, 10], "counts": [1, 2]})),
        f"{A7} has a run-length mask that is damaged; export it again",
    ),
    (
        "mask",
        "COCO damaged text",
        coco(with_row(segmentation={"size": [8, 10], "counts": "~~~"})),
        f"{A7} has a run-length mask that is damaged; export it again",
    ),
    (
        "mask",
        "COCO odd polygon",
        coco(with_row(segmentation=[[1, 2, 3, 4, 5]])),
        f"{A7} has a polygon that is not a list of 3 or more x, y pairs; export it again",
    ),
    (
        "mask",
        "COCO text in a polygon",
        coco(with_row(segmentation=[[1, 2, 3, 4, 5, "six"]])),
        f"{A7} has 'six' for 'segmentation'; expected a number",
    ),
    (
        "mask",
        "COCO infinite polygon",
        coco(with_row(segmentation=[[1, 2, 3, 4, 5, float("inf")]])),
        f"{A7} has 'inf' for 'segmentation'; expected a number",
    ),
    (
        "mask",
        "COCO polygon outside",
        coco(with_row(segmentation=[[2, 1, 25, 1, 25, 4]])),
        f"{A7} has a polygon in rows 1 to 4 and columns 2 to 25, but image 'a.png' has 8 rows and 10 "
        "columns; give positions in pixels of the stored image",
    ),
    (
        "mask",
        "COCO without shape",
        coco(with_row(bbox=None, segmentation=None)),
        f"{A7} has neither 'bbox' nor 'segmentation'; remove it or export it again",
    ),
    (
        "mask",
        "COCO boxes at a site of masks",
        coco(with_row(segmentation=None)),
        f"{A7} has a box, but the supervision of site 'x' is 'mask'; expected a polygon or mask: "
        "redraw it or correct `supervision`",
    ),
    (
        "box",
        "COCO box of no width",
        coco(with_row(bbox=[5, 1, -3, 3])),
        f"{A7} has a 'bbox' of width -3; expected more than 0: correct it",
    ),
    (
        "box",
        "COCO box of three numbers",
        coco(with_row(bbox=[5, 1, 3])),
        f"{A7} has a 'bbox' that is not [left, top, width, height]; export it again",
    ),
    (
        "box",
        "COCO box outside",
        coco(with_row(bbox=[5, 1, 30, 3])),
        f"{A7} has a box of columns 5 to 34 and rows 1 to 3, but image 'a.png' has columns 0 to 9 and "
        "rows 0 to 7; give both ends in pixels, counted from 0",
    ),
    (
        "mask",
        "not UTF-8",
        lambda s: (s.root / "annotations.json").write_bytes(b'{"images": "\xff"}'),
        f"{COCO} is not UTF-8 text; export it again as UTF-8",
    ),
    (
        "mask",
        "link outside",
        lambda s: (
            save_json(s, "../secret.json", coco_table()),
            (s.root / "annotations.json").symlink_to(s.root.parent / "secret.json"),
        ),
        "file 'annotations.json' of site 'x' leads outside its folder by a link; copy the file itself "
        "into the folder",
    ),
    (
        "box",
        "YOLO without classes",
        lambda s: save_yolo(s, "0 0.5 0.5 0.1 0.1", classes=None),
        "site 'x' has no file classes.txt, which names the classes of its labels; add one with a class "
        "in each line",
    ),
    (
        "box",
        "YOLO class",
        lambda s: save_yolo(s, "2 0.5 0.5 0.1 0.1"),
        f"a.txt {X}, line 1, has the class '2', but classes.txt names 2; expected 0 to 1",
    ),
    (
        "box",
        "YOLO unknown class",
        lambda s: save_yolo(s, "0 0.5 0.5 0.1 0.1", classes="kidney\n"),
        f"a.txt {X}, line 1, has the label 'kidney', {KNOWN}",
    ),
    (
        "box",
        "YOLO in pixels",
        lambda s: save_yolo(s, "0 5 5 1 1"),
        f"a.txt {X}, line 1, has the position 5; expected 0 to 1, in parts of the image",
    ),
    (
        "box",
        "YOLO numbers",
        lambda s: save_yolo(s, "0 0.5 0.5 0.1"),
        f"a.txt {X}, line 1, has 3 numbers after its class; expected 4 for a box, or x and y of 3 or "
        "more corners",
    ),
    (
        "box",
        "YOLO box of no size",
        lambda s: save_yolo(s, "0 0.5 0.5 0 0.1"),
        f"a.txt {X}, line 1, has a box of 0 x 0.1; expected more than 0: correct it",
    ),
    (
        "box",
        "YOLO file alone",
        lambda s: (save_yolo(s, "0 0.5 0.5 0.1 0.1"), save_json(s, "labels/e.txt", "")),
        f"e.txt {X} has no image of the same name in 'images'; rename or remove it",
    ),
    (
        "box",
        "YOLO polygons at a site of boxes",
        lambda s: save_yolo(s, "0 0.1 0.1 0.3 0.1 0.3 0.3"),
        f"a.txt {X}, line 1, has a polygon, but the supervision of site 'x' is 'box'; expected a box: "
        "redraw it or correct `supervision`",
    ),
    (
        "box",
        "VOC cut short",
        lambda s: save_voc(s, voc()[:-20]),
        f"a.xml {X} is not valid XML; {CUT}",
    ),
    (
        "box",
        "VOC bomb",
        lambda s: save_voc(s, BOMB + voc("&c;")),
        f"a.xml {X} has a DOCTYPE or ENTITY, which can unpack without end and is never read; export it "
        "again",
    ),
    (
        "box",
        "VOC right < left",
        lambda s: save_voc(s, voc(box=(6, 2, 5, 4))),
        f"a.xml {X}, object 1, has right 5 < left 6; expected left <= right: swap or correct them",
    ),
    (
        "box",
        "VOC unknown label",
        lambda s: save_voc(s, voc("spleeen")),
        f"a.xml {X}, object 1, has the label 'spleeen', {KNOWN}; did you mean 'spleen'?",
    ),
    (
        "box",
        "VOC text",
        lambda s: save_voc(s, voc(box=("left", 2, 5, 4))),
        f"a.xml {X}, object 1, has 'left' for 'xmin'; expected a number",
    ),
    (
        "box",
        "VOC of another size",
        lambda s: save_voc(s, voc(width=20)),
        f"a.xml {X} says that image 'a.png' is 20 x 8 pixels (width x height), but it is 10 x 8; export "
        "both in the same size",
    ),
    (
        "box",
        "VOC without box",
        lambda s: save_voc(s, "<annotation><object><name>liver</name></object></annotation>"),
        f"a.xml {X}, object 1, has no 'bndbox'; remove it or export it again",
    ),
    (
        "mask",
        "LabelMe cut short",
        lambda s: (
            save_labelme(s),
            save_json(s, "images/a.json", json.dumps(labelme(POLYGON))[:-5]),
        ),
        f"a.json {X} is not valid JSON; {CUT}",
    ),
    (
        "mask",
        "LabelMe without shapes",
        me(shapes=None),
        f"a.json {X} has no list 'shapes'; expected a LabelMe file: export it again",
    ),
    (
        "mask",
        "LabelMe missing",
        lambda s: (save_labelme(s, POLYGON), s.remove("images/b.json")),
        "image 'b.png' of site 'x' has no LabelMe file; save one, even without a shape",
    ),
    (
        "mask",
        "LabelMe kind",
        me(shape("star", [[1, 2]])),
        f"a.json {X}, shape 1, has the shape type 'star'; expected one of rectangle, circle, mask, "
        "point, points, line, linestrip, polygon, oriented_rectangle",
    ),
    (
        "mask",
        "LabelMe two points",
        me(shape("polygon", [[1, 2], [3, 4]])),
        f"a.json {X}, shape 1, has 2 points; a polygon has 3 or more",
    ),
    (
        "mask",
        "LabelMe odd points",
        me(shape("polygon", [[1, 2], [3], [4, 5]])),
        f"a.json {X}, shape 1, has points that are not x, y pairs; export it again",
    ),
    (
        "mask",
        "LabelMe lines at a site of masks",
        me(shape("linestrip", [[1, 2], [3, 4]])),
        f"a.json {X}, shape 1, has a line, but the supervision of site 'x' is 'mask'; expected a "
        "polygon or mask: redraw it or correct `supervision`",
    ),
    (
        "mask",
        "LabelMe background at a site of masks",
        me(shape("polygon", POLYGON["points"], "background")),
        f"a.json {X}, shape 1, has the label 'background', {KNOWN}",
    ),
    (
        "mask",
        "LabelMe damaged mask",
        me(shape("mask", [[1, 2], [3, 4]], mask="AAAA")),
        f"the mask of a.json {X}, shape 1 cannot be read; it is damaged, cut short or of another type: "
        "export it again",
    ),
    (
        "mask",
        "CVAT cut short",
        lambda s: save_json(s, "annotations.xml", cvat()[:-9]),
        f"annotations.xml {X} is not valid XML; {CUT}",
    ),
    (
        "mask",
        "CVAT bomb",
        lambda s: save_json(
            s, "annotations.xml", cvat().replace("<annotations>", f"{BOMB}<annotations>&c;")
        ),
        f"annotations.xml {X} has a DOCTYPE or ENTITY, which can unpack without end and is never read; "
        "export it again",
    ),
    (
        "mask",
        "CVAT of another kind",
        lambda s: save_json(s, "annotations.xml", "<data/>"),
        f"annotations.xml {X} begins with <data>; export 'CVAT for images 1.1'",
    ),
    (
        "box",
        "CVAT right < left",
        cvat_of('<box label="liver" xtl="5" ytl="1" xbr="2" ybr="4"/>'),
        f"{SHAPE} has right 2 < left 5; expected left < right: swap or correct them",
    ),
    (
        "box",
        "CVAT rotated at a site of boxes",
        cvat_of('<box label="liver" xtl="2" ytl="1" xbr="5" ybr="4" rotation="30"/>'),
        f"{SHAPE} has a rotated box, but the supervision of site 'x' is 'box'; expected a box: redraw "
        "it or correct `supervision`",
    ),
    (
        "mask",
        "CVAT kind",
        cvat_of('<cuboid label="liver"/>'),
        f"{SHAPE} is of the kind 'cuboid'; expected one of box, polygon, polyline, points, mask",
    ),
    (
        "mask",
        "CVAT unknown label",
        cvat_of('<polygon label="livers" points="1,2;3,4;5,6"/>'),
        f"{SHAPE} has the label 'livers', {KNOWN}; did you mean 'liver'?",
    ),
    (
        "mask",
        "CVAT points",
        cvat_of('<polygon label="liver" points="1,2;3;5,6"/>'),
        f"{SHAPE} has points that are not x,y pairs; export it again",
    ),
    (
        "mask",
        "CVAT damaged runs",
        cvat_of('<mask label="liver" rle="1,2" left="0" top="0" width="5" height="5"/>'),
        f"{SHAPE} has a run-length mask that is damaged; export it again",
    ),
    (
        "mask",
        "CVAT image not in the folder",
        lambda s: save_json(s, "annotations.xml", cvat(name="e.png", others="abcd")),
        f"annotations.xml {X} names the image 'e.png', which is not in 'images'; correct or remove the "
        "entry",
    ),
    (
        "box",
        "two sources of boxes",
        lambda s: (
            save_json(s, "annotations.json", coco_table()),
            save_yolo(s, "0 0.5 0.5 0.1 0.1"),
        ),
        "site 'x' has both 'annotations.json' and 'labels/a.txt', which can both hold what its "
        "supervision 'box' draws on training images; keep one of them",
    ),
    (
        "mask",
        "masks in files and shapes",
        lambda s: (save_labelme(s, POLYGON), s.masks()),
        "site 'x' has both 'masks' and 'images', which can both hold what its supervision 'mask' draws "
        "on training images; keep one of them",
    ),
    (
        "box",
        "angle at a site of boxes",
        boxes("a,liver,1,1,3,2,30"),
        f"{CSV} has the angle 30, but the supervision of site 'x' is 'box'; leave it blank or declare "
        "supervision 'rotated-box'",
    ),
    (
        "rotated-box",
        "angle in words",
        boxes("a,liver,1,1,3,2,steep"),
        f"{CSV} has 'steep' for 'angle'; expected a number",
    ),
    (
        "rotated-box",
        "rotated right < left",
        boxes("a,liver,5,1,3,2,30"),
        f"{CSV} has right 3.0 < left 5.0; expected left <= right, both included: swap them",
    ),
    (
        "rotated-box",
        "rotated outside",
        boxes("a,liver,50,1,53,2,30"),
        f"{CSV} has a rotated box at row 1.5 and column 51.5, but image 'a.png' has 8 "
        "rows and 10 columns; give positions in pixels of the stored image",
    ),
    (
        "rotated-box",
        "no boxes",
        lambda s: None,
        "site 'x' has no table boxes.csv, but its supervision is 'rotated-box'; add one with the "
        "columns image, label, left, top, right, bottom, angle",
    ),
    (
        "point",
        "point without column",
        lambda s: s.table("points.csv", "image,label,row", "a,liver,1"),
        f"points.csv {X} has no column 'column'; expected image, label, row, column",
    ),
    (
        "point",
        "point outside",
        lambda s: s.table("points.csv", "image,label,row,column", "a,liver,1,15"),
        f"points.csv {X}, line 2, has a point at row 1 and column 15, but image "
        "'a.png' has 8 rows and 10 columns; give positions in pixels of the stored image",
    ),
    (
        "point",
        "point just outside",
        lambda s: s.table("points.csv", "image,label,row,column", "a,liver,-1,3"),
        f"points.csv {X}, line 2, has a point at row -1 and column 3, but image "
        "'a.png' has 8 rows and 10 columns; give positions in pixels of the stored image",
    ),
    (
        "point",
        "point one pixel beyond",
        lambda s: s.table("points.csv", "image,label,row,column", "a,liver,7,10"),
        f"points.csv {X}, line 2, has a point at row 7 and column 10, but image "
        "'a.png' has 8 rows and 10 columns; give positions in pixels of the stored image",
    ),
    (
        "point",
        "negative radius",
        lambda s: s.table("points.csv", "image,label,row,column,radius", "a,liver,1,5,-2"),
        f"points.csv {X}, line 2, has the radius -2; expected 0 or more",
    ),
]


@pytest.mark.parametrize(
    ("form", "spoil", "sentence"), [(b[0], *b[2:]) for b in BAD], ids=[b[1] for b in BAD]
)
def test_shapes_that_cannot_be_read_are_refused(site, federation, refusal, form, spoil, sentence):
    if form not in {"mask"}:
        site.masks("d")
    spoil(site)
    assert refusal(site.root, federation(supervision=form)) == sentence


def damaged(site):
    (site.root / "labels.parquet").write_bytes(b"PAR1 and nothing else PAR1")


def without_column(site):
    table = pyarrow.table({"image": ["a"], "liver": [1]})
    parquet.write_table(table, site.root / "labels.parquet")


def strange_value(site):
    table = pyarrow.table({"image": ["a"], "liver": [1], "spleen": [3]})
    parquet.write_table(table, site.root / "labels.parquet")


def both(site):
    without_column(site)
    site.table("labels.csv", "image,liver,spleen", "a,1,0")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (
            damaged,
            f"labels.parquet {X} cannot be read; it is damaged, cut short or of another type: export it "
            "again",
        ),
        (
            without_column,
            f"labels.parquet {X} has no column 'spleen'; expected image, liver, spleen",
        ),
        (
            strange_value,
            f"labels.parquet {X}, line 2, has '3' for 'spleen'; expected 1 (present), 0 (absent) or "
            "blank (unknown)",
        ),
        (
            both,
            "site 'x' has both 'labels.csv' and 'labels.parquet', which both say what its images show; "
            "keep one of them",
        ),
    ],
)
def test_parquet_that_cannot_be_read_is_refused(site, federation, refusal, spoil, sentence):
    spoil(site)
    declared = federation(task="classification", exclusive=False, supervision="image")
    assert refusal(site.root, declared) == sentence


def test_a_package_that_is_not_installed_is_named(site, federation, refusal, monkeypatch):
    strange_value(site)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    declared = federation(task="classification", exclusive=False, supervision="image")
    assert refusal(site.root, declared) == (
        f"labels.parquet {X} cannot be read without the package 'pyarrow'; install it"
    )


def test_the_rest_of_a_folder_is_still_checked(site, federation):
    rows = [
        coco_table()["annotations"][0] | {"id": 1, "category_id": 9},
        coco_table()["annotations"][0] | {"id": 2, "segmentation": [[1, 2]]},
        coco_table()["annotations"][0] | {"id": 3},
    ]
    save_json(site, "annotations.json", coco_table(annotations=rows))
    (site.root / "images/c.png").write_bytes(b"")
    Image.fromarray(np.zeros((3, 4), np.uint8)).save(site.root / "images/d.png")
    found = inspect_folder(site.root, federation(), "x")
    assert [" ".join(sentence.split()[:7]) for sentence in found.errors] == [
        "annotations.json of site 'x', annotation 1, has",
        "annotations.json of site 'x', annotation 2, has",
        "image 'c.png' of site 'x' is an",
        "annotations.json of site 'x' says that image",
    ]
    assert found.labels["liver"].images == 1
