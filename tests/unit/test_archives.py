"""Archives of every kind, whole or not, from disk and from homes that answer or do not."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import free_port, serve

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from corpora import archives  # noqa: E402
from corpora.recipe import Copy, Home, Recipe, Steps, drive  # noqa: E402

WANTED = (("d/a.txt",), ("d/b.txt", "old/b"))


@pytest.fixture(scope="module", autouse=True)
def _no_proxy() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("no_proxy", "localhost,127.0.0.1")
        yield


def tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def recipe(*homes: Home) -> Recipe:
    steps = Steps()
    return Recipe("de", "en", homes, {}, (steps, steps), 1)


def take(given: list[Path | str], folder: Path, *homes: Home) -> dict[str, bytes]:
    """What is taken out of archives."""
    out = folder / "orig"
    out.mkdir()
    wanted = homes or (Home((), WANTED),)
    archives.take(recipe(*wanted), [str(path) for path in given], folder / "downloads", out)
    return {path.name: path.read_bytes() for path in out.iterdir()}


BOTH = {"a.txt": b"A", "b.txt": b"B"}


def test_files_may_come_in_any_kind_of_archive(tmp_path: Path):
    nested = tar(tmp_path / "in.tgz", {"d/a.txt": b"A"})
    whole = zipped(
        tmp_path / "all.zip",
        {
            "texts/in.tgz": nested.read_bytes(),
            "x/old/b.gz": gzip.compress(b"B"),
            "b.txt": b"of another folder",
        },
    )
    assert take([whole], tmp_path) == BOTH


def test_a_folder_may_hold_plain_files_and_archives(tmp_path: Path):
    folder = tmp_path / "given" / "d"
    folder.mkdir(parents=True)
    (folder / "readme").write_text("no archive")
    (folder / "a.txt").write_bytes(b"A")
    (folder / "b.txt.gz").write_bytes(gzip.compress(b"B"))
    home = Home((), (("a.txt",), ("b.txt",)))
    assert take([tmp_path / "given"], tmp_path, home) == BOTH


def test_two_archives_hold_the_files_between_them(tmp_path: Path):
    one = zipped(tmp_path / "one.zip", {"d/a.txt": b"A"})
    two = zipped(tmp_path / "two.zip", {"d/b.txt": b"B"})
    assert take([one, two], tmp_path) == BOTH


def test_a_file_in_two_archives_is_refused(tmp_path: Path):
    one = zipped(tmp_path / "one.zip", {"d/a.txt": b"A"})
    two = zipped(tmp_path / "two.zip", {"d/a.txt": b"other"})
    with pytest.raises(ValueError, match=r"two.zip holds a.txt, which was found before"):
        take([one, two], tmp_path)


@pytest.mark.parametrize("path", ["../a.txt", "/d/a.txt", "d/../../a.txt", "..\\a.txt"])
@pytest.mark.parametrize("kind", ["tgz", "zip"])
def test_paths_that_lead_out_of_an_archive_are_refused(kind: str, path: str, tmp_path: Path):
    archive = tmp_path / f"evil.{kind}"
    if kind == "zip":
        zipped(archive, {path: b"x"})
    else:
        tar(archive, {path: b"x"})
    with pytest.raises(ValueError, match=r"evil\.\w+ holds the unsafe path "):
        take([archive], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {archive.name, "orig"}


def test_links_are_not_followed(tmp_path: Path):
    (tmp_path / "secret").write_text("secret")
    archive = tmp_path / "links.tgz"
    with tarfile.open(archive, "w:gz") as file:
        for name in ("d/a.txt", "d/b.txt"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
            file.addfile(link)
    with pytest.raises(ValueError, match=r"links.tgz lacks d/a.txt, d/b.txt$"):
        take([archive], tmp_path)


@pytest.mark.parametrize("name", ["all.zip", "a.txt.gz"])
def test_broken_archives_are_named(name: str, tmp_path: Path):
    whole = zipped(tmp_path / "all.zip", {"d/a.txt": bytes(1000), "d/b.txt": b"B"})
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(bytes(range(256))))
    cut = tmp_path / "cut" / name
    cut.parent.mkdir()
    cut.write_bytes((tmp_path / name).read_bytes()[:-20])
    with pytest.raises(ValueError, match=rf"{name} is no whole (zip archive|gzip file) \("):
        take([cut], tmp_path)
    content = bytearray(whole.read_bytes())
    content[60] ^= 1
    flipped = tmp_path / "flipped.zip"
    flipped.write_bytes(content)
    (tmp_path / "orig").rename(tmp_path / "orig.cut")
    with pytest.raises(
        ValueError, match=r"flipped.zip is no whole zip archive \(wrong checksum of d/a.txt"
    ):
        take([flipped], tmp_path)


def test_a_folder_without_archives_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="--archive must hold archives, but there is none in"):
        take([tmp_path], tmp_path)


def test_key_changes_with_the_content_alone(tmp_path: Path):
    homes = recipe(Home((Copy("http://x/a.tgz"), Copy("http://y/a.tgz")), WANTED))
    assert archives.describe_archives([], homes) == "http://x/a.tgz http://y/a.tgz"
    one = zipped(tmp_path / "one.zip", {"d/a.txt": b"A"})
    key = archives.describe_archives([str(one)], homes)
    assert key == archives.describe_archives([str(one.rename(tmp_path / "two.zip"))], homes)
    zipped(tmp_path / "two.zip", {"d/a.txt": b"B"})
    assert key != archives.describe_archives([str(tmp_path / "two.zip")], homes)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[tuple[str, Copy]]:
    """A server, and what it serves with its size and checksum."""
    (tmp_path / "web").mkdir()
    file = zipped(tmp_path / "web" / "all.zip", {"d/a.txt": b"A", "d/b.txt": b"B"})
    content = file.read_bytes()
    with serve(tmp_path / "web") as server:
        digest = ("md5", hashlib.md5(content).hexdigest())
        yield server, Copy(f"{server}/all.zip", len(content), digest)


def test_the_second_home_is_asked_when_the_first_is_dead(home, tmp_path: Path):
    server, copy = home
    dead = [Copy(f"http://127.0.0.1:{free_port()}/all.zip"), Copy(f"{server}/gone.zip")]
    assert take([], tmp_path, Home((*dead, copy), WANTED)) == BOTH


@pytest.mark.parametrize(
    ("size", "digest", "message"),
    [
        (5, None, r"the file must have 5 bytes, but has \d+; another copy can be given with --arc"),
        (None, ("sha256", "0" * 64), r"the file must have the sha256 0+, but has [0-9a-f]{64}; an"),
    ],
)
def test_a_public_archive_that_is_another_is_refused(home, tmp_path, size, digest, message):
    bad = Copy(home[1].url, size, digest)
    with pytest.raises(ValueError, match=rf"cannot download {bad.url}: {message}"):
        take([], tmp_path, Home((bad,), WANTED))
    assert not [path for path in (tmp_path / "downloads").rglob("*") if path.is_file()]


def test_what_dead_homes_said_and_what_to_do_is_one_line(tmp_path: Path):
    urls = [f"http://127.0.0.1:{free_port()}/{name}.zip" for name in "ab"]
    home = Home(tuple(map(Copy, urls)), WANTED, "or do without")
    with pytest.raises(ValueError, match="Connection refused") as raised:
        take([], tmp_path, home)
    told = str(raised.value)
    assert "\n" not in told
    assert all(f"cannot download {url}: " in told for url in urls)
    assert told.endswith("; another copy can be given with --archive; or do without")


def test_an_address_may_be_given_and_whole_downloads_are_kept(home, tmp_path: Path):
    server, _ = home
    assert take([f"{server}/all.zip"], tmp_path) == BOTH
    (tmp_path / "web" / "all.zip").unlink()
    (tmp_path / "orig").rename(tmp_path / "first")
    assert take([f"{server}/all.zip"], tmp_path) == BOTH


@pytest.mark.parametrize("given", [True, False])
def test_a_download_that_lacks_files_is_not_kept(given: bool, home, tmp_path: Path):
    copies = () if given else (home[1],)
    addresses = [home[1].url] if given else []
    with pytest.raises(ValueError, match=r"all.zip lacks c.txt$"):
        take(addresses, tmp_path, Home(copies, (("c.txt",),)))
    assert not [path for path in (tmp_path / "downloads").rglob("*") if path.is_file()]


def test_a_full_disk_is_no_broken_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    one = zipped(tmp_path / "one.zip", {"d/a.txt": b"A"})
    monkeypatch.setattr(archives, "keep", full)
    with pytest.raises(OSError, match=r"^\[Errno 28\] No space left on device$"):
        take([one], tmp_path)


def test_a_foreign_download_is_not_kept(home, tmp_path: Path):
    (tmp_path / "web" / "foreign.zip").write_text("<html>sign in</html>")
    with pytest.raises(ValueError, match=r"foreign.zip is no whole zip archive \(File is not a"):
        take([f"{home[0]}/foreign.zip"], tmp_path)
    assert not [path for path in (tmp_path / "downloads").rglob("*") if path.is_file()]


def test_names_tell_the_kind_of_archive():
    assert Copy("http://x/y/de%2Den.tar.gz?raw=1").name == "de-en.tar.gz"
    assert drive("ID", "all.zip").name == "all.zip"
    kinds = {name: archives.kind_of(name) for name in ("a.tgz", "a.tar.gz", "a.gz", "a.zip", "a")}
    assert list(kinds.values()) == ["gzip tar", "gzip tar", "gzip file", "zip archive", ""]
