#!/usr/bin/env python3
"""A Llama of random bf16 values on disk goes in and out on 4 ranks: its tensors come back bit by bit,
no rank takes much memory, and it says how fast that is beside a plain copy of the same files
just before.

Usage: large_model.py [--layers N] [--hidden C] [--vocab V] [--ranks N] [--rounds R] [--memory-mib M] [--share S] [DIRECTORY]

The defaults are a model of 1.4 GB; --layers 32 --hidden 4096 --vocab 32000 is one of 7B, 13.5 GB, whose
run takes four times that on disk. $BRUME is the program. Everything written is removed again."""
import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

BLOCK = 16 << 20  # bytes of random values, repeated from another place for each tensor
SHARD = 5_000_000_000


def tensors(size):
    """Names and shapes of a Llama, in the order in which Transformers writes them."""
    hidden, ffn = size.hidden, size.hidden * 43 // 16
    yield "model.embed_tokens.weight", [size.vocab, hidden]
    for layer in range(size.layers):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", [hidden]
        yield at + "mlp.down_proj.weight", [hidden, ffn]
        yield at + "mlp.gate_proj.weight", [ffn, hidden]
        yield at + "mlp.up_proj.weight", [ffn, hidden]
        yield at + "post_attention_layernorm.weight", [hidden]
        for projection in "kqvo":
            yield at + f"self_attn.{projection}_proj.weight", [hidden, hidden]
    yield "model.norm.weight", [hidden]
    yield "lm_head.weight", [size.vocab, hidden]


def num_bytes(shape):
    product = 2
    for extent in shape:
        product *= extent
    return product


