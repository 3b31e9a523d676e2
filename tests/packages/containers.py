#!/usr/bin/env python3
"""Checks deploy/docker and deploy/kubernetes without an engine: `make packages`.

The files are checked against their schemas, and every configuration in them by dq itself. The image is built by buildah:
its first stage is not (there is no registry to get a compiler from), and has the executables of `make packages` instead.
The image is then run as an engine would: in namespaces of its own, with dq-master as the first process, a root that nobody
can write to, and a user without rights. Needs root.
"""

import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time

import yaml

from checks import eventually, require, say
from machine import base, can_boot

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
ROOTS = TOP / "target/tools/roots"
TOOLS = TOP / "target/tools/packages/bin"
DOCKER = TOP / "deploy/docker"
KUBERNETES = sorted((TOP / "deploy/kubernetes").glob("*.yaml"))
BUILT = TOP / f"target/{platform.machine()}-unknown-linux-gnu" / os.environ.get("PROFILE", "dist")
USER = 10001

# The first process of the new namespaces. $1 is the root of the image, $2 the folder of its volume.
RUN = r"""
set -eu
mount --make-rprivate /
mount --bind "$1" "$1"
mount --bind "$2" "$1/var/lib/dq"
mount -t proc proc "$1/proc"
mount -t tmpfs -o uid=10001,gid=10001,mode=0700 tmpfs "$1/run/dq"
for device in null zero full random urandom; do
    touch "$1/dev/$device"
    mount --bind "/dev/$device" "$1/dev/$device"
done
ip link set lo up
mount -o remount,bind,ro "$1"
exec chroot --userspec=10001:10001 "$1" "$3" "$4" "$5"
"""


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    require(done.returncode == 0, f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stdout}")
    return done.stdout


def files():
    """Checks the files against their schemas, and the configurations in them."""
    run(TOOLS / "hadolint", DOCKER / "Dockerfile")
    run(TOOLS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DOCKER / "compose.yaml")
    run(TOOLS / "kubernetes-validate", "--strict", *KUBERNETES)
    version = run("sed", "-n", r'/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p', TOP / "Cargo.toml").strip()
    configurations = [(DOCKER / name).read_text() for name in ("dq.toml", "redis.toml")]
    for file in KUBERNETES:
        documents = list(yaml.safe_load_all(file.read_text()))
        configurations += [d["data"]["dq.toml"] for d in documents if d["kind"] == "ConfigMap"]
        pods = [d["spec"]["template"]["spec"] for d in documents if d["kind"] in ("StatefulSet", "Deployment")]
        images = {c["image"] for p in pods for c in p["containers"]}
        require(images == {f"dq:{version}"}, f"{file.name} names the image of this version: {images}")
    require(len(configurations) == 4, "four configurations")
    for text in configurations:
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            # The file with the password is a Secret of the cluster, so this check has no such file.
            file.write("\n".join(line for line in text.split("\n") if not line.startswith("password_file")))
            file.flush()
            run(BUILT / "dq-master", "--config", file.name, "--check")
    say("the files are valid")


