"""Which bytes the virtual card holds, and what is read where it holds nothing."""

from __future__ import annotations

import struct

from tests.unit.virtual.on_card import on_card

MiB = 1 << 20


def test_what_was_copied_there_is_held() -> None:
    said = on_card(
        """
        p = malloc(MiB)
        to_device(p, b"abcdefgh")
        say([to_host(p, 8).decode(), unknown(p + 2, 6), unknown(p, 9), unknown(p + 100, 50)])
        """
    )
    assert said == ["abcdefgh", 0, 1, 50]


def test_never_written_bytes_read_as_zeros_or_as_numbers_of_the_likeliest_type() -> None:
    script = """
        p = malloc(MiB)
        to_device(p, b"abc")
        say([to_host(p, 20).hex(), *(to_host(p + 8, size).hex() for size in (1, 2, 4, 8, 9))])
        """
    assert on_card(script, values="zeros") == [(b"abc" + bytes(17)).hex(), *(bytes(n).hex() for n in (1, 2, 4, 8, 9))]
    many = struct.pack("<q", 512)
    scalars = [b"\x09", b"\xb6\x42", struct.pack("<f", 91.0), many, many + b"\x00"]
    long = b"abc" + many[3:] + many + many[:4]
    assert on_card(script, values="largest") == [said.hex() for said in (long, *scalars)]


def test_other_rules_give_other_numbers_and_other_counts_of_booleans() -> None:
    script = """
        p = malloc(MiB)
        say([to_host(p, size).hex() for size in (1, 2, 4, 8, 16)])
        """
    ones = [b"\x01", b"\x80\x3f", struct.pack("<f", 1.0), *(struct.pack(f"<{n}q", *[1] * n) for n in (1, 2))]
    assert on_card(script, values="ones") == [said.hex() for said in ones]
    number = b"\x01\x00\x14\x42"
    assert int(struct.unpack("<f", number)[0]) == 37
    larger = [b"\x05", b"\x00\x42", number, *(struct.pack(f"<{n}q", *[257] * n) for n in (1, 2))]
    assert on_card(script, values="larger") == [said.hex() for said in larger]
    largest = [bytes.fromhex(said) for said in on_card(script, values="largest")]
    for one, other in zip(largest[1:], larger[1:], strict=True):
        assert one.count(0) != other.count(0)


def test_what_a_kernel_may_have_written_never_reads_the_same_under_both_rules() -> None:
    """Not even where the number that was copied there is the one that the second rule gives."""
    script = """
        p = malloc(MiB)
        said = []
        for number in (1, 257, 7):
            to_device(p, number.to_bytes(8, "little"))
            launch_with_buffer(p)
            said.append(int.from_bytes(to_host(p, 8), "little"))
        say(said)
        """
    assert on_card(script, values="zeros") == [1, 257, 7]
    assert on_card(script, values="larger") == [257, 258, 257]


def test_a_memset_holds() -> None:
    said = on_card(
        """
        p = malloc(MiB)
        memset(p, 0x11, 100)
        call("cuMemsetD32Async", c_uint64(p + 104), c_uint(0x01020304), c_size_t(2), None)
        call("cudaMemset2D", c_void_p(p + 512), c_size_t(32), c_int(9), c_size_t(4), c_size_t(3))
        reads = [unknown(p, 100), unknown(p + 104, 8), unknown(p + 512, 96)]
        say([to_host(p + 98, 14).hex(), *reads, to_host(p + 544, 5).hex()])
        """
    )
    assert said == ["11110000000004030201040302" + "01", 0, 0, 84, "0909090900"]


def test_a_copy_on_the_device_carries_what_is_held() -> None:
    said = on_card(
        """
        p = malloc(2 * MiB)
        q = p + MiB
        to_device(p + 8, b"xyz")
        memset(q, 7, 32)
        on_device(q, p, 16)
        say([unknown(q, 16), unknown(q + 8, 3), unknown(q + 16, 16), to_host(q + 8, 3).decode(), to_host(q, 1).hex()])
        """
    )
    assert said == [13, 0, 0, "xyz", "00"]


def test_an_overlapping_copy_on_the_device() -> None:
    said = on_card(
        """
        p = malloc(MiB)
        to_device(p, b"abcdefgh")
        on_device(p + 4, p, 8)
        say([to_host(p, 12).decode(), unknown(p, 12)])
        """
    )
    assert said == ["abcdabcdefgh", 0]


