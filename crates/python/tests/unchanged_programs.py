"""Debian's programs under `foreread run`. Run by `.ci/soak unchanged`, which installs them."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from serving import Dataset

SOURCES = Path(__file__).with_name("unchanged")

#: The files, without those of the repository.
FILES = 60

#: The C program's builds that use a C library, and those that call the kernel themselves.
DYNAMIC = {"glibc": ["cc"], "ubsan": ["cc", "-fsanitize=undefined"], "musl": ["musl-gcc"]}
STATIC = {"static": ["musl-gcc", "-static"]}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Files of various ages and modes and a repository, and the compiled programs in `bin`."""
    dataset = Dataset(tmp_path_factory.mktemp("unchanged"))
    content = random.Random(0)
    for number in range(FILES):
        path = dataset.root / f"files/c{number % 3}/{number:03}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.randbytes(5000 + number))
        path.chmod(0o600 + number % 2 * 0o44)
        os.utime(path, ns=(0, 1_500_000_000_123_456_789 + number))
    (dataset.root / "files/link").symlink_to("c0/000.bin")
    work = dataset.directory / "work"
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "gc.auto=0"]
    subprocess.run(["git", "init", "--quiet", "-b", "main", work], check=True)
    for commit in range(4):
        for number in range(8):
            text = content.randbytes(3000) if number % 4 == commit else b"text\n" * number
            (work / f"{number}.txt").write_bytes(text)
        subprocess.run(["git", "-C", work, "add", "."], check=True)
        subprocess.run(["git", "-C", work, *identity, "commit", "--quiet", "-m", f"{commit}"], check=True)
    subprocess.run(["git", "clone", "--quiet", "--bare", "--no-hardlinks", work, dataset.root / "repo.git"], check=True)
    compile_all(dataset.directory / "bin")
    dataset.settle()
    return dataset


