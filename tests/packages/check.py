#!/usr/bin/env python3
"""Installs, starts, upgrades and removes the packages of target/packages on machines of their own: `make packages`.

On Debian 12, all commands are those of docs/INSTALL.md, as they are written. Each machine is a Debian in a folder, which boots its own systemd (machine.py). On the machine, a package is a file and there
is no network, as for an operator behind a firewall. Needs root.

    debian 12   install, start, first job; upgrade by a second package while 1,000 adds a second come in; backup; remove,
                install again, purge
    debian 13   `systemctl reload` waits for the new processes, and fails if the configuration is bad
    debian 11   the tar, as a user without rights
"""

import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from checks import eventually, require, say
from machine import Machine, base, can_boot

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
OUT = TOP / "target/packages"
ROOTS = TOP / "target/tools/roots"
PACKAGES = ["systemd", "systemd-sysv", "dbus", "adduser", "curl", "man-db", "ca-certificates", "tzdata"]
SECONDS, PER_SECOND = 20, 1000


def package(revision):
    found = glob.glob(str(OUT / f"dq_*-{revision}_*.deb"))
    require(len(found) == 1, f"one package of revision {revision} in {OUT}, and not {found}")
    return pathlib.Path(found[0])


def put(machine, file):
    """Puts the package into the folder of root, in place of another one."""
    for old in (machine.root / "root").glob("*.deb"):
        old.unlink()
    shutil.copy(file, machine.root / "root" / file.name)


def main_pid(machine):
    return machine.run("systemctl", "show", "--property=MainPID", "--value", "dq").stdout.strip()


def is_active(machine):
    return machine.run("systemctl", "is-active", "dq", check=False).stdout.strip() == "active"


def traffic(machine, seconds, per_second):
    """Starts the traffic, with the tools of the host and the network of the machine."""
    command = machine.command(sys.executable, str(HERE / "traffic.py"), str(seconds), str(per_second), network_only=True)
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    require(running.stdout.readline() == "ready\n", "the traffic begins")
    return running


def result(running):
    out, _ = running.communicate(timeout=120)
    require(running.returncode == 0, "the traffic ends well")
    return json.loads(out)


def commands_of_the_document():
    """Returns the blocks of commands of docs/INSTALL.md about the Debian package, each as a list of lines."""
    text = (TOP / "docs/INSTALL.md").read_text().split("\n## The Debian package\n")[1].split("\n## ")[0]
    return [block.strip().split("\n") for block in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)]


