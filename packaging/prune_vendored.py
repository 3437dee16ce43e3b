"""Empties the vendored packages that no Linux build compiles: prune_vendored.py TREE.

Cargo reads the manifests of all packages. Those of Windows, macOS and browsers are two thirds of the bytes. They keep
their manifest, an empty library, and the checksum by which the lock file knows them. The price is an archive for Linux alone.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

PLATFORMS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]

tree = Path(sys.argv[1])
used = set()
for platform in PLATFORMS:
    words = ["cargo", "metadata", "--format-version=1", "--all-features", "--locked", "--offline", "--filter-platform", platform]
    found = json.loads(subprocess.run(words, cwd=tree, check=True, capture_output=True).stdout)
    used |= {f"{package['name']}-{package['version']}" for package in found["packages"]}
kept = emptied = 0
for package in (tree / "vendor").iterdir():
    if package.name in used:
        kept += 1
        continue
    emptied += 1
    manifest = (package / "Cargo.toml").read_bytes()
    checksum = json.loads((package / ".cargo-checksum.json").read_text())["package"]
    shutil.rmtree(package)
    (package / "src").mkdir(parents=True)
    (package / "Cargo.toml").write_bytes(manifest)
    (package / "src" / "lib.rs").touch()
    (package / ".cargo-checksum.json").write_text(json.dumps({"files": {}, "package": checksum}))
if kept == 0:
    sys.exit("no dependency is used: are the folders' names made otherwise now?")
print(f"{kept} dependencies; {emptied} of other platforms are empty")
