"""mpijob.py FILE.yaml - prints the launcher's command of an MPIJob as one line; fails where the job does not
fit v2beta1 of the MPI operator.

The fields are those of the operator's types.go and of Kubernetes' Job and Pod that a job for training may
use; a field that is not listed is an error: Kubernetes would drop it without a word. The operator's
controller overrides a restartPolicy of the pod template by that of the replica."""
import re
import shlex
import sys

LEVELS = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "metadata": {"name", "namespace", "labels", "annotations"},
    "spec": {"slotsPerWorker", "runPolicy", "mpiReplicaSpecs", "sshAuthMountPath", "launcherCreationPolicy",
             "mpiImplementation"},
    "runPolicy": {"cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit",
                  "schedulingPolicy", "suspend"},
    "mpiReplicaSpecs": {"Launcher", "Worker"},
    "Launcher": {"replicas", "restartPolicy", "template"},
    "Worker": {"replicas", "restartPolicy", "template"},
    "template": {"metadata", "spec"},
    "pod": {"containers", "volumes", "nodeSelector", "tolerations", "affinity",
            "terminationGracePeriodSeconds", "securityContext", "hostNetwork"},
    "containers": {"name", "image", "command", "args", "env", "resources", "volumeMounts", "securityContext",
                   "ports", "workingDir", "imagePullPolicy"},
    "resources": {"limits", "requests"},
    "volumeMounts": {"name", "mountPath", "readOnly", "subPath"},
    "volumes": {"name", "persistentVolumeClaim", "emptyDir", "hostPath", "configMap"},
}


def scalar(text):
    text = text.strip()
    if text[:1] in "\"'":
        return text[1:-1]
    return int(text) if re.fullmatch(r"-?\d+", text) else {"true": True, "false": False}.get(text, text)


def flow(text):
    """A value in one piece: [a, b], {a: b, c: {d: e}} or a scalar."""
    text = text.strip()
    if text[:1] not in "[{":
        return scalar(text)
    parts, depth, at = [], 0, 1
    for i, c in enumerate(text):
        depth += (c in "[{") - (c in "]}")
        if (c == "," and depth == 1) or (c in "]}" and depth == 0):
            if text[at:i].strip():
                parts.append(text[at:i])
            at = i + 1
    if text[0] == "[":
        return [flow(p) for p in parts]
    return {p.split(":", 1)[0].strip(): flow(p.split(":", 1)[1]) for p in parts}


def rows(text):
    """(indent, text) of every line; a bracket that stays open takes the next lines in."""
    out = []
    for line in text.splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).rstrip()
        if not line:
            continue
        if out and out[-1][1].count("[") > out[-1][1].count("]"):
            out[-1][1] += " " + line.strip()
        else:
            out.append([len(line) - len(line.lstrip()), line.strip()])
    return out


def block(lines, indent):
    """The value that begins with lines[0] at this indent: a map or a list."""
    if lines[0][1].startswith("- "):
        found = []
        while lines and lines[0][0] == indent and lines[0][1].startswith("- "):
            head = lines[0][1][2:]
            if re.match(r"[\w.-]+:(\s|$)", head):
                lines[0] = [indent + 2, head]
                found.append(block(lines, indent + 2))
            else:
                found.append(flow(head))
                lines.pop(0)
        return found
    found = {}
    while lines and lines[0][0] == indent and not lines[0][1].startswith("- "):
        key, rest = lines.pop(0)[1].split(":", 1)
        assert key not in found, f"{key} is there twice"
        inner = lines and lines[0][0] >= indent + (not lines[0][1].startswith("- "))
        found[key] = flow(rest) if rest.strip() else block(lines,
                                                           lines[0][0]) if inner and lines[0][0] > indent else {}
    return found


def check(value, level):
    assert set(value) <= LEVELS[level], f"{level or 'the job'} has {', '.join(sorted(set(value) - LEVELS[level]))}"
    for key, inner in value.items():
        name = "pod" if level == "template" and key == "spec" else key
        for item in inner if isinstance(inner, list) else [inner]:
            if name in LEVELS and isinstance(item, dict):
                check(item, name)


lines = rows(open(sys.argv[1], encoding="utf-8").read())
job = block(lines, 0)
assert not lines, f"not read: {lines[0]}"
check(job, "")
spec = job["spec"]
launcher, worker = (spec["mpiReplicaSpecs"][k] for k in ("Launcher", "Worker"))
assert job["apiVersion"] == "kubeflow.org/v2beta1" and job["kind"] == "MPIJob" and re.fullmatch("[a-z0-9-]+",
    job["metadata"]["name"])
assert spec["runPolicy"].get("cleanPodPolicy", "Running") in ("All", "Running", "None")
assert all(r.get("restartPolicy", "Never") in ("Never", "OnFailure")
           for r in (launcher, worker)) and launcher["replicas"] == 1
containers = launcher["template"]["spec"]["containers"] + worker["template"]["spec"]["containers"]
assert len(containers) == 2 and all({"name", "image"} <= set(c) for c in containers)
command = [str(w) for w in containers[0]["command"] + containers[0]["args"]]
assert int(command[command.index("-n") +
                   1]) == worker["replicas"] * spec["slotsPerWorker"], "-n is not workers times slots"
assert {m["name"] for m in containers[1]["volumeMounts"]} == {v["name"]
                                                              for v in worker["template"]["spec"]["volumes"]}
print(shlex.join(command))