def debian_package(folder):
    install, first_job, backup, configure, upgrade, remove = commands_of_the_document()
    with Machine(base(ROOTS, "bookworm", PACKAGES), folder) as m:
        began = time.monotonic()
        put(m, package(1))
        m.shell(install[0])
        say(f"installed in {time.monotonic() - began:.1f} s")
        modes = m.run("stat", "--format=%U:%G %a %n", "/etc/dq", "/etc/dq/dq.toml", "/var/lib/dq", "/var/log/dq").stdout
        require(modes == "root:dq 750 /etc/dq\nroot:dq 640 /etc/dq/dq.toml\ndq:dq 700 /var/lib/dq\ndq:dq 700 /var/log/dq\n",
                f"owners and modes of the folders: {modes}")
        require(not is_active(m), "dq starts only on request")
        m.run("dpkg", "--verify", "dq")
        m.shell("man --where dq dq-add > /dev/null; ls /usr/share/bash-completion/completions/dq /usr/share/doc/dq/docs/CLI.md")

        m.shell("\n".join(install[1:]))
        listener = m.shell("\n".join([*first_job, "echo listener $!"])).stdout.split("listener ")[1].strip()
        eventually(30, "the first job is delivered", lambda: "orders:42" in (m.root / "root/callbacks.txt").read_text())
        say(f"by the words of the document, a job is delivered {time.monotonic() - began:.1f} s after the installation began")
        m.shell(f"kill {listener}")

        m.run("dq", "topics", "set", "traffic", "--callback", "http://127.0.0.1:9000/hook")
        pid = main_pid(m)
        running = traffic(m, SECONDS, PER_SECOND)
        before = os.stat(f"/proc/{m.first}/root/usr/bin/dq").st_ino
        time.sleep(SECONDS / 4)
        put(m, package(2))
        said = m.shell("\n".join(upgrade)).stdout
        require("rolling restart" in said, f"the package says what it does: {said}")
        require(before != os.stat(f"/proc/{m.first}/root/usr/bin/dq").st_ino, "the second package has another file")

        def runs_it():
            images = m.shell("for pid in /proc/[0-9]*; do readlink $pid/exe || true; done | grep /usr/bin/dq").stdout
            return "deleted" not in images
        eventually(SECONDS, "all processes run the new executable", runs_it)
        require(running.poll() is None, "the upgrade is over while jobs are still added")
        require(main_pid(m) == pid and is_active(m), "the process of dq-master stays")
        of_upgrade = result(running)
        say(f"upgrade under {PER_SECOND} adds a second: {of_upgrade}")
        require(of_upgrade["acknowledged"] >= SECONDS * PER_SECOND * 0.9, "the rate of the adds is reached")
        bad = {k: of_upgrade[k] for k in ("failed", "closed", "missing", "early") if of_upgrade[k]}
        require(not bad, f"the upgrade is not noticed: {bad}")

        m.shell("\n".join(configure))
        eventually(30, "the configuration is loaded", lambda: "(HUP)" in m.run("dq", "status").stdout)
        m.run("dq", "add", "traffic", '"kept"', "--id", "kept", "--delay", "1h")
        require(m.shell("\n".join(backup)).stdout.count(".backup") == 1, "one backup")
        log = m.run("journalctl", "--unit=dq", "--output=cat").stdout
        require("panic" not in log and "ERROR" not in log, f"the log is clean: {log}")
        require(log and not re.search(r"^(20|<)", log, re.M), f"the journal's lines have no time of their own: {log}")

        m.shell("\n".join(remove))
        require(not is_active(m), "the removal stops dq")
        left = m.shell("ls /usr/bin/dq* /usr/lib/systemd/system/dq* 2>/dev/null || true").stdout
        require(not left, f"the removal removes the files of the package: {left}")
        m.shell("\n".join(install))
        require('"kept"' in m.run("dq", "get", "traffic", "kept", "--json").stdout, "a removal keeps the jobs")
        m.shell("apt-get purge --yes dq")
        left = m.shell("{ ls -d /etc/dq /var/lib/dq /var/log/dq 2>/dev/null; getent passwd dq; } || true").stdout
        require(not left, f"a purge leaves nothing: {left}")
        require(m.shell("ls /var/backups/dq").stdout, "a purge keeps the backups")
        say("removed, installed again, purged")


def reload(folder):
    with Machine(base(ROOTS, "trixie", PACKAGES), folder) as m:
        put(m, package(2))
        m.shell("apt-get install ./dq_*.deb; systemctl enable --now dq")
        version = m.run("systemctl", "--version").stdout.split("\n")[0]
        started = m.run("dq", "status", "--json").stdout
        m.run("systemctl", "reload", "dq")
        require(m.run("dq", "status", "--json").stdout != started, "a reload starts new processes")
        config = m.root / "etc/dq/dq.toml"
        good = config.read_text()
        config.write_text(good.replace("[http]", "[htp]"))
        m.run("systemctl", "reload", "dq", check=False)
        require(is_active(m), "dq goes on with the configuration before")
        require("htp" in m.run("systemctl", "status", "dq", check=False).stdout, "systemctl status names the error")
        config.write_text(good)
        m.run("systemctl", "reload", "dq")
        m.run("systemctl", "stop", "dq")
        say(f"reloads with {version}")


def tar(folder):
    folder = pathlib.Path(folder)
    subprocess.run(["cp", "-a", "--reflink=auto", base(ROOTS, "bullseye", []), folder], check=True)
    try:
        found = glob.glob(str(OUT / "dq-*-linux.tar.gz"))
        require(len(found) == 1, f"one tar in {OUT}, and not {found}")
        home = folder / "opt"
        subprocess.run(["tar", "-xzf", found[0], "-C", home], check=True)
        own = "/opt/" + os.listdir(home)[0]
        lines = f"""
            mount -t proc proc {folder}/proc
            ip link set lo up
            exec chroot --userspec=65534:65534 {folder} sh -euc '
                cd {own}
                ./dq-master --config conf/dq.toml --check
                TMPDIR=/tmp ./dq demo --once'"""
        done = subprocess.run(["unshare", "--pid", "--fork", "--mount", "--net", "--kill-child=KILL", "sh", "-euc", lines],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        require(done.returncode == 0 and "all 5 jobs have arrived" in done.stdout, f"the tar works: {done.stdout}")
        say("the tar works on Debian 11, from a folder, as another user")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    if not can_boot():
        say("the packages are built, but not tried: that needs root, namespaces and cgroups")
        return
    with tempfile.TemporaryDirectory(prefix="dq-packages-") as folder:
        debian_package(folder + "/bookworm")
        reload(folder + "/trixie")
        tar(folder + "/bullseye")
    say("the packages work")


main()
