"""llama_turns.py - runs llama.cpp (llama-cpp-python) when it is told to.

usage: llama_turns.py FILE.gguf THREADS [SEQUENCES]
Prints a JSON line {"load_s": …} when the model is loaded, then reads lines from stdin. `decode N`: a prompt of
64 tokens a sequence, then N steps of one token each. `prefill N TIMES`: TIMES prompts of N tokens. Both print
{"step_s": the median step, or time of a prompt}. decode_bench.py calls it, so that its steps lie between
those of others."""
import ctypes
import json
import statistics
import sys
import time

import llama_cpp as L

PROMPT = 64
QUIET = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *a: None)


def fill(batch, tokens, positions, sequences):
    """Rows of a call; the last one, or every one of a step, gives logits."""
    batch.n_tokens = len(tokens)
    for i, (token, position, sequence) in enumerate(zip(tokens, positions, sequences)):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, position, 1, sequence
        batch.logits[i] = positions[0] >= PROMPT or i == len(tokens) - 1


def decode(context, batch):
    begin = time.perf_counter()
    if L.llama_decode(context, batch):
        raise RuntimeError("llama_decode failed")
    L.llama_synchronize(context)
    return time.perf_counter() - begin


def turn(context, batch, n_seq, n_steps, vocab):
    """The median of n_steps steps behind a prompt."""
    L.llama_memory_clear(L.llama_get_memory(context), True)
    for s in range(n_seq):
        fill(batch, [(11 * j + s) % (vocab - 3) + 3 for j in range(PROMPT)], range(PROMPT), [s] * PROMPT)
        decode(context, batch)
    took = []
    for i in range(n_steps):
        tokens = [(13 * i + 5 * s) % (vocab - 3) + 3 for s in range(n_seq)]
        fill(batch, tokens, [PROMPT + i] * n_seq, range(n_seq))
        took.append(decode(context, batch))
    return statistics.median(took)


def prefill(context, batch, n, times, vocab):
    """The median time of a prompt of n tokens."""
    took = []
    for t in range(times):
        L.llama_memory_clear(L.llama_get_memory(context), True)
        fill(batch, [(11 * j + t) % (vocab - 3) + 3 for j in range(n)], range(n), [0] * n)
        took.append(decode(context, batch))
    return statistics.median(took)


def main():
    path, threads = sys.argv[1], int(sys.argv[2])
    n_seq = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    L.llama_log_set(QUIET, None)
    L.llama_backend_init()
    begin = time.perf_counter()
    model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
    p = L.llama_context_default_params()
    p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = 1024 * n_seq, 512, 512, n_seq
    p.n_threads = p.n_threads_batch = threads
    context = L.llama_init_from_model(model, p)
    batch = L.llama_batch_init(512, 0, 1)
    vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    print(json.dumps({"load_s": time.perf_counter() - begin}), flush=True)
    for line in sys.stdin:
        what, n, *more = line.split()
        step_s = (prefill(context, batch, int(n), int(more[0]), vocab) if what == "prefill"
                  else turn(context, batch, n_seq, int(n), vocab))
        print(json.dumps({"step_s": step_s}), flush=True)


main()
