#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the source tree to its rules: check_layers.py [ROOT]. Prints each breach, exits 1 if any.

Layers: a file includes only from its own row and the rows above; a row names folders that exist. Only
src/torch sees LibTorch, and nothing includes from it. Also: the licence line first, 800 lines at most (a warning from
400), no <regex>, no iostream or yaml-cpp header in a header, no TODO left behind, braces on a branch that is no guard,
and no text of an error compared in src/. No type has one qualified name in two files: a linker silently merges them.
Comments and Python docstrings never begin with What, Of, How and the like, nor use a pronoun of people for a rank
or function, and no name is `how` (CONTRIBUTING.md, Words). Where the help of an option or the meaning of a key is a
literal, it begins with none of the words of HANGING. A .cc without a header of its name says which header it implements."""
import io
import os
import re
import sys
import tokenize

# One entry per row, lowest first. Folders in one row may include each other.
ROWS = [["base"], ["interop/shell"], ["graph"], ["ops"], ["collectives"], ["program"], ["trace"], ["models"], ["autodiff"],
        ["comm"], ["parallel"], ["check"], ["passes"], ["cost"], ["sim"], ["whatif"],
        ["kernels"], ["runtime"], ["torch"], ["gguf"], ["data", "checkpoint"], ["run"], ["engine"], ["planner"], ["interop"],
        ["diagnose"], ["serve"], ["train"], ["rl"], ["cli"]]
RANK = {folder: i for i, row in enumerate(ROWS) for folder in row}
SOFT, HARD = 400, 800
SPDX = "SPDX-License-Identifier: Apache-2.0"
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
TORCH_HEADER = re.compile(r"^(ATen|torch|c10|caffe2)/")
HEADER_BANS = {"iostream", "yaml-cpp/yaml.h"}
HEADER_WARNINGS = {"nlohmann/json.hpp"}  # 1 s a file; a member by value needs it
BRANCH = re.compile(r"\s*(?:\} )?(?:else )?if(?: constexpr)? (?=\()|\s*(?:\} )?else(?= )")
GUARD = re.compile(r"$|\{|\[\[|(?:return|continue|break|throw|fail|fail_run|fail_with|bad|refuse)\b")
NO_CODE = re.compile(r"""//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'"""
                     r"""|^[ \t]*\#(?:\\\n|[^\n])*""", re.S | re.M)
NAMESPACE = re.compile(r"(?:inline )?namespace\b ?([\w:]*)$")
TYPE = re.compile(r"(?:struct|class|union|enum(?: class| struct)?) (?:alignas\([^)]*\) |\[\[[^\]]*\]\] )?"
                  r"([\w:]+(?: ?<[^:(]*>)?)(?: final)?(?: ?:(?!:).*)?$")
# Functions that several files may define alike: inline ones and templates. By name and parameters, as they may be overloaded.
FUNCTION = re.compile(r"(?:template ?<.*?> ?(?=[\w:\[]))?(.*?)([\w:~]+(?: ?operator\S+)?) ?(\(.*\)[^()]*)$")
OBJECT = re.compile(r"(?:using (\w+) ?=|inline (?:constexpr |const )?[\w:<>, *&]+? (\w+)(?:\[\w*\])? ?(?:=|$))")
# An exception's text, compared or searched; its code is for programs.
COMPARED = re.compile(r"\.what\(\)\)?\s*(?:[=!]=|\.(?:find|starts_with|ends_with|contains|compare|rfind)\()"
                      r"|\b(?:error|exception|failure|e)\.(?:text|where)\(\)\s*\.(?:find|starts_with|ends_with|contains|compare)\("
                      r"|\b(?:error|exception|failure|e)\.(?:text|where)\(\)\s*[=!]=")
COMMENT = re.compile(r"""(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'|[^"'/\n]|/(?!/))*?//[/!]?<?[ \t]*(.*)""")
FIRST_WORD = re.compile(r"(?:What|Who|Whom|Whose|Whoever|Whatever|Of|How|That|Those|Which|Whether)\b")
# Words that leave the help of an option or the meaning of a key hanging on its name. Rows are ("--flag", "N", &target, "help"),
# ("key", member, "meaning") and HOCKET_FIELD(..., "note").
HANGING = r'"((?i:of|how|which|with|whose|whom?|what|when)\b)'
HELP = re.compile(r'\w\(\s*"[\w-]+",(?:\s*"[^"\n]*",)?\s*[&*]?[\w.>-]+(?:\.get\(\))?,\s*' + HANGING
                  + r'|^HOCKET_FIELD\(.*, ' + HANGING + r'[^"]*"\)$', re.M)
