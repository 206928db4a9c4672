import pathlib
import platform
import sysconfig

import pytest

from train import corpus as corpus_module
from train.corpus import DOCUMENT_START, load_corpus
from train.user_error import UserError


def write(folder, **contents):
    for name, content in contents.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def load(*paths, percent=10):
    return load_corpus([str(path) for path in paths], held_out_percent=percent)


def documents(text):
    return text.split(DOCUMENT_START)[1:]


@pytest.fixture(scope="module")
def standard_library():
    return load_corpus((), held_out_percent=5)


def test_the_default_text_is_that_of_the_running_python(standard_library):
    assert 5_000_000 < len(standard_library.training) < 20_000_000
    assert 0.01 < len(standard_library.held_out) / len(standard_library.training) < 0.15
    assert standard_library.description == (
        f"the standard library of Python {platform.python_version()}"
    )
    # This very module of the library is in one of the two parts, but not in both.
    source = pathlib.Path(sysconfig.__file__).read_bytes()
    parts = documents(standard_library.training), documents(standard_library.held_out)
    assert sum(source in part for part in parts) == 1


def test_the_default_text_leaves_tests_and_installed_packages_out(tmp_path, monkeypatch):
    write(
        tmp_path,
        a_py=b"",
        **{
            "ast.py": "import ast",
            "pydoc_data__topics.py": "topics = {}",
            "README.txt": "read me",
            "test__test_ast.py": "left out",
            "unittest__test__case.py": "left out",
            "site-packages__jax__core.py": "left out",
            "__pycache____x.py": "left out",
            "lib.so": b"\x7fELF",
            "latin.py": b"# caf\xe9",
            "zero.py": b"a\0b",
        },
    )
    monkeypatch.setattr(corpus_module.sysconfig, "get_path", lambda name: str(tmp_path))
    text = load_corpus((), held_out_percent=50)
    assert sorted(documents(text.training) + documents(text.held_out)) == [
        b"import ast",
        b"read me",
        b"topics = {}",
    ]


def test_documents_are_in_order_of_their_paths_each_after_a_mark(tmp_path):
    write(tmp_path, **{f"{number:02}.txt": f"text {number:02}" for number in range(50)})
    text = load(tmp_path)
    both = documents(text.training), documents(text.held_out)
    assert all(part == sorted(part) for part in both)
    assert sorted(both[0] + both[1]) == [f"text {number:02}".encode() for number in range(50)]
    assert 0 < len(both[1]) < 25


def test_a_file_is_held_out_whatever_files_there_are_beside_it(tmp_path):
    write(tmp_path, **{f"{number:02}.txt": f"text {number:02}" for number in range(50)})
    before = set(documents(load(tmp_path).held_out))
    write(tmp_path, **{f"more__{number:02}.txt": f"more {number:02}" for number in range(50)})
    after = set(documents(load(tmp_path).held_out))
    assert {document for document in after if document.startswith(b"text")} == before


def test_the_place_of_a_folder_does_not_matter(tmp_path):
    contents = {f"{number:02}.txt": f"text {number:02}" for number in range(20)}
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, **contents)
    first, second = load(tmp_path / "a"), load(tmp_path / "b")
    assert first.fingerprint == second.fingerprint
    assert first.training == second.training


@pytest.mark.parametrize(
    "change",
    [{"b.txt": "other"}, {"c.txt": "text of a"}, {"a.txt": "text of a "}],
    ids=["content", "another-file", "one-byte"],
)
def test_the_fingerprint_tells_texts_apart(tmp_path, change):
    write(tmp_path, **{"a.txt": "text of a", "b.txt": "text of b"})
    before = load(tmp_path).fingerprint
    write(tmp_path, **change)
    assert load(tmp_path).fingerprint != before


def test_a_single_file_holds_out_its_end(tmp_path):
    write(tmp_path, **{"a.txt": "0123456789" * 10})
    text = load(tmp_path / "a.txt")
    assert text.training == DOCUMENT_START + b"0123456789" * 9
    assert text.held_out == DOCUMENT_START + b"0123456789"


def test_hidden_and_empty_files_are_left_out(tmp_path):
    write(
        tmp_path,
        **{"a.txt": "x" * 100, ".hidden": "no", ".git__config": "no", "empty.txt": " \n"},
    )
    text = load(tmp_path)
    assert text.training + text.held_out == DOCUMENT_START + b"x" * 90 + DOCUMENT_START + b"x" * 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"caf\xe9 au lait", "is not UTF-8 text: byte 0xe9 at offset 3; convert it"),
        (b"a\0b", "is not UTF-8 text: byte 0x00 at offset 1"),
    ],
    ids=["latin-1", "binary"],
)
def test_a_file_that_is_no_text_is_refused_by_name(tmp_path, content, message):
    write(tmp_path, **{"a.txt": "fine", "bad.txt": content})
    with pytest.raises(UserError) as caught:
        load(tmp_path)
    assert f"{tmp_path / 'bad.txt'} {message}" in str(caught.value)


def test_a_missing_path_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"data\.path: .*nowhere does not exist \(looked in"):
        load(tmp_path / "nowhere")


def test_a_folder_without_text_is_refused(tmp_path):
    write(tmp_path, **{"empty.txt": ""})
    with pytest.raises(UserError, match=r"data\.path: there is no text in .* only empty files"):
        load(tmp_path)
