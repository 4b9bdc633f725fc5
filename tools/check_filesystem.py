#!/usr/bin/env python3
"""Fails where code asks std::filesystem in the form that throws: what nobody catches ends as a bug of ours
(exit 70), though a folder that may not be entered or a link in a circle is the user's. The form with a
std::error_code, and file_kind() and names_in() of core/file/file.h, say what is wrong. Tests may throw."""
import pathlib
import re
import sys

TOPS = ("troupe", "apps", "python")
# What has a form with an error_code, and throws without.
ASKS = ("exists|is_directory|is_regular_file|is_symlink|is_empty|is_other|is_fifo|is_socket|is_block_file"
        "|is_character_file|status|symlink_status|file_size|last_write_time|hard_link_count|canonical"
        "|weakly_canonical|absolute|relative|proximate|read_symlink|equivalent|space|current_path"
        "|temp_directory_path|create_directory|create_directories|create_symlink|create_directory_symlink"
        "|create_hard_link|copy|copy_file|copy_symlink|remove|remove_all|rename|resize_file|permissions"
        "|directory_iterator|recursive_directory_iterator")
ALIAS = re.compile(r"namespace\s+(\w+)\s*=\s*std::filesystem\s*;")
ERROR = re.compile(r"std::error_code\s*&?\s*(\w+)")
MEMBER = re.compile(r"(?:\.|->)(is_directory|is_regular_file|is_symlink|file_size|last_write_time)\(\s*\)")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)


def without_comments(text):
    return COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def arguments(text, opening):
    """What stands between the bracket at `opening` and the one that closes it."""
    depth = 0
    for i in range(opening, len(text)):
        depth += (text[i] in "({") - (text[i] in ")}")
        if depth == 0:
            return text[opening + 1:i]
    return text[opening + 1:]


def file_faults(path, text):
    text = without_comments(text)
    spaces = "|".join([r"std::filesystem", *ALIAS.findall(text)])
    call = re.compile(rf"\b(?:{spaces})::({ASKS})\b(?:\s+\w+)?\s*([({{])")
    walk = re.compile(rf"for\s*\([^;{{}}]*?:\s*(?:{spaces})::(?:recursive_)?directory_iterator\b")
    errors = set(ERROR.findall(text))
    line = lambda at: text.count("\n", 0, at) + 1
    for found in walk.finditer(text):
        yield f"{path}:{line(found.start())}: a loop over a folder throws at its next entry; names_in() of core/file/file.h"
    for found in MEMBER.finditer(text):
        yield f"{path}:{line(found.start())}: {found[1]}() of a folder's entry throws; file_kind() of core/file/file.h"
    for found in call.finditer(text):
        inside = arguments(text, found.end() - 1)
        end = re.search(r"(\w+)\s*$", inside)
        status = re.match(r"(is_\w+|exists)$", found[1]) and re.fullmatch(r"\s*(\w*status\b.*|\w+::symlink_status\(.*)", inside, re.S)
        asked = end and end[1] in errors or status or not inside.strip() and "iterator" in found[1]
        if not asked:
            yield f"{path}:{line(found.start())}: {found[1]}() throws; give it a std::error_code, or file_kind() of core/file/file.h"


def faults(root):
    for path in sorted(p for top in TOPS for p in (root / top).rglob("*")):
        if path.suffix not in {".h", ".cuh", ".cpp", ".cu"} or path.stem.endswith(("_test", "_bench")):
            continue
        if "testing" in path.parts:
            continue
        text = path.read_text()
        if "filesystem" in text:
            yield from file_faults(path, text)


if __name__ == "__main__":
    found = list(faults(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
    print("\n".join(found) or "filesystem: ok")
    sys.exit(bool(found))
