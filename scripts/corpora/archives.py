"""From the public home of a data set, or copies of its archives, to the files it is made of."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import shutil
import tarfile
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tqdm import tqdm

from .recipe import Copy, Home, Recipe, stored_name

BLOCK = 1 << 20
BROKEN = (EOFError, OSError, zlib.error, tarfile.TarError, zipfile.BadZipFile)
# Archives within archives, as in the collections of all pairs of a year, are opened too.
TARS = (".tgz", ".tar.gz")
KINDS = {".zip": "zip archive", ".gz": "gzip file"}
KINDS |= dict.fromkeys(TARS, "gzip tar")
ANOTHER_COPY = "another copy can be given with --archive"


def is_address(archive: str) -> bool:
    """Tells addresses from paths."""
    return archive.startswith(("http://", "https://"))


def list_files(archive: str, names: set[str]) -> list[Path]:
    """The files that a path given by the user stands for: itself, or what a folder holds.

    Args:
        archive: a file or a folder.
        names: the files of a folder that are taken although they are no archives.

    Raises:
        ValueError: it is neither, or a folder without any such file.
    """
    path = Path(archive)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ValueError(f"--archive must be a file, a folder or an address, but is '{archive}'")
    files = [
        file
        for file in sorted(path.rglob("*"))
        if file.is_file() and (file.name.endswith(tuple(KINDS)) or file.name in names)
    ]
    if not files:
        raise ValueError(f"--archive must hold archives, but there is none in '{archive}'")
    return files


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """The hexadecimal digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def describe_archives(given: Sequence[str], recipe: Recipe) -> str:
    """One line that changes when the archives do: addresses, or the contents of files."""
    if not given:
        return " ".join(copy.url for home in recipe.homes for copy in home.copies)
    parts = [
        [archive] if is_address(archive) else map(checksum, list_files(archive, _names(recipe)))
        for archive in given
    ]
    return hashlib.sha256("\n".join(p for part in parts for p in part).encode()).hexdigest()


def check(path: Path, copy: Copy) -> None:
    """Compares a file with what is published of it.

    Raises:
        ValueError: its size or its checksum differs.
    """
    size = path.stat().st_size
    if copy.size is not None and size != copy.size:
        raise ValueError(f"{path} must have {copy.size} bytes, but has {size}")
    if copy.digest is not None:
        algorithm, digest = copy.digest
        actual = checksum(path, algorithm)
        if actual != digest:
            raise ValueError(f"{path} must have the {algorithm} {digest}, but has {actual}")


def download(copy: Copy, folder: Path) -> Path:
    """Downloads a file whole, or not at all; what an earlier run downloaded is kept.

    Raises:
        ValueError: it cannot be had, or is not what is published.
    """
    # Files of one name at several addresses must not be mistaken for each other.
    path = folder / hashlib.sha256(copy.url.encode()).hexdigest()[:12] / copy.name
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        with urllib.request.urlopen(copy.url, timeout=60) as answer, part.open("wb") as out:
            size = int(answer.headers.get("Content-Length", 0)) or None
            bar = {"total": size, "desc": f"  {copy.name}", "disable": None}
            with tqdm.wrapattr(answer, "read", **bar) as source:
                shutil.copyfileobj(source, out, BLOCK)
            if size and out.tell() != size:
                raise OSError(f"the connection ended after {out.tell()} of {size} bytes")
        check(part, copy)
    except (OSError, ValueError, http.client.HTTPException) as error:
        part.unlink(missing_ok=True)
        reason = str(error).replace(str(part), "the file") or type(error).__name__
        raise ValueError(f"cannot download {copy.url}: {reason}") from error
    part.rename(path)
    return path


def download_home(home: Home, folder: Path) -> Path:
    """Downloads a file from the first of its homes that has it.

    Raises:
        ValueError: none has; it tells the reason of each.
    """
    reasons = []
    for copy in home.copies:
        try:
            return download(copy, folder)
        except ValueError as error:
            reasons.append(str(error))
    raise ValueError("; ".join([*reasons, ANOTHER_COPY, *filter(None, [home.hint])]))


def kind_of(name: str) -> str:
    """What a file's name says it is: one of ``KINDS``, or nothing for a plain file."""
    return next((KINDS[end] for end in (*TARS, ".zip", ".gz") if name.endswith(end)), "")


