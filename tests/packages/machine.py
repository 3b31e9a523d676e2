"""A machine of its own for a test: an old or new Debian in a folder, which boots its own systemd in its own namespaces.

Needs root, debootstrap and Linux namespaces. The machine has its own processes, its own cgroup, and a network with nothing
but loopback. It ends with the test: its first process is killed, and with it all others.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

CGROUPS = next((p for p in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup") if os.path.exists(p + "/cgroup.procs")), None)

# Runs as the first process of the new namespaces, with the folder of the machine as $1.
BOOT = r"""
set -eu
root=$1
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 none "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm"
mount -t tmpfs tmpfs "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
ln -s pts/ptmx "$root/dev/ptmx"
ip link set lo up
mkdir -p "$root/before"
cd "$root"
pivot_root . before
umount -l /before
export container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin
exec /lib/systemd/systemd --system --log-target=null --unit=multi-user.target
"""


def can_boot():
    """Whether the kernel and the rights of this process allow machines. In many containers they do not."""
    lines = "mount --make-rprivate / && mount -t cgroup2 none /mnt && mount -t proc proc /proc && ip link set lo up"
    probe = ["unshare", "--pid", "--fork", "--mount", "--uts", "--ipc", "--net", "--cgroup", "sh", "-c", lines]
    allowed = CGROUPS is not None and os.geteuid() == 0 and os.access(CGROUPS, os.W_OK)
    return allowed and subprocess.run(probe, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def base(folder, suite, packages, mirror="http://deb.debian.org/debian"):
    """Returns a folder with this suite of Debian. It is made once, and copied for each machine."""
    made = pathlib.Path(folder) / "-".join([suite, *packages])
    if not made.exists():
        partial = made.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        made.parent.mkdir(parents=True, exist_ok=True)
        debootstrap = ["debootstrap", "--variant=minbase"]
        if packages:
            debootstrap.append("--include=" + ",".join(packages))
        with open(made.with_suffix(".log"), "wb") as log:
            done = subprocess.run([*debootstrap, suite, partial, mirror], stdout=log, stderr=subprocess.STDOUT)
        if done.returncode:
            raise SystemExit(f"debootstrap of {suite} failed: {made.with_suffix('.log').read_text()[-1000:]}")
        partial.rename(made)
    return made


class Machine:
    """A machine that runs. Use it with `with`."""

    def __init__(self, base, folder):
        self.root = pathlib.Path(folder)
        subprocess.run(["cp", "-a", "--reflink=auto", base, self.root], check=True)
        for name in ("resolv.conf", "hostname"):
            (self.root / "etc" / name).write_text("machine\n" if name == "hostname" else "")
        self.first = None
        self.cgroup = None

    def __enter__(self):
        self.cgroup = pathlib.Path(CGROUPS) / f"dq-packages-{os.getpid()}"
        self.cgroup.mkdir()

        def enter():
            (self.cgroup / "cgroup.procs").write_text(str(os.getpid()))

        self.unshare = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--mount", "--uts", "--ipc", "--net", "--cgroup", "--kill-child=KILL",
             "sh", "-c", BOOT, "boot", str(self.root)],
            preexec_fn=enter, stdin=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 60
            children = f"/proc/{self.unshare.pid}/task/{self.unshare.pid}/children"
            while not self._is_up(children):
                if self.unshare.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("the machine does not boot: " + repr(getattr(self, "state", None)))
                time.sleep(0.2)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _is_up(self, children):
        with contextlib.suppress(FileNotFoundError):
            pids = pathlib.Path(children).read_text().split()
            self.first = int(pids[0]) if pids else None
        if self.first is None or pathlib.Path(f"/proc/{self.first}/comm").read_text().strip() != "systemd":
            return False
        self.state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
        return self.state in ("running", "degraded")

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            self.unshare.send_signal(signal.SIGKILL)
        self.unshare.wait()
        deadline = time.monotonic() + 20
        while True:
            for folder in sorted(self.cgroup.glob("**/"), key=lambda p: -len(p.parts)):
                with contextlib.suppress(OSError):
                    folder.rmdir()
            if not self.cgroup.exists() or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        shutil.rmtree(self.root, ignore_errors=True)

    def command(self, *command, network_only=False):
        """Returns the command that runs a command in the machine. `network_only`: with the files and tools of the host."""
        which = ["--net"] if network_only else ["--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup", "--root", "--wd"]
        # The root of the machine's first process is the machine's folder.
        return ["nsenter", "--target", str(self.first), *which, "--", *command]

    def run(self, *command, check=True, timeout=120):
        """Runs a command in the machine, and returns its result with its output as text."""
        # The output goes to a file. If the command leaves a process behind, a pipe would stay open as long as this
        # process runs.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                self.command(*command), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, timeout=timeout,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root",
                     "DEBIAN_FRONTEND": "noninteractive"})
            output.seek(0)
            done.stdout = output.read()
        if check and done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}")
        return done

    def shell(self, text, **options):
        """Runs lines of shell in the machine, in the folder of root."""
        return self.run("sh", "-euc", "cd\n" + text, **options)