PERSON = re.compile(r"\b[Ww]ho(?:m|ever|mever)?\b")
IMPLEMENTS = re.compile(r"//[^\n]*\n// Implements: (?:[^\n]*\n//)*?[^\n]*\b\w+\.h\b")
# A file of these is a row of a table, or a command, and begins with that name.
NAMED_BY_ROW = re.compile(r"src/(?:(?:ops|collectives|kernels/cpu|autodiff|models|passes)/|cli/(?:\w+/)?(?:cmd_|bench_|main))")
HOW = re.compile(r"\b(?:\w+_)?how_?\b|\bHow\b")
HOW_ERROR = "'how' does not name its value; try options, sampling, lowering"
# Begins of a function's comment that should be "Returns whether" and "Throws Error".
NO_VERB = re.compile(r"(?:True (?:if|for|of|once|while|when)\b|Error:)")
# A data member that a comment may begin with "Whether" for.
BOOL_MEMBER = re.compile(r"\s*(?:(?:const|mutable|static|std::atomic<)\s*)*bool>? \w+\s*[={;,]")
DECLARES_FUNCTION = re.compile(r"[^=(]*?[\w~>]\(")
QUOTES = re.compile(r"""[rRuU]?(?:"{3}|'{3}|"|')""")
PYTHON = re.compile(rb"#!.*\bpython")
LEFT_BEHIND = re.compile(r"\b(TODO|FIXME|XXX)\b")


def folder_of(path):
    """Returns the row's folder of a path below src/, or None for an unknown one."""
    parts = path.split("/")
    nested = "/".join(parts[:2])
    return nested if nested in RANK else parts[0] if parts[0] in RANK else None


def check_includes(path, text, report, warn):
    in_src = path.startswith("src/")
    own = folder_of(path[4:]) if in_src else None
    if in_src and own is None:
        report(path, 1, f"folder is in no row; the rows are {', '.join(sorted(RANK))}")
        return
    for m in INCLUDE.finditer(text):
        line = text.count("\n", 0, m.start()) + 1
        kind, name = m.groups()
        if name == "regex":
            report(path, line, "<regex> costs 3 s a file; parse by hand or use PCRE2")
        if path.endswith(".h") and name in HEADER_BANS:
            report(path, line, f"{name} in a header; include it in the .cc, or a forward header")
        if path.endswith(".h") and name in HEADER_WARNINGS:
            warn(path, line, f"{name} in a header; a forward header would do for references")
        if kind == "<" and TORCH_HEADER.match(name) and own != "torch":
            report(path, line, f"{name}: only src/torch is built with LibTorch")
        if kind == '"':
            target = folder_of(name)
            if target is None:
                if in_src:
                    report(path, line, f"{name}: include from the root src/, of a known folder")
                continue
            if in_src and RANK[target] > RANK[own]:
                report(path, line, f"{own} may not include {target}: that row is below its own")


def is_loose_branch(line):
    """Returns whether a line is a branch, `if (a) b = c;`, but no guard, `if (a) return;`."""
    line = re.sub(r"'(\\.|[^'\\])'", "' '", line)  # parentheses in quotes count for nothing
    start = BRANCH.match(line)
    end, depth = start.end() if start else len(line), 0
    while end < len(line) and (depth or line[end] == "("):
        depth += (line[end] == "(") - (line[end] == ")")
        end += 1
    return depth == 0 and not GUARD.match(line[end:].strip())


def code_of(text):
    """Returns the text of a C++ file with its lines, without comments, includes and the contents of literals."""
    return NO_CODE.sub(lambda m: '""' * (m[0][0] in "R\"'") + "\n" * m[0].count("\n"), text)


def check_names(path, text, report):
    """Refuses identifiers that do not say what they hold."""
    for i, line in enumerate(code_of(text).split("\n")):
        if HOW.search(line):
            report(path, i + 1, HOW_ERROR)


def check_help(path, text, report):
    """Refuses texts of options, keys and fields that hang on the name before them."""
    for m in HELP.finditer(text):
        report(path, text.count("\n", 0, m.end()) + 1, f"a help text begins with '{m[1] or m[2]}'; begin with a verb or a noun")


