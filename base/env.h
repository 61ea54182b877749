/* env.h - every environment variable that the programs read, as one table. Code asks for a row by its enum;
 * --help, --man and base/README.md print the rows. */
#ifndef SHARDLINE_BASE_ENV_H
#define SHARDLINE_BASE_ENV_H

/* Whom a row is for. --help prints the first two kinds. */
enum env_kind {
    ENV_USER,     /* a setting of Shardline */
    ENV_OTHER,    /* a setting of other software that Shardline follows */
    ENV_LAUNCHER, /* set by the program that started this rank */
    ENV_TEST,     /* for tests: read in base/test_hooks.c only */
    ENV_KINDS
};

/* clang-format off */
/* X(kind, variable, meaning with the default in parentheses) */
#define ENV_LIST(X) \
    X(USER, SHARDLINE_CACHE, "folder of the files fetched from URLs (~/.cache/shardline)") \
    X(USER, SHARDLINE_STALL_S, "seconds without data after which a transfer is retried (20)") \
    X(USER, SHARDLINE_ISA, "CPU kernels: portable, avx2, avx512, avx512bf16, simt (the fastest here)") \
    X(USER, SHARDLINE_PIN, "off: do not bind threads to CPUs") \
    X(USER, SHARDLINE_TRANSPORT, "what --transport auto means: self, shm, mpi or nccl (auto)") \
    X(USER, SHARDLINE_RANKS_PER_NODE, "--ranks-per-node for every program") \
    X(USER, SHARDLINE_HEARTBEAT, "off: a silent rank is no failure, for work with a debugger") \
    X(USER, SHARDLINE_NCCL, "the NCCL library (libnccl.so.2)") \
    X(USER, SHARDLINE_CUDA, "GPU products by: simt, own, lt, mma, wgmma (own; --numerics fast: lt)") \
    X(USER, SHARDLINE_WGMMA, "preferred tile of wgmma: 128x256, 128x128, 128x64, 64x64, 64x32") \
    X(USER, SHARDLINE_CUBLASLT, "the cuBLASLt library (libcublasLt.so.13, .12)") \
    X(USER, SHARDLINE_CUBLASLT_TABLE, "file of cuBLASLt's algorithms, chosen by time") \
    X(USER, SHARDLINE_CUBLASLT_TUNE, "1: time cuBLASLt's algorithms and write that file") \
    X(USER, SHARDLINE_CUBLASLT_LOG, "file that gets a line for every algorithm chosen") \
    X(OTHER, HOME, "where .cache and .aws are") \
    X(OTHER, XDG_CACHE_HOME, "folder of caches (~/.cache)") \
    X(OTHER, TMPDIR, "folder of the replicas' socket (/tmp)") \
    X(OTHER, TERM, "dumb: no live line is drawn") \
    X(OTHER, NO_COLOR, "set: no colours") \
    X(OTHER, HF_TOKEN, "token for hf:// URLs") \
    X(OTHER, HF_TOKEN_PATH, "file with that token (the file token in HF_HOME)") \
    X(OTHER, HF_HOME, "folder of Hugging Face (~/.cache/huggingface)") \
    X(OTHER, HF_ENDPOINT, "server of hf:// URLs (https://huggingface.co)") \
    X(OTHER, AWS_ACCESS_KEY_ID, "key for s3:// URLs (the one of the profile)") \
    X(OTHER, AWS_SECRET_ACCESS_KEY, "its secret") \
    X(OTHER, AWS_SESSION_TOKEN, "its session, for temporary keys") \
    X(OTHER, AWS_PROFILE, "profile to take the key from (default)") \
    X(OTHER, AWS_SHARED_CREDENTIALS_FILE, "file of the profiles (~/.aws/credentials)") \
    X(OTHER, AWS_REGION, "region of s3:// URLs (AWS_DEFAULT_REGION)") \
    X(OTHER, AWS_DEFAULT_REGION, "region of s3:// URLs (us-east-1)") \
    X(OTHER, AWS_ENDPOINT_URL_S3, "server of s3:// URLs (AWS_ENDPOINT_URL)") \
    X(OTHER, AWS_ENDPOINT_URL, "server of s3:// URLs (the region's at Amazon)") \
    X(LAUNCHER, SHARDLINE_STDERR_TTY, "--ranks: 1 when stderr of the first process is a terminal") \
    X(LAUNCHER, SHARDLINE_LAUNCHER, "--ranks: the first process, with which the ranks end") \
    X(LAUNCHER, OMPI_COMM_WORLD_RANK, "Open MPI: number of this rank") \
    X(LAUNCHER, OMPI_COMM_WORLD_SIZE, "Open MPI: number of ranks") \
    X(LAUNCHER, OMPI_COMM_WORLD_LOCAL_RANK, "Open MPI: number of this rank on its machine") \
    X(LAUNCHER, PMIX_RANK, "PMIx: number of this rank") \
    X(LAUNCHER, PMIX_LOCAL_RANK, "PMIx: number of this rank on its machine") \
    X(LAUNCHER, PMI_RANK, "PMI: number of this rank") \
    X(LAUNCHER, PMI_SIZE, "PMI: number of ranks") \
    X(LAUNCHER, SLURM_STEP_NUM_TASKS, "Slurm: number of ranks of this step") \
    X(LAUNCHER, SLURM_NTASKS, "Slurm: number of ranks of the job") \
    X(LAUNCHER, SLURM_LOCALID, "Slurm: number of this rank on its machine") \
    X(TEST, SHARDLINE_IO_FAULT, "op:N:ERRNO: the N-th operation of this kind fails") \
    X(TEST, SHARDLINE_IO_SLOW, "milliseconds that every write and fsync takes longer") \
    X(TEST, SHARDLINE_IO_STALL, "op:N:MS: the N-th operation of this kind takes MS milliseconds longer") \
    X(TEST, SHARDLINE_IO_SHORT, "set: blocks of offloaded state are read and written in halves") \
    X(TEST, SHARDLINE_AIO, "threads: no io_uring for offloaded state") \
    X(TEST, SHARDLINE_MAP, "off: folders are read, not mapped; rows: not packed; MS: a matrix every MS") \
    X(TEST, SHARDLINE_LARGE_FOLIOS, "off: mapped files count as lying in small pages") \
    X(TEST, SHARDLINE_IO_RECORD, "file that gets a record of every operation that changes files") \
    X(TEST, SHARDLINE_MEMORY_ROOM, "bytes of free memory that the machine is taken to have") \
    X(TEST, SHARDLINE_MACHINE_ROOT, "folder that holds the proc and sys which tell the machine's memory") \
    X(TEST, SHARDLINE_DEVICE, "shared library with the device that --device cuda opens") \
    X(TEST, SHARDLINE_DRAFTER, "--speculate guesses by: ngram, random, replay; as much as it may") \
    X(TEST, SHARDLINE_ANSWER, "file with the text that every answer of pserve has") \
    X(TEST, SHARDLINE_ALTER, "the sum whose order the altered build changes")
/* clang-format on */

enum env {
#define X(kind, name, meaning) ENV_##name,
    ENV_LIST(X)
#undef X
        ENV_COUNT
};

struct env_row {
    enum env_kind kind;
    const char *name, *meaning;
};
extern const struct env_row env_table[ENV_COUNT];

/* Value of the variable: borrowed from the environment. NULL: unset or empty. */
const char *env_get(enum env v);

#endif