def test_copies_above_the_limit_move_nothing_and_forget_and_read_as_unknown() -> None:
    said = on_card(
        """
        p = malloc(MiB)
        to_device(p, b"a" * 1000)
        to_device(p + 100, b"b" * 601)
        kept = [unknown(p, 100), unknown(p + 100, 601), unknown(p + 701, 299), to_host(p + 100, 1).decode()]
        before = state()
        big = to_host(p, 601)
        say([kept, big == bytes(601), state().unknown_read_bytes - before.unknown_read_bytes])
        """,
        copy_limit=600,
    )
    # 1000 bytes are above the limit already.
    assert said == [[100, 601, 299, "\0"], True, 601]


def test_exactly_the_limit_is_moved() -> None:
    assert on_card(
        """
        p = malloc(MiB)
        to_device(p, b"a" * 600)
        say([unknown(p, 600), to_host(p, 600) == b"a" * 600])
        """,
        copy_limit=600,
    ) == [0, True]


def test_two_dimensional_copies() -> None:
    said = on_card(
        """
        p = malloc(MiB)
        rows = ctypes.create_string_buffer(b"abcdEFGHijkl", 12)
        call("cudaMemcpy2D", c_void_p(p), c_size_t(16), rows, c_size_t(4), c_size_t(3), c_size_t(3), c_int(1))
        out = ctypes.create_string_buffer(b"." * 12, 12)
        before = state().unknown_reads
        call("cudaMemcpy2D", out, c_size_t(4), c_void_p(p), c_size_t(16), c_size_t(3), c_size_t(3), c_int(2))
        gaps = unknown(p, 35)
        bad = status("cudaMemcpy2D", out, c_size_t(2), c_void_p(p), c_size_t(16), c_size_t(3), c_size_t(3), c_int(2))
        say([out.raw.decode(), state().unknown_reads - before, gaps, bad])
        """
    )
    assert said == ["abc.EFG.ijk.", 1, 26, 12]


def test_freed_memory_is_unknown_again() -> None:
    said = on_card(
        """
        keeps_the_page = malloc(512)
        small = malloc(512)
        to_device(small, b"x")
        free(small)
        again = malloc(512)
        address = reserve(2 * MiB)
        handle = create(2 * MiB)
        map_physical(address, 2 * MiB, handle)
        to_device(address, b"y")
        call("cuMemUnmap", c_uint64(address), c_size_t(2 * MiB))
        map_physical(address, 2 * MiB, handle)
        say([again == small, unknown(again, 1), unknown(address, 1), to_host(address, 1).hex()])
        """
    )
    assert said == [True, 1, 1, "00"]


def test_a_read_of_memory_that_is_not_there_is_an_error() -> None:
    said = on_card(
        """
        ends, p = malloc(4 * MiB), malloc(4 * MiB)
        free(p)
        out = ctypes.create_string_buffer(8)
        copies = [(p, 8), (ends + 4 * MiB - 4, 8)]
        say([status("cudaMemcpy", out, c_void_p(at), c_size_t(n), c_int(2)) for at, n in copies])
        """
    )
    assert said == [1, 1]


def test_a_kernel_forgets_the_range_that_its_pointer_points_into() -> None:
    said = on_card(
        """
        p = malloc(MiB)
        def after(pointer):
            to_device(p, b"a" * 512)          # its own range, though it meets the next one
            to_device(p + 512, b"b" * 100)
            to_device(p + 612, b"c" * 600)    # continues it
            to_device(p + 2048 + 100, b"d" * 8)
            launch_with_buffer(pointer)
            return [unknown(p, 512), unknown(p + 512, 700), unknown(p + 2148, 8)]
        say([after(p + offset) for offset in (0, 100, 700, 2048, 3000, 1536)])
        """
    )
    # The second range touches the first, and may be a further part of the same tensor.
    first, second, third, none = [512, 700, 0], [0, 700, 0], [0, 0, 8], [0, 0, 0]
    assert said == [first, first, second, third, none, none]


def test_a_shorter_tensor_in_the_place_of_a_longer_one_is_a_range_of_its_own() -> None:
    said = on_card(
        """
        p = malloc(MiB)
        to_device(p, b"a" * 8000)
        to_device(p, b"b" * 24)
        launch_with_buffer(p + 512)
        say([unknown(p, 24), unknown(p + 512, 100)])
        """
    )
    assert said == [0, 100]


def test_the_callback_comes_before_the_answer_with_no_lock_held() -> None:
    said = on_card(
        """
        seen = []
        p = malloc(MiB)
        def heed(size):
            to_device(p, b"late")             # takes the card's lock: it must be free
            seen.append(size)
        library.on_unknown_read(heed)
        first = to_host(p, 4).decode()
        to_host(p, 4)
        library.on_unknown_read(None)
        to_host(p + 100, 4)
        say([first, seen, state().unknown_reads])
        """
    )
    assert said == ["late", [4], 2]
