"""rl.py TMP UPDATES TRAINER-LAYOUT SERVER-LAYOUT - reinforcement learning with pserve and ptrain: rollouts
with token ids, versions and log-probs; a reward by a rule; a policy gradient with a weight a token; the new
weights given to the server that runs. On policy the ratio of trainer to rollout is exactly 1 for every
token: the log-probs are the same bits, at other layouts on both sides. The reward rises."""
import json
import os
import subprocess
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from serve_server import Server, bits, claim, finish  # noqa: E402

tmp, updates, trainer, server = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(), sys.argv[4].split()
BIN = os.environ["BIN"]
ADMIN = {"Authorization": "Bearer admin-key"}
PROMPTS = [list(f"line {i}: ".encode()) for i in (3, 14)]
DRAWS, LENGTH = 16, 8                            # answers to a prompt, tokens of each
BATCH = DRAWS * len(PROMPTS)


def ptrain(*args, layout=()):
    p = subprocess.run([f"{BIN}/ptrain", *args, *layout, "--threads", "1"], capture_output=True, text=True)
    if not claim(f"ptrain {args[0]} {args[1]} ends well", p.returncode == 0, p.stderr[-500:]):
        finish()
    return p.stdout


def rollouts(s, update):
    """Answers: prompt, ids, log-probs as they were printed, versions."""
    out = []
    for k, prompt in enumerate(PROMPTS):
        how = {"n": DRAWS, "max_tokens": LENGTH, "seed": 100 * update + k, "logprobs": 0, "ignore_eos": True}
        _, data, _ = s.request("POST", "/inference/v1/generate", {"token_ids": prompt,
                                                                  "sampling_params": how})
        answer = json.loads(data, parse_float=str)
        for c in answer["choices"]:
            out.append((prompt, c["token_ids"], [t["logprob"] for t in c["logprobs"]["content"]],
                        c["token_versions"]))
    return out


def reward(ids):
    """The share of digits."""
    return sum(chr(i).isdigit() for i in ids) / len(ids)


def write(path, answers):
    """The data of an update: the weight of a token is its answer's reward above the mean of its prompt's
    answers; those of the prompt have none."""
    with open(path, "w") as f:
        for i, (prompt, ids, _, _) in enumerate(answers):
            group = [reward(a[1]) for a in answers[i // DRAWS * DRAWS:][:DRAWS]]
            weight = (reward(ids) - sum(group) / DRAWS) / len(ids)
            weights = [0] * len(prompt) + [weight] * len(ids)
            f.write(json.dumps({"ids": prompt + ids, "weights": weights}) + "\n")


policy = f"{tmp}/run/{sorted(os.listdir(f'{tmp}/run'))[-1]}"
s = Server(policy, *server, "--admin-key-file", f"{tmp}/admin-keys")
claim("the server starts", s.port is not None, s.err)
rewards, version = [], json.loads(s.request("GET", "/v1/models")[1])["data"][0]["weight_version"]
for update in range(updates):
    answers = rollouts(s, update)
    rewards.append(sum(reward(a[1]) for a in answers) / len(answers))
    data = f"{tmp}/rollouts-{update}.jsonl"
    write(data, answers)
    claim("every token names the version", {v for a in answers for v in a[3]} == {version}, version)

    # on policy: what the trainer computes for these tokens
    ptrain("--eval-only", "--init", policy, "--eval-data", data, "--seq-len", "32", "--eval-logprobs",
           f"{tmp}/logprobs", layout=trainer)
    lines = [json.loads(line, parse_float=str) for line in open(f"{tmp}/logprobs")]
    n = same = 0
    for (prompt, ids, own, _), line in zip(answers, lines):
        end = len(prompt) + len(ids)
        ours = line["logprobs"][len(prompt):end]
        n += len(ids)
        if line["ids"][:end] == prompt + ids:
            same += sum(bits(a) == bits(b) for a, b in zip(own, ours))
    claim(f"update {update}: the ratio of trainer to rollout is 1 for every token, bit for bit",
          n == same == BATCH * LENGTH and len(lines) == BATCH, (n, same, len(lines)))

    # the update, and the weights that come of it to the server
    how = ["--resume", policy] if update else [
        "--init", policy, "--steps", str(updates + 1), "--global-batch", str(BATCH), "--seq-len", "32",
        "--lr", "2e-3", "--lr-schedule", "constant", "--weight-decay", "0", "--loss-divisor", str(BATCH)]
    out = ptrain(*how, "--data", data, "--stop-after", str(update + 1), "--out", f"{tmp}/policy",
                 layout=trainer)
    digest = json.loads(out.splitlines()[-1])["weights_digest"]
    policy, version = f"{tmp}/policy/step-{update + 1}", 1000 + update
    status, data, _ = s.request("POST", "/admin/reload", {"path": policy, "expect_digest": digest,
                                                          "version": version, "mode": "wait"}, ADMIN)
    claim(f"update {update}: the server has it", status == 200
          and json.loads(data)["weights_digest"] == digest, data)
rewards.append(sum(reward(a[1]) for a in rollouts(s, updates)) / BATCH)
print("rewards: " + " ".join(f"{r:.2f}" for r in rewards), file=sys.stderr)
claim("the reward rises", rewards[-1] > rewards[0] + 0.1, rewards)
rc, err = s.stop()
claim("the server ends well", rc == 0, err)
finish()
