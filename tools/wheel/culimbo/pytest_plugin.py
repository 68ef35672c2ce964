# SPDX-License-Identifier: Apache-2.0
"""pytest --culimbo: runs the tests, and the processes that they start, under culimbo.

A test fails if one of its processes has findings: memory that was never closed, that was freed while
another process mapped it, or that was opened after its free.
"""

import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

import pytest

import culimbo


def pytest_addoption(parser):
    group = parser.getgroup("culimbo", "CUDA IPC made safe")
    group.addoption(
        "--culimbo", action="store_true", help="run under culimbo; a test fails if one of its processes has findings"
    )
    group.addoption(
        "--culimbo-simulate", action="store_true", help="the same on the simulated driver, without a GPU"
    )


def pytest_configure(config):
    if not (config.option.culimbo or config.option.culimbo_simulate):
        return
    if not culimbo.active():
        if hasattr(config, "workerinput"):  # a worker of pytest-xdist; its controller was restarted already
            raise pytest.UsageError("--culimbo: LD_PRELOAD was taken away from the workers")
        _begin_anew(config)
    config.pluginmanager.register(_Watch(), "culimbo-watch")


def _arguments():
    with open("/proc/self/cmdline", "rb") as line:
        return [os.fsdecode(word) for word in line.read().split(b"\0")[1:-1]]


def _begin_anew(config):
    """Restarts this program, since LD_PRELOAD is read when a program begins."""
    if os.environ.get("PYTEST_CULIMBO_PID") == str(os.getpid()):
        raise pytest.UsageError("--culimbo: the library cannot be preloaded into %s" % sys.executable)
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture:
        capture.suspend_global_capture(in_=True)
    wanted = culimbo.env(simulate=config.option.culimbo_simulate, strict=os.environ.get("CULIMBO_STRICT", 1))
    wanted["PYTEST_CULIMBO_PID"] = str(os.getpid())
    os.execve(sys.executable, [sys.executable] + _arguments(), wanted)


def _findings(objects):
    """Returns the findings of a report."""
    return [o for o in objects if o.get("type") == "group" and o.get("finding")]


class _Watch:
    """Has the processes of each test write reports into a folder, and reads them."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="culimbo-pytest-")
        self.of_own = {}

    def pytest_unconfigure(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item):
        # the library reads these when a process begins, so they affect processes that the test starts
        names = {
            "CULIMBO_REPORT_FILE": os.path.join(self.folder, "report"),
            "CULIMBO_REPORT_FORMAT": "both",
        }
        before = {name: os.environ.get(name) for name in names}
        os.environ.update(names)
        self.of_own = self._count_own()
        yield
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item):
        outcome = yield
        self._look(item, outcome)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_teardown(self, item):
        outcome = yield
        self._look(item, outcome)

    def _count_own(self):
        """Returns the number of blocks of each finding of this process."""
        return {
            json.dumps([o.get("class"), o.get("stack")], sort_keys=True): o.get("count", 1)
            for o in _findings(culimbo.report())
        }

    def _look(self, item, outcome):
        texts = []
        for name in sorted(glob.glob(os.path.join(self.folder, "report*"))):
            with open(name, errors="replace") as lines:
                objects = [json.loads(line) for line in lines if line.startswith("{")]
            if _findings(objects):
                texts.append(_text(name))
            os.unlink(name)
        now = self._count_own()
        if any(n > self.of_own.get(what, 0) for what, n in now.items()):
            texts.append(culimbo.report(text=True))
        self.of_own = now
        if not texts:
            return
        text = "culimbo found in processes of this test:\n" + "".join(texts)
        if outcome.excinfo:  # the test has failed already: add culimbo's findings to its report
            item.add_report_section("call", "culimbo", text)
            return
        try:
            pytest.fail(text, pytrace=False)
        except BaseException as failed:
            if hasattr(outcome, "force_exception"):
                outcome.force_exception(failed)
            else:
                outcome._excinfo = sys.exc_info()


def _text(name):
    """Returns the report as text, with functions and lines."""
    without = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "CULIMBO_"))}
    said = subprocess.run(
        [culimbo.path("command"), "report", name], env=without, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    lines = said.stdout.decode("utf-8", "replace").splitlines(True)
    return "".join(line for line in lines if not line.startswith("{"))