def compile_all(to: Path) -> None:
    to.mkdir()
    for name, words in {**DYNAMIC, **STATIC}.items():
        source, program = str(SOURCES / "reader.c"), str(to / name)
        subprocess.run([*words, "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, source], check=True)
    go = {**os.environ, "GOCACHE": str(to / "go-cache"), "GO111MODULE": "off", "GOFLAGS": "", "CGO_ENABLED": "0"}
    subprocess.run(["go", "build", "-o", to / "go", SOURCES / "reader.go"], env=go, check=True)
    subprocess.run(["javac", "-d", to, SOURCES / "Reader.java"], check=True)


#: Why originals are opened. Git looks for files that are not there.
ABSENT, REFUSED, MISSING = "not listed at the start", "the program may not open copies", "no copy yet"
CHANGED, GONE, WRITING = "changed in this run", "the copy was gone", "opened for writing"

ALL = "$DATA/files/c*/*"

#: A program's name, its script, and how many of its opens find copies at least.
PROGRAMS = [
    ("rsync -a", "rsync -a $DATA/files/ copy", FILES),
    ("rsync -a --checksum", "cp -a $DATA/files copy; rsync -a --checksum --itemize-changes $DATA/files/ copy", FILES),
    ("git hash-object", f"git hash-object {ALL}", FILES),
    (
        "git add",
        "git init --quiet --bare r; git --git-dir=r --work-tree=$DATA/files add . &&"
        " git --git-dir=r ls-files --stage; git --git-dir=r --work-tree=$DATA/files status --short; rm -r r",
        FILES,
    ),
    ("git clone --no-hardlinks", "git clone --quiet --no-hardlinks $DATA/repo.git c && rm -r c/.git", 20),
    ("git clone file://", "git clone --quiet file://$DATA/repo.git c && git -C c fsck && rm -r c/.git", 20),
    ("git log -p", "git --git-dir=$DATA/repo.git log -p --stat | sha256sum", 20),
    ("perl", f"perl {SOURCES}/reader.pl {ALL}", 3 * FILES),
    ("node", f"node {SOURCES}/reader.js {ALL}", 3 * FILES),
    ("java", f"java -cp ../bin Reader {ALL}", 4 * FILES),
]

WAYS = [
    ("read", ALL, 3 * FILES),
    ("fork", ALL, 5 * FILES),
    ("vfork", ALL, 3 * 3 * FILES),
    ("signal", "$DATA/files/c0/*", 100 * FILES // 3),
    ("limited", ALL, 13 + FILES),
]


@pytest.mark.parametrize(("name", "script", "served"), PROGRAMS, ids=[name for name, _, _ in PROGRAMS])
def test_program_of_debian_is_served(dataset: Dataset, name: str, script: str, served: int) -> None:
    dataset.compare(name, script, served, others=(ABSENT,) if name.startswith("git") else ())


@pytest.mark.parametrize("build", DYNAMIC)
@pytest.mark.parametrize(("way", "files", "served"), WAYS, ids=[way for way, _, _ in WAYS])
def test_c_program_is_served(dataset: Dataset, build: str, way: str, files: str, served: int) -> None:
    others = (REFUSED,) if way == "limited" else ()
    dataset.compare(f"{build}, {way}", f"../bin/{build} {way} {files}", served, others=others)


STATIC_PROGRAMS = [
    ("busybox", f"busybox sha256sum {ALL}; busybox tar cf - -C $DATA/files . | busybox md5sum"),
    ("go", f"../bin/go {ALL}"),
    *((f"static, {way}", f"../bin/static {way} {files}") for way, files, _ in WAYS),
]


@pytest.mark.parametrize(("name", "script"), STATIC_PROGRAMS, ids=[name for name, _ in STATIC_PROGRAMS])
def test_static_program_reads_originals_and_is_named(dataset: Dataset, name: str, script: str) -> None:
    dataset.compare(name, script, 0)
    _, report, _ = dataset.run(script, dataset.room("all"), dataset.directory / "all")
    assert report["unserved"] > 0 and report["unserved_names"] == [name.split(",")[0]], report


@pytest.mark.parametrize("options", [[], ["--check", "never"]], ids=["checked", "unchecked"])
@pytest.mark.parametrize("build", ["glibc", "static"])
def test_program_with_another_root_reads_its_files(dataset: Dataset, build: str, options: list[str]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may change the root of a program")
    first = "files/c0/000.bin"
    # Another file with the same path there.
    jail = f"mkdir -p .$DATA/files/c0; echo other > .$DATA/{first}; ../bin/{build} chroot . $DATA/{first}"
    dataset.compare(f"{build}, chroot to another tree", jail, 0, *options, others=(ABSENT, CHANGED, GONE))
    below = f"../bin/{build} chroot $DATA /{first}"
    dataset.compare(f"{build}, chroot to the dataset", below, 0, *options, others=(ABSENT, CHANGED, GONE))


def test_clone_with_hard_links_has_the_originals(dataset: Dataset) -> None:
    # A link may be used to write, so later opens of the file are of the original.
    same = "for f in $(cd c/.git && find objects -type f); do cmp $DATA/repo.git/$f c/.git/$f; done"
    clone = "git clone --quiet $DATA/repo.git c && git -C c fsck"
    script = f"{clone} && {same}; find c/.git -links +1 | wc -l; rm -r c/.git"
    dataset.compare("git clone", script, 0, others=(ABSENT, CHANGED, MISSING, WRITING))


def test_node_sees_the_identity_of_the_original(dataset: Dataset) -> None:
    script = (
        "const fs = require('fs'), found = fs.fstatSync(fs.openSync(process.argv[1]));"
        "console.log(found.dev, found.ino, found.mode, found.nlink, found.mtimeMs, found.ctimeMs)"
    )
    dataset.compare("node, fstat", f'node -e "{script}" $DATA/files/c0/000.bin', 1)


#: What `changes.sh` does.
CHANGES = ["rsync", "edit", "tar", "compress", "git", "node", "python", "chroot", "metadata"]


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A tree for each way to change it and to check, and a twin of it that is not served."""
    dataset = Dataset(tmp_path_factory.mktemp("changing"))
    for number in range(4 * len(CHANGES) * 12):
        tree = dataset.root if number % 2 else dataset.directory / "twin"
        change, file = number // 2 % (2 * len(CHANGES)), number // (4 * len(CHANGES))
        path = tree / f"{change}/{'ab'[file % 2]}/{file // 2}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"line {file}\n" * (100 + file))
        os.utime(path, (10**9, 10**9))
    dataset.settle()
    return dataset


@pytest.mark.parametrize("check", ["auto", "never"])
@pytest.mark.parametrize("change", CHANGES)
def test_change_of_a_program_is_seen_at_once(
    changing: Dataset, change: str, check: str
) -> None:
    if change == "chroot" and os.geteuid() != 0:
        pytest.skip("only root may change the root of a program")
    number = 2 * CHANGES.index(change) + (check == "never")
    changing.warm("all")
    script = f"sh {SOURCES}/changes.sh {change} "
    twin, _, errors = changing.run(script + f"{changing.directory}/twin/{number}")
    assert twin.code == 0, errors
    found, report, errors = changing.run(
        script + f"$DATA/{number}", changing.room("all"), changing.directory / "all", "--check", check
    )
    print(f"\n{change}, --check {check}: served/opens {report['served']}/{report['opens']}", flush=True)
    assert (found.code, found.output) == (twin.code, twin.output), errors
    assert report["served"] >= 12, report


def test_copies_outlast_the_rename_of_a_directory(changing: Dataset) -> None:
    changing.warm("all")
    copies = changing.directory / "all"
    _, report, _ = changing.run("mkdir $DATA/a; mv $DATA/a $DATA/b; sleep .2", changing.room("all"), copies)
    expected = report["host"]["copies"]
    _, report, _ = changing.run("rmdir $DATA/b", changing.room("all"), copies)
    assert report["host"]["adopted"] == expected > 0, report
