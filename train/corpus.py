"""The text that a model trains on, as bytes, without a download.

By default it is the source and documentation text of the Python that runs the program: about 10 MB
of real text on every machine, though not the same text under another version of Python. So every
corpus has a fingerprint, which a run keeps, and a run never goes on with another corpus.

Which files are held out depends on the hash of their relative path alone: a file never moves
between training and evaluation because another one was added, nor from machine to machine.
"""

import dataclasses
import hashlib
import pathlib
import platform
import sysconfig
from collections.abc import Iterable, Iterator, Sequence

from train.user_error import UserError

DOCUMENT_START = b"\0"  # no text holds this byte, so a model can tell where a document begins

_TEXT_SUFFIXES = {".py", ".pyw", ".txt", ".rst"}
# Tests are repetitive, and distributions leave them out. Installed packages are not Python's own.
_LEFT_OUT_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus:
    """Text as bytes, each document after a `DOCUMENT_START`, in order of relative path.

    Attributes:
        training: What the model trains on.
        held_out: What it is evaluated on.
        fingerprint: Hash of every path and every byte.
        description: Where it came from, for people.
    """

    training: bytes
    held_out: bytes
    fingerprint: str
    description: str


def load_corpus(paths: Sequence[str], *, held_out_percent: int) -> Corpus:
    """Reads the files at `paths` (folders are searched), or the standard library if there are none.

    Args:
        paths: The user's UTF-8 files, or folders of such files. Hidden files are left out.
        held_out_percent: How many files of a hundred are held out. Where that would hold out none
            or all of them, as with a single file, the end of every file is held out instead.

    Raises:
        UserError: A path does not exist, nothing was found, or a file of the user's is no UTF-8.
    """
    if paths:
        files = sorted(_user_files(paths))
        documents = [(name, _read_user_file(path)) for name, path in files]
        description = ", ".join(paths)
    else:
        documents = list(_standard_library())
        description = f"the standard library of Python {platform.python_version()}"
    documents = [(name, content) for name, content in documents if content.strip()]
    if not documents:
        raise UserError(
            f"data.path: there is no text in {description}, only empty files or none; "
            "name a folder or files with UTF-8 text, or leave data.path out to train on the "
            "source text of Python"
        )
    training, held_out = _hold_out(documents, held_out_percent)
    return Corpus(
        training=training,
        held_out=held_out,
        fingerprint=_fingerprint(documents),
        description=description,
    )


def _standard_library() -> Iterator[tuple[str, bytes]]:
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))
    for name in names:
        path = root / name
        folders = path.relative_to(root).parts[:-1]
        if path.suffix not in _TEXT_SUFFIXES or _LEFT_OUT_FOLDERS.intersection(folders):
            continue
        if not path.is_file():
            continue
        content = path.read_bytes()
        if _undecodable_at(content) is None:
            yield name, content


def _user_files(paths: Iterable[str]) -> Iterator[tuple[str, pathlib.Path]]:
    """Name and place of every file; the name is relative to the folder that was given."""
    for given in paths:
        root = pathlib.Path(given).expanduser()
        if root.is_file():
            yield root.name, root
        elif root.is_dir():
            for path in root.rglob("*"):
                name = path.relative_to(root)
                if path.is_file() and not any(part.startswith(".") for part in name.parts):
                    yield name.as_posix(), path
        else:
            raise UserError(
                f"data.path: {given} does not exist (looked in {pathlib.Path.cwd()}); "
                "name a folder or files with UTF-8 text"
            )


def _read_user_file(path: pathlib.Path) -> bytes:
    content = path.read_bytes()
    place = _undecodable_at(content)
    if place is not None:
        raise UserError(
            f"data.path: {path} is not UTF-8 text: byte {content[place]:#04x} at offset {place}; "
            f"convert it (iconv -f latin1 -t utf-8), or keep only text in data.path"
        )
    return content


def _undecodable_at(content: bytes) -> int | None:
    """Offset of the first byte that is not UTF-8 text, or None. Text holds no `DOCUMENT_START`."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    place = content.find(DOCUMENT_START)
    return None if place < 0 else place


def _hold_out(documents: Sequence[tuple[str, bytes]], percent: int) -> tuple[bytes, bytes]:
    """Splits the documents into training and held-out bytes."""
    training, held_out = [], []
    for name, content in documents:
        # Eight bytes of the hash are as good as all of them.
        bucket = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % 100
        (held_out if bucket < percent else training).append(content)
    if not training or not held_out:
        training, held_out = [], []
        for _, content in documents:
            cut = len(content) * (100 - percent) // 100
            training.append(content[:cut])
            held_out.append(content[cut:])
    return _join(training), _join(held_out)


def _join(contents: Iterable[bytes]) -> bytes:
    return b"".join(DOCUMENT_START + content for content in contents)


def _fingerprint(documents: Iterable[tuple[str, bytes]]) -> str:
    whole = hashlib.sha256()
    for name, content in documents:
        whole.update(hashlib.sha256(name.encode()).digest())
        whole.update(hashlib.sha256(content).digest())
    return whole.hexdigest()[:16]
