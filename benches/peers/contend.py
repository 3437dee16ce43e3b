"""Measures contenders: `contend.py MODULE` reads jobs, one line of JSON each, and answers every job with a line.

Each job runs in a separate process, forked from this one after the import of the library. The state that one contender
leaves does not affect the next one, and PyTorch is imported once.
"""

import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import sys
import tempfile

from measuring import below, measure

#: The imports of each module's contenders, so that they run once. None of them starts a thread.
IMPORTS = {
    "plain": ["torch.utils.data", "s3torchconnector", "spdl.pipeline", "boto3"],
    "mosaic": ["torch.utils.data", "streaming"],
    "lit": ["torch.utils.data", "litdata"],
    "web": ["torch.utils.data", "webdataset", "boto3"],
    "ours": ["foreread.torch"],
    "data": ["boto3"],
}


def answer(module, job):
    """Runs one job in this process."""
    of = getattr(module, job["who"])
    if job["who"] in ("convert", "upload", "catalog"):
        return of(job)
    # In the directory that the bench removes at its end.
    job["scratch"] = tempfile.mkdtemp(dir=job["home"])
    try:
        return measure(lambda: of(job), job["later"], job["limit"], job["keeps"])
    finally:
        shutil.rmtree(job["scratch"], ignore_errors=True)


def versions(modules):
    """The versions of Python and of these modules' packages, by name."""
    found = {"Python": platform.python_version()}
    packages = importlib.metadata.packages_distributions()
    for module in modules:
        for package in packages.get(module.split(".")[0], []):
            found[package] = importlib.metadata.version(package)
    return found


def main():
    # Only answers go to the original standard output, because libraries print to it.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    name = sys.argv[1]
    try:
        for needed in IMPORTS[name]:
            importlib.import_module(needed)
        module = importlib.import_module(name)
    except ImportError as error:
        print(json.dumps({"error": str(error)}), file=replies, flush=True)
        return
    print(json.dumps({"versions": versions(IMPORTS[name])}), file=replies, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                print(json.dumps(answer(module, job)), file=replies, flush=True)
                code = 0
            except BaseException as error:
                print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=replies, flush=True)
            finally:
                # Workers end with the job. `_exit` skips the libraries' handlers, which may hang.
                for process in list(below("self")):
                    os.kill(int(process), signal.SIGKILL)
                os._exit(code)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
