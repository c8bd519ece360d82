"""The binaries on disk, shared by all processes of a user.

    <folder>/<sha256 of text and target>/<tool and version>.bin, .json, .lock

The tool is a file name and not part of the key, so that a machine without an assembler may load what any other made
of the same text. Nothing is loaded that differs from its recorded hash or lies where other users can write; a folder
that cannot be written is still read, and what is missing there is kept in memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
import stat
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kingpost.assemble.binary import Binary

_FOLDER_MODE, _FILE_MODE = 0o755, 0o644  # whatever the umask: others may read a cache, never write it
# What reading metadata raises that is missing, damaged, or of another release.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)

_memo: dict[tuple[Path, str | None], Binary] = {}
_turns: dict[Path, threading.Lock] = {}  # one thread of this process assembles a text, also where no file can be locked
_warned: set[Path] = set()


@dataclass(frozen=True)
class Entry:
    """One binary on disk, as its metadata describes it: size in bytes, `made` and `seconds` in seconds."""

    path: Path
    key: str
    tool: str
    target: str
    size: int
    made: float  # since the epoch
    registers: int
    seconds: float


def path() -> Path:
    """The cache's folder: KINGPOST_CACHE, else the user's cache folder. It need not exist yet."""
    if chosen := os.environ.get("KINGPOST_CACHE"):
        return Path(chosen).absolute()
    import platformdirs

    return platformdirs.user_cache_path("kingpost")


def key(text: str, target: str) -> str:
    """What names a text's binaries: the hash of all that decides them but the tool."""
    return hashlib.sha256(f"{target}\n{text}".encode()).hexdigest()


def load(text: str, target: str, tool: str | None = None) -> Binary | None:
    """The cached binary of `text` by `tool` ("ptxas 13.5.37"), or by the newest there is; None without one to trust."""
    place = (path() / key(text, target), tool)
    if place not in _memo and (found := _read(*place)):
        _memo[place] = found
    return _memo.get(place)


def get_or_build(text: str, target: str, tool: str, build: Callable[[], Binary]) -> Binary:
    """The cached binary of `text` by `tool`, else what `build` returns, which is then cached.

    Of many threads and processes one builds and the others wait for it. Raises only what `build` raises.
    """
    folder = path() / key(text, target)
    with _turns.setdefault(folder, threading.Lock()):
        if found := load(text, target, tool):
            return found
        with _writable(folder, tool) as writable:
            found = load(text, target, tool)  # another process may have built it while this one waited
            if not found:
                found = _memo[folder, tool] = build()
                if writable:
                    _write_binary(folder, found)
            return found


def entries() -> list[Entry]:
    """Every binary on disk, oldest first; damaged or half-written ones are left out."""
    found = []
    for metadata in path().glob("*/*.json"):
        with contextlib.suppress(*_UNREADABLE):
            facts = json.loads(metadata.read_text())
            image = metadata.with_suffix(".bin")
            file = image.stat()
            about = {field: facts[field] for field in ("tool", "target", "registers", "seconds")}
            found.append(Entry(path=image, key=image.parent.name, size=file.st_size, made=file.st_mtime, **about))
    return sorted(found, key=lambda entry: entry.made)


def clear() -> int:
    """Removes every binary, on disk and in memory; returns how many were on disk. Raises OSError where it may not."""
    count = len(entries())
    _memo.clear()
    for folder in path().glob("*"):
        if folder.is_dir() and re.fullmatch(r"[0-9a-f]{64}", folder.name):
            shutil.rmtree(folder)
    return count


def _stem(tool: str) -> str:
    return re.sub(r"[^\w.+-]", "-", tool)


def _read(folder: Path, tool: str | None) -> Binary | None:
    if not (_is_private(folder.parent) and _is_private(folder)):
        return None
    stems = [_stem(tool)] if tool else sorted((each.stem for each in folder.glob("*.json")), key=_version, reverse=True)
    for stem in stems:
        with contextlib.suppress(*_UNREADABLE):
            facts = json.loads((folder / f"{stem}.json").read_text())
            image = (folder / f"{stem}.bin").read_bytes()
            if hashlib.sha256(image).hexdigest() == facts.pop("sha256"):
                return Binary(image=image, **facts)
    return None


def _version(stem: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", stem)]


def _write_binary(folder: Path, binary: Binary) -> None:
    facts = {f.name: getattr(binary, f.name) for f in dataclasses.fields(binary) if f.name != "image"}
    facts["sha256"] = hashlib.sha256(binary.image).hexdigest()
    stem = _stem(binary.tool)
    try:
        _write(folder / f"{stem}.bin", binary.image)
        # Last, since without it the image counts for nothing.
        _write(folder / f"{stem}.json", json.dumps(facts, indent=1).encode())
    except OSError as error:
        _warn_unwritable(folder.parent, error)


def _write(target: Path, data: bytes) -> None:
    """All of the file or none of it, whoever looks; the caller holds the lock."""
    temporary = target.with_name(f".{target.name}.new")
    with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, _FILE_MODE)) as file:
        file.write(data)
    os.replace(temporary, target)


@contextlib.contextmanager
def _writable(folder: Path, tool: str) -> Iterator[bool]:
    """Holds the lock of one binary on disk; yields False, with one warning, where the folder cannot be written."""
    import filelock

    lock = filelock.FileLock(folder / f"{_stem(tool)}.lock")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
        folder.mkdir(exist_ok=True, mode=_FOLDER_MODE)
        trusted = _is_private(folder.parent) and _is_private(folder)
        if trusted:
            lock.acquire()
    except (OSError, NotImplementedError) as error:  # the latter: a file system without locks
        _warn_unwritable(folder.parent, error)
        trusted = False
    try:
        yield trusted
    finally:
        lock.release()


def _is_private(folder: Path) -> bool:
    """Whether the folder is there and only this user (or root) may write in it; files of others are not code to run."""
    try:
        facts = folder.stat()
    except OSError:
        return False
    if os.name != "posix" or (facts.st_uid in (0, os.getuid()) and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        return True
    _warn_once(folder, f"is ignored, since others can write to it; wanted: owned by you, and chmod go-w {folder}")
    return False


def _warn_unwritable(folder: Path, error: Exception) -> None:
    reason = getattr(error, "strerror", None) or error
    _warn_once(folder, f"cannot be written ({reason}); new binaries are kept in memory")


def _warn_once(folder: Path, what: str) -> None:
    if folder not in _warned:
        _warned.add(folder)
        warnings.warn(f"the binary cache {folder} {what}", RuntimeWarning, stacklevel=2)