def members(name: str, file: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    """The files in an archive, of archives in it too, each with its path.

    Args:
        name: of the archive, which tells its kind.
        file: its content.

    Raises:
        ValueError: a path leads out of the archive.
    """
    kind = kind_of(name)
    if kind == "gzip tar":
        with tarfile.open(fileobj=file, mode="r:gz") as tar:
            for member in tar:
                check_path(member.name, name)
                if member.isfile():
                    yield from open_nested(member.name, tar.extractfile(member))
    elif kind == "zip archive":
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                check_path(member.filename, name)
                if not member.is_dir():
                    with archive.open(member) as content:
                        yield from open_nested(member.filename, content)
    elif kind == "gzip file":
        yield name.removesuffix(".gz"), gzip.GzipFile(fileobj=file)
    else:
        yield name, file


def open_nested(name: str, file: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    """A file in an archive, or those in it where it is an archive itself."""
    if kind_of(name):
        yield from members(name, file)
    else:
        yield name, file


def check_path(path: str, archive: str) -> None:
    """Refuses a path that leads out of its archive, although nothing is written under it."""
    if path.startswith(("/", "\\")) or ".." in path.replace("\\", "/").split("/"):
        raise ValueError(f"{archive} holds the unsafe path {path}")


def check_whole(path: Path) -> None:
    """Reads an archive to its end, with all its checksums."""
    kind = kind_of(path.name)
    if kind == "zip archive":
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
        if bad:
            raise zipfile.BadZipFile(f"wrong checksum of {bad}")
    elif kind:
        with gzip.open(path) as whole:
            while whole.read(BLOCK):
                pass


def unpack(archive: Path, wanted: Sequence[tuple[str, ...]], out: Path) -> None:
    """Takes wanted files out of an archive into a folder, under their own names alone.

    Args:
        archive: gzip tar, zip, gzip file or plain file, as its name tells.
        wanted: of each file the endings of paths under which it may stand in the archive.
        out: an existing folder.

    Raises:
        ValueError: the archive is broken or unsafe, or a file is there already.
    """
    try:
        check_whole(archive)
        with archive.open("rb") as file:
            for name, content in members(archive.name, file):
                found = next((w for w in wanted if is_called(name, w)), None)
                if found:
                    keep(content, out / stored_name(found), archive)
    except BROKEN as error:
        if getattr(error, "errno", None):
            raise  # of the disk, not of the archive
        kind = kind_of(archive.name) or "readable file"
        raise ValueError(f"{archive} is no whole {kind} ({error})") from error


def is_called(path: str, endings: tuple[str, ...]) -> bool:
    """Whether a path in an archive is, or ends with, one of some endings."""
    return any(f"/{path}".endswith(f"/{ending.removesuffix('.gz')}") for ending in endings)


def keep(content: IO[bytes], path: Path, archive: Path) -> None:
    """Writes a file that is not there yet: of two, nobody could say which one is meant."""
    try:
        with path.open("xb") as out:
            shutil.copyfileobj(content, out, BLOCK)
    except FileExistsError as error:
        raise ValueError(f"{archive} holds {path.name}, which was found before") from error


def require(wanted: Sequence[tuple[str, ...]], out: Path, archives: str, hint: str = "") -> None:
    """Sees that all files have been found.

    Raises:
        ValueError: some have not; it names the first three.
    """
    missing = [endings[0] for endings in wanted if not (out / stored_name(endings)).exists()]
    if missing:
        names = ", ".join(missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(f"{archives} lacks {names}{more}{hint and f'; {hint}'}")


def take(recipe: Recipe, given: Sequence[str], downloads: Path, out: Path) -> None:
    """Brings the files of a data set into a folder.

    Args:
        recipe: the data set.
        given: paths and addresses of archives, which between them must hold all files; without
            any, the public homes are asked.
        downloads: a folder for what is downloaded, which can be removed afterwards.
        out: an existing, empty folder.

    Raises:
        ValueError: an archive cannot be had, is broken, or is not what is published; or files
            are lacking.
    """
    if not given:
        for home in recipe.homes:
            archive = download_home(home, downloads)
            with removed_if_bad(archive):
                unpack(archive, home.wanted, out)
                require(home.wanted, out, str(archive))
        return
    wanted = [endings for home in recipe.homes for endings in home.wanted]
    for archive in given:
        if is_address(archive):
            unpack_address(archive, wanted, downloads, out)
        else:
            for file in list_files(archive, _names(recipe)):
                unpack(file, wanted, out)
    with removed_if_bad(downloads):
        for home in recipe.homes:
            require(home.wanted, out, ", ".join(given), home.hint)


@contextmanager
def removed_if_bad(path: Path) -> Iterator[None]:
    """Removes what was downloaded and turns out to be wrong: the next run asks again."""
    try:
        yield
    except ValueError:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        raise


def unpack_address(url: str, wanted: Sequence[tuple[str, ...]], downloads: Path, out: Path) -> None:
    """Downloads and unpacks an archive."""
    try:
        file = download(Copy(url), downloads)
    except ValueError as error:
        raise ValueError(f"{error}; {ANOTHER_COPY}") from error
    with removed_if_bad(file):
        unpack(file, wanted, out)


def _names(recipe: Recipe) -> set[str]:
    """The names of wanted files, which need no archive around them."""
    return {stored_name(endings) for home in recipe.homes for endings in home.wanted}
