"""serve_lm_eval.py MODEL TMP - lm-eval's local-completions, with the tokenizer that the server offers and
with the one in its folder, on three tasks made here. A text's log-likelihood is the sum of what ptrain
--eval-logprobs says of its tokens; an answer is the one that the server gives when asked directly.

A byte model has no token that begins a text, so lm-eval is given one: a line feed, which also begins every
window of the trainer."""
import json
import os
import subprocess
import sys

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=sys.argv[2] + "/hf")
import lm_eval                                              # noqa: E402: reads the environment
from lm_eval.tasks import TaskManager                       # noqa: E402
from serve_server import Server, claim, finish              # noqa: E402

model, tmp = sys.argv[1:3]
WIDTH, CUT = 64, 20
TEXTS = [f"line {i}: {i * i} is the square of {i}".ljust(WIDTH - 1, ".") + "\n" for i in range(2, 10)]
COMMON = f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {tmp}/docs.jsonl\ntest_split: test\n"
TASKS = {
    "choice": 'output_type: multiple_choice\ndoc_to_text: "{{begin}}"\ntarget_delimiter: ""\ndoc_to_target: 0\ndoc_to_choice: "{{[end, other]}}"\n'
              "metric_list:\n  - metric: acc\n",
    "rolling": 'output_type: loglikelihood_rolling\ndoc_to_text: ""\ndoc_to_target: "{{text}}"\nmetric_list:\n  - metric: byte_perplexity\n',
    "until": 'output_type: generate_until\ndoc_to_text: "{{begin}}"\ndoc_to_target: "{{end}}"\ngeneration_kwargs:\n  until: ["e"]\n  max_gen_toks: 20\n'
             "  temperature: 0\nmetric_list:\n  - metric: exact_match\n",
}


def write_tasks():
    with open(f"{tmp}/docs.jsonl", "w") as f:
        for text, other in zip(TEXTS, TEXTS[1:] + TEXTS[:1]):
            f.write(json.dumps(dict(begin="\n" + text[:CUT], end=text[CUT:-1], other=other[CUT:-1],
                                    text=text)) + "\n")
    for name, text in TASKS.items():
        with open(f"{tmp}/{name}.yaml", "w") as f:
            f.write(f"task: local_{name}\n{COMMON}{text}")


def trainers():
    """ptrain's log-probs of every text after a line feed, and of its beginning followed by the other's
    end."""
    lines = TEXTS + [a[:CUT] + b[CUT:] for a, b in zip(TEXTS, TEXTS[1:] + TEXTS[:1])]
    with open(f"{tmp}/lines", "w") as f:
        f.write("\n" + "".join(lines))
    subprocess.run([os.environ["BIN"] + "/ptrain", "--eval-only", "--init", model, "--eval-data",
                    f"{tmp}/lines", "--seq-len", str(WIDTH),
                    "--eval-logprobs", f"{tmp}/eval.jsonl"], check=True, stdout=subprocess.DEVNULL)
    found = [json.loads(line)["logprobs"][1:] for line in open(f"{tmp}/eval.jsonl")]
    return found[:len(TEXTS)], found[len(TEXTS):]


def compare(backend, samples):
    own, other = trainers()
    for i, x in enumerate(samples["choice"]):
        got = [float(r[0]) for r in x["filtered_resps"]]
        claim(f"{backend}: log-likelihoods are sums of the trainer's",
              got == [sum(w[i][CUT:-1]) for w in (own, other)], (i, got))
    for i, x in enumerate(samples["rolling"]):
        got = x["filtered_resps"][0]
        got = float(got[0] if isinstance(got, (list, tuple)) else got)
        claim(f"{backend}: rolling ones, too", got == sum(own[i]), (i, got, sum(own[i])))
    for text, x in zip(TEXTS, samples["until"]):
        want = s.complete(prompt="\n" + text[:CUT], max_tokens=20, temperature=0,
                          stop=["e"])["choices"][0]["text"]
        claim(f"{backend}: answers are the server's", x["filtered_resps"][0] == want,
              (x["filtered_resps"][0], want))
    claim(f"{backend}: all of each", all(len(v) == len(TEXTS) for v in samples.values()))


write_tasks()
s = Server(model, "--tp", 2)
try:
    for backend in ("remote", f"huggingface,tokenizer={model}"):
        result = lm_eval.simple_evaluate(
            model="local-completions", tasks=[f"local_{n}" for n in TASKS],
            task_manager=TaskManager(include_path=tmp, include_defaults=False),
            model_args=f"model=m,base_url=http://{s.host}:{s.port}/v1/completions,num_concurrent=4,max_length=512,custom_prefix_token_id=10,"
                       f"tokenizer_backend={backend}")
        compare(backend, {n: sorted(result["samples"][f"local_{n}"], key=lambda x: x["doc_id"])
                          for n in TASKS})
finally:
    rc, err = s.stop()
claim("the server ends well", rc == 0, (rc, err))
finish()