def definitions_of(text):
    """Returns the types, aliases, inline variables, inline functions and templates that a file defines in named
    namespaces: (qualified name, line). Functions have their parameters in the name."""
    blank = code_of(text)
    scopes, head, line, found = [], "", 1, []  # a scope is its name, or None if it hides its types
    for part in re.split(r"([{};\n])", blank):
        line += part == "\n"
        if part == "{":
            whole = " ".join(head.split())
            said = re.sub(r"^(?:template ?<.*> ?)?(?:typedef )?", "", whole)
            space, named = NAMESPACE.match(said), TYPE.match(said)
            open_here = None not in scopes
            name = named[1].replace(" ", "") if named else function_in(whole)
            if name and open_here:
                found.append(("::".join([*filter(None, scopes), name]), line))
            scopes.append(space[1] or None if space else "" if said in ("extern", 'extern ""') else None)
        elif part == "}" and scopes:
            scopes.pop()
        elif part == ";" and None not in scopes:
            named = OBJECT.match(" ".join(head.split()))
            if named:
                found.append(("::".join([*filter(None, scopes), named[1] or named[2]]), line))
        head = head + part if part not in ("{", "}", ";") else ""
    return found


def function_in(head):
    """Returns the name and parameters of an inline function or template that `head` defines, or None."""
    if not head.startswith(("inline ", "template")):
        return None
    found = FUNCTION.match(head)
    return found and found[2] + found[3].rpartition(")")[0].replace(" ", "") + ")"


def check_phrase(path, line, text, begins, report):
    """Checks the first word, if the line begins a comment, and the pronouns (CONTRIBUTING.md, Words)."""
    first = FIRST_WORD.match(text)
    if first and begins:
        report(path, line, f"a comment begins with '{first[0]}'; begin with a verb or a noun")
    if PERSON.search(text):
        report(path, line, "'who' is a person; name the rank, task or function")


def declares_function(line):
    """Returns whether a line begins the declaration of a function: a name and a parenthesis outside of `<>`."""
    head = DECLARES_FUNCTION.match(line)
    return bool(head) and head[0].count("<") == head[0].count(">") and not line.lstrip().startswith(("using ", "return "))


def code_below(lines, i):
    """Returns the first line from `i` on that is neither a comment nor the head of a template; empty: there is none."""
    return next((line for line in lines[i:] if not line.lstrip().startswith(("//", "template"))), "")


def check_function_words(path, lines, i, text, report):
    """Checks the first words of a comment that stands above a function; `i`: its first line."""
    found = NO_VERB.match(text)
    if found and declares_function(code_below(lines, i)):
        report(path, i + 1, f"a function's comment begins with '{found[0]}'; begin with 'Returns whether' or 'Throws Error'")


def check_words(path, lines, report):
    """Checks the words of C++ comments."""
    in_comment = in_raw = False
    for i, line in enumerate(lines):
        if in_raw or 'R"(' in line:  # the text of a program, with comments of its own
            in_raw = ')"' not in line.rpartition('R"(')[2]
            in_comment = False
            continue
        m = COMMENT.match(line)
        if m:
            alone = line.lstrip().startswith("//")
            says_whether = alone and m[1].startswith("Whether ") and bool(BOOL_MEMBER.match(code_below(lines, i)))
            check_phrase(path, i + 1, m[1], not says_whether and not (in_comment and alone), report)
            if not in_comment and alone:
                check_function_words(path, lines, i, m[1], report)
        in_comment = bool(m) and line.lstrip().startswith("//") and SPDX not in line


def check_python_words(path, text, report):
    """Checks the words of Python comments, docstrings and names. A docstring is a string that begins a statement."""
    begins_statement, comment_line = True, 0  # comment_line: the last line that is a comment alone
    for kind, token, (line, column), _, source in tokenize.generate_tokens(io.StringIO(text).readline):
        if kind == tokenize.COMMENT:
            alone = not source[:column].strip()
            check_phrase(path, line, token.lstrip("#: "), not alone or line != comment_line + 1, report)
            comment_line = line if alone and SPDX not in token else 0
        elif kind == tokenize.STRING and begins_statement:
            for i, part in enumerate(QUOTES.sub("", token, count=1).split("\n")):
                check_phrase(path, line + i, part.lstrip(), i == 0, report)
        elif kind == tokenize.NAME and token == "how":
            report(path, line, HOW_ERROR)
        if kind not in (tokenize.COMMENT, tokenize.NL):
            begins_statement = kind in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def check_hash_words(path, lines, report):
    """Checks the words of lines that are `# ...` alone: CMake, shell, YAML and golden cases."""
    in_comment = False
    for i, line in enumerate(lines):
        alone = line.lstrip().startswith("# ") and SPDX not in line
        if alone:
            check_phrase(path, i + 1, line.lstrip("# "), not in_comment, report)
        in_comment = alone


