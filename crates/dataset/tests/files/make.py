"""Makes the shards next to this file with the programs that people use, and prints their contents as those programs'
readers see them. Needs GNU tar and the packages webdataset and tensorflow-cpu. Run it in an empty directory."""

import hashlib
import io
import os
import struct
import subprocess
import tarfile
import zipfile

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
import webdataset as wds

LONG = "a-directory-with-quite-a-long-name/" * 4 + "sample"


def body(n):
    return bytes((n * 7 + i * 13) % 251 for i in range(n * 37 % 700))


# The contents of most tars: an empty field, a long name, one that is not ASCII, a member that is
# not a sample.
MEMBERS = [
    ("a/0001.jpg", body(1)),
    ("a/0001.cls", b"7"),
    ("a/0001.seg.PNG", body(2)),
    ("a/0002.jpg", body(3)),
    ("a/0002.txt", b""),
    (LONG + ".jpg", body(5)),
    (LONG + ".json", b"{}"),
    ("b/\u00e9t\u00e9.jpg", body(6)),
    ("README", b"no sample"),
    ("__meta__/info.txt", b"no sample"),
    ("c/.hidden.jpg", b"no sample"),
    ("c/0009.jpg", body(9)),
]

with wds.TarWriter("webdataset.tar") as out:
    for i in range(3):
        out.write({"__key__": f"train/{i:06}", "jpg": body(i + 20), "cls": i, "Caption.txt": f"number {i}"})

for name, kind in (("python-ustar", tarfile.USTAR_FORMAT), ("python-gnu", tarfile.GNU_FORMAT), ("python-pax", tarfile.PAX_FORMAT)):
    with tarfile.open(name + ".tar", "w", format=kind) as out:
        folder = tarfile.TarInfo("a")
        folder.type = tarfile.DIRTYPE
        out.addfile(folder)
        for path, data in MEMBERS:
            if kind == tarfile.USTAR_FORMAT and path.startswith(LONG):
                path = path.replace("a-directory", "directory")
            info = tarfile.TarInfo(path)
            info.size = len(data)
            info.mtime = 1600000000.25 if kind == tarfile.PAX_FORMAT else 1600000000
            out.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("c/link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "0009.jpg"
        out.addfile(link)
    # The header of a member of 9 GiB, whatever comes before it.
    info = tarfile.TarInfo("big.bin")
    info.size = 9 << 30
    if kind != tarfile.USTAR_FORMAT:
        open(name + "-9GiB.header", "wb").write(info.tobuf(format=kind))

for kind in ("ustar", "gnu", "pax"):
    os.makedirs("tree", exist_ok=True)
    names = []
    for path, data in MEMBERS:
        if kind == "ustar" and path.startswith(LONG):
            continue
        os.makedirs(os.path.dirname("tree/" + path), exist_ok=True)
        open("tree/" + path, "wb").write(data)
        names.append(path)
    common = ["tar", "-b1", f"--format={kind}", "--owner=0", "--group=0", "--mtime=@1600000000", "-C", "tree"]
    subprocess.run([*common, "-cf", f"gnutar-{kind}.tar", *names], check=True)
    subprocess.run(["truncate", "-s", "9G", "tree/big.bin"], check=True)
    if kind != "ustar":
        run = subprocess.Popen([*common, "-cf", "-", "big.bin"], stdout=subprocess.PIPE)
        open(f"gnutar-{kind}-9GiB.header", "wb").write(run.stdout.read(1536 if kind == "pax" else 512))
        run.stdout.close()
        run.wait()
        subprocess.run(["truncate", "-s", "40K", "tree/big.bin"], check=True)
        with open("tree/big.bin", "r+b") as holes:
            holes.seek(20480)
            holes.write(b"x")
        subprocess.run([*common, "--sparse", "-cf", f"gnutar-{kind}-sparse.tar", "big.bin"], check=True)
    subprocess.run(["rm", "-r", "tree"], check=True)

RECORDS = [b"first", b"", body(11), body(19)]
for name, options in (("tensorflow", None), ("tensorflow-gzip", "GZIP"), ("tensorflow-zlib", "ZLIB")):
    with tf.io.TFRecordWriter(name + ".tfrecord", options=options) as out:
        for record in RECORDS:
            out.write(record)


def zipped(name, kind, write):
    with zipfile.ZipFile(name, "w", kind) as out:
        for path, data in MEMBERS[:4] + MEMBERS[7:8]:
            write(out, zipfile.ZipInfo(path), data)


def plain(out, info, data):
    info.compress_type = out.compression
    out.writestr(info, data)


def zip64(out, info, data):
    with out.open(info, "w", force_zip64=True) as member:
        member.write(data)


class Pipe(io.BytesIO):
    """Cannot seek, so that zipfile writes lengths after the data."""

    def seekable(self):
        return False

    def seek(self, *_):
        raise io.UnsupportedOperation

    def tell(self):
        raise io.UnsupportedOperation


zipped("python-stored.zip", zipfile.ZIP_STORED, plain)
zipped("python-zip64.zip", zipfile.ZIP_STORED, zip64)
zipped("python-deflated.zip", zipfile.ZIP_DEFLATED, plain)
pipe = Pipe()
zipped(pipe, zipfile.ZIP_STORED, plain)
open("python-streamed.zip", "wb").write(pipe.getvalue())

with open("expected.tsv", "w") as out:

    def say(*parts):
        out.write("\t".join(parts) + "\n")

    def sha(data):
        return hashlib.sha256(data).hexdigest()

    for name in sorted(os.listdir(".")):
        if name.endswith(".tar") and "sparse" not in name:
            for sample in wds.WebDataset(name, shardshuffle=False):
                for field, data in sample.items():
                    if not field.startswith("__"):
                        say(name, sample["__key__"], field, sha(data))
        elif name == "tensorflow.tfrecord":
            for number, record in enumerate(tf.data.TFRecordDataset(name)):
                say(name, str(number), "", sha(record.numpy()))
        elif name.endswith(".zip") and "deflated" not in name:
            with zipfile.ZipFile(name) as archive:
                for info in archive.infolist():
                    say(name, info.filename, "", sha(archive.read(info)))
