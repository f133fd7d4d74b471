"""What waits on disk comes back to the bit, and the store keeps count of what it holds."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from consilia.engines.memory import MemoryStore, Spool, room_taken
from consilia.engines.scratch import DiskWeights, Scratch
from consilia.errors import MessageError
from consilia.ops.sums import Summed
from consilia.payload import DeviceWeights, PackedWeights, Weights


@dataclass(frozen=True)
class Kept:
    value: torch.Tensor


@dataclass(frozen=True)
class Reply:
    weights: dict[str, torch.Tensor]
    images: int


def weights():
    return {
        "odd": torch.tensor([True, False, True]),
        "w": torch.randn(3, 5, generator=torch.Generator().manual_seed(0)),
        "turned": torch.arange(6.0).view(2, 3).T,
        "last": torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "n": torch.tensor(7),
        "half": torch.tensor([1.5], dtype=torch.bfloat16),
        "none": torch.zeros(0, 4),
        "double": torch.tensor([0.1], dtype=torch.float64),
    }


@pytest.mark.parametrize("form", [dict, PackedWeights.of])
def test_weights_on_disk_are_the_same_weights(form, tmp_path):
    waiting = DiskWeights(Scratch(tmp_path), form(weights()))
    assert list(waiting) == list(weights())
    assert len(waiting) == 8
    for name, value in waiting.items():
        assert value.dtype == weights()[name].dtype
        assert torch.equal(value, weights()[name])
        assert torch.equal(waiting[name], value)


FEW = {"w": weights()["w"]}  # 60 bytes


def test_a_spool_moves_what_passes_its_cap_and_forgets_it(tmp_path):
    spool = Spool(tmp_path / "spool", cap=4 * 15)
    spool.begin("ab")
    spool.keep("b", Reply(FEW, 3))
    spool.keep("a", Reply(FEW, 4))
    moved, kept = spool.replies().values()
    assert list(spool.replies()) == ["a", "b"]
    assert isinstance(kept.weights, PackedWeights)
    assert torch.equal(kept.weights["w"], FEW["w"])
    assert isinstance(moved.weights, DiskWeights)
    assert moved.images == 4
    assert torch.equal(moved.weights["w"], FEW["w"])
    spool.begin("ab")
    assert not spool.replies()
    with pytest.raises(AssertionError, match="read only until they are released"):
        moved.weights["w"]
    spool.keep("a", Reply(FEW, 3))
    spool.keep("b", Reply(FEW, 4))
    assert len(list((tmp_path / "spool").iterdir())) == 1, "the file was written over"
    spool.remove()
    assert not (tmp_path / "spool").exists()


def where(spool):
    """Return where the weights of each reply are: in memory, on disk or summed."""
    return {site: type(reply.weights) for site, reply in spool.replies().items()}


def test_replies_that_count_by_themselves_are_summed_in_the_order_of_names(tmp_path):
    spool = Spool(tmp_path / "spool", cap=2 * 4 * 15)
    spool.begin("abcdef")
    for site, images in (("c", 1), ("b", 2), ("d", 4)):
        spool.keep(site, Reply(FEW, images), float(images))
    expected = {"b": PackedWeights, "c": PackedWeights, "d": DiskWeights}
    assert where(spool) == expected, "a is awaited, so none has its turn"
    spool.keep("e", Reply(FEW, 8), 8.0, failed={"a"})
    assert where(spool) == dict.fromkeys("bcde", Summed)
    spool.keep("f", Reply(FEW, 16), 16.0)
    assert where(spool)["f"] is PackedWeights, "there is room again"
    (running,) = {reply.weights.running for site, reply in spool.replies().items() if site != "f"}
    assert running.shares == {"b": 2, "c": 1, "d": 4, "e": 8}
    assert torch.equal(running.read(running.packing.places["w"]), FEW["w"].double().view(-1) * 15)


def test_a_reply_that_comes_after_all_stays_out_of_the_running_sum(tmp_path):
    spool = Spool(tmp_path / "spool", cap=4 * 15)
    spool.begin("abc")
    spool.keep("b", Reply(FEW, 1), 1.0, failed={"a"})
    spool.keep("c", Reply(FEW, 1), 1.0, failed={"a"})
    spool.keep("a", Reply(FEW, 1), 1.0, failed={"a"})
    assert where(spool) == {"a": PackedWeights, "b": Summed, "c": Summed}


def test_replies_whose_share_is_not_known_wait_on_disk(tmp_path):
    spool = Spool(tmp_path / "spool", cap=0)
    spool.begin("ab")
    spool.keep("a", Reply(FEW, 1))
    spool.keep("b", Reply(FEW, 1))
    assert where(spool) == dict.fromkeys("ab", DiskWeights)


def test_a_file_is_written_over_only_when_nobody_has_tensors_of_it(tmp_path):
    scratch = Scratch(tmp_path)
    one, two = ({"w": torch.full((4,), value)} for value in (1.0, 2.0))
    first = DiskWeights(scratch, one)
    held = first["w"][1:]
    first.release()
    second = DiskWeights(scratch, two)
    assert torch.equal(held, torch.ones(3)), "what was read stays as it is"
    assert torch.equal(second["w"], two["w"])
    second.release()  # nobody has anything of it
    path = next(tmp_path.iterdir())
    third = DiskWeights(scratch, one)
    assert list(tmp_path.iterdir()) == [path]
    assert torch.equal(third["w"], one["w"])
    assert not len(DiskWeights(scratch, {}))


def test_a_store_writes_what_was_used_least_and_tells_sites_apart(tmp_path):
    store = MemoryStore(tmp_path / "store", cap=100)
    for site in ("anna", "anna-2", "bo"):
        store.put(f"{site}/memory", Kept(torch.full((15,), float(len(site)))))
    store.put("anna/overlay-labels", Kept(torch.zeros(1)))
    assert store.of("anna") == ("anna/memory", "anna/overlay-labels")
    assert store.of("nobody") == ()
    assert len(list((tmp_path / "store").glob("*.numbers"))) == 2  # 60 bytes each, room for one
    for site in ("anna", "anna-2", "bo"):
        kept = store.get(f"{site}/memory", Kept)
        assert torch.equal(kept.value, torch.full((15,), float(len(site))))
    store.snapshot(tmp_path / "snapshot")
    again = MemoryStore(tmp_path / "again", cap=100)
    again.restore(tmp_path / "snapshot")
    assert again.of("anna") == store.of("anna")
    assert again.keys() == store.keys()


def test_a_damaged_file_is_refused_by_the_name_of_its_site(tmp_path):
    store = MemoryStore(tmp_path / "store", cap=100)
    store.put("anna/memory", Kept(torch.zeros(3)))
    store.put("bo/memory", Kept(torch.zeros(3)))
    store.snapshot(tmp_path / "snapshot")
    path = tmp_path / "snapshot/bo/memory.safetensors"
    whole = path.read_bytes()
    path.unlink()  # it is linked
    path.write_bytes(whole[:-1])
    again = MemoryStore(tmp_path / "again", cap=100)
    again.restore(tmp_path / "snapshot")
    damaged = (
        r"^what site 'bo' remembers \('bo/memory.safetensors'\) is damaged, cut short or not ours$"
    )
    assert again.get("anna/memory", Kept) is not None
    for read in (again.refuse_damaged, lambda: again.get("bo/memory", Kept)):
        with pytest.raises(MessageError, match=damaged):
            read()


def test_a_view_counts_with_all_that_it_keeps_in_memory(tmp_path):
    store = MemoryStore(tmp_path / "store", cap=100)
    whole = PackedWeights.of({"w": torch.zeros(20), "b": torch.zeros(4)})  # 96 bytes
    store.put("anna/memory", Kept(whole["b"]))
    assert not list((tmp_path / "store").iterdir())
    store.put("bo/memory", Kept(torch.zeros(4)))
    assert len(list((tmp_path / "store").glob("*.numbers"))) == 1
    assert torch.equal(store.get("anna/memory", Kept).value, torch.zeros(4))


def test_weights_on_disk_are_read_by_the_stretch(tmp_path):
    packed = PackedWeights.of(weights())
    waiting = DiskWeights(Scratch(tmp_path), packed)
    assert waiting.nbytes == packed.nbytes
    for run in packed.packing.runs:
        assert torch.equal(waiting.read(run), packed.read(run))
    middle = packed.packing.places["w"].part(4, 7)
    assert torch.equal(waiting.read(middle), weights()["w"].reshape(-1)[4:11])


def test_only_a_snapshot_waits_for_the_disk(tmp_path, monkeypatch):
    waited = []
    monkeypatch.setattr("os.fsync", waited.append)
    store = MemoryStore(tmp_path / "memories", cap=1)
    for site in ("anna", "bo", "carl"):
        store.put(f"{site}/own", Kept(torch.ones(2)))
    assert len(list((tmp_path / "memories").glob("*.numbers"))) == 2, "all but the last are aside"
    assert not waited
    store.snapshot(tmp_path / "first")
    assert len(waited) == 3
    store.put("anna/own", Kept(torch.zeros(2)))
    store.snapshot(tmp_path / "second")
    assert len(waited) == 4, "what has not changed is not waited for again"


@dataclass(frozen=True)
class Rich:
    weights: dict[str, torch.Tensor]
    moments: dict[str, dict[str, torch.Tensor]]
    seen: int
    share: float | None


def test_what_is_put_aside_comes_back_whole_and_leaves_nothing_behind(tmp_path):
    folder = tmp_path / "store"
    store = MemoryStore(folder, cap=1)
    moments = {
        name: {"step": torch.tensor(3.0), "mean": value} for name, value in weights().items()
    }
    store.put("anna/memory", Rich(weights(), moments, 7, None))
    store.put("bo/memory", Kept(torch.zeros(1)))
    assert {path.suffix for path in folder.iterdir()} == {".numbers", ".tree"}
    back = store.get("anna/memory", Rich)
    assert (back.seen, back.share) == (7, None)
    for name, value in weights().items():
        for found in (back.weights[name], back.moments[name]["mean"]):
            assert found.dtype == value.dtype
            assert torch.equal(found, value)
    with pytest.raises(MessageError, match="what site 'anna' remembers"):
        store.get("anna/memory", Kept)
    store.snapshot(tmp_path / "snapshot")
    assert {path.suffix for path in folder.iterdir()} == {".safetensors"}
    assert torch.equal(store.get("anna/memory", Rich).weights["w"], weights()["w"])
    store.put("anna/memory", Rich({}, {}, 8, 0.5))
    store.put("anna/memory", Rich({}, {}, 9, 0.5))
    assert store.get("anna/memory", Rich).seen == 9
    assert len(list(folder.iterdir())) == 1, "what is remembered anew leaves no older file"


def test_what_is_put_aside_every_round_takes_no_more_room_each_time(tmp_path):
    store = MemoryStore(tmp_path / "store", cap=1)
    for number in range(5):
        for site in ("anna", "bo", "carl"):
            store.put(f"{site}/memory", Kept(torch.full((6,), float(number))))
    for suffix in ("tree", "numbers"):
        assert len(list((tmp_path / "store").glob(f"*.{suffix}"))) <= 3
    assert store.get("anna/memory", Kept).value[0] == 4


def test_what_stays_on_a_gpu_takes_of_its_memory_and_none_of_the_ram(monkeypatch):
    class Storage:
        def __init__(self, device, at, size):
            self.device, self.data_ptr, self.nbytes = torch.device(device), lambda: at, lambda: size

    def tensor(*where):
        return SimpleNamespace(untyped_storage=lambda: Storage(*where))

    card = SimpleNamespace(total_memory=8000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    views = [tensor("cpu", 1, 30), tensor("cpu", 1, 30)]  # of one storage
    assert room_taken(views, cap=60) == 0.5
    assert room_taken([*views, tensor("cuda", 1, 250)], cap=60) == 0.75
    assert room_taken(views, cap=0) > 1


def test_what_stays_on_a_device_leaves_no_copy_at_the_host(tmp_path):
    @dataclass(frozen=True)
    class Own:
        weights: Weights

    store = MemoryStore(tmp_path / "store", cap=1 << 20)
    kept = DeviceWeights(PackedWeights.of(weights()))
    store.put("a/memory", Own(kept))
    store.snapshot(tmp_path / "snapshot")
    assert "buffers" not in vars(kept)
    assert kept["n"] == 7
    store.let_go("a")
    assert "buffers" not in vars(kept)
