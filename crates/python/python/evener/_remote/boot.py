"""What runs first on another machine: finds the interpreter, stores what is sent, makes the environment, and becomes the agent.

Its text is sent over the connection, so that nothing need be installed there. It uses nothing but Python's own library, of any
version from 3.6 on, and its standard output is the connection: nothing else may be written there.
"""

import glob
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile

# ruff: noqa: F821

def receive(count):
    """Reads so many bytes."""
    parts = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def receive_json():
    """Reads a message."""
    return json.loads(receive(int(receive(16))).decode())


def send(word, value):
    """Writes a message: one line, which begins with this connection's nonce."""
    data = ("evener-python %s %s %s\n" % (NONCE, word, json.dumps(value))).encode()
    while data:
        data = data[os.write(1, data) :]


def fail(text):
    """Says why there will be no worker, and ends."""
    send("ERROR", text)
    os._exit(1)


def version(python):
    """Major and minor version of an interpreter, if it is one."""
    try:
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        found = subprocess.run([python, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, timeout=20)
        return found.stdout.decode().strip() if found.returncode == 0 else None
    except (OSError, subprocess.SubprocessError):
        return None


def other_interpreters(wanted):
    """Where an interpreter of another version may be."""
    home = os.path.expanduser("~")
    yield shutil.which("python" + wanted)
    for pattern in (".pyenv/versions/%s.*/bin/python", ".local/share/uv/python/cpython-%s.*/bin/python3"):
        for found in sorted(glob.glob(os.path.join(home, pattern % wanted)), reverse=True):
            yield found


def cache_folder():
    """The folder of what was sent, which nobody else can write to."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = os.path.join(base, "evener", "python")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.stat(folder)
        if status.st_uid != os.getuid():
            fail("%s belongs to another user" % folder)
        os.chmod(folder, 0o700)
    except OSError as error:
        fail("the cache folder there cannot be used: %s" % error)
    return folder


def store(folder, name, data):
    """Unpacks an archive, unless another process has done so meanwhile."""
    kind, digest = name.split("-", 1)
    if hashlib.sha256(data).hexdigest() != digest:
        fail("what was sent (%s) did not arrive as it was" % kind)
    made = "%s.%d.%s" % (os.path.join(folder, name), os.getpid(), os.urandom(4).hex())
    try:
        os.mkdir(made, 0o700)
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive.getmembers():
                if not member.isfile() or member.name.startswith("/") or ".." in member.name.split("/"):
                    fail("an archive has a file that it should not have: %s" % member.name)
            archive.extractall(made)
        try:
            os.rename(made, os.path.join(folder, name))
        except OSError:
            shutil.rmtree(made, ignore_errors=True)
            if not os.path.isdir(os.path.join(folder, name)):
                raise
    except OSError as error:
        shutil.rmtree(made, ignore_errors=True)
        fail("what was sent cannot be stored there: %s" % error)


def run(command):
    """Runs a command that makes an environment. Returns what it said, if it failed."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode == 0:
        return None
    said = done.stdout.decode(errors="replace").strip().splitlines()
    errors = [line for line in said if "rror" in line] or said
    return "%s: %s" % (" ".join(command[:4]), " / ".join(errors[-4:]))


def environment(folder, requirements, key):
    """Makes an environment with these distributions, once. Returns its interpreter."""
    import fcntl

    place = os.path.join(folder, "environment-" + key)
    python = os.path.join(place, "bin", "python")
    with open(place + ".lock", "w") as lock:
        # Another job may be making it at this moment.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(os.path.join(place, "ready")) and os.path.exists(python):
            os.utime(os.path.join(place, "ready"))
            return python
        send("NOTE", "makes an environment with %s" % ", ".join(requirements))
        shutil.rmtree(place, ignore_errors=True)
        listed = place + ".txt"
        with open(listed, "w") as file:
            file.write("\n".join(requirements) + "\n")
        uv = shutil.which("uv") or shutil.which("uv", path=os.path.expanduser("~/.local/bin"))
        if uv:
            wrong = run([uv, "venv", "--quiet", "--python", sys.executable, place])
            wrong = wrong or run([uv, "pip", "install", "--quiet", "--no-deps", "--python", python, "-r", listed])
        else:
            wrong = run([sys.executable, "-m", "venv", place])
            wrong = wrong or run([python, "-m", "pip", "install", "--quiet", "--no-deps", "-r", listed])
        if wrong:
            shutil.rmtree(place, ignore_errors=True)
            fail("the environment there could not be made: %s" % wrong)
        open(os.path.join(place, "ready"), "w").close()
    return python


def main():
    spec = receive_json()
    wanted, found = spec["version"], "%d.%d" % sys.version_info[:2]
    if found != wanted and spec["find"] and not os.environ.get("EVENER_BOOTED"):
        for other in other_interpreters(wanted):
            if other and version(other) == wanted:
                os.environ["EVENER_BOOTED"] = "1"
                text = "NONCE = %r\nSPEC = %s\n%s" % (NONCE, json.dumps(json.dumps(spec)), SOURCE)
                os.execv(other, [other, "-c", "SOURCE = %r\nexec(SOURCE)" % text])
    become(spec, found)


def become(spec, found):
    """Prepares what the specification names, and becomes the agent."""
    os.environ.pop("EVENER_BOOTED", None)
    machine = os.uname()
    send("HELLO", {"version": found, "system": machine.sysname, "machine": machine.machine, "python": sys.executable,
                   "implementation": sys.implementation.name})
    if found != spec["version"]:
        os._exit(0)
    if spec["same"]:
        python, paths = spec["same"]["python"], spec["same"]["paths"]
        if not os.path.exists(python):
            fail("%s is not there: environment=\"same\" is for machines that share this file system" % python)
    else:
        folder = cache_folder()
        names = spec["archives"]
        missing = [name for name in names if not os.path.isdir(os.path.join(folder, name))]
        send("NEED", missing)
        for name in missing:
            store(folder, name, receive(int(receive(16))))
        paths = [os.path.join(folder, name) for name in names]
        python = sys.executable
        if spec["requirements"] is not None:
            python = environment(folder, spec["requirements"], spec["key"])
    send("READY", {"python": python, "paths": paths})
    code = ("import sys; sys._evener_worker = True; sys.path[:0] = %r; from evener._worker.agent import main; main(%r)"
            % (paths[:1], json.dumps({"paths": paths, "same": bool(spec["same"]), "gpus": spec["gpus"]})))
    os.environ.update(spec["variables"])
    os.execv(python, [python, "-c", code])


# The text that is sent begins with what this connection is known by. Imported as a module, this file does nothing.
if "SPEC" in globals():
    become(json.loads(SPEC), "%d.%d" % sys.version_info[:2])
elif "NONCE" in globals():
    main()
