#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""The tree keeps its layers and words, and tools/check_layers.py refuses every kind of breach."""
import os
import re
import sys
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import check_layers  # noqa: E402

HEAD = "// SPDX-License-Identifier: Apache-2.0\n"


class Layers(unittest.TestCase):
    def errors(self, path, text):
        return self.errors_of([(path, text)])

    def errors_of(self, files, add_headers=True):
        """Returns the errors of a tree of (path, text). Every .cc gets a header of its name, unless told otherwise."""
        with tempfile.TemporaryDirectory() as root:
            for path, text in files:
                full = os.path.join(root, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w", encoding="utf-8") as f:
                    f.write(text)
                if add_headers and full.endswith(".cc"):
                    with open(full[:-2] + "h", "w", encoding="utf-8") as f:
                        f.write(HEAD)
            return check_layers.check_tree(root)[0]

    def test_this_tree(self):
        errors, _ = check_layers.check_tree(ROOT)
        self.assertEqual([], errors)

    def test_every_row_exists(self):
        src = os.path.join(ROOT, "src")
        self.assertEqual(sorted(os.listdir(src)), sorted({f.split("/")[0] for f in check_layers.RANK}))
        for folder in check_layers.RANK:
            self.assertTrue(os.path.isdir(os.path.join(src, folder)), folder)
        with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as f:
            modules = re.findall(r"^ *hocket_module\((\w+)", f.read(), re.M)
        # src/torch is a library of its own (cmake/HocketTorch.cmake).
        self.assertEqual(sorted(os.listdir(src)), sorted({*modules, "torch"}))

    def test_branches(self):
        for line in ["if (a) b = c(d);", "if (f(a) > 1) ++b;", "} else b = 1;", "else if (a) b();"]:
            self.assertTrue(self.errors("src/graph/a.cc", f"{HEAD}{line}\n"), line)
        for line in ["if (a) return b(c);", "if (a) fail(b, c);", "if (a) {", "} else {", "} else if (a) {",
                     "if (f(a) &&", "if constexpr (a) return;", "} while (a);", "for (;;) a = b;", "// if (a) b();"]:
            self.assertEqual([], self.errors("src/graph/a.cc", f"{HEAD}{line}\n"), line)

    def test_words_of_comments(self):
        for line in ["// What it returns.", "/// Of a rank, its tasks.", "int a;  ///< how", "int a;  // Whose it is.",
                     "/// Returns the rank.\n/// That one who waits."]:
            bad = self.errors("src/graph/a.cc", f"{HEAD}{line}\n")
            self.assertEqual(line != "int a;  ///< how", bool(bad), line)
        for line in ["/// Returns the task.\n/// Of two, the first.", 'f("// What");', "int a;  // whole", "a = '\"';  // of it",
                     '// First.\n\nf("https://a");  // second']:
            self.assertEqual([], self.errors("src/graph/a.cc", f"{HEAD}{line}\n"), line)

    def test_comments_of_functions_do_not_begin_with_true_if_or_error(self):
        for begin in ("True if", "True for", "Error:"):
            for below in ("bool f();", "template <class T>\nbool f(T a);", "std::vector<int> A::f(int a) {", "explicit A(int a);"):
                [error] = self.errors("src/graph/a.cc", f"{HEAD}/// {begin} a\n/// and b.\n{below}\n")
                self.assertIn(f"a function's comment begins with '{begin}'", error, below)
            for below in ("bool a = false;", "std::function<bool(int)> a;", "bool a = f();", "template <class T>\nbool kA = false;"):
                self.assertEqual([], self.errors("src/graph/a.cc", f"{HEAD}/// {begin} a.\n{below}\n"), below)
        self.assertEqual([], self.errors("src/graph/a.cc", f"{HEAD}/// Returns a.\n/// Error: b.\nbool f();\n"))

    def test_only_comments_of_bool_members_begin_with_whether(self):
        for below in ("bool a = false;", "bool a;", "const bool a{};", "std::atomic<bool> a{false}, b{false};"):
            self.assertEqual([], self.errors("src/graph/a.cc", f"{HEAD}/// Whether a\n/// and b.\n{below}\n"), below)
        for below in ("bool f();", "bool A::f(int a) {", "int a = 0;", ""):
            [error] = self.errors("src/graph/a.cc", f"{HEAD}/// Whether a\n/// and b.\n{below}\n")
            self.assertIn("a comment begins with 'Whether'", error, below)

    def test_names(self):
        for line in ["Options how;", "f(spec.how.passes);", "f(how);", "How a;", "int how_ = 0;", "Options api_how;"]:
            [error] = self.errors("src/graph/a.cc", f"{HEAD}{line}\n")
            self.assertIn("'how' does not name its value", error, line)
        for line in ["int show = 0;", 'f("how");', "int a = 0;  // and how", 'f(R"(how)");', "// Counts\n// how often."]:
            self.assertEqual([], self.errors("src/graph/a.cc", f"{HEAD}{line}\n"), line)
        head = HEAD.replace("//", "#")
        for line in ["how = 1", "def f(**how):\n    pass", "f(how=1)"]:
            [error] = self.errors("tools/a.py", f"{head}{line}\n")
            self.assertIn("'how' does not name its value", error, line)
        self.assertEqual([], self.errors("tools/a.py", f"{head}show = 'how'  # and how\n"))

    def test_words_of_python(self):
        head = HEAD.replace("//", "#")
        for text in ['"""What it returns."""', 'class A:\n    # whole\n    """Whose it is."""', 'def f():\n    r"""Of a rank."""',
                     "def f():\n    'How it goes.'", "# Which rank", "a = 1  # That one.", "# Returns the rank\n# that one who waits",
                     '"""Returns the rank.\n\n    One who waits."""', "# First.\na = 1\n# How"]:
            for name in ("a.py", "script"):
                [error] = self.errors("tools/" + name, f"#!/usr/bin/env python3\n{head}{text}\n")
                self.assertRegex(error, "begin with a verb or a noun|'who' is a person", text)
        for text in ['"""Returns the rank.\n\nOf two, the first."""', 'a = """What"""', "f(\n  'Who')", 'a = "# How"',
                     "a = 1  # of it", "# Returns\n# Of two, the first.", 'def f():\n    return """What."""', "# whole"]:
            self.assertEqual([], self.errors("tools/a.py", f"{head}{text}\n"), text)
        self.assertEqual([], self.errors("tools/script", "#!/bin/sh\n# What it does.\n"))

    def test_words_of_other_comments(self):
        for path in ("CMakeLists.txt", "cmake/a.cmake", ".ci/run", "tools/a.sh", "configs/a.yaml", "tests/golden/a/b.txt"):
            head = HEAD.replace("//", "#")
            for text in ("# What it builds.", "a\n  # Those of it.", "# Builds it\n# for one who waits."):
                [error] = self.errors(path, f"{head}{text}\n")
                self.assertRegex(error, "begin with a verb or a noun|'who' is a person", text)
            self.assertEqual([], self.errors(path, f"{head}# Builds it,\n# of two the first.\na  # of it\n"))

    def test_words_of_help(self):
        for line in ['args.option("--seed", "S", &options->seed, "of the draw", 0, 9);', 'args.flag("--json", &json,\n  "With all");',
                     'fields("config", *config, "which keys").min(1);', 'v("a", a, "how");', 'args.option("--a", "A", base.get(), "when");']:
            [error] = self.errors("src/run/a.cc", f"{HEAD}{line}\n")
            self.assertIn("a help text begins with", error, line)
        [error] = self.errors("src/serve/openai/fields.inc", 'HOCKET_FIELD("n", "c", "yes", supported, "2", "", "of texts")\n')
        self.assertIn("src/serve/openai/fields.inc:1: a help text begins with 'of'", error)
        for line in ['args.option("--seed", "S", &options->seed, "seed of the draw");', 'fields("a", a, "offset").min(1);',
                     'args.flag("--json", &json, "print JSON, with all");', 'fail("a", "of {}", b);', 'tile("a", f(b), "of all");']:
            self.assertEqual([], self.errors("src/run/a.cc", f"{HEAD}{line}\n"), line)
        self.assertEqual([], self.errors("src/serve/openai/fields.inc", 'HOCKET_FIELD("n", "c", "yes", supported, "2", "", "texts")\n'))

    def test_a_source_without_a_header_says_what_it_implements(self):
        for path, line in [("src/graph/a.cc", "// Reads graphs."), ("src/graph/a.cc", "// Implements: reading of graphs."),
                           ("src/graph/a.cc", "// Implements graph.h."), ("src/cli/common.cc", "// Options.\n// See graph.h."),
                           ("src/sim/main.cc", "")]:
            [error] = self.errors_of([(path, f"{HEAD}{line}\n")], add_headers=False)
            self.assertIn("begin with '// Implements: NAME (HEADER.h)'", error, line)
        for path, line in [("src/graph/a.cc", "// Implements: read (graph.h)."), ("src/graph/a.cc", "// Implements: read, a\n// name (graph.h)."),
                           ("src/ops/add.cc", "// add: a sum."), ("src/kernels/cpu/add.cc", "// add."), ("src/cli/main.cc", "// The binary."),
                           ("src/cli/apps/cmd_eval.cc", "// hocket eval"), ("tests/graph/a_test.cc", "")]:
            self.assertEqual([], self.errors_of([(path, f"{HEAD}{line}\n")], add_headers=False), line)
        self.assertEqual([], self.errors("src/graph/a.cc", f"{HEAD}// Reads graphs.\n"))

    def test_types_are_defined_once(self):
        first = "src/passes/a.h", HEAD + "namespace hocket::passes {\nstruct Level {\n  int axis = 0;\n};\n}\n"
        for text in ["namespace hocket::passes {\nstruct Level {\n};\n}", "namespace hocket {\nnamespace passes {\nenum class Level : int { a, b };\n}\n}",
                     "namespace hocket::passes {\n/// A { is no scope.\nconst char* const c = \"{\";\nclass Level final : public A<int> {\n};\n}"]:
            [error] = self.errors_of([first, ("src/passes/b.cc", f"{HEAD}{text}\n")])
            self.assertIn("hocket::passes::Level is defined in src/passes/a.h, too", error)
        for text in ["namespace hocket::passes {\nnamespace {\nstruct Level {\n};\n}\n}", "namespace hocket::sim {\nstruct Level {\n};\n}",
                     "namespace hocket::passes {\nstruct Level;\nstruct Other {\n  struct Level {\n  };\n};\n}",
                     "namespace hocket::passes {\nvoid f() {\n  struct Level {\n  };\n}\n}",
                     "namespace hocket::passes {\n// struct Level {\n// };\n}"]:
            self.assertEqual([], self.errors_of([first, ("src/passes/b.cc", f"{HEAD}{text}\n")]), text)

    def test_functions_and_variables_are_defined_once(self):
        for here, there, name in [
                ("inline int f(int a) {\n  return a;\n}", "inline int f(int a) {\n  return 1;\n}", "f(inta)"),
                ("template <typename T>\nT f(const std::vector<T>& a) {\n}", "template <typename T>\nT f(const std::vector<T>& a) {\n}", "f(conststd::vector<T>&a)"),
                ("inline constexpr int kOne = 1;", "inline constexpr int kOne = 2;", "kOne"),
                ("using Json = int;", "using Json = long;", "Json")]:
            both = [(f"src/passes/{file}.h", f"{HEAD}#pragma once\nnamespace hocket::passes {{\n{text}\n}}\n")
                    for file, text in (("a", here), ("b", there))]
            [error] = self.errors_of(both)
            self.assertIn(f"hocket::passes::{name} is defined in src/passes/a.h, too", error)
        for here, there in [("inline int f(int a) {\n}", "inline int f(long a) {\n}"), ("int f(int a);", "int f(int a);"),
                            ("constexpr int kOne = 1;", "constexpr int kOne = 2;"),
                            ("namespace {\nusing Json = int;\n}", "namespace {\nusing Json = int;\n}")]:
            both = [(f"src/passes/{file}.h", f"{HEAD}#pragma once\nnamespace hocket::passes {{\n{text}\n}}\n")
                    for file, text in (("a", here), ("b", there))]
            self.assertEqual([], self.errors_of(both), here)

    def test_allowed(self):
        for path, include in [
                ("src/graph/a.cc", '"base/error.h"'), ("src/graph/a.cc", '"graph/b.h"'),
                ("src/runtime/a.cc", '"kernels/abi.h"'),
                ("src/program/a.cc", '"collectives/b.h"'),
                ("src/train/a.cc", '"data/b.h"'),
                ("tests/base/a_test.cc", '"cli/main.h"')]:
            self.assertEqual([], self.errors(path, f"{HEAD}#include {include}\n"), (path, include))

    def test_refused(self):
        for path, text, why in [
                ("src/base/a.cc", HEAD + '#include "graph/b.h"\n', "row is below"),
                ("src/sim/a.cc", HEAD + '#include "runtime/b.h"\n', "row is below"),
                ("src/program/a.cc", HEAD + '#include "comm/b.h"\n', "row is below"),
                ("src/sim/a.cc", HEAD + "#include <ATen/ATen.h>\n", "LibTorch"),
                ("src/kernels/cpu/a.cc", HEAD + "#include <ATen/ATen.h>\n", "LibTorch"),
                ("src/kernels/cpu/a.cc", HEAD + '#include "runtime/b.h"\n', "row is below"),
                ("tests/base/a_test.cc", HEAD + "#include <torch/torch.h>\n", "LibTorch"),
                ("src/nowhere/a.h", HEAD, "no row"),
                ("src/base/a.cc", HEAD + '#include "error.h"\n', "from the root"),
                ("src/base/a.cc", HEAD + "#include <regex>\n", "regex"),
                ("src/base/a.h", HEAD + "#include <yaml-cpp/yaml.h>\n", "in a header"),
                ("src/base/a.cc", HEAD + 'if (error.text().find("x") == 0) return;\n', "Error::code"),
                ("src/base/a.cc", HEAD + 'if (error.where() != file) throw;\n', "Error::code"),
                ("src/base/a.cc", HEAD + 'if (std::string(error.what()) == "x") return;\n', "Error::code"),
                ("src/base/a.cc", "int x;\n", "first line"),
                ("src/base/a.js", "let x;\n", "first line"),
                ("src/base/a.cc", HEAD + "int x;\n" * 800, "801 lines"),
                ("src/base/a.cc", HEAD + "// TO" + "DO later\n", "no note")]:
            errors = self.errors(path, text)
            self.assertEqual(1, len(errors), (path, errors))
            self.assertIn(why, errors[0])


if __name__ == "__main__":
    unittest.main()
