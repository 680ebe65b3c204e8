"""Memory of packed weights: parts of shared slabs, given back with the last of them."""

import os
import random
import resource
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from minillm.course.tool.run import high_water_bytes
from minillm.kernels import cpu
from minillm.kernels.cpu import products
from minillm.kernels.cpu.products import pack_blocks, room

pytestmark = pytest.mark.skipif(bool(cpu.why_not()), reason=str(cpu.why_not()))
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="as Linux counts pages")


def blocks(N, C, seed):
    """Q8_0 blocks of random codes, with a scale of 1."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-127, 128, (N, C // 32, 32), generator=generator, dtype=torch.int8)
    scale = torch.ones(N, C // 32, 1).half().view(torch.uint8).view(N, C // 32, 2)
    return torch.cat([scale, codes.view(torch.uint8)], dim=-1).view(N, -1), codes.view(N, C)


def resident():
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_parts_keep_their_numbers_while_others_come_and_go():
    rng, held = random.Random(0), {}
    for number in range(300):
        # From one panel to more than a slab of 16 MB is shared for.
        N, C = rng.choice([(1, 32), (17, 64), (48, 576), (1536, 576), (9000, 1024)])
        data, codes = blocks(N, C, number)
        held[number] = pack_blocks("Q8_0", [data]), codes[[0, -1]].float()
        while len(held) > rng.choice([1, 4, 12]):
            weight, ends = held.pop(rng.choice(list(held)))
            assert torch.equal(torch.stack([weight.row(0), weight.row(weight.shape[0] - 1)]), ends)


def test_a_model_that_goes_leaves_its_memory_to_the_next():
    data, _ = blocks(2_000, 576, 0)

    def model():
        return [pack_blocks("Q8_0", [data]) for _ in range(40)]  # 49 MB

    peaks = []
    for _ in range(4):
        weights = model()
        del weights
        peaks.append(high_water_bytes(os.getpid()))
    assert peaks[-1] - peaks[0] < 20e6


def test_threads_may_pack_and_free_at_once():
    data, codes = blocks(64, 576, 1)
    expected = codes[5].float()
    wrong: list[torch.Tensor] = []

    def work():
        rows = (pack_blocks("Q8_0", [data]).row(5) for _ in range(200))
        wrong.extend(row for row in rows if not torch.equal(row, expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert products.product(pack_blocks("Q8_0", [data]), torch.ones(1, 576)).isfinite().all()


def test_weights_in_a_room_keep_their_numbers():
    shapes = [(48, 576), (1536, 576), (9000, 1024), (17, 64)] * 4
    made = [blocks(N, C, 0) for N, C in shapes[:4]] * 4
    whole = sum(data.nbytes for data, _ in made)
    for share in (0.01, 0.6, 1.1):  # of what they take
        for wait in (0, 0.002, 0.1):  # for the thread that fetches the memory
            with room(int(share * whole)):
                weights = []
                for data, _ in made:
                    time.sleep(wait / len(made))
                    weights.append(pack_blocks("Q8_0", [data]))
            for weight, (_, codes) in zip(weights, made, strict=True):
                last = len(codes) - 1
                assert torch.equal(weight.row(0), codes[0].float())
                assert torch.equal(weight.row(last), codes[last].float())


@linux
@pytest.mark.parametrize("N", [2_000, 20_000], ids=["shared slabs", "a slab for each"])
def test_a_model_that_goes_leaves_its_memory_to_the_system(N):
    """Also where malloc would keep it: below its threshold, with something of others above."""
    data, _ = blocks(N, 576, 0)
    torch.ones(7_500_000)  # 30 MB that are freed: malloc's threshold from here on
    before, weights, others = resident(), [], []
    for _ in range(160_000 // N):  # 98 MB
        weights.append(pack_blocks("Q8_0", [data]))
        others.append(torch.ones(10_000))
    assert resident() - before > 60e6  # one slab of 16 MB may have been there
    del weights
    assert resident() - before < 30e6  # that slab is kept for the next model


@linux
@pytest.mark.parametrize("packs", [False, True])
def test_a_room_is_given_back(packs):
    data, codes = blocks(2_000, 576, 0)
    before = resident()
    with room(200_000_000):
        end = time.monotonic() + 30
        while resident() - before < 100e6 and time.monotonic() < end:
            time.sleep(0.01)
        assert resident() - before >= 100e6  # before anything is packed
        weights = [pack_blocks("Q8_0", [data]) for _ in range(40)] if packs else []  # 49 MB
    assert all(torch.equal(weight.row(1_999), codes[1_999].float()) for weight in weights)
    del weights
    assert resident() - before < 20e6


def test_a_room_that_no_memory_is_left_for_is_no_fault():
    data, codes = blocks(64, 576, 0)
    with room(1 << 60):
        assert torch.equal(pack_blocks("Q8_0", [data]).row(63), codes[63].float())


def test_a_room_in_which_something_fails_is_given_back():
    before = threading.active_count()
    with pytest.raises(ValueError, match="blocks of kind 'Q1'"), room(200_000_000):
        pack_blocks("Q1", [])
    assert threading.active_count() == before


def test_what_moves_to_large_pages_stays_what_it_is():
    """Also parts that begin and end anywhere, and memory that is none of a large page."""
    library, numbers = cpu.load_library(), torch.arange(3_000_000, dtype=torch.int32)
    expected = numbers.clone()
    for first, count in ((0, len(numbers)), (17, 1_200_000), (5, 3), (0, 0)):
        part = numbers[first : first + count]
        library.mm_in_large_pages(part.data_ptr(), part.nbytes)
        assert torch.equal(numbers, expected)