class Image:
    """The image of deploy/docker/Dockerfile, as a folder. Use it with `with`."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def buildah(self, *command):
        return run("buildah", "--storage-driver", "vfs", "--root", self.folder / "images", "--runroot", self.folder / "run",
                   *command).strip().split("\n")[-1]

    def image_of(self, folder, name, at="/"):
        container = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", container, folder, at)
        self.buildah("commit", "--quiet", "--rm", container, name)

    def __enter__(self):
        self.image_of(base(ROOTS, "bookworm", []), "docker.io/library/debian:bookworm-slim")
        executables = self.folder / "executables"
        executables.mkdir()
        for name in ("dq", "dq-master"):
            shutil.copy(BUILT / name, executables)
        self.image_of(executables, "localhost/build", "/build/target/dist/")
        self.buildah("build", "--isolation", "chroot", "--pull-never", "--format", "docker",
                     "--build-context", "build=container-image://localhost/build",
                     "--ignorefile", DOCKER / "Dockerfile.dockerignore", "--file", DOCKER / "Dockerfile", "--tag", "dq", TOP)
        self.config = json.loads(subprocess.run(
            ["buildah", "--storage-driver", "vfs", "--root", self.folder / "images", "--runroot", self.folder / "run",
             "inspect", "--type", "image", "dq"], stdout=subprocess.PIPE, check=True).stdout)["Docker"]["config"]
        self.container = self.buildah("from", "--pull-never", "dq")
        self.root = self.buildah("mount", self.container)
        return self

    def __exit__(self, *_):
        subprocess.run(["buildah", "--storage-driver", "vfs", "--root", self.folder / "images", "--runroot",
                        self.folder / "run", "rm", "--all"], stdout=subprocess.DEVNULL)


def image(folder):
    with Image(folder) as built:
        say("the image is built")
        config = built.config
        require(config["User"] == f"{USER}:{USER}", f"the user of the image: {config['User']}")
        volume = built.folder / "volume"
        volume.mkdir(mode=0o700)
        shutil.chown(volume, USER, USER)
        command = [*config["Entrypoint"], *config["Cmd"]]
        require(len(command) == 3, f"what the image runs: {command}")
        log = open(built.folder / "log", "w+")
        container = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--mount", "--net", "--ipc", "--uts", "--kill-child=KILL", "sh", "-c", RUN, "run",
             built.root, str(volume), *command], stdout=log, stderr=log)

        children = pathlib.Path(f"/proc/{container.pid}/task/{container.pid}/children")

        def is_up():
            require(container.poll() is None, f"the container ended: {pathlib.Path(log.name).read_text()}")
            return children.read_text() and inside("true", check=False).returncode == 0

        def inside(*command, network_only=False, check=True):
            which = ["--net"] if network_only else ["--pid", "--mount", "--net", "--root", "--wd", f"--setuid={USER}",
                                                    f"--setgid={USER}"]
            done = subprocess.run(["nsenter", "--target", children.read_text().split()[0], *which, "--", *command],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
                                  env=None if network_only else {"PATH": "/usr/bin:/bin", "HOME": "/var/lib/dq"})
            require(not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout}")
            return done

        try:
            health = config["Healthcheck"]["Test"]
            require(health[0] == "CMD", f"how the image is probed: {health}")
            eventually(30, "the container is up", is_up)
            eventually(60, "the image is healthy", lambda: inside(*health[1:], check=False).returncode == 0)
            say("the image runs, and is healthy")

            inside("dq", "topics", "set", "traffic", "--callback", "http://127.0.0.1:9000/hook")
            token = inside("dq", "token", "create", "shop", "--scope", "produce:traffic").stdout
            token = re.search("dq_[a-z2-7]{52}", token).group()
            refused = inside(sys.executable, str(HERE / "traffic.py"), "0.2", "10", network_only=True)
            require('"acknowledged": 0' in refused.stdout, f"nothing is taken without a token: {refused.stdout}")
            said = inside(sys.executable, str(HERE / "traffic.py"), "2", "100", token, network_only=True).stdout
            require(said.count("\n") == 2, f"nothing is refused with the token: {said}")
            result = json.loads(said.split("\n")[1])
            require(result["acknowledged"] > 100 and not (result["failed"] or result["missing"] or result["early"]),
                    f"the jobs arrive: {result}")

            # If a process in a container loses its parent, the first process becomes its parent, and must reap it.
            inside("sh", "-c", "(sleep 0.2 & exec true)")
            inside("sh", "-c", "kill -USR2 1")
            eventually(60, "the rolling restart is done", lambda: "USR2" in inside("dq", "status").stdout
                       and "done" in inside("dq", "status").stdout)
            states = inside("sh", "-c", "grep -h ^State /proc/[0-9]*/status").stdout
            require("zombie" not in states, f"no dead process stays: {states}")
            say("jobs, a rolling restart, no dead process stays")

            inside("sh", "-c", "kill -TERM 1", check=False)
            require(container.wait(timeout=45) == 0, "TERM ends the container with 0")
            require((volume / "dq.db").exists(), "the jobs are on the volume")
        finally:
            container.kill()
            container.wait()
        text = pathlib.Path(log.name).read_text()
        require("ERROR" not in text and "panic" not in text, f"the log is clean: {text}")
    say("the image works")


files()
if not can_boot():
    say("the image is not tried: that needs root, namespaces and cgroups")
    sys.exit()
with tempfile.TemporaryDirectory(prefix="dq-image-") as folder:
    image(folder)
