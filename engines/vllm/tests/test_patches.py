"""The set of patches, what each checks, the table of versions, and a plugin without a sidecar."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
from unittest import mock

from tests.needs import needs_vllm

needs_vllm()

import vllm  # noqa: E402

from sluice_vllm.errors import SluiceRefused  # noqa: E402
from sluice_vllm.patches import PATCHES, HasWork, Patch  # noqa: E402
from sluice_vllm.versions import TESTED, check_version  # noqa: E402

EXPECTED = {
    "engine-config": ("vllm.engine.arg_utils.EngineArgs.create_engine_config", "both"),
    "create-offloader": ("vllm.model_executor.offloader.base.create_offloader", "both"),
    "allocate-kv-cache": ("vllm.v1.worker.utils.allocate_kv_cache", "both"),
    "request-memory": ("vllm.v1.worker.utils.request_memory", "gpu"),
    "has-work": ("vllm.v1.engine.core.EngineCoreProc.has_work", "both"),
    "engine-step": ("vllm.v1.engine.core.EngineCoreProc._process_engine_step", "both"),
}


class Patches(unittest.TestCase):
    def test_these_are_all(self) -> None:
        self.assertEqual({p.name: (f"{p.module}.{p.attribute}", p.platform) for p in PATCHES}, EXPECTED)
        self.assertTrue(all(patch.why for patch in PATCHES))

    def test_each_finds_what_it_replaces(self) -> None:
        for patch in PATCHES:
            with self.subTest(patch=patch.name):
                patch().check()

    def test_other_parameters_are_refused_by_name(self) -> None:
        class Changed(HasWork):
            parameters = ("self", "more")

        with self.assertRaisesRegex(SluiceRefused, "patch has-work: .*EngineCoreProc.has_work has the parameters"):
            Changed().check()

    def test_a_missing_attribute_is_refused_by_name(self) -> None:
        class Gone(HasWork):
            attribute = "EngineCoreProc.has_no_work"

        with self.assertRaisesRegex(SluiceRefused, "patch has-work: .*has_no_work is missing"):
            Gone().check()

    def test_a_patch_reaches_modules_that_imported_the_function(self) -> None:
        module, importer = type(sys)("sluice_test_module"), type(sys)("sluice_test_importer")
        module.function = importer.function = lambda a: a  # type: ignore[attr-defined]

        class Double(Patch):
            name, why, parameters = "double", "test", ("a",)
            attribute, importers = "function", ("sluice_test_importer", "sluice_test_absent")

            def replacement(self, original: object) -> object:
                return lambda a: 2 * original(a)  # type: ignore[operator]

        Double.module = "sluice_test_module"
        with mock.patch.dict(sys.modules, {"sluice_test_module": module, "sluice_test_importer": importer}):
            Double().check()
            Double().apply()
        self.assertEqual((module.function(2), importer.function(3)), (4, 6))  # type: ignore[attr-defined]

    def test_a_request_for_memory_asks_for_no_free_memory(self) -> None:
        """Readings that rise and fall, as where neighbours lend and borrow."""
        from types import SimpleNamespace

        from vllm.v1.worker.utils import request_memory

        patched = next(patch for patch in PATCHES if patch.name == "request-memory")().replacement(request_memory)
        cache = SimpleNamespace(gpu_memory_utilization=0.9)
        for free in (100, 3, 80, 0, 41):
            snapshot = SimpleNamespace(total_memory=100, free_memory=free, device_="cuda:0")
            self.assertEqual(patched(snapshot, cache), 90)
            if free < 90:
                with self.assertRaises(ValueError):
                    request_memory(snapshot, cache)


class Versions(unittest.TestCase):
    def test_the_installed_version_is_tested(self) -> None:
        check_version(vllm.__version__)

    def test_another_version_is_refused_by_name_unless_allowed(self) -> None:
        with self.assertRaisesRegex(SluiceRefused, "vLLM 0.29.1 was not tested .*0.32.0.*--allow-untested"):
            check_version("0.29.1")
        with mock.patch.dict(os.environ, {"SLUICE_VLLM_ALLOW_UNTESTED": "1"}):
            check_version("0.29.1")

    def test_patches_of_the_table_exist_for_their_platform(self) -> None:
        for entry in TESTED:
            for platform, names in (("cpu", entry.cpu), ("gpu", entry.gpu)):
                possible = {patch.name for patch in PATCHES if patch.platform in ("both", platform)}
                self.assertLessEqual(set(names), possible)
            self.assertEqual(set(entry.cpu), {p.name for p in PATCHES if p.platform != "gpu"})


class WithoutASidecar(unittest.TestCase):
    def test_the_plugin_does_nothing(self) -> None:
        script = (
            "import sys, vllm.v1.engine.core as core, vllm.engine.arg_utils as arguments\n"
            "before = core.EngineCoreProc.has_work, arguments.EngineArgs.create_engine_config\n"
            "import sluice_vllm; sluice_vllm.register()\n"
            "assert before == (core.EngineCoreProc.has_work, arguments.EngineArgs.create_engine_config)\n"
            "loaded = [name for name in sys.modules if name.startswith('sluice_vllm')]\n"
            "assert loaded == ['sluice_vllm'], loaded\n"
        )
        environment = {name: value for name, value in os.environ.items() if name != "SLUICE_LINK"}
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