def check_definitions(types, report):
    """Reports definitions that several files have. `types` is by file; duplicates within a file are the compiler's."""
    first = {}
    for path, found in types.items():
        for name, line in found:
            other = first.setdefault(name, path)
            if other != path:
                report(path, line, f"{name} is defined in {other}, too; rename one, or hide it in a nameless namespace")


def is_python(root, path):
    """Returns whether a file is a Python module, or a script without an extension that Python runs."""
    if "." in os.path.basename(path):
        return path.endswith(".py")
    with open(os.path.join(root, path), "rb") as f:
        return bool(PYTHON.match(f.readline()))


def check_file(root, path, report, warn):
    with open(os.path.join(root, path), encoding="utf-8") as f:
        text = f.read()
    lines = text.split("\n")
    head = lines[1:2] if lines[0].startswith("#!") else lines[0:1]
    if not head or SPDX not in head[0]:
        report(path, 1, f"first line must hold '{SPDX}'")
    count = len(lines) - 1
    if count > HARD:
        report(path, count, f"{count} lines; the limit is {HARD}: split it by subject")
    elif count > SOFT:
        warn(path, count, f"{count} lines; {SOFT} is the aim")
    if path.endswith((".h", ".cc")):
        check_includes(path, text, report, warn)
        check_words(path, lines, report)
        if path.startswith("src/") and path.endswith(".cc") and not NAMED_BY_ROW.match(path) and \
                not os.path.exists(os.path.join(root, path[:-2] + "h")) and not IMPLEMENTS.match(text):
            report(path, 2, "no header of this name: begin with '// Implements: NAME (HEADER.h)'")
        check_names(path, text, report)
        if path.startswith("src/"):
            check_help(path, text, report)
        for i, line in enumerate(lines):
            if is_loose_branch(line):
                report(path, i + 1, "a branch that is no guard has braces")
            if path.startswith("src/") and COMPARED.search(line):
                report(path, i + 1, "the text of an error is for people: compare Error::code()")
    if is_python(root, path):
        check_python_words(path, text, report)
    if path != "tools/check_layers.py":
        for i, line in enumerate(lines):
            if LEFT_BEHIND.search(line):
                report(path, i + 1, "do it or say it in the docs, leave no note behind")
    return text


def hash_files(root):
    """Returns the files, beside Python, whose comments begin with `#`."""
    found = [f for f in ("CMakeLists.txt", ".ci/run", "test", "quickstart") if os.path.isfile(os.path.join(root, f))]
    for top, ends in (("cmake", ".cmake"), ("tools", ".sh"), ("bench", ".sh"), ("configs", ".yaml"), ("tests/golden", ".txt")):
        for where, _, files in os.walk(os.path.join(root, top)):
            found += [os.path.relpath(os.path.join(where, f), root) for f in sorted(files) if f.endswith(ends)]
    return found


def check_tree(root):
    """Returns (errors, warnings), each a list of 'path:line: text'."""
    errors, warnings, types = [], [], {}

    def report(path, line, what):
        errors.append(f"{path}:{line}: {what}")

    def warn(path, line, what):
        warnings.append(f"{path}:{line}: {what}")

    for top in ("src", "tests", "bench", "tools", "docs/examples"):
        for where, folders, files in os.walk(os.path.join(root, top)):
            folders[:] = sorted(f for f in folders if f not in ("golden", "__pycache__"))
            for name in sorted(files):
                path = os.path.relpath(os.path.join(where, name), root)
                if name == "fields.inc":
                    with open(os.path.join(root, path), encoding="utf-8") as f:
                        check_help(path, f.read(), report)
                if name.endswith((".h", ".cc", ".sh", ".js", ".css", ".html")) or is_python(root, path):
                    text = check_file(root, path, report, warn)
                    if name.endswith((".h", ".cc")):
                        types[path] = definitions_of(text)
    for path in hash_files(root):
        with open(os.path.join(root, path), encoding="utf-8") as f:
            check_hash_words(path, f.read().split("\n"), report)
    check_definitions(types, report)
    return errors, warnings


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..")
    errors, warnings = check_tree(os.path.abspath(root))
    for text in warnings:
        print(f"warning: {text}")
    for text in errors:
        print(f"error: {text}")
    print(f"{len(errors)} errors, {len(warnings)} warnings")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