def write_model(directory, size):
    os.mkdir(directory)
    block = bytearray(os.urandom(BLOCK))
    below_2 = bytes(value & 0xBF for value in range(256))  # of the half with sign and exponent
    block[1::2] = block[1::2].translate(below_2)
    shards = [[]]
    for tensor in tensors(size):
        if sum(num_bytes(shape) for _, shape in shards[-1]) + num_bytes(tensor[1]) > SHARD:
            shards.append([])
        shards[-1].append(tensor)
    places, start = {}, 0
    for number, shard in enumerate(shards):
        name = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        header, reached = {"__metadata__": {"format": "pt"}}, 0
        for tensor, shape in shard:
            places[tensor] = name
            header[tensor] = {"dtype": "BF16", "shape": shape,
                              "data_offsets": [reached, reached + num_bytes(shape)]}
            reached += num_bytes(shape)
        text = json.dumps(header).encode()
        with open(f"{directory}/{name}", "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for _, shape in shard:
                left, start = num_bytes(shape), (start + 99990) % BLOCK
                while left:
                    piece = memoryview(block)[start : start + min(left, BLOCK - start)]
                    file.write(piece)
                    left -= len(piece)
                    start = (start + len(piece)) % BLOCK
            os.fsync(file.fileno())
    with open(f"{directory}/model.safetensors.index.json", "w") as file:
        json.dump({"metadata": {}, "weight_map": places}, file)
    with open(f"{directory}/config.json", "w") as file:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
                   "hidden_size": size.hidden, "intermediate_size": size.hidden * 43 // 16,
                   "num_hidden_layers": size.layers, "num_attention_heads": size.hidden // 128,
                   "num_key_value_heads": size.hidden // 128, "vocab_size": size.vocab,
                   "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                   "tie_word_embeddings": False, "torch_dtype": "bfloat16"}, file)
    return sum(num_bytes(shape) for _, shape in tensors(size))


def files(directory):
    return [os.path.join(at, name) for at, _, names in os.walk(directory) for name in names]


def forget(directory):
    """Takes files from the page cache, so that each reading is one from the disk."""
    for path in files(directory):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cpu_s(usage):
    return usage.ru_utime + usage.ru_stime


def copy_s(model, work):
    """Copies the files to the disk. @return seconds, and of these those of the processor"""
    forget(model)
    start, before = time.monotonic(), cpu_s(resource.getrusage(resource.RUSAGE_SELF))
    shutil.copytree(model, work + "/copy")
    for path in files(work + "/copy"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    seconds = time.monotonic() - start
    worked = cpu_s(resource.getrusage(resource.RUSAGE_SELF)) - before
    shutil.rmtree(work + "/copy")
    return seconds, worked


def run_s(ranks, work, source, arguments):
    """Runs the program. @return its seconds, those of processors, the largest resident set of a rank in MiB"""
    forget(source)
    start = time.monotonic()
    watched = [sys.executable, os.path.abspath(__file__), "--watch", work + "/peak"]
    subprocess.run(["mpirun", "-n", str(ranks), "--oversubscribe", *watched, os.environ["BRUME"], *arguments],
                   check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - start
    said = [open(f"{work}/peak.{rank}").read().split() for rank in range(ranks)]
    return seconds, sum(float(cpu) for _, cpu in said), max(int(peak) for peak, _ in said) / 1024


def watch(path, command):
    status = subprocess.run(command).returncode
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(f"{path}.{os.environ['OMPI_COMM_WORLD_RANK']}", "w") as file:
        file.write(f"{usage.ru_maxrss} {cpu_s(usage)}")
    return status


def places(directory):
    """File, first byte and bytes of each tensor."""
    found = {}
    for path in files(directory):
        if not path.endswith(".safetensors"):
            continue
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                first, end = entry["data_offsets"]
                found[name] = (path, 8 + length + first, end - first, entry["dtype"], entry["shape"])
    return found


def require_same(one, other):
    ours, theirs = places(one), places(other)
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    for name, (path, first, size, dtype, shape) in ours.items():
        path2, first2, size2, dtype2, shape2 = theirs[name]
        assert (size, dtype, shape) == (size2, dtype2, shape2), name
        with open(path, "rb") as file, open(path2, "rb") as file2:
            file.seek(first)
            file2.seek(first2)
            while size:
                piece = file.read(min(size, BLOCK))
                assert piece == file2.read(len(piece)), f"{name} has come back changed"
                size -= len(piece)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=8000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1, help="of a copy, an import, a copy, an export")
    parser.add_argument("--memory-mib", type=float, default=2048)
    parser.add_argument("--share", type=float, default=0.0, help="of a copy's speed, in the median")
    parser.add_argument("directory", nargs="?", default=None)
    size = parser.parse_args()
    work = tempfile.mkdtemp(dir=size.directory)
    try:
        model, out, run = work + "/model", work + "/out", work + "/run"
        written = write_model(model, size)
        print(f"{written / 1e9:.2f} GB of bf16 in {len(places(model))} tensors", flush=True)
        ways = {"import": (model, ["import", "hf", model, "-o", run]), "export": (run, ["export", "hf", run, "-o", out])}
        shares, peaks = {what: [] for what in ways}, {what: 0 for what in ways}
        for _ in range(size.rounds):
            shutil.rmtree(run, ignore_errors=True)
            for what, (source, arguments) in ways.items():
                copied, worked = copy_s(model, work)
                seconds, cpu, peak = run_s(size.ranks, work, source, arguments)
                shares[what].append(copied / seconds)
                peaks[what] = max(peaks[what], peak)
                print(f"copy {copied:.1f} s, {written / copied / 1e6:.0f} MB/s, processors {worked:.1f} s; {what} {seconds:.1f} s, "
                      f"{shares[what][-1] * 100:.0f} % of its speed, processors {cpu:.1f} s", flush=True)
            require_same(model, out)
            shutil.rmtree(out)
        for what, all_shares in shares.items():
            share = statistics.median(all_shares)
            print(f"{what} {share * 100:.0f} % of a copy's speed in the median, at most {peaks[what]:.0f} MiB a rank")
            assert peaks[what] < size.memory_mib, f"{what} takes more than {size.memory_mib} MiB"
            assert share >= size.share, f"{what} is slower than {size.share} of a copy"
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--watch"]:
        sys.exit(watch(sys.argv[2], sys.argv[3:]))
    main()
