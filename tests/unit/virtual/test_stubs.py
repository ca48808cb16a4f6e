"""Tables of calls become C that does what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.virtual import stubs

HEAD = "unsupported 15\n\n"


def read(tmp_path: Path, text: str) -> tuple[stubs.Function, ...]:
    path = tmp_path / "lib.txt"
    path.write_text(HEAD + text)
    return stubs.read_table(path)


def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    (tmp_path / "names").mkdir()
    (tmp_path / "names" / "lib.txt").write_text(HEAD + text)
    monkeypatch.setattr(stubs, "NAMES", tmp_path / "names")
    return "".join(path.read_text() for path in stubs.write_stubs(tmp_path))


class TestTable:
    def test_a_pattern_names_every_combination(self, tmp_path: Path) -> None:
        table = read(tmp_path, "[compute] products\nlib{S,D}gemm{,_64}(handle, >C)\n")
        assert [f.name for f in table] == ["libDgemm", "libDgemm_64", "libSgemm", "libSgemm_64"]

    def test_a_group_of_a_parameter_follows_the_name_s_of_its_length(self, tmp_path: Path) -> None:
        table = read(tmp_path, "[compute] dots\nlib{S,D,C}dot{,_64}(handle, >result:{4,8,16})\n")
        assert {f.name: f.parameters[1].size for f in table if f.name.endswith("_64")} == {
            "libSdot_64": "4",
            "libDdot_64": "8",
            "libCdot_64": "16",
        }

    def test_a_line_goes_on_where_it_is_indented(self, tmp_path: Path) -> None:
        (function,) = read(tmp_path, "[accept] settings\nlibSet(handle,\n    value:double)   # a remark\n")
        assert [p.name for p in function.parameters] == ["handle", "value"]

    def test_names_stand_behind_their_prefix(self, tmp_path: Path) -> None:
        assert [f.name for f in read(tmp_path, "[names] libGet\nA{,_v2}\n[names] lib\nB\n")] == [
            "libB",
            "libGetA",
            "libGetA_v2",
        ]

    def test_a_table_may_hold_several_libraries(self, tmp_path: Path) -> None:
        table = read(tmp_path, "[names] lib\nGet\nunsupported 7\nuninitialised 1\n[names] other\nGet\n")
        assert {f.name: f.library for f in table} == {
            "libGet": stubs.Library("15", ""),
            "otherGet": stubs.Library("7", "1"),
        }

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("libSet(handle)\n", "lib.txt:3: no such section"),
            ("[accept]\n", "lib.txt:3: no such section, or one without a reason"),
            ("[guess] why not\n", "lib.txt:3: no such section"),
            ("[accept] settings\nlibSet\n", "lib.txt:4: not a call: libSet"),
            ("[accept] settings\nlibSet(a b)\n", "lib.txt:4: not a parameter: a b"),
            ("[accept] settings\nlibSet(a:word)\n", "lib.txt:4: no such type: a:word"),
            ("[accept] settings\nlibGet(*size:size)\n", "lib.txt:4: not a parameter"),
            ("[accept] settings\nlibSet(a)\nlibSet(b)\n", "lib.txt:5: libSet is described twice"),
            ("[accept] settings\nlibSet(a)\n[names] lib\nSet\n", "lib.txt:6: libSet is described twice"),
        ],
    )
    def test_a_wrong_line_is_named(self, tmp_path: Path, text: str, said: str) -> None:
        with pytest.raises(ValueError, match=said):
            read(tmp_path, text)

    def test_a_table_states_what_is_not_supported(self, tmp_path: Path) -> None:
        path = tmp_path / "lib.txt"
        path.write_text("[names] lib\nGet\n")
        with pytest.raises(ValueError, match="stands before a line 'unsupported STATUS'"):
            stubs.read_table(path)


class TestSource:
    def test_a_computing_call_launches_on_the_handle_s_stream_and_writes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = source(tmp_path, monkeypatch, "uninitialised 1\n[compute] r\nlibMul(handle, a, >c, =info:4*n, n:int)\n")
        assert "CARD_API long libMul(void *handle, void *a, void *c, void *info, int n) {" in text
        body = text[text.index("libMul") :]
        order = [
            "if (card_enter()) return 1;",
            "card_launched(library_stream(handle));",
            "library_written(c, 0);",
            "library_zero(info, 4*n, library_stream(handle));",
            "return (long)(0);",
        ]
        assert [line.strip() for line in body.splitlines()[1:6]] == order

    def test_a_stream_of_its_own_is_taken(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "card_launched(stream);" in source(tmp_path, monkeypatch, "[compute] r\nlibMul(handle, >c, stream)\n")

    def test_an_estimate_is_noted_and_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        text = source(tmp_path, monkeypatch, "[estimate] r\nlibSize(handle, n:long, *bytes:size=8*n)\n")
        assert 'card_unknown_workspace("libSize");' in text
        assert "if (bytes) *bytes = 8*n;" in text

    def test_every_other_name_is_weak_and_not_supported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        text = source(tmp_path, monkeypatch, "[accept] none\nlibDone() -> 7\n[names] lib\nRest\n")
        assert 'WEAK CARD_API long libRest(void) { card_unsupported("libRest"); return (long)(15); }' in text
        assert "CARD_API long libDone(void) {\n  return (long)(7);\n}" in text

    def test_another_name_of_a_function_passes_its_arguments_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = source(tmp_path, monkeypatch, "[same] r\nlibGet\n[driver] r\ncudaGet cudaPut=cuSet_v2\n")
        assert "{ return libGet_v2(a, b, c, d, e, f); }" in text
        assert "{ return card_runtime_status((int)cuGet(a, b, c, d, e, f)); }" in text
        assert (
            "long cudaPut(long a, long b, long c, long d, long e, long f) { return card_runtime_status((int)cuSet"
            in text
        )


class TestTables:
    """The tables that ship."""

    def test_no_name_stands_in_two_tables(self) -> None:
        seen: dict[str, str] = {}
        for path in stubs.NAMES.glob("*.txt"):
            for function in stubs.read_table(path):
                assert seen.setdefault(function.name, path.stem) == path.stem

    def test_every_size_that_a_call_is_asked_for_is_written(self) -> None:
        for path in stubs.NAMES.glob("*.txt"):
            for function in stubs.read_table(path):
                if function.kind == "estimate":
                    assert any(parameter.role == "*" for parameter in function.parameters), function.name
                if function.kind == "compute":
                    outputs = [p for p in function.parameters if p.role in {">", "@", "="}]
                    assert outputs or "atched" in function.name, function.name  # arrays of pointers on the card
