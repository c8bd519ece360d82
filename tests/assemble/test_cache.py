"""The cache of binaries: who builds, who waits, and what is refused."""

import json
import multiprocessing
import os
import threading
import warnings
from pathlib import Path

import pytest

from kingpost.assemble import AssemblerNotFound, AssemblyError, build, cache, tools

TEXT = ".version 8.0\n.target sm_90a\n"


def forget():
    cache._memo.clear()


def the(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(f"*/{pattern}")
    return found


def test_second_call_builds_nothing(fake_ptxas, folder):
    runs = fake_ptxas()
    first = build(TEXT, "sm_90a")
    assert build(TEXT, "sm_90a") is first
    forget()
    assert build(TEXT, "sm_90a") == first
    assert runs() == 1
    assert (first.registers, first.shared_bytes, first.tool) == (40, 96, "ptxas 13.5.1")
    facts = json.loads(the(folder, "*.json").read_text())
    assert facts["registers"] == 40 and len(facts["sha256"]) == 64


def test_text_and_target_and_tool_are_told_apart(fake_ptxas):
    runs = fake_ptxas()
    build(TEXT, "sm_90a")
    build(TEXT, "sm_100a")
    build(TEXT + "\n", "sm_90a")
    fake_ptxas("13.6.0")
    assert build(TEXT, "sm_90a").tool == "ptxas 13.6.0"
    assert runs() == 4


def test_without_a_tool_the_newest_binary_serves(fake_ptxas, monkeypatch):
    runs = fake_ptxas("13.9.2")
    build(TEXT, "sm_90a")
    fake_ptxas("13.10.0")
    build(TEXT, "sm_90a")
    forget()

    def no_tool(*_):
        raise AssemblerNotFound("no ptxas found")

    monkeypatch.setattr(tools, "_find", no_tool)
    assert build(TEXT, "sm_90a").tool == "ptxas 13.10.0"
    with pytest.raises(AssemblerNotFound):
        build(TEXT, "sm_100a")
    assert runs() == 2


def in_a_process(barrier, results):
    barrier.wait()
    results.put(build(TEXT, "sm_90a").image)


def test_of_many_processes_one_builds(fake_ptxas):
    runs = fake_ptxas(seconds=0.5)
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    processes = [context.Process(target=in_a_process, args=(barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    images = {results.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert images == {b"binary of " + TEXT.encode()}
    assert runs() == 1


def test_of_many_threads_one_builds(fake_ptxas, folder):
    runs = fake_ptxas(seconds=0.2)
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)  # no file can be locked, since the folder is refused
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=build, args=(TEXT, "sm_90a")) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert runs() == 1


@pytest.mark.parametrize("damage", ["flipped", "short", "no image", "no metadata", "bad metadata", "foreign metadata"])
def test_damage_is_noticed_and_rebuilt(fake_ptxas, folder, damage):
    runs = fake_ptxas()
    expected = build(TEXT, "sm_90a").image
    image, metadata = the(folder, "*.bin"), the(folder, "*.json")
    if damage == "flipped":
        image.write_bytes(bytes([expected[0] ^ 1]) + expected[1:])
    elif damage == "short":
        image.write_bytes(expected[:-1])
    elif damage == "no image":
        image.unlink()
    elif damage == "no metadata":
        metadata.unlink()
    elif damage == "bad metadata":
        metadata.write_text("{")
    else:
        metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "colour": "blue"}))
    forget()
    assert build(TEXT, "sm_90a").image == expected
    assert runs() == 2
    forget()
    assert build(TEXT, "sm_90a").image == expected
    assert runs() == 2


def make_read_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid():
        for each in [folder, *folder.iterdir()]:
            each.chmod(0o555)
        return
    real = os.open  # permissions do not bind root

    def refusing(name, flags, *rest, **more):
        if flags & (os.O_WRONLY | os.O_RDWR) and str(name).startswith(str(folder)):
            raise OSError(30, "Read-only file system", str(name))
        return real(name, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refusing)


def test_read_only_folder_is_read_and_new_binaries_stay_in_memory(fake_ptxas, folder, monkeypatch):
    runs = fake_ptxas()
    build(TEXT, "sm_90a")
    make_read_only(folder, monkeypatch)
    forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(TEXT, "sm_90a")
    assert runs() == 1
    with pytest.warns(RuntimeWarning, match=r"cannot be written \(.*\); new binaries are kept in memory") as caught:
        new = [build(TEXT + n, "sm_90a") for n in "abc"]
    assert len(caught) == 1
    assert build(TEXT + "a", "sm_90a") is new[0]
    assert runs() == 4


def test_folder_that_cannot_be_made(fake_ptxas, folder):
    fake_ptxas()
    folder.write_text("a file is in the way")
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        assert build(TEXT, "sm_90a").registers == 40
    assert cache.entries() == []


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
@pytest.mark.parametrize("inner", [False, True])
def test_folder_that_others_can_write_is_ignored(fake_ptxas, folder, inner):
    runs = fake_ptxas()
    build(TEXT, "sm_90a")
    (the(folder, "*.bin").parent if inner else folder).chmod(0o775)
    forget()
    with pytest.warns(RuntimeWarning, match="others can write to it; wanted: owned by you, and chmod go-w") as caught:
        for _ in range(2):
            build(TEXT, "sm_90a")
            forget()
    assert len(caught) == 1
    assert runs() == 3


def test_folders_are_private_whatever_the_umask(fake_ptxas, folder):
    runs = fake_ptxas()
    before = os.umask(0o002)
    try:
        build(TEXT, "sm_90a")
    finally:
        os.umask(before)
    assert not any(each.stat().st_mode & 0o022 for each in [folder, *folder.iterdir(), *folder.glob("*/*.bin")])
    forget()
    build(TEXT, "sm_90a")
    assert runs() == 1


def test_entries_and_clear(fake_ptxas, folder):
    fake_ptxas()
    assert cache.entries() == [] and cache.clear() == 0
    build(TEXT, "sm_90a")
    build(TEXT + "\n", "sm_90a")
    (folder / "mine.txt").write_text("not the cache's")
    first, second = cache.entries()
    assert first.key == cache.key(TEXT, "sm_90a") and first.made <= second.made
    assert (first.tool, first.target, first.size) == ("ptxas 13.5.1", "sm_90a", first.path.stat().st_size)
    assert cache.path() == folder
    assert cache.clear() == 2
    assert cache.entries() == [] and [each.name for each in folder.iterdir()] == ["mine.txt"]


def test_refused_text_is_not_cached(ptxas):
    for _ in range(2):
        with pytest.raises(AssemblyError):
            build(TEXT + "nonsense", "sm_90a")
    assert cache.entries() == []
